"""What a person may type, and what becomes of mistakes in it."""

from pathlib import Path

import pytest

from lcrag.commands.arguments import closest, split_arguments
from lcrag.errors import UserError


def test_every_part_is_found():
    arguments = split_arguments(
        ["sample", "Where is Chad?", "--gin_file=a.gin", "--gin_file", "b.gin", "--gin.A/B.c='x = y'", "--output_dir=o"]
    )
    assert arguments.command == "sample"
    assert arguments.words == ("Where is Chad?",)
    assert arguments.gin_files == ("a.gin", "b.gin")
    assert arguments.bindings == ("A/B.c = 'x = y'",)
    assert arguments.output_dir == Path("o")


def test_options_of_single_commands():
    words = ["train", "--skip", "--shape=4x4"]
    arguments = split_arguments(words, others=("--shape",), switches=("--skip", "--keep"))
    assert (arguments.others, arguments.switches) == ((("--shape", "4x4"),), ("--skip",))
    with pytest.raises(UserError, match="there is no option --skp; did you mean --skip"):
        split_arguments(["train", "--skp"], switches=("--skip",))


def test_after_two_dashes_everything_is_a_word():
    assert split_arguments(["sample", "--", "--help", "-1"]).words == ("--help", "-1")


def test_closest_is_silent_when_nothing_is_close():
    assert closest("zebra", ["train", "evaluate"]) == ""
    assert "evaluate" in closest("evalaute", ["train", "evaluate"])
