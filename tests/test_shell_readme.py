"""What the README and docs/ show is true: its code runs, its commands and files exist, its program is the real one."""

import ast
import itertools
import re
import shlex
from pathlib import Path

import pytest

from lcrag import main
from lcrag.commands.studies import STUDIES
from lcrag.commands.study import settings_of
from lcrag.config import check_types, configure
from lcrag.runs.folder import check_named

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = {str(page.relative_to(ROOT)): page.read_text(encoding="utf-8") for page in PAGES}
# Pages that tests/commands run with the files that they need.
RUN_AS_A_WHOLE = ("docs/tutorial.md", "docs/your_model.md", "docs/your_method.md", "docs/library.md")
FENCES = re.compile(r"(?:<!-- (?P<note>[^>]*) -->\n)? *```(?P<language>\w+)\n(?P<code>.*?) *```", re.DOTALL)
BLOCKS = [(page, *block) for page, text in TEXTS.items() for block in FENCES.findall(text)]
OTHER_PROGRAMS = ("git", "pip", "tensorboard", "cd", "curl", "gcloud", "source", "wikiextractor")
WRITING = ("train", "sft", "evaluate", "curate", "index", "export")


def commands_of(language, code):
    """The command lines of a block: all of a shell's, of another text those that call lcrag."""
    lines = (line.strip() for line in code.replace("\\\n", " ").splitlines())
    return [
        line.split("  #")[0]
        for line in lines
        if line and not line.startswith("#") and (language == "bash" or line.startswith("lcrag "))
    ]


def commands_in_prose(text):
    """The commands between backticks, without those that have words in capitals, for which a reader puts his own."""
    inline = (" ".join(words.split()) for words in re.findall(r"`(lcrag [^`]*--[^`]*)`", FENCES.sub("", text)))
    return [command for command in inline if not re.search(r"[A-Z]{3}", command)]


COMMANDS = [
    (page, command)
    for page, _, language, code in BLOCKS
    if page not in ("docs/tutorial.md", "docs/your_method.md")  # whose own tests run them with modules of the page
    for command in commands_of(language, code)
] + [(page, command) for page, text in TEXTS.items() for command in commands_in_prose(text)]


@pytest.mark.parametrize(("page", "command"), COMMANDS, ids=[f"{page}-{command[:60]}" for page, command in COMMANDS])
def test_commands_exist(page, command, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shown = [code for place, _, language, code in BLOCKS if place == page and language == "gin"]
    Path("my_run.gin").write_text(shown[0] if shown else "", encoding="utf-8")
    program, *words = itertools.dropwhile(lambda word: re.match(r"[A-Z]+=", word), shlex.split(command))
    if program in ("bash", "python"):
        assert (ROOT / words[0]).is_file()
        if "train" in words:  # a script that starts this command on every host
            check_command(words[words.index("train") :])
    elif program == "lcrag":
        check_command(words)
    else:
        assert program in OTHER_PROGRAMS, f"the test does not know {program}"


def check_command(words):
    arguments = main.parse(words)
    if "--help" in arguments.options:
        assert main.run(words) == 0
        return
    command = main.COMMANDS[arguments.command]
    assert command.words or not arguments.words
    assert arguments.options.keys() <= command.accepted()
    assert arguments.output_dir or arguments.command not in WRITING, "the command would not run without --output_dir"
    if arguments.command == "study":
        chosen = STUDIES[arguments.words[0]]
        assert chosen.points(settings_of(chosen, arguments))
    elif command.configured and not command.of_run:
        files = arguments.gin_files or (command.gin_file,)
        configure(files, arguments.bindings)
        if command.builds:
            check_types(check_named(command.function.partition(":")[2], *arguments.words))


PLAIN = [
    code for page, note, language, code in BLOCKS if language == "python" and not note and page not in RUN_AS_A_WHOLE
]


@pytest.mark.parametrize("code", PLAIN)
def test_python_blocks_run(code):
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


SHOWN = [(note, code) for _, note, language, code in BLOCKS if language == "python" and note]


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


def prose(text):
    return FENCES.sub("", text)


def anchors_of(text):
    """The anchors of a page's headings, as GitHub makes them."""
    plain = (
        re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE)
    )
    return [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    assert len(set(anchors_of(text))) == len(anchors_of(text)), "two headings have one anchor"
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(text)):
        path, _, anchor = link.partition("#")
        if ":" in path:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors_of(target.read_text(encoding="utf-8")), link


def test_every_page_is_in_the_index():
    index = TEXTS["docs/README.md"]
    missing = [page for page in TEXTS if f"]({page.removeprefix('docs/')})" not in index]
    assert missing == ["README.md", "docs/README.md"]
