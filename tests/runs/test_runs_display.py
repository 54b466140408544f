"""The display on a terminal and in a pipe, what it says of compilations, and an episode in colour."""

import errno
import io
import logging
import signal
import time
from unittest import mock

import jax
import jax.numpy as jnp
import pytest
from jax import monitoring
from rich.console import Console

from lcrag.runs import display as displays
from lcrag.runs.processes import NotedSignals

METRICS = {
    "reward/total": 0.5,
    "reward/c3_recall": 0.6,
    "episode/searches": 1.25,
    "tokens_per_second/sampled": 4321.0,
    "seconds/rollout": 1.5,
    "device/memory_bytes": 2**33,
    "device/memory_peak_bytes": 2**34,
}


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, _environ={"TERM": "xterm"})


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(displays.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize("terminal", [True, False])
def test_progress_shows_the_numbers(terminal, clock):
    with displays.progress_display("LcRL", 4, console=(to := console(terminal))) as display:
        clock[0] += 10
        display.update(1, {"reward/total": 0.25})
        display.phase("rollout", 3, 8)
        display.update(3, METRICS)
        display.say("saved")
    text = to.file.getvalue()
    for part in ("0.250 -> 0.500", "c3_recall 0.600", "1.250", "4,321", "rollout 1.50", "8.00 GiB, peak 16.00", "left"):
        assert part in text
    assert terminal or text.count("\n") == 3
    assert not terminal or "LcRL: step" not in text


def test_a_line_tells_phase_episodes_tokens_and_the_time_left_without_compilations(clock):
    sampled = lambda: int(50 * (min(clock[0], 160.0) - 100))  # noqa: E731
    with displays.progress_display("LcRL", 30, first=10, tokens=sampled, console=console(False)) as d:
        monitoring.record_event_duration_secs(displays.COMPILED, 20.0)
        d.phase("rollout", 0, 1024)
        clock[0] = 160.0
        d.update(13)
        d.phase("rollout", 3, 1024)
        for part in ("LcRL", "13/30", "rollout 3/1,024", "50 tokens/s", "3m 47s left"):
            assert part in d.line()
        d.phase("update")
        clock[0] += 30
        assert "tokens/s" not in d.line()


def test_no_time_left_is_said_early_and_none_rises_while_a_step_runs(clock):
    for unit, total, early, later in (("step", 40, 2, 3), ("question", 650, 64, 65)):
        with displays.progress_display("LcRL", total, unit=unit, console=console(False)) as display:
            clock[0] += 60
            display.update(early)
            assert "left" not in display.line()
            display.update(later)
            said = display.line()
            clock[0] += 30
            assert f"{displays.hours_and_minutes(60 / later * (total - later))} left" in said
            assert f"{displays.hours_and_minutes(60 / later * (total - later) - 30)} left" in display.line()
            clock[0] += 10_000
            assert "left" not in display.line()


def test_a_pipe_gets_a_line_at_intervals_while_nothing_is_reported(monkeypatch):
    monkeypatch.setattr(displays, "SECONDS_PER_LINE", 0.1)
    with displays.progress_display("index fi", 100, unit="%", console=(to := console(False))) as display:
        display.update(12.5, note="3 passages")
        deadline = time.monotonic() + 20
        while to.file.getvalue().count("\n") < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    lines = to.file.getvalue().splitlines()
    assert len(lines) > 1
    assert all(line.startswith("index fi: 12.5 %; 3 passages") for line in lines)


@pytest.mark.parametrize("error", [BrokenPipeError(errno.EPIPE, "Broken pipe"), OSError(errno.ENOSPC, "No space")])
def test_output_that_cannot_be_written_ends_the_command_and_not_the_thread(error, monkeypatch):
    monkeypatch.setattr("lcrag.runs.display.SECONDS_PER_LINE", 0.01)
    in_thread = mock.Mock()
    monkeypatch.setattr("threading.excepthook", in_thread)
    broken = io.StringIO()
    monkeypatch.setattr(broken, "write", mock.Mock(side_effect=error))
    monkeypatch.setattr("sys.stdout", broken)
    with displays.progress_display("train", 2) as display:
        time.sleep(0.1)
        with pytest.raises(type(error)):
            display.say("step 1/2")
    with pytest.raises(type(error)):
        displays.make_console().print("The report is in run")
    in_thread.assert_not_called()


def test_after_a_signal_what_nobody_reads_ends_nothing(monkeypatch):
    broken = mock.Mock(wraps=io.StringIO(), **{"write.side_effect": BrokenPipeError})
    monkeypatch.setattr("sys.stdout", broken)
    with NotedSignals(held=True):
        signal.raise_signal(signal.SIGTERM)
        displays.make_console().print("step 1/2")
    broken.write.assert_called()


def test_a_compilation_is_noticed_while_it_runs(monkeypatch):
    monkeypatch.setattr(displays, "SECONDS_UNTIL_COMPILING_SHOWS", 0.0)
    seen = []
    with displays.progress_display("LcRL", 4, console=(to := console(True))) as display:
        monitoring.register_event_duration_secs_listener(listener := lambda *_, **__: seen.append(display.line()))
        try:
            jax.jit(lambda x: jnp.tanh(x) @ x + 17)(jnp.ones((3, 3))).block_until_ready()
        finally:
            monitoring.unregister_event_duration_listener(listener)
        assert any("compiling <lambda> for 0s" in line for line in seen)
        assert "compiling" not in display.line()
        monitoring.record_event_duration_secs(displays.LOWERED, 0.1, fun_name="jit(decode)")
        to.print(display)
        assert "compiling decode for 0s" in to.file.getvalue()
    before = display.compilations.seconds
    jax.jit(lambda x: x - 18)(jnp.ones(3)).block_until_ready()
    assert display.compilations.seconds == before


@pytest.mark.parametrize(("terminal", "part"), [(False, "\n[environment]\nQ [bold]?"), (True, "\x1b[1;32m<search>x")])
def test_an_episode_says_who_wrote_what(terminal, part):
    printer = displays.EpisodePrinter(to := console(terminal))
    for by, text in (("environment", "Q [bold]?[/bold]\n"), ("policy", "<search>x</search>"), ("environment", "y")):
        printer.add(by, text)
    printer.finish()
    assert part in to.file.getvalue()
    assert to.file.getvalue().count("[environment]") == (0 if terminal else 2)


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_command_does_is_said_until_it_displays_something(terminal, capsys, monkeypatch):
    monkeypatch.setattr("lcrag.runs.display.SECONDS_PER_LINE", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    logger, console = logging.getLogger("lcrag.activity"), Console(file=io.StringIO())
    with displays.Activity() as activity:
        logger.info("embedding passage 240 of 960")
        activity._show()
        said = capsys.readouterr().err
        assert ("\r" if terminal else "lcrag: ") + "embedding passage 240 of 960" in said.replace("\x1b[K", "")
        assert said.endswith("\n") != terminal
        with displays.progress_display("train", 1, console=console):
            logger.info("loading")
            activity._show()
            assert "loading" not in capsys.readouterr().err
        logger.info("")
        activity._show()
    assert "loading" not in capsys.readouterr().err
