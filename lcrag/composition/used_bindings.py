"""Rejects command-line bindings that have no effect.

Bindings in gin files may be unused, because the same file serves several commands.
"""

from collections.abc import Sequence

from gin import config as gin_config

from lcrag.composition.gin_files import Binding, Import, read_bindings
from lcrag.errors import UserError

_TYPED: list[Binding] = []  # bindings of the running command, which must be used before its results are written


def expect_use(typed: Sequence[str]) -> None:
    """Records the bindings of the command line, as `Name.parameter = value`, for `check_used`."""
    _TYPED[:] = [each for each in read_bindings(typed) if not isinstance(each, Import)]


def check_used() -> None:
    """Checks that every command-line binding has been used by the objects that the command has built so far.

    Raises:
      UserError: a binding was not used.
    """
    for binding in _TYPED:
        if not _is_used(binding):
            hint = _alternatives(binding)
            raise UserError(
                f"--gin.{binding.key} has no effect: nothing that this command built uses it{hint}; leave it out, or"
                " keep it with --allow_unused"
            )


def mark_used(name: str, *only: str) -> None:
    """Marks the bindings of a configurable, or of some of its parameters, as used, although gin does not call it."""
    bound = gin_config.get_bindings(name, resolve_references=False)
    bound = {parameter: value for parameter, value in bound.items() if not only or parameter in only}
    selector = gin_config._REGISTRY.get_match(name).selector
    gin_config._OPERATIVE_CONFIG.setdefault(("", selector), {}).update(bound)


def _is_used(binding: Binding) -> bool:
    if not binding.parameter:
        return (binding.key, "gin.macro") in gin_config._OPERATIVE_CONFIG
    key = gin_config.ParsedBindingKey.parse(binding.key)
    return any(
        selector == key.complete_selector and key.arg_name in used and key.scope == _bound_in(scope, selector, key)
        for (scope, selector), used in gin_config._OPERATIVE_CONFIG.items()
    )


def _bound_in(scope: str, selector: str, key: gin_config.ParsedBindingKey) -> str | None:
    """Returns the longest prefix of `scope` that binds the parameter, whose binding applies to a call in `scope`."""
    parts = scope.split("/") if scope else []
    beginnings = ("/".join(parts[:length]) for length in range(len(parts), -1, -1))
    bound = (each for each in beginnings if key.arg_name in gin_config._CONFIG.get((each, selector), {}))
    return next(bound, None)


def _alternatives(binding: Binding) -> str:
    """Returns a hint that names used bindings of parameters with the same name."""
    if not binding.parameter:
        return ""
    names = {
        "/".join(filter(None, (scope, selector.rpartition(".")[2]))) + f".{binding.parameter}"
        for (scope, selector), used in gin_config._OPERATIVE_CONFIG.items()
        if binding.parameter in used
    }
    return f" (used are {', '.join(sorted(names)[:4])})" if names - {binding.key} else ""
