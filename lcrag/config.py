"""gin: where its files are, the engine's classes as configurables, and its errors as one sentence.

A file, named on the command line or included, is looked up in the working directory first, and then among the
configurations that come with lcrag (`gin/` in the repository, `lcrag/gin` in a wheel). A module that a file imports may
be in the working directory. Everything outside the engine is
decorated with `@gin.configurable` where it is defined; `register` imports it.
"""

import codecs
import contextlib
import functools
import importlib.abc
import importlib.machinery
import inspect
import logging
import os
import re
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import gin

from lcrag.errors import TRAIL, AbsentError, UserError, check_arguments, closest, one_line
from lcrag.runs.folder import Macro, expect_used, parse_statements

PACKAGE = Path(__file__).resolve().parent
DEFAULTS = "defaults.gin"  # among the configurations that come with lcrag; see there
NO_VALUE = re.compile(
    r"(?P<function>\w+)(\.__init__)?\(\) missing \d+ required [a-z-]+ arguments?: (?P<parameters>.*)"
    rf"(?s:.*?){TRAIL} '(?P<name>[^']+)' \((?P<called>.*)\)"
)
NO_PARAMETER = re.compile(r"Configurable '(?P<of>[^']+)' doesn't have a parameter named '(?P<name>[^']+)'")
NO_MACRO = re.compile(r"No bindings specified for '(\w+)/gin\.macro'")
NOWHERE = re.compile(r"No configurable matching (?:reference )?'?@?(?P<name>[\w./]+)")


def packaged_folder() -> Path:
    """Returns the folder of the configurations that come with lcrag."""
    inside = PACKAGE / "gin"
    return inside if inside.is_dir() else PACKAGE.parent / "gin"


def packaged_names(folder: Path | None = None) -> list[str]:
    """Returns the names, as for `--gin_file`, of all configurations that come with lcrag, or of those in a folder."""
    folder = folder or packaged_folder()
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.gin"))


# Modules with configurables that gin files may name; importing them takes the seconds of JAX and TensorFlow.
MODULES = """
    atlas.comprehension atlas.world
    commands.benchmark commands.compile commands.curate commands.describe commands.evaluate
    commands.export commands.index commands.report commands.sample
    commands.serve
    curation.players curation.playing curation.rows
    data.constructed data.english data.multilingual data.questions data.rows data.sources
    episodes.searches
    methods.baselines.d_rag methods.baselines.rag methods.baselines.searches
    methods.globalrag.analysis methods.globalrag.golden methods.globalrag.plans methods.globalrag.program
    methods.globalrag.rewards methods.lcrl.program methods.r_search.players methods.r_search.program
    methods.r_search.rewards methods.rag_r1.curation methods.rag_r1.program methods.translate_r1.costs
    methods.translate_r1.oracles methods.translate_r1.pipeline methods.translate_r1.program
    models.completers models.translators
    retrieval.collections retrieval.passages retrieval.qdrant retrieval.remote retrieval.service retrieval.web
    train.evaluation train.method train.rl train.rollout train.sft
""".split()


class ModulesHere(importlib.abc.MetaPathFinder):
    """Finds modules of the working directory, which Python does not look for when a command was installed.

    The directory is not put on Python's path: gin would take a folder in it, such as data/, for a package.
    """

    def find_spec(self, fullname, path, target=None):
        spec = importlib.machinery.PathFinder.find_spec(fullname, [os.getcwd()]) if path is None else None
        return spec if spec is not None and spec.origin else None


