"""What the README and docs/ show is true: its code runs, its commands and files exist, its program is the real one."""

import ast
import importlib
import itertools
import re
import shlex
from pathlib import Path

import pytest

from lcrag import main
from lcrag.commands.studies import STUDIES
from lcrag.commands.study import settings_of
from lcrag.config import configure

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUN_AS_A_WHOLE = ("your_model.md", "your_method.md")  # tests/commands run them with the files that they need
BLOCKS = re.findall(
    r"(?:<!-- (?P<note>[^>]*) -->\n)?```(?P<language>\w+)\n(?P<code>.*?)```",
    "\n".join(path.read_text(encoding="utf-8") for path in PAGES if path.name not in RUN_AS_A_WHOLE),
    re.DOTALL,
)
COMMANDS = [
    line.split("  #")[0].replace("\\\n", " ")
    for _, language, code in BLOCKS
    if language == "bash"
    for line in re.split(r"(?<!\\)\n", code)
    if line.strip() and not line.startswith("#")
]


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_exist(command, capsys):
    program, *words = itertools.dropwhile(lambda word: re.match(r"[A-Z]+=", word), shlex.split(command))
    if program == "bash":
        assert (ROOT / words[0]).is_file()
    elif program == "lcrag":
        check_command(words)
    else:
        assert program in ("git", "pip", "tensorboard", "cd", "curl", "gcloud"), f"the test does not know {program}"


def check_command(words):
    """Checks the words after `lcrag` as far as it can be done without running them."""
    arguments = main.parse(words)
    if "--help" in arguments.options:
        assert main.run(words) == 0
        return
    command = main.COMMANDS[arguments.command]
    assert command.words or not arguments.words
    assert arguments.options.keys() <= command.accepted()
    if arguments.command == "study":
        chosen = STUDIES[arguments.words[0]]
        assert chosen.points(settings_of(chosen, arguments))
    elif command.configured and not command.of_run:
        files = arguments.gin_files or (command.gin_file,)
        configure(files, arguments.bindings)


@pytest.mark.parametrize("code", [code for note, language, code in BLOCKS if language == "python" and not note])
def test_python_blocks_run(code):
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


SHOWN = [(note, code) for note, language, code in BLOCKS if language == "python" and note]


@pytest.mark.parametrize(("note", "code"), SHOWN, ids=[note for note, _ in SHOWN])
def test_shown_functions_are_the_real_ones(note, code):
    """A block after `<!-- PATH: FUNCTION -->` is that function without its docstring and its decorators."""
    path, name = note.split(": ")
    source = (ROOT / path).read_text(encoding="utf-8")
    (function,) = [
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    lines = source.splitlines()
    header = lines[function.lineno - 1 : function.body[0].lineno - 1]
    body = lines[function.body[0].end_lineno : function.end_lineno]
    real = "\n".join(header + body) + "\n"
    assert code == real, f"{name} has changed; the README shows:\n{code}\nand should show:\n{real}"


def test_every_help_is_complete(capsys):
    for name, command in main.COMMANDS.items():
        assert main.run([name, "--help"]) == 0
        assert command.summary in capsys.readouterr().out


def test_every_command_has_its_function():
    for command in main.COMMANDS.values():
        module, function = command.function.split(":")
        assert callable(getattr(importlib.import_module(module), function))
