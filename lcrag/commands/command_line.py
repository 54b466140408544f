"""What may be typed: the commands with their options and help, the parser, and the list of configurations."""

import argparse
import dataclasses
import itertools
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from lcrag.config import packaged_folder, packaged_names, parameter_table
from lcrag.errors import SECRET, UserError, closest
from lcrag.files import expanded
from lcrag.runs import processes

CONFIG = "config.gin"
FLAGS = ("--help", "--traceback", "--allow_unused", "--no_compilation_cache")  # of every command


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    """A parsed command line."""

    command: str | None  # the first word
    words: tuple[str, ...]  # the other words
    gin_files: tuple[str, ...]
    bindings: tuple[str, ...]  # `--gin.Scope.param=value` as gin statements, `Scope.param = value`
    output_dir: Path | None
    options: Mapping[str, str]  # all other options with their values; that of a switch is empty


@dataclasses.dataclass(frozen=True, kw_only=True)
class Command:
    """One command.

    `function`, `module:name`, is called as `function(output_dir)`, or `function(output_dir, words)` if it takes words,
    or as `function(arguments)` if gin does not configure it.
    """

    function: str
    summary: str  # one line for the list of commands
    details: str = ""  # further text of `lcrag COMMAND --help`
    words: str = ""  # the words that may follow the command, as in the usage line
    folder: str = ""  # what --output_dir is: "run" (may be continued) or "any"; empty: it is not needed
    gin_file: str = ""  # default configuration; empty: one must be given
    of_run: bool = False  # whether the first word is a run's folder, whose config.gin is the default configuration
    bindings: tuple[str, ...] = ()  # statements added after the files; those of the command line override them
    instead: Mapping[str, str] = dataclasses.field(default_factory=dict)  # own option -> a function without gin
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)  # -> gin parameter; without gin: help text
    switches: Mapping[str, str] = dataclasses.field(default_factory=dict)  # -> gin statement; without gin: help text
    configured: bool = True  # whether gin configures it
    shared: bool = False  # whether several processes may run it together; see `lcrag.runs.processes`
    builds: bool = False  # whether gin builds all of it, as bindings name it; others read some bindings themselves
    continues: bool = True  # whether the same command continues after an interruption
    calls: tuple[str, ...] = ()  # configurables that it calls although nothing binds them
    check: str = ""  # function that refuses before anything is loaded what the command would refuse, `module:name`
    listing: str = ""  # function that lists the possible values of its word, `module:name`, for its help

    def accepted(self) -> set[str]:
        """Returns every option that the command takes, in addition to --gin_file and --output_dir."""
        shared = processes.OPTIONS if self.shared else ()
        return {*FLAGS, *self.options, *self.instead, *self.switches, *shared}


SKIP_BAD_ROWS = {"--skip_bad_rows": "BadRows.skip = True"}
ABOUT_BAD_ROWS = "skip rows of data files that cannot be used, and report their number"

