"""`lcrag` from the words typed to the function called, and every mistake as one line."""

import dataclasses
import re
import signal

import gin
import pretended_experiments
import pytest

from lcrag import main
from lcrag.commands.catalogue import experiments
from lcrag.config import packaged_folder, packaged_names
from lcrag.runs import operative_config

CONFIG = """\
STEPS = 3
pretended_train.steps = %STEPS
pretended_train.languages = ("en", "fi")
pretended_train.sampler = @held_out/PretendedSampler()
PretendedSampler.slots = 4
"""


COMMANDS = dict(main.COMMANDS)
EXPERIMENTS = [  # command, some of its experiments, some that are not
    ("train", ("quickstart.gin", "lcrl/paper.gin", "rag_r1/atlas.gin"), ("r_search/atlas_sft.gin", "index.gin")),
    ("sft", ("rag_r1/paper.gin", "r_search/atlas_sft.gin"), ("quickstart.gin", "r_search/atlas.gin")),
    ("evaluate", ("quickstart.gin", "globalrag/atlas.gin"), ("serve.gin", "lcrl/method.gin", "atlas/base.gin")),
    ("curate", ("rag_r1/atlas.gin", "globalrag/paper.gin", "translate_r1/pipeline.gin"), ("quickstart.gin",)),
    ("serve", ("serve.gin",), ("quickstart.gin",)),
    ("report", ("report.gin",), ("quickstart.gin",)),
    ("export", (), ("quickstart.gin",)),
]


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


def error_of(capsys, *argv):
    assert main.run(["train", *argv]) == 2
    error = capsys.readouterr().err
    assert error.startswith("lcrag: error: "), error
    assert error.count("\n") == 1, error
    return error


def test_files_then_bindings_reach_the_function(folder):
    status = main.run(["train", "why?", "--gin_file=small.gin", "--gin.PretendedSampler.slots=9", "--output_dir=o"])
    assert status == 0
    (output_dir, words, steps, languages, sampler), *_ = pretended_experiments.CALLS
    assert (output_dir.name, words, steps, languages, sampler.slots) == ("o", ("why?",), 1, ("en", "fi"), 9)


@pytest.mark.parametrize("binding", ["held_out/PretendedSampler.slots=1", "pretended_train.rate=1", "STEPS=7"])
def test_a_right_binding_is_taken(binding):
    assert main.run(["train", "--gin_file=base.gin", f"--gin.{binding}"]) == 0


def test_an_operative_configuration_is_a_configuration(folder):
    """Also where a macro refers to a part, which gin then calls in a scope of the macro's name."""
    macro = ("--gin.SAMPLER=@PretendedSampler()", "--gin.pretended_train.sampler=%SAMPLER")
    assert main.run(["train", "--gin_file=base.gin", *macro]) == 0
    written = operative_config()
    assert "SAMPLER/PretendedSampler.slots = 4" in written
    (folder / "config.gin").write_text(written)
    gin.clear_config()
    assert main.run(["train", "--gin_file=config.gin"]) == 0
    assert operative_config() == written


def test_missing_parameters_are_named(capsys, folder):
    (folder / "less.gin").write_text("pretended_train.sampler = @PretendedSampler()\nPretendedSampler.slots = 1\n")
    assert "pretended_train.steps has no value" in error_of(capsys, "--gin_file=less.gin")
    gin.clear_config()
    (folder / "less.gin").write_text("pretended_train.sampler = @PretendedSampler()\npretended_train.steps = 1\n")
    assert "PretendedSampler.slots has no value" in error_of(capsys, "--gin_file=less.gin")


def test_traceback_on_request():
    with pytest.raises(main.UserError):
        main.run(["train", "--gin_file=nowhere.gin", "--traceback"])


def test_an_interruption_says_how_to_go_on(capsys):
    assert main.run(["train", "--gin_file=base.gin", "--gin.STEPS=-1", "--output_dir=o"]) == 130
    assert "continues from what is saved in o" in capsys.readouterr().err


def test_an_interruption_of_what_does_not_continue_says_that_nothing_was_written(capsys, monkeypatch):
    command = dataclasses.replace(main.COMMANDS["train"], continues=False)
    monkeypatch.setattr(main, "COMMANDS", {"train": command})
    assert main.run(["train", "--gin_file=base.gin", "--gin.STEPS=-1", "--output_dir=o"]) == 130
    assert capsys.readouterr().err == "lcrag: interrupted; nothing was written\n"


def test_sigterm_is_an_interruption_with_a_status_of_its_own(capsys):
    """What schedulers and preempted machines send; afterwards the process treats it as before."""
    before = signal.getsignal(signal.SIGTERM)
    assert main.run(["train", "--gin_file=base.gin", "--gin.STEPS=-15", "--output_dir=o"]) == 143
    assert capsys.readouterr().err == "lcrag: interrupted; the same command continues from what is saved in o\n"
    assert signal.getsignal(signal.SIGTERM) is before
    assert not pretended_experiments.CALLS


def test_help_lists_what_there_is(capsys):
    assert main.run(["--help"]) == 0
    assert "train" in capsys.readouterr().out
    assert main.run(["train", "--help"]) == 0
    assert "QUESTION" in capsys.readouterr().out


def test_packaged_files_read():
    for name in packaged_names():
        first = (packaged_folder() / name).read_text().partition("\n")[0]
        assert first.startswith("# "), f"{name}: the first line says what the file is, `lcrag list` shows it"


def names_shown(text):
    return re.findall(r"^  ([\w/]+\.gin) ", text, re.MULTILINE)


@pytest.mark.parametrize(("command", "some", "others"), EXPERIMENTS, ids=[command for command, *_ in EXPERIMENTS])
def test_help_names_the_experiments_of_the_command_on_one_screen(capsys, monkeypatch, command, some, others):
    monkeypatch.setattr(main, "COMMANDS", COMMANDS)
    assert main.run([command, "--help"]) == 0
    out = capsys.readouterr().out
    shown = names_shown(out)
    assert set(some) <= set(shown)
    assert not set(others) & set(shown)
    assert out.count("\n") <= 45


def test_help_reads_what_comes_with_lcrag_and_nothing_that_lies_here(capsys, monkeypatch, folder):
    monkeypatch.setattr(main, "COMMANDS", COMMANDS)
    for name in ("quickstart.gin", "platform/cpu.gin"):  # an experiment, and what experiments include
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("train.policy = \n")
    assert main.run(["train", "--help"]) == 0
    assert "quickstart.gin" in names_shown(capsys.readouterr().out)


def test_every_experiment_is_of_some_command():
    shown = {name for command, settings in COMMANDS.items() for name in experiments(command, settings.marks)}
    complete = {name for name in packaged_names() if "/" not in name or name.endswith(("paper.gin", "atlas.gin"))}
    assert complete - shown == {"wiring.gin", "programs.gin", "data/atlas.gin"}  # parts of experiments


def test_the_configurations_of_a_folder_can_be_listed(capsys, monkeypatch):
    monkeypatch.setattr(main, "COMMANDS", COMMANDS)
    assert main.run(["list", "objective/"]) == 0
    assert names_shown(capsys.readouterr().out) == [name for name in packaged_names() if name.startswith("objective/")]
    assert main.run(["list", "--help"]) == 0
    assert "objective/ (" in capsys.readouterr().out


def test_a_full_disk_is_one_line(capsys):
    error = error_of(capsys, "--gin_file=base.gin", "--gin.pretended_train.steps=-28", "--output_dir=o")
    assert "cannot write metrics.jsonl: No space left on device; make room, then the same command continues" in error
