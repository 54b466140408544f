"""The display on a terminal and in a pipe, and an episode in colour."""

import io

import pytest
from rich.console import Console

from lcrag.app.display import hours_and_minutes, print_episode, training_display

METRICS = {
    "reward/total": 0.5,
    "reward/c3_recall": 0.6,
    "episode/searches": 1.25,
    "tokens_per_second/sampled": 4321.0,
    "seconds/rollout": 1.5,
    "slots/occupancy": 0.9,
}


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, _environ={"TERM": "xterm"})


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_the_numbers(terminal):
    with training_display(4, console=(to := console(terminal))) as display:
        display.phase("rollout", 3, 8)
        display.update(1, METRICS)
        display.say("saved")
    text = to.file.getvalue()
    for part in ("0.500", "c3_recall 0.600", "1.250", "4,321", "rollout 1.50", "left", "saved"):
        assert part in text
    assert terminal or text.count("\n") == 2


def test_a_failing_run_leaves_the_terminal_in_order():
    with pytest.raises(RuntimeError), training_display(4, console=(to := console(True))):
        raise RuntimeError
    assert to.file.getvalue().endswith("\x1b[?25h")


def test_an_episode_says_who_wrote_what():
    turns = [("environment", "Q [bold]?[/bold]\n"), ("policy", "<search>x</search>"), ("environment", "<information>")]
    print_episode(turns, plain := console(False))
    assert plain.file.getvalue().count("[environment]") == 2
    print_episode(turns, coloured := console(True))
    for part in ("\x1b[1;32m<search>x</search>", "[bold]?[/bold]"):
        assert part in coloured.file.getvalue()


def test_durations():
    assert [hours_and_minutes(seconds) for seconds in (12.4, 185, 3720)] == ["12s", "3m 05s", "1h 02m"]