COMMANDS = {
    "train": Command(
        function="lcrag.train.rl:train",
        check="lcrag.commands.plan:check",
        folder="run",
        summary="Reinforcement learning of a policy that searches; run again to continue",
        details="Writes config.gin, run.json, metrics.jsonl, episodes/ and checkpoints/ into --output_dir.\n"
        "SIGTERM and Ctrl-C save the last finished step; the same command continues from the last checkpoint.",
        switches=SKIP_BAD_ROWS,
        shared=True,
        builds=True,
    ),
    "sft": Command(
        function="lcrag.train.sft:sft",
        check="lcrag.commands.plan:check",
        folder="run",
        summary="Supervised fine-tuning of a policy on demonstrations; run again to continue",
        details="Stops at the lowest validation loss, and saves its policy as policy/ in --output_dir,\n"
        "with config.gin, run.json, metrics.jsonl and checkpoints/. baselines/sft.gin learns from questions and\n"
        "passages, data/demonstrations.gin from the rows of --gin.demonstration_files.files='(\"rows.jsonl\",)'.",
        switches=SKIP_BAD_ROWS,
        shared=True,
        builds=True,
    ),
    "evaluate": Command(
        function="lcrag.commands.evaluate:evaluate",
        check="lcrag.commands.plan:check",
        folder="any",
        summary="Metrics of a policy on held-out questions, by language",
        details="Writes evaluation.json into --output_dir, every episode into its episodes/, and every answer and the\n"
        "configuration into its answers/.",
        switches=SKIP_BAD_ROWS,
        shared=True,
        builds=True,
    ),
    "sample": Command(
        function="lcrag.commands.sample:sample",
        summary="Answers questions, and prints the episodes as they are generated",
        words="[QUESTION]",
        continues=False,
        details="Without QUESTION it prompts for questions until Ctrl-D, or answers every line of a pipe:\n"
        "lcrag sample --gin_file=quickstart.gin < questions.txt. Each question is a separate episode.",
        builds=True,
    ),
    "study": Command(
        function="lcrag.commands.study:study",
        summary="All runs of a paper's table or figure, and their report; run again to continue",
        words="NAME",
        configured=False,
        options={
            "--jobs": "number of concurrent runs; 1",
            "--seeds": "training seeds, 0,1,2 for example",
            "--only": "names of variants or methods, separated by commas",
            "--experiment": "the gin file to study; FILE_sft.gin, if it exists, trains its initial policy",
            "--records": "folder of the records of finished runs; records/NAME in --output_dir",
        },
        switches={"--dry_run": "print the remaining commands"},
        details="Runs with a record in --records are skipped; the first run that fails ends the study. --gin_file and\n"
        "--gin. are passed to every point but the initial policies, which get the platforms only.",
        listing="lcrag.commands.study:described",
    ),
    "report": Command(
        function="lcrag.commands.report:report",
        summary="The tables and plots of several runs, or report.md again for one",
        words="[RUN ...] [--against=METHOD] [--axis=Name.parameter] [--records=FOLDER]",
        gin_file="report.gin",
        continues=False,
        options={
            "--against": "compare_runs.against",
            "--axis": "compare_runs.axis",
            "--records": "compare_runs.records",
        },
        details="RUN is the folder of a run, of evaluations or of records, or one that contains some. report.md,\n"
        "tables.tex and plots are written into --output_dir. --against names the method that all others are tested\n"
        "against, --axis the binding that a study varies; --records writes a small JSON file for each run, from which\n"
        "the same report can be made. `lcrag report RUN` without --output_dir writes report.md of one run\n"
        "again, with the settings in its config.gin.",
    ),
    "view": Command(
        function="lcrag.commands.view:view",
        summary="The episodes of runs and evaluations as one static HTML file",
        words="RUN [RUN ...]",
        configured=False,
        continues=False,
        options={
            "--output": "the file to write; RUN/view.html of the first RUN, or view.html in --output_dir",
            "--steps": "how many of the newest steps to show; 100",
            "--megabytes": "size of all episodes shown; of each file the first groups are taken; 50",
        },
        details="RUN is the --output_dir of `lcrag train` or `lcrag evaluate`. The page needs no network.",
    ),
    "serve": Command(
        function="lcrag.commands.serve:serve",
        summary="Answers /retrieve over HTTP, as Search-R1's clients ask, until it is stopped",
        gin_file="serve.gin",
        continues=False,
        builds=True,
        switches={
            "--tool": "serve.tool = @search_tool()",
            "--stdio": "serve.transport = 'stdio'",
        },
        details="Listens on 127.0.0.1:8000 unless serve.host and serve.port say otherwise. Name the collections with\n"
        "--gin.load_collections.folder='\"FOLDER\"', or serve the built-in world's with\n"
        "--gin.serve.collections='@atlas_collections()'.\n"
        "--tool also serves an experiment's policy that searches: /search_tool takes a question and returns\n"
        "evidence, passages and answer, and agents find it by MCP at /mcp (pip install 'lcrag[mcp]').\n"
        "--stdio serves the tool, instead of all this, to the one agent that starts this command.\n"
        "A translator instead: --gin.serve.collections=None --gin.serve.translator='@EndpointTranslator()'",
    ),
    "index": Command(
        function="lcrag.commands.index:index",
        summary="Builds a collection per language from articles or passages; run again to continue",
        words="[LANGUAGE ...]",
        gin_file="index.gin",
        builds=True,
        details='Name the sources with --gin.index.sources=\'{"fi": "wikipedia/20231101.fi"}\', and\n'
        "the encoder with --gin.index.encoder='\"FOLDER\"'. The same command continues after an interruption;\n"
        "passages are not embedded again. index.judgements measures the retrieval at the end.",
        switches=SKIP_BAD_ROWS,
    ),
    "curate": Command(
        function="lcrag.commands.curate:curate",
        calls=("curated",),
        summary="Makes training data: demonstrations for sft, questions for train; run again to continue",
        words="demonstrations|selection|translations|golden_plans",
        details="demonstrations: a teacher takes the policy's place; its right episodes become rows.jsonl for sft.\n"
        "selection: questions whose demonstration was wrong are sampled; those that can be answered, and some easy\n"
        "ones, are written to train.jsonl and validation.jsonl, for `lcrag train` with data/jsonl_training.gin.\n"
        "translations: questions in other languages, checked by back-translation, in questions.jsonl.\n"
        "golden_plans: a teacher plans and resolves questions; questions.jsonl has them with the valid plans.\n"
        "report.json counts what was kept and why.",
        switches=SKIP_BAD_ROWS,
        builds=True,
    ),
    "compile": Command(
        function="lcrag.commands.compile:compile_programs",
        summary="Whether a training fits the memory of some devices, present or not",
        words="[update] [critic] [append] [decode] [--topology=v5e:4x4]",
        gin_file="compile.gin",
        continues=False,
        options={"--topology": "compile.topology"},
        details="Compiles from a configuration, without weights, for a TPU slice that need not be there (v5e:4x4,\n"
        "v5p:2x2x4, ...; pip install 'lcrag[tpu]') or, without a topology, for the devices present.\n"
        "Writes compile.json into --output_dir if one is given.",
    ),
    "benchmark": Command(
        function="lcrag.commands.benchmark:benchmark",
        summary="Speed of appending, decoding and learning on the devices present, compared with a lower bound",
        gin_file="quickstart.gin",
        continues=False,
        details="Takes the configuration of a training, without weights: parameters are random. Writes benchmark.json\n"
        "and benchmark.md into --output_dir.",
    ),
    "describe": Command(
        function="lcrag.commands.describe:describe",
        summary="What a command would run, without weights: program, episodes, budgets, objective, data, memory",
        words="train|sft|evaluate|sample",
        continues=False,
        switches={"--json": "describe.json = True", **SKIP_BAD_ROWS},
        details="Takes the arguments of the command. Nothing is loaded, and the policy's folder may be absent where a\n"
        "file of gin/model gives its shape. --json prints one object.",
    ),
    "export": Command(
        function="lcrag.commands.export:export",
        summary="Writes a checkpoint of a run as a Hugging Face folder, or its episodes in other tools' formats",
        words="RUN [STEP] [--to=atif|messages]",
        of_run=True,
        continues=False,
        instead={"--to": "lcrag.commands.export:export_episodes"},
        bindings=("export.policy = @policy()", "mesh.data = -1", "mesh.fsdp = 1", "mesh.tensor = 1"),
        details="Uses the latest checkpoint unless a step is given, and merges adapters. Weights are float32, or with\n"
        "adapters in the dtype of the base's files; --gin.export.dtype='\"bfloat16\"' sets another.\n"
        "--to writes the run's episodes instead (of one step, or of one file of episodes/, if it is given): as\n"
        "trajectories of ATIF 1.8 without loss, or as messages for fine-tuning.",
    ),
    "convert": Command(
        function="lcrag.commands.convert:convert",
        summary="Writes a GGUF file of a Llama, Qwen2, Qwen3 or Gemma 3 model as a Hugging Face folder",
        words="FILE.gguf FOLDER",
        configured=False,
        continues=False,
        options={"--dtype": "of the dequantised weights, float32 or bfloat16; float32"},
        details="FOLDER, which must be absent or empty, gets weights, configuration, tokenizer and chat template.",
    ),
    "list": Command(
        function="lcrag.commands.command_line:list_configurations",
        summary="Shows the configurations that come with lcrag, or those of some folders",
        words="[FOLDER ...]",
        configured=False,
        switches={"--parameters": "show all that gin files may bind instead, or only of the NAMEs given as words"},
    ),
}

