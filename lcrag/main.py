"""The `lcrag` command: `lcrag COMMAND --gin_file=FILE [--gin.Name.parameter=value] [--output_dir=FOLDER]`.

A command is a function, of `lcrag.app.composition` but for `list`, called as `function(output_dir, words)` once
gin holds its configuration. What can be checked without importing JAX is checked first.
"""

import dataclasses
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lcrag.app.cli.arguments import Arguments, closest, split_arguments
from lcrag.app.cli.catalogue import described, experiments, parts
from lcrag.app.cli.quiet import silence_libraries
from lcrag.app.composition.configuration import configure, missing_parameter, one_line, read_configuration
from lcrag.app.runs.folder import CONFIG
from lcrag.app.runs.stopping import exit_status, stopped_by_signals
from lcrag.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """One command.

    Attributes:
      function: Where it is, `module:name`.
      summary: What it does, for the list of commands.
      words: What may follow the command, as the usage line shows it; empty: nothing.
      gin_file: The configuration used when none is named; empty: one must be named.
      of_run: Whether the first word is a run's folder, whose config.gin is the configuration used when none is named.
      bindings: Statements added behind the files, which bindings of the command line override.
      options: Options that it alone has: the parameter of gin that takes the text of each.
      switches: Options without a value that it alone has: the gin statement that each stands for.
      details: What else `lcrag COMMAND --help` says.
      marks: What a configuration binds that is an experiment of this command, for its help; see `experiments`.
      configured: Whether gin configures it.
    """

    function: str
    summary: str
    words: str = ""
    gin_file: str = ""
    of_run: bool = False
    bindings: tuple[str, ...] = ()
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    switches: Mapping[str, str] = dataclasses.field(default_factory=dict)
    details: str = ""
    marks: tuple[str, ...] = ()
    configured: bool = True


# Of commands that read data files, where a row that cannot be used ends the command otherwise.
SKIP_BAD_ROWS = {"--skip_bad_rows": "BadRows.skip = True"}
ABOUT_BAD_ROWS = "--skip_bad_rows leaves out the rows of data files that cannot be used, and says how many there were."

