"""`lcrag` from the words typed to the function called, its help, and how it ends."""

import contextlib
import dataclasses
import importlib
import re
import signal
from pathlib import Path
from unittest import mock

import gin
import pretended_experiments
import pytest
from experiment_parts import assert_mistake
from support.gin_files import bound

from lcrag import main
from lcrag.commands.command_line import parse
from lcrag.config import packaged_folder, packaged_names
from lcrag.errors import UserError, exhausted_memory
from lcrag.runs import operative_config

CONFIG = """\
STEPS = 3
pretended_train.steps = %STEPS
pretended_train.languages = ("en", "fi")
pretended_train.sampler = @held_out/PretendedSampler()
PretendedSampler.slots = 4
"""
COMMANDS = dict(main.COMMANDS)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working directory with a configuration, and commands that call the pretended experiments."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.gin").write_text(CONFIG)
    (tmp_path / "small.gin").write_text("# Less of it.\ninclude 'base.gin'\nSTEPS = 1\n")
    command = main.Command(function="pretended_experiments:pretended_train", summary="Pretends", words="QUESTION")
    monkeypatch.setattr(main, "COMMANDS", {"train": command})
    pretended_experiments.CALLS.clear()
    return tmp_path


def train(*words):
    gin.clear_config()
    return main.run(["train", *words])


def test_files_then_bindings_reach_the_function(folder):
    assert train("why?", "--gin_file=small.gin", "--gin.PretendedSampler.slots=9", "--output_dir=o") == 0
    (output_dir, words, steps, languages, sampler), *_ = pretended_experiments.CALLS
    assert (output_dir.name, words, steps, languages, sampler.slots) == ("o", ("why?",), 1, ("en", "fi"), 9)
    lines = "pretended_train.languages=('''a\nword = 1\n''',)"  # which sets no macro
    for binding in ("held_out/PretendedSampler.slots=1", "pretended_train.rate=1", "STEPS=7", lines):
        assert train("--gin_file=base.gin", f"--gin.{binding}") == 0


def test_an_operative_configuration_is_a_configuration(folder):
    macro = ("--gin.SAMPLER=@PretendedSampler()", "--gin.pretended_train.sampler=%SAMPLER")
    assert train("--gin_file=base.gin", *macro) == 0
    written = operative_config()
    assert "SAMPLER/PretendedSampler.slots = 4" in written
    (folder / "config.gin").write_text(written)
    assert train("--gin_file=config.gin") == 0
    assert operative_config() == written


def test_missing_parameters_are_named_and_a_traceback_is_shown_on_request(capsys, folder):
    less = "pretended_train.sampler = @PretendedSampler()\n"
    for line, name in (("PretendedSampler.slots = 1", "pretended_train.steps"), ("pretended_train.steps = 1", "slots")):
        (folder / "less.gin").write_text(f"{less}{line}\n")
        assert train("--gin_file=less.gin") == 2
        assert_mistake(capsys, f"{name} has no value")
    with pytest.raises(UserError):
        train("--gin_file=less.gin", "--traceback")


@pytest.mark.parametrize(
    ("steps", "continues", "status", "said"),
    [
        (-1, True, 130, "lcrag: interrupted; the same command continues from what is saved in o"),
        (-1, False, 130, "lcrag: interrupted; nothing was written"),
        (-15, True, 143, "lcrag: interrupted; the same command continues from what is saved in o"),  # SIGTERM
        (-28, True, 2, "cannot write metrics.jsonl: No space left on device; make room, then the same command"),
        (-12, True, 2, "device has too little memory (Out of memory allocating 281474976710656 bytes)"),
        (-30, True, 2, "cannot read or write metrics.jsonl: Read-only file system; correct this, then the same"),
    ],
)
def test_how_it_ends(steps, continues, status, said, capsys, monkeypatch):
    before = signal.getsignal(signal.SIGTERM)
    command = dataclasses.replace(main.COMMANDS["train"], continues=continues)
    monkeypatch.setattr(main, "COMMANDS", {"train": command})
    assert train("--gin_file=base.gin", f"--gin.pretended_train.steps={steps}", "--output_dir=o") == status
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert signal.getsignal(signal.SIGTERM) is before
    assert not pretended_experiments.CALLS


def test_an_interrupted_command_ends_where_nobody_reads_its_errors(monkeypatch):
    closed = mock.Mock(**{"write.side_effect": BrokenPipeError, "isatty.return_value": False})
    monkeypatch.setattr("sys.stderr", closed)
    assert train("--gin_file=base.gin", "--gin.pretended_train.steps=-15") == 143
    closed.write.assert_called()