@functools.cache
def register() -> None:
    """Makes every configurable known to gin: the engine's here, all others where they are defined."""
    for module in MODULES:
        importlib.import_module(f"lcrag.{module}")
    from lcrag import episodes, learning, policy, sampling
    from lcrag.data.rows import question_judgements
    from lcrag.learning.update import adamw
    from lcrag.policy.config import Computation
    from lcrag.rewards.domains import domain_reward
    from lcrag.rewards.terms import answer_only
    from lcrag.runs.folder import Trackers

    called = (episodes.Chat, episodes.Runner, sampling.Sampler)
    for function in (*called, answer_only, domain_reward, question_judgements):
        gin.external_configurable(function, module="lcrag")
    gin.external_configurable(policy.make_mesh, "mesh", module="lcrag")
    gin.external_configurable(policy.load_policy, "policy", module="lcrag")
    classes = (learning.Critic, learning.Layout, learning.PolicyGradient, learning.Supervised, adamw)
    for made in (*classes, policy.DecoderConfig, policy.RopeScaling, policy.Lora, Computation, Trackers):
        gin.register(made, module="lcrag")
    gin.add_config_file_search_path(str(packaged_folder()))
    sys.meta_path.append(ModulesHere())


NAMED = {
    "make_mesh": "mesh",
    "load_policy": "policy",
    "compile_programs": "compile",
}  # functions with another name in gin files
# What the caller gives to a program or a restriction of collections, and to a command, by the first parameter.
CALLER_GIVES = {"question": {"question", "collections", "languages"}, "output_dir": {"output_dir", "words"}}


def configurables() -> dict[str, Callable[..., Any]]:
    """Returns by its name in gin files every function and class of lcrag that they configure."""
    register()
    by_name = {}
    for module in [module for name, module in sorted(sys.modules.items()) if name.startswith("lcrag.")]:
        for value in vars(module).values():
            if getattr(value, "__module__", None) == module.__name__ and hasattr(value, "__name__"):
                name = NAMED.get(value.__name__, value.__name__)
                with contextlib.suppress(ValueError):  # it is not registered
                    if gin.get_configurable(value) is gin.get_configurable(name):
                        by_name[name] = value
    return dict(sorted(by_name.items()))


def parameter_table() -> list[tuple[str, str]]:
    """Returns every parameter that gin files may bind, with its default, and the file, line and name of its owner."""
    rows = []
    for name, value in configurables().items():
        defined = inspect.unwrap(value)
        path = Path(inspect.getfile(defined)).relative_to(PACKAGE.parent)
        place = f"{path}:{inspect.getsourcelines(defined)[1]} {defined.__name__}"
        kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        signature = inspect.signature(value).parameters.values()
        parameters = [parameter for parameter in signature if parameter.kind not in kinds]
        given = CALLER_GIVES.get(parameters[0].name, set()) if parameters else set()
        bound = [parameter for parameter in parameters if parameter.name not in given]
        for parameter in bound:
            value = parameter.default
            default = textwrap.shorten(getattr(value, "__name__", repr(value)), 50, placeholder=" ...")
            shown = value is not parameter.empty and default != "<factory>"  # which a class makes
            rows.append((f"{name}.{parameter.name}{f' = {default}' if shown else ''}", place))
        rows += [] if bound else [(name, place)]
    return rows


def configure(gin_files: Sequence[str], bindings: Sequence[str] = (), *, must_be_used: Sequence[str] = ()) -> None:
    """Parses files and bindings, in this order, after `defaults.gin`, into gin's configuration, which it replaces.

    Args:
      gin_files: Values of `--gin_file`.
      bindings: Statements as after `--gin.`: `policy.folder = "exported"`.
      must_be_used: Those of `bindings` that `check_used` refuses if they have no effect.
    """
    register()
    gin.clear_config()
    gin.parse_config_file(str(packaged_folder() / DEFAULTS))
    parsed = []
    for name in gin_files:
        with as_sentence(f"--gin_file={name}"):
            parsed.append(gin.parse_config_file(name))
    for binding in bindings:
        with as_sentence(f"--gin.{binding.replace(' = ', '=', 1)}"):
            gin.parse_config(binding)
    with as_sentence("the configuration"):
        gin.finalize()
    expect_used(must_be_used)

    files = list(_in_order(parsed))
    if not any(binding.startswith("Sampler.context") for binding in bindings):
        _check_context(files)

    # A macro that is set and not used is often a misspelt or a missing name. Those of wiring.gin are for any program,
    # which may use some.
    text = "\n".join([*bindings, *(text for _, text in files)])
    used = set(re.findall(r"%(\w+)", text))
    used |= {name for file, text in files if file == "wiring.gin" for name in _macros(text)}
    for name in _macros(text) - used:
        hint = closest(name, used) or "; a parameter is written Name.parameter"
        raise UserError(f"{name} is set, but no binding uses %{name}{hint}")