COMMANDS = {
    "train": Command(
        function="lcrag.app.composition.commands:train",
        summary="Reinforcement learning of a policy that searches; run again to continue",
        details="Writes config.gin, run.json, metrics.jsonl, episodes/ and checkpoints/ into --output_dir.\n"
        "SIGTERM and Ctrl-C save the last finished step; the same command continues from the last checkpoint.\n"
        f"{ABOUT_BAD_ROWS}",
        switches=SKIP_BAD_ROWS,
        marks=("train.policy",),
    ),
    "sft": Command(
        function="lcrag.app.composition.commands:sft",
        summary="Supervised fine-tuning of a policy on demonstrations; run again to continue",
        details="Stops at the lowest validation loss, and saves its policy as policy/ in --output_dir,\n"
        "beside config.gin, run.json, metrics.jsonl and checkpoints/. Rows of one's own:\n"
        "  lcrag sft --gin_file=quickstart.gin --gin_file=baselines/sft.gin --gin_file=data/demonstrations.gin \\\n"
        "    --gin.demonstration_files.files='(\"rows.jsonl\",)' --output_dir=FOLDER\n"
        f"{ABOUT_BAD_ROWS}",
        switches=SKIP_BAD_ROWS,
        marks=("sft.policy",),
    ),
    "evaluate": Command(
        function="lcrag.app.composition.commands:evaluate",
        summary="Metrics of a policy on held-out questions, by language",
        details="Writes evaluation.json into --output_dir, and into its answers/ every answer and the configuration.\n"
        f"{ABOUT_BAD_ROWS}",
        switches=SKIP_BAD_ROWS,
        marks=("evaluate.policy",),
    ),
    "sample": Command(
        function="lcrag.app.composition.commands:sample",
        summary="Answers one question, showing who wrote what",
        words="QUESTION",
        marks=("sample.policy",),
    ),
    "report": Command(
        function="lcrag.app.composition.commands:report",
        summary="The tables and plots of several runs, or report.md again for one",
        words="[RUN ...] [--against=METHOD] [--axis=Name.parameter]",
        gin_file="report.gin",
        marks=("compare_runs.order",),
        options={"--against": "compare_runs.against", "--axis": "compare_runs.axis"},
        details="RUN is the folder of a run or of evaluations, or one that holds some. Runs of one method are\n"
        "averaged, and report.md, tables.tex and plots written into --output_dir. --against names the method that\n"
        "all others are tested against, --axis the binding that a study varies. Without RUN the report of the run\n"
        "in --output_dir is written again; --gin_file is then the configuration that it was evaluated with.",
    ),
    "serve": Command(
        function="lcrag.app.composition.commands:serve",
        summary="Answers /retrieve over HTTP, as Search-R1's clients ask, until it is told to stop",
        gin_file="serve.gin",
        marks=("serve",),
        switches={"--tool": "serve.tool = @search_tool()", "--stdio": "serve.transport = 'stdio'"},
        details="Listens on 127.0.0.1:8000 unless serve.host and serve.port say otherwise. Name the collections with\n"
        "--gin.load_collections.folder='\"FOLDER\"', or serve the built-in world's with\n"
        "--gin.serve.collections='@atlas_collections()'.\n"
        "--tool serves an experiment's policy that searches as well: /search_tool takes a question and returns\n"
        "evidence, passages and answer, and agents find it by MCP at /mcp (pip install 'lcrag[mcp]').\n"
        "--stdio serves the tool, instead of all this, to the one agent that starts this command.\n"
        "--gin_file=serve.gin --gin.serve.collections=None --gin.serve.translator=@EndpointTranslator() serves a translator instead, at /translate.",
    ),
    "index": Command(
        function="lcrag.app.composition.commands:index",
        summary="Builds a collection per language from dumps, articles or passages; run again to continue",
        words="[LANGUAGE ...]",
        gin_file="index.gin",
        marks=("index",),
        details='Name the sources with --gin.index.sources=\'{"fi": "fiwiki-latest-pages-articles.xml.bz2"}\', and\n'
        "the encoder with --gin.index.encoder='\"FOLDER\"'. The same command continues after an interruption;\n"
        "what is embedded stays embedded. Judgements (judgements/*.gin) measure the retrieval once all is built.\n"
        f"{ABOUT_BAD_ROWS}",
        switches=SKIP_BAD_ROWS,
    ),
    "curate": Command(
        function="lcrag.app.composition.commands:curate",
        summary="Makes training data: demonstrations for sft, questions for train; run again to continue",
        words="demonstrations|selection|translations|golden_plans",
        details="demonstrations: a teacher plays a program; right episodes become rows.jsonl for `lcrag sft`.\n"
        "selection: questions whose demonstration was wrong are sampled, and those that can be answered written with\n"
        "some easy ones into train.jsonl and validation.jsonl, which `lcrag train` reads by data/jsonl_training.gin.\n"
        "translations: questions in other languages, checked by translating back; questions.jsonl holds them.\n"
        "golden_plans: a teacher plans and resolves questions; questions.jsonl holds them with the plans that held.\n"
        f"What was kept and why is in report.json. {ABOUT_BAD_ROWS}",
        switches=SKIP_BAD_ROWS,
        marks=("demonstrations", "selection", "translations", "golden_plans"),
    ),
    "compile": Command(
        function="lcrag.app.composition.commands:compile_programs",
        summary="Whether training fits some devices, which need not be there: memory, collectives, work",
        words="[update] [critic] [append] [decode] [--topology=v5e:4x4]",
        gin_file="compile.gin",
        marks=("compile.objective",),
        options={"--topology": "compile.topology"},
        details="Compiles from a configuration, without weights, for --topology=FAMILY:SHAPE (v5e:4x4, v5p:2x2x4,\n"
        "h100:8, ...) or, without one, for the devices present. TPUs need: pip install 'lcrag[tpu]'. GPUs are\n"
        "estimated on pretended CPU devices. Writes compile.json into --output_dir if one is given.",
    ),
    "export": Command(
        function="lcrag.app.composition.commands:export",
        summary="Writes a checkpoint of a run as a Hugging Face folder",
        words="RUN [STEP]",
        of_run=True,
        bindings=("export.policy = @policy()", "mesh.data = -1", "mesh.fsdp = 1", "mesh.tensor = 1"),
        details="Takes the latest checkpoint unless a step is named, merges adapters, and writes the tokenizer and\n"
        "its chat template beside the weights. They are float32, and with adapters what the base is stored in;\n"
        "--gin.export.dtype='\"bfloat16\"' decides otherwise. It needs none of the devices of the training; to use\n"
        "several, set --gin.mesh.fsdp or --gin.mesh.tensor again.",
    ),
    "build": Command(
        function="lcrag.app.composition.commands:build",
        summary="Rebuilds what ships with the atlas: its tokenizer, encoder and policies",
        words="[tokenizer] [encoder] [policies]",
        marks=("build",),
    ),
    "list": Command(
        function="lcrag.app.cli.catalogue:list_configurations",
        summary="Shows the configurations that come with lcrag, or those of some folders",
        words="[FOLDER ...]",
        configured=False,
    ),
}

