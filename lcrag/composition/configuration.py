"""Checks a configuration, parses it with gin and turns gin's exceptions into a UserError."""

import contextlib
import importlib
import re
from collections.abc import Iterator, Sequence

import gin

from lcrag.composition.bindings import check_bindings
from lcrag.composition.gin_files import Binding, Import, read_bindings, read_file
from lcrag.errors import UserError
from lcrag.runs.configuration import check_used, expect_used

GIN_TRAIL = "\n  In call to configurable"
# The first is gin's message for a parameter marked as required, the second Python's for one without a default.
REQUIRED = re.compile(r"Required bindings for `(?P<name>[^`]+)` not provided in config: (?P<parameters>.*)")
NO_DEFAULT = re.compile(
    r"(?P<function>\w+)(\.__init__)?\(\) missing \d+ required [a-z-]+ arguments?: (?P<parameters>.*)"
    rf"(?s:.*?){GIN_TRAIL} '(?P<name>[^']+)' \((?P<called>.*)\)"
)


def read_configuration(gin_files: Sequence[str], bindings: Sequence[str]) -> list[Binding | Import]:
    """Returns every statement in the order in which it takes effect; imports nothing.

    Raises:
      UserError: A file is missing or a statement cannot be read.
    """
    statements = [statement for name in gin_files for statement in read_file(name)]
    return [*statements, *read_bindings(bindings)]


def configure(statements: Sequence[Binding | Import]) -> None:
    """Checks the statements against the registered configurables and makes them gin's configuration.

    Raises:
      UserError: a binding names something unknown, has the wrong type or is rejected by gin.
    """
    expect_used(())
    for statement in statements:
        if isinstance(statement, Import):
            _import(statement)
    check_bindings([statement for statement in statements if isinstance(statement, Binding)])
    try:
        gin.parse_config("\n".join(map(str, statements)))
        gin.finalize()
    except (ValueError, KeyError, TypeError, SyntaxError, RuntimeError) as error:
        raise UserError(one_line(str(error))) from error


def operative_config() -> str:
    """Returns the bindings that have been used so far as the text of a gin file.

    Raises:
      UserError: a binding of the command line was not used.
    """
    check_used()
    return gin.operative_config_str()


def _import(statement: Import) -> None:
    try:
        importlib.import_module(statement.module)
    except ModuleNotFoundError as error:
        raise UserError(f"{statement.place}: there is no module {error.name} to import") from error


@contextlib.contextmanager
def missing_as_sentence() -> Iterator[None]:
    """Replaces gin's and Python's exceptions for a parameter without a value by a UserError.

    Raises:
      UserError: a parameter has no value.
    """
    try:
        yield
    except (TypeError, RuntimeError) as error:
        message = str(error)
        found = REQUIRED.search(message) or NO_DEFAULT.search(message)
        if found is None or (found.re is NO_DEFAULT and found["function"] not in found["called"]):
            raise  # a wrong call inside a configurable, which no binding can correct
        called = re.search(rf"{GIN_TRAIL} '{found['name'].rpartition('.')[2]}' \(.*\) in scope '([^']+)'", message)
        name = f"{called[1]}/{found['name']}" if called else found["name"]
        raise no_value(name, re.findall(r"'(\w+)'", found["parameters"])) from error


def no_value(name: str, parameters: Sequence[str]) -> UserError:
    """Returns the UserError for parameters of the configurable `name` that have no value."""
    first, *others = parameters
    more = f" (nor have {', '.join(others)})" if others else ""
    return UserError(f"{name}.{first} has no value{more}: bind it in a gin file or with --gin.{name}.{first}=VALUE")


def one_line(message: str) -> str:
    """Returns a message on one line, without the call trace that gin appends."""
    return " ".join(message.split(GIN_TRAIL)[0].split())