@pytest.mark.parametrize(
    ("said", "message"),
    [  # as XLA said it on an H200; the last in the form of its compiler for TPUs
        (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 5.78GiB with allocator GPU_0_bfc on device 0."
            " [executable_name='jit_step'] [tf-allocator-allocation-error='']",
            "a device has too little memory for the update (Out of memory while trying to allocate 5.78GiB with"
            " allocator GPU_0_bfc on device 0): lower Layout.rows",
        ),
        (
            "INTERNAL: Failed to initialize BLASLT support [executable_name='jit_fork']",
            "a device has probably too little memory for the sampler (Failed to initialize BLASLT support): lower"
            " Sampler.slots",
        ),
        (
            "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 18.2G of 15.75G hbm.\n\nTotal usage: ...",
            "too little memory (Ran out of memory in memory space hbm. Used 18.2G of 15.75G hbm): lower Layout.rows",
        ),
    ],
)
def test_exhausted_memory_of_a_device_is_named_with_its_settings(said, message):
    error = ValueError("gin's copy")
    error.__cause__ = RuntimeError(said)
    assert message in exhausted_memory(error)
    assert not exhausted_memory(RuntimeError("INTERNAL: something else"))
    assert "Unable to allocate 9 GiB" in exhausted_memory(MemoryError("Unable to allocate 9 GiB"))


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"]])
def test_help_on_a_full_disk_ends_with_one_line(words, capsys, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stdout", full)
        assert main.run(words) == 2
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()  # what it could not write is still in its buffer
    assert capsys.readouterr().err.startswith("lcrag: error: cannot write a file: No space left on device")


def test_every_part_is_found():
    words = ["compile", "Where is Chad?", "--gin_file=a.gin", "--gin_file", "b.gin", "--gin.A/B.c='x = y'"]
    words += ["--output_dir=o", "--skip_bad_rows", "--topology=4x4", "--allow_unused", "--", "--help", "-1"]
    arguments = parse(words)
    assert (arguments.command, arguments.words) == ("compile", ("Where is Chad?", "--help", "-1"))
    assert arguments.gin_files == ("a.gin", "b.gin")
    assert arguments.bindings == ("A/B.c = 'x = y'",)
    assert arguments.output_dir == Path("o")
    assert arguments.options == {"--topology": "4x4", "--skip_bad_rows": "", "--allow_unused": ""}


def test_the_table_of_parameters_has_all_that_files_bind_under_the_name_that_code_has(capsys, monkeypatch):
    monkeypatch.setattr(main, "COMMANDS", COMMANDS)
    assert main.run(["list", "--parameters"]) == 0
    owners = {}
    for line in capsys.readouterr().out.splitlines():
        place, owner = line.split()[-2:]
        assert (packaged_folder().parent / place.partition(":")[0]).is_file()
        owners[line.split()[0]] = owner
    in_files = {name.rpartition("/")[2] for file in packaged_names() for name in bound(file) if "." in name}
    assert owners.keys() >= in_files
    other = {(name.partition(".")[0], owner) for name, owner in owners.items() if name.partition(".")[0] != owner}
    assert other == {("mesh", "make_mesh"), ("policy", "load_policy"), ("compile", "compile_programs")}
    assert main.run(["list", "--parameters", "Sampler"]) == 0
    assert all(line.startswith("Sampler.") for line in capsys.readouterr().out.splitlines())
    assert main.run(["list", "--parameters", "Sampel"]) == 2
    assert "Sampler" in capsys.readouterr().err


def test_a_pipe_gets_one_whole_line_for_each_file(capsys, monkeypatch):
    monkeypatch.setattr(main, "COMMANDS", COMMANDS)
    assert main.run(["list", "objective/"]) == 0
    shown = re.findall(r"^  ([\w/]+\.gin) ", capsys.readouterr().out, re.MULTILINE)
    assert shown == [name for name in packaged_names() if name.startswith("objective/")]
    assert main.run(["list"]) == 0
    for line, name in zip(capsys.readouterr().out.splitlines(), packaged_names(), strict=True):
        first = (packaged_folder() / name).read_text(encoding="utf-8").splitlines()[0]
        assert first.startswith("# ")
        assert line.split()[0] == name
        assert first.lstrip("# ").rstrip(".: ") in line


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_function_and_a_help(name, capsys, monkeypatch):
    monkeypatch.setattr(main, "COMMANDS", COMMANDS)
    module, function = COMMANDS[name].function.split(":")
    assert callable(getattr(importlib.import_module(module), function))
    assert main.run([name, "--help"]) == 0
    assert COMMANDS[name].summary in " ".join(capsys.readouterr().out.split())