OPTIONS = """\
options:
  --gin_file=FILE             a configuration, here or among those that come with lcrag; may be repeated
  --gin.Name.parameter=VALUE  one binding more, after the files; a text in quotes: --gin.Name.parameter='"text"'
  --output_dir=FOLDER         where results are written
  --traceback                 show where a mistake was noticed
  --help                      this text"""


def general_help() -> str:
    """What `lcrag --help` prints."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {command.summary}" for name, command in COMMANDS.items())
    return (
        "usage: lcrag COMMAND --gin_file=FILE [--gin.Name.parameter=VALUE ...] [--output_dir=FOLDER]\n\n"
        "Teaches language models to search, in any language.\n\n"
        f"commands:\n{commands}\n\n{OPTIONS}\n\n`lcrag COMMAND --help` says more."
    )


def command_help(name: str, command: Command) -> str:
    """What `lcrag COMMAND --help` prints."""
    words = f" {command.words}" if command.words else ""
    if not command.configured:
        return f"usage: lcrag {name}{words}\n\n{command.summary}.\n\nfolders:\n{parts()}"
    file = "[--gin_file=FILE]" if command.gin_file or command.of_run else "--gin_file=FILE"
    details = f"\n{command.details}\n" if command.details else ""
    default_file = f"RUN/{CONFIG}" if command.of_run else command.gin_file
    default = f"\nWithout --gin_file: {default_file}.\n" if default_file else ""
    return (
        f"usage: lcrag {name}{words} {file} [--gin.Name.parameter=VALUE ...] [--output_dir=FOLDER]\n\n"
        f"{command.summary}.\n{details}{default}\n{OPTIONS}\n{_configurations(name, command)}"
    )


def _configurations(name: str, command: Command) -> str:
    """The experiments of a command, and where all other files are."""
    own = experiments(name, command.marks)
    listed = f"\nexperiments that come with lcrag:\n{described(own)}\n" if own else ""
    shown = "" if command.of_run else "\n`lcrag list [FOLDER]` shows what may stand behind them:\n"
    return listed + (shown and f"{shown}{parts()}")


def run(argv: Sequence[str] | None = None) -> int:
    """Runs one command line and returns its exit status: 0, 2 after a mistake, 130 after Ctrl-C, 143 after SIGTERM."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        arguments = split_arguments(argv, special_options(), special_switches())
        if arguments.show_help or arguments.command is None:
            print(_help_for(arguments), flush=True)
            return 0
        with stopped_by_signals():
            _execute(_command(arguments), arguments)
    except UserError as error:
        if "--traceback" in argv:
            raise
        print(f"lcrag: error: {one_line(str(error))}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interruption:
        print(_interrupted(arguments), file=sys.stderr)
        return exit_status(interruption)
    except BrokenPipeError:  # `lcrag ... | head`; what Python would still flush has nowhere to go
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    return 0


def special_options() -> tuple[str, ...]:
    """Every option with a value that some command has for itself."""
    return tuple(option for command in COMMANDS.values() for option in command.options)


def special_switches() -> tuple[str, ...]:
    """Every option without a value that some command has for itself."""
    return tuple({switch for command in COMMANDS.values() for switch in command.switches})


def _help_for(arguments: Arguments) -> str:
    return general_help() if arguments.command is None else command_help(arguments.command, _command(arguments))


def _command(arguments: Arguments) -> Command:
    name = arguments.command or ""
    if name not in COMMANDS:
        hint = closest(name, COMMANDS) or f"; there are {', '.join(COMMANDS)}"
        raise UserError(f"there is no command {name}{hint}")
    return COMMANDS[name]


def _execute(command: Command, arguments: Arguments) -> None:
    if not command.configured:
        if arguments.gin_files or arguments.bindings or arguments.switches or arguments.others or arguments.output_dir:
            raise UserError(f"lcrag {arguments.command} takes folders only: leave its options out")
        _function(command)(arguments.output_dir, arguments.words)
        return
    gin_files = arguments.gin_files or _default_files(command, arguments)
    if not gin_files:
        raise UserError(f"lcrag {arguments.command} needs a configuration: --gin_file=FILE (see --help)")
    if arguments.words and not command.words:
        raise UserError(f"lcrag {arguments.command} takes no word {arguments.words[0]}; options begin with --")
    bindings = (*command.bindings, *arguments.bindings, *_special_bindings(command, arguments))
    statements = read_configuration(gin_files, bindings)
    silence_libraries()
    function = _function(command)
    configure(statements)
    try:
        function(arguments.output_dir, arguments.words)
    except (TypeError, RuntimeError) as error:
        sentence = missing_parameter(error)
        if sentence is None:
            raise
        raise UserError(sentence) from error


def _function(command: Command) -> Callable[..., None]:
    module, name = command.function.split(":")
    return getattr(importlib.import_module(module), name)


def _default_files(command: Command, arguments: Arguments) -> tuple[str, ...]:
    """The configuration of a command that names none."""
    if not command.of_run:
        return (command.gin_file,) if command.gin_file else ()
    if not arguments.words:
        raise UserError(
            f"lcrag {arguments.command} needs the folder of a run: lcrag {arguments.command} {command.words}"
        )
    path = Path(arguments.words[0]) / CONFIG
    if not path.is_file():
        raise UserError(f"{path.parent} is no run of lcrag: it holds no {CONFIG}")
    return (str(path),)


def _special_bindings(command: Command, arguments: Arguments) -> list[str]:
    """The options that the command alone has, as gin statements."""
    for option in (*(option for option, _ in arguments.others), *arguments.switches):
        if option not in (*command.options, *command.switches):
            raise UserError(f"lcrag {arguments.command} has no option {option}")
    options = [f"{command.options[option]} = {value!r}" for option, value in arguments.others]
    return [*options, *(command.switches[switch] for switch in arguments.switches)]


def _interrupted(arguments: Arguments) -> str:
    if arguments.output_dir is None:
        return "lcrag: interrupted; nothing was written, as no --output_dir was given"
    return f"lcrag: interrupted; the same command continues from what is saved in {arguments.output_dir}"


if __name__ == "__main__":
    sys.exit(run())