def _in_order(files: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Yields name and text of parsed files and of what they include, which comes before what they say themselves."""
    for file in files:
        yield from _in_order(file.includes)
        places = (path for path in (Path(file.filename), packaged_folder() / file.filename) if path.is_file())
        if (place := next(places, None)) is None:
            raise UserError(f"the gin file {file.filename} is in a Python package, where gin looks too: give its path")
        yield file.filename, place.read_text(encoding="utf-8")


CONTEXT = re.compile(r"^Sampler\.context *= *(\d[\d_]*)", re.MULTILINE)


def _macros(text: str) -> set[str]:
    """Returns the macros that a configuration sets."""
    return {name for name in parse_statements(text) if name.isidentifier()}


def _check_context(files: Sequence[tuple[str, str]]) -> None:
    """Refuses a platform that follows an experiment and lowers the context that this needs; takes names and texts."""
    contexts = [(name, int(given)) for name, text in files for given in CONTEXT.findall(text)]
    (experiment, needed), (platform, left) = contexts[-2:] if len(contexts) > 1 else [("", 0)] * 2
    if left < needed and is_platform(platform) and not is_platform(experiment):
        raise UserError(
            f"{platform} would lower the Sampler.context of {experiment} from {needed:,} to {left:,}: name {platform}"
            f" first, and {experiment} after it"
        )


def is_platform(name: str) -> bool:
    return Path(name).parent.name == "platform"


def check_types(named: Mapping[str, Sequence[tuple[str, Any]]]) -> None:
    """Checks before anything is built the numbers and texts that are bound; see `check_named` and `typed`."""
    for name, bound in named.items():
        with contextlib.suppress(ValueError, NameError):  # it is a method of a test, or has types for mypy only
            configured = gin.get_configurable(name)
            if getattr(configured, "checks_types", False):
                check_arguments(name, configured, bound)


GIN_ERRORS = (ValueError, KeyError, TypeError, SyntaxError, RuntimeError, ImportError, AttributeError)


@contextlib.contextmanager
def as_sentence(place: str) -> Iterator[None]:
    """Turns gin's exceptions into a UserError that names the file and line, or the binding."""
    logging.disable(logging.ERROR)  # gin logs every place where it has not found a file
    try:
        yield
    except UserError:
        raise
    except RecursionError:  # gin has wrapped its message once for every include
        raise UserError(f"{place}: a gin file includes itself") from None
    except OSError as error:
        missing = re.search(r"Unable to open file: (.+?)\. Searched", str(error), re.DOTALL)
        if missing is None:
            raise UserError(f"{place} cannot be read: {error.strerror or error}") from error
        name = missing[1]
        hint = closest(name, packaged_names()) or "; `lcrag list` shows them"
        raise UserError(
            f"{place}: the gin file {name} is neither here nor among those that come with lcrag{hint}"
        ) from error
    except (tokenize.TokenError, *GIN_ERRORS) as error:
        message = str(error.args[0] if isinstance(error, KeyError) and error.args else error)
        at = re.search(r'In file "(?P<file>[^"]*)", line (?P<line>\d+)', message)
        where = f"{at['file']}:{at['line']}" if at and place.startswith("--gin_file") else place
        what = message.split("\n")[0]
        if unknown := NOWHERE.search(what):
            packaged = "\n".join((packaged_folder() / name).read_text(encoding="utf-8") for name in packaged_names())
            names = set(re.findall(r"([A-Za-z_]\w*)\.\w+ =", packaged))
            what = f"there is nothing called {unknown['name']}{closest(unknown['name'].rpartition('/')[2], names)}"
        elif unset := NO_MACRO.search(what):
            what = f"nothing sets %{unset[1]}, which is used: name the file of an experiment before this part of one"
        elif unknown := NO_PARAMETER.search(what):
            parameters = inspect.signature(gin.get_configurable(unknown["of"])).parameters
            hint = closest(unknown["name"], parameters) or f"; `lcrag list --parameters {unknown['of']}` shows them"
            what = f"{unknown['of']} has no parameter {unknown['name']}{hint}"
        elif (
            isinstance(error, SyntaxError)
            and (file := Path(error.filename or "")).is_file()
            and file.read_bytes().startswith(codecs.BOM_UTF8)
        ):
            what = f"{error.filename} begins with a byte order mark, which gin does not read: save it without one"
        elif isinstance(error, tokenize.TokenError):
            what = "a bracket, or a text in three quotes, is opened and not closed"
        elif isinstance(error, SyntaxError) and str(error.filename).endswith(".py"):  # a module that a file imports
            where, what = f"{error.filename}:{error.lineno}", f"Python does not read this line: {error.msg}"
        elif isinstance(error, SyntaxError):
            if place.startswith("--gin_file") and error.filename:
                where = f"{error.filename}:{error.lineno}"
            what = re.sub("(?s:.*)Failed to parse token ('.*')(?s:.*)", r"\1 is no value", error.msg).rstrip(".")
            what += "; a text needs quotes (NAME.parameter='\"text\"' in a shell), True, False and None a capital"
        elif isinstance(error, TypeError) and "PathLike" in what:  # gin looks for files in Python's packages too
            what = (
                "a folder named like one of gin's, such as lcrl/, lies on Python's path, where gin takes it for a"
                " package: run lcrag in another folder, or without this one in PYTHONPATH"
            )
        raise UserError(f"{where}: {one_line(what)}") from error
    finally:
        logging.disable(logging.NOTSET)


@contextlib.contextmanager
def missing_as_sentence() -> Iterator[None]:
    """Turns the exception for a parameter without a value into a UserError; names the macro of a refused value."""
    try:
        yield
    except UserError as error:
        refused = re.match(r"(?:\w+/)*(\w+\.\w+)(?= is [^ ]+:)", str(error))
        values = parse_statements(gin.config_str()) if refused else {}
        macros = [value for key, value in values.items() if refused and key.rpartition("/")[2] == refused[1]]
        if refused is None or not macros or not isinstance(macros[0], Macro):
            raise
        raise UserError(f"{refused[0]}, which {macros[0]} sets,{str(error)[refused.end() :]}") from error
    except (TypeError, RuntimeError) as error:
        message = str(error)
        match = NO_VALUE.search(message)
        if match is None:
            raise
        names = match["called"], inspect.unwrap(gin.get_configurable(match["name"])).__name__
        if not any(match["function"] in name for name in names):
            raise  # a wrong call inside a configurable, which no binding can correct
        called = re.search(rf"{TRAIL} '{match['name'].rpartition('.')[2]}' \(.*\) in scope '([^']+)'", message)
        name = f"{called[1]}/{match['name']}" if called else match["name"]
        raise no_value(name, re.findall(r"'(\w+)'", match["parameters"])) from error


def no_value(name: str, parameters: Sequence[str]) -> AbsentError:
    """Returns the error for parameters of the configurable `name` that have no value."""
    first, *others = parameters
    more = f" (nor have {', '.join(others)})" if others else ""
    return AbsentError(f"{name}.{first} has no value{more}: bind it in a gin file or with --gin.{name}.{first}=VALUE")
