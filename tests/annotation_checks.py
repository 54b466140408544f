"""Checks annotations of lcrag's functions at every call, in tests only."""

import beartype
import jaxtyping

from lcrag.errors import WrongValue

_jaxtyped = jaxtyping.jaxtyped


class WrongType(WrongValue, TypeError):
    """An argument of a wrong type: a TypeError as to Python itself, and where a person bound it their mistake."""


checked = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True, is_color=False, violation_type=WrongType))


def install():
    """Checks every module of lcrag that is imported from now on, at the costs of `_affordable`."""
    jaxtyping.jaxtyped = _affordable
    jaxtyping.install_import_hook("lcrag", "annotation_checks.checked")


def _affordable(typechecker):
    """Stands in for `jaxtyping.jaxtyped`, which would take half of the suite's time.

    Only functions with arrays need a memory of shapes, at some twenty microseconds a call. Functions within functions
    are not checked: the check would be made anew, in a millisecond, each time that the outer one runs.
    """

    def decorated(subject):
        if "checks_types" in vars(subject):  # a class that is `typed`, and raises a UserError
            return subject
        if isinstance(subject, type):
            return _jaxtyped(subject, typechecker=typechecker)
        # A range is checked by `typed`, which raises a UserError.
        if "<locals>" in subject.__qualname__ or "beartype.vale" in repr(subject.__annotations__):
            return subject
        if "jaxtyping." in repr(subject.__annotations__):
            return _jaxtyped(subject, typechecker=typechecker)
        return checked(subject)

    return decorated
