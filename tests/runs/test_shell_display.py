"""The display on a terminal and in a pipe, what it says of compilations, and an episode in colour."""

import io
import time

import jax
import jax.numpy as jnp
import pytest
from jax import monitoring
from rich.console import Console

from lcrag.runs import display as displays
from lcrag.runs.compilation import COMPILED, LOWERED, CompilationWatch
from lcrag.runs.display import hours_and_minutes, print_episode, progress_display

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
    with progress_display("LcRL", 4, console=(to := console(terminal))) as display:
        display.phase("rollout", 3, 8)
        display.update(1, METRICS)
        display.say("saved")
    text = to.file.getvalue()
    for part in ("0.500", "c3_recall 0.600", "1.250", "4,321", "rollout 1.50", "left", "saved"):
        assert part in text
    assert terminal or text.count("\n") == 2


def test_a_line_tells_phase_episodes_tokens_and_the_time_left(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(displays.time, "monotonic", lambda: clock[0])
    with progress_display("LcRL", 30, first=10, tokens=lambda: int(50 * (clock[0] - 100)), console=console(False)) as d:
        clock[0] = 160.0
        d.update(12)
        d.phase("rollout", 3, 1024)
        assert d.line() == "LcRL: step 12/30; rollout 3/1,024 episodes; 50 tokens/s; 9m 00s left"


def test_a_pipe_gets_a_line_at_intervals_while_nothing_is_reported(monkeypatch):
    monkeypatch.setattr(displays, "SECONDS_PER_LINE", 0.1)
    with progress_display("index fi", 100, unit="%", console=(to := console(False))) as display:
        display.update(12.5, note="3 passages")
        deadline = time.monotonic() + 20
        while to.file.getvalue().count("\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    first, second, *_ = to.file.getvalue().splitlines()
    assert first.startswith("index fi: 12.5 %; 3 passages; ")
    assert second.startswith("index fi: 12.5 %; 3 passages; ")


def test_a_terminal_gets_no_plain_lines(monkeypatch):
    monkeypatch.setattr(displays, "SECONDS_PER_LINE", 0.0)
    with progress_display("LcRL", 4, transient=True, console=(to := console(True))):
        time.sleep(0.05)
    assert "LcRL: step" not in to.file.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_compiling_is_told_apart_from_working(terminal, monkeypatch):
    monkeypatch.setattr(displays, "SECONDS_UNTIL_COMPILING_SHOWS", 0.0)
    with progress_display("LcRL", 4, console=(to := console(terminal))) as display:
        display.phase("update")
        monitoring.record_event_duration_secs(LOWERED, 0.1, fun_name="jit(decode)")
        assert "update; compiling decode for 0s" in display.line()
        to.print(display)
        monitoring.record_event_duration_secs(COMPILED, 3.0, fun_name="jit(decode)")
        assert "compiling" not in display.line()
    assert not terminal or "compiling decode for 0s" in to.file.getvalue()


def test_a_compilation_is_noticed_while_it_runs():
    seen = []
    with CompilationWatch() as watch:
        monitoring.register_event_duration_secs_listener(listener := lambda *_, **__: seen.append(watch.current()))
        try:
            jax.jit(lambda x: jnp.tanh(x) @ x + 17)(jnp.ones((3, 3))).block_until_ready()
        finally:
            monitoring.unregister_event_duration_listener(listener)
        assert "<lambda>" in [each[0] for each in seen if each is not None]
        assert watch.current() is None
        assert watch.count > 0
        assert watch.seconds > 0
        count = watch.count
    jax.jit(lambda x: x - 18)(jnp.ones(3)).block_until_ready()
    assert watch.count == count


def test_compilations_do_not_count_for_the_time_left(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(displays.time, "monotonic", lambda: clock[0])
    with progress_display("LcRL", 11, console=console(False)) as display:
        monitoring.record_event_duration_secs(COMPILED, 90.0)
        clock[0] = 100.0
        display.update(1)
        assert display.line().endswith("1m 40s left")


def test_a_failing_run_leaves_the_terminal_in_order():
    with pytest.raises(RuntimeError), progress_display("LcRL", 4, console=(to := console(True))):
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


@pytest.mark.parametrize(
    ("metrics", "shown"),
    [
        ({"mfu/update": 0.4, "flops_per_second/update": 8e14}, "model FLOPs utilisation update 0.400; "),
        ({"flops_per_second/update": 5e9}, "TFLOP/s update 0.005; "),
        ({"device/memory_bytes": 2**33, "device/memory_peak_bytes": 2**34}, "device memory 8.00 GiB, peak 16.00 GiB; "),
    ],
)
def test_utilisation_and_memory_are_shown_where_they_are_known(metrics, shown):
    with progress_display("LcRL", 4, console=(to := console(False))) as display:
        display.update(1, metrics)
    assert shown in to.file.getvalue()
    assert "TFLOP/s" not in to.file.getvalue() or "mfu/update" not in metrics