# --- The parser.


class _Parser(argparse.ArgumentParser):
    """Raises a UserError in place of printing its usage and ending the process."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument ").replace(": expected one argument", " needs a value"))


def parse(argv: Sequence[str]) -> Arguments:
    """Parses the words after `lcrag`, with the options of all commands."""
    parser = _Parser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", default=[])
    parser.add_argument("--gin_file", action="append", default=[], type=_path)
    parser.add_argument("--output_dir", type=lambda value: Path(_path(value)), default=None)
    options = set[str]().union(*(made.accepted() for made in COMMANDS.values()))
    switches = {*FLAGS, *(name for made in COMMANDS.values() for name in made.switches)}
    for option in options - switches:
        parser.add_argument(option, type=_path)
    for switch in switches:
        parser.add_argument(*(["-h"] if switch == "--help" else []), switch, action="store_const", const="")
    # argparse would take a binding with a space in its value for a word.
    known, unknown = parser.parse_known_intermixed_args([word for word in argv if not word.startswith("--gin.")])
    given = vars(known)
    if unknown:
        name = unknown[0].partition("=")[0]
        hint = closest(name, ("--gin_file", "--output_dir", *sorted(options)), cutoff=0.8)
        hint = hint or f"; a parameter is bound by --gin.NAME.{name[2:]}=VALUE (`lcrag list --parameters` has all)"
        raise UserError(f"there is no option {name}{hint}")
    bindings = []
    for word in argv:
        try:
            word.encode()
        except UnicodeEncodeError:
            raise UserError(f"{ascii(word)} is not UTF-8, which every name must be: rename the file") from None
        if word.startswith("--gin."):
            name, _, value = word.partition("=")
            if not value:
                raise UserError(f"the binding {word} has no value: write {name}=VALUE, without spaces around =")
            if SECRET.search(value):
                raise UserError(
                    f"{name} holds a password or a key in an address, which config.gin would keep: leave it out, and"
                    " give keys in environment variables (OPENAI_API_KEY, SERPAPI_API_KEY, GOOGLE_API_KEY)"
                )
            bindings.append(f"{name.removeprefix('--gin.')} = {value}")
    command, *words = given.pop("words") or [None]
    words = [word if command == "sample" else _path(word) for word in words]  # which takes a question
    return Arguments(
        command=command,
        words=tuple(words),
        gin_files=tuple(given.pop("gin_file")),
        bindings=tuple(bindings),
        output_dir=given.pop("output_dir"),
        options={f"--{name}": value for name, value in given.items()},
    )


def _path(value: str) -> str:
    if not value:
        raise UserError("a word or an option is empty: is a variable of the shell not set?")
    return str(expanded(value)) if value.startswith("~") else value  # `Path` would change a//b


def whole_number(option: str, text: str, least: int = 0) -> int:
    """Returns the number given to an option; raises a UserError if it is not one, or less than `least`."""
    if not text.isdecimal() or int(text) < least:
        of = f" of {least} or more" if least else ""
        raise UserError(f"{option} takes a whole number{of}, not {text!r}")
    return int(text)


# --- Help.

OPTIONS = """\
options:
  --gin_file=FILE             a configuration, in the working directory or packaged; may be repeated
  --gin.Name.parameter=VALUE  a binding, after the files; a text needs quotes: --gin.Name.parameter='"text"'
  --output_dir=FOLDER         where results are written
  --allow_unused              accept bindings of the command line that the command does not use
  --no_compilation_cache      do not use the cache of compiled programs, ~/.cache/lcrag/compiled
  --traceback                 show the traceback of an error
  --help                      this text"""


def general_help(commands: Mapping[str, Command]) -> str:
    """Returns the text of `lcrag --help`."""
    width = max(map(len, commands))
    lines = "\n".join(f"  {name:{width}}  {command.summary}" for name, command in commands.items())
    return _wrapped(
        "usage: lcrag COMMAND --gin_file=FILE [--gin.Name.parameter=VALUE ...] [--output_dir=FOLDER]\n\n"
        "Teaches language models to search, in any language.\n\n"
        f"commands:\n{lines}\n\n{OPTIONS}\n\n`lcrag COMMAND --help` says more."
    )


def _wrapped(text: str) -> str:
    """Wraps the lines of a help text, in a pipe at 100 columns; what follows a name and spaces stays in its column."""
    columns, lines = shutil.get_terminal_size().columns if sys.stdout.isatty() else 100, []
    for line in text.splitlines():
        label = re.match(r" +\S+ {2,}|usage: lcrag \S+ | *", line) or [""]
        wrapped = textwrap.TextWrapper(max(columns, len(label[0]) + 30), subsequent_indent=" " * len(label[0]))
        wrapped.break_on_hyphens = False
        lines.append(line if len(line) <= columns else wrapped.fill(line))
    return "\n".join(lines)


def command_help(name: str, command: Command, listed: str = "") -> str:
    """Returns the text of `lcrag COMMAND --help`; `listed` lists the possible values of its word."""
    takes_gin = command.configured or bool(listed)
    usage = f"usage: lcrag {name}{f' {command.words}' if command.words else ''}"
    if takes_gin:
        file = "[--gin_file=FILE]" if command.gin_file or command.of_run or listed else "--gin_file=FILE"
        usage += f" {file} [--gin.Name.parameter=VALUE ...] [--output_dir=FOLDER]"
    sections = [usage, f"{command.summary}.", re.sub("(?<![.:])\n", " ", command.details)]
    if default := f"RUN/{CONFIG}" if command.of_run else command.gin_file:
        sections.append(f"Without --gin_file: {default}.")
    # What gin sets is described by the usage line and the details.
    described = {f"{option}=VALUE": said for option, said in command.options.items()} | dict(command.switches)
    described = {} if command.configured else described
    described |= {"--skip_bad_rows": ABOUT_BAD_ROWS} if "--skip_bad_rows" in command.switches else {}
    described |= {f"{option}=VALUE": said for option, said in processes.OPTIONS.items()} if command.shared else {}
    options = "".join(f"\n  {option:26}  {said}" for option, said in described.items())
    if takes_gin:
        sections += [f"studies:\n{listed}" if listed else "", f"{OPTIONS}{options}"]
    elif described:
        sections.append(f"options:{options}")
    if not (command.of_run or listed or (described and not takes_gin)):
        sections.append("`lcrag list [FOLDER]` shows the configurations that come with lcrag.")
    return _wrapped("\n\n".join(filter(None, sections)))


def described(names: Sequence[str]) -> str:
    """Returns packaged files with the descriptions in their first lines.

    A description ends with the first sentence that ends at the end of its first line, or after it.
    """
    width = max(map(len, names), default=0) + 4
    lines = []
    for name in names:
        text = (packaged_folder() / name).read_text(encoding="utf-8")
        first, *others = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
        comment = " ".join(line.lstrip("# ") for line in (first, *others))
        end = re.compile("[.:](?= |$)").search(comment, len(first.lstrip("# ")) - 1)
        lines.append(f"  {name}".ljust(width) + (comment[: end.start()] + "." if end else comment))
    return "\n".join(lines)


def list_configurations(arguments: Arguments) -> None:
    """Runs `lcrag list`: prints all packaged configurations, or those of the folders in its words."""
    if arguments.gin_files or arguments.bindings or arguments.output_dir:
        raise UserError("lcrag list takes folders only: leave its options out")
    if "--parameters" in arguments.options:  # each with its default, and where what it configures is defined
        rows = parameter_table()
        owners = [re.split("[. ]", binding)[0] for binding, _ in rows]
        for word in set(arguments.words) - set(owners):
            raise UserError(f"gin files configure nothing called {word}{closest(word, owners)}")
        shown = [
            row for row, owner in zip(rows, owners, strict=True) if owner in arguments.words or not arguments.words
        ]
        width = max(len(binding) for binding, _ in shown)
        print("\n".join(f"{binding:{width}}  {place}" for binding, place in shown), flush=True)
        return
    names = packaged_names()
    folders = list(dict.fromkeys(name.partition("/")[0] for name in names if "/" in name))
    wanted = {word.rstrip("/") for word in arguments.words}
    for word in wanted - set(folders):
        hint = closest(word, folders) or f"; there are {', '.join(folders)}"
        raise UserError(f"no folder {word} of configurations comes with lcrag{hint}")
    text = described([name for name in names if not wanted or name.partition("/")[0] in wanted])
    print(_wrapped(text) if sys.stdout.isatty() else text, flush=True)
