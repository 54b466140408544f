"""Signals, the compilation cache, and how little is imported."""

import concurrent.futures
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from lcrag import main
from lcrag.errors import UserError
from lcrag.runs.processes import (
    FOLDER,
    SETTINGS,
    SIGNALS,
    SWITCH,
    NotedSignals,
    Stopped,
    exit_status,
    join,
    raise_stopped,
    set_compilation_cache,
    stopped_by_signals,
)


@pytest.fixture(autouse=True)
def handlers_are_restored():
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


@pytest.mark.parametrize("number", SIGNALS)
def test_no_handler_raises_and_a_block_ends_where_it_can(number):
    done = []
    with pytest.raises(Stopped) as stopped, stopped_by_signals():
        raise_stopped()
        signal.raise_signal(number)
        done.append("in the middle of a lock")
        raise_stopped()
        done.append("never")
    assert exit_status(stopped.value) == 128 + number
    with pytest.raises(Stopped), stopped_by_signals():
        signal.raise_signal(number)
        done.append("at the end")
    assert done == ["in the middle of a lock", "at the end"]


def test_another_thread_raises_nothing_and_holds_no_signal():
    def held():
        with stopped_by_signals(), NotedSignals(held=True) as held:
            return held.number

    with pytest.raises(Stopped), stopped_by_signals(), concurrent.futures.ThreadPoolExecutor(1) as pool:
        signal.raise_signal(signal.SIGTERM)
        pool.submit(raise_stopped).result()
        assert pool.submit(held).result() == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_deferred(number):
    with NotedSignals(held=True) as held:
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        raise_stopped()
        assert held.number == number
        with pytest.raises(Stopped) as stopped, held.let_through():
            raise AssertionError("a deferred signal ends the next block before it begins")
    assert exit_status(stopped.value) == 128 + number
    with pytest.raises(Stopped):
        held.raise_noted()


def test_a_signal_is_let_through_where_it_may_be():
    done = []
    with NotedSignals(held=True) as held:
        with held.let_through():
            done.append("undisturbed")
        with pytest.raises(Stopped), held.let_through():
            signal.raise_signal(signal.SIGTERM)
            raise_stopped()
            done.append("never")
        signal.raise_signal(signal.SIGTERM)  # shutdown is not disturbed
        raise_stopped()
    assert done == ["undisturbed"]


def test_a_signal_before_a_held_block_is_known_in_it():
    with pytest.raises(Stopped), stopped_by_signals():
        signal.raise_signal(signal.SIGTERM)
        with NotedSignals(held=True) as held:
            assert held.number == signal.SIGTERM
            held.raise_noted()


@pytest.mark.parametrize("first", SIGNALS)
def test_ctrl_c_after_another_signal_saves_nothing(first):
    with NotedSignals(held=True) as held:
        signal.raise_signal(first)
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt) as interrupted:
            held.raise_noted()
    assert not isinstance(interrupted.value, Stopped)


# A command in a process of its own: what it does until a signal comes.
BUSY = {
    "waits for a thread": "stack.enter_context(futures.ThreadPoolExecutor(1)).submit(time.sleep, 60).result()",
    "computes in one instruction": "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)",
    "holds the signal": "stack.enter_context(NotedSignals(held=True)); say(); time.sleep(60); time.sleep(60)",
}


@pytest.mark.parametrize(("busy", "signals"), [*((name, (15,)) for name in list(BUSY)[:2]), (list(BUSY)[2], (15, 2))])
def test_a_command_that_does_not_get_to_a_signal_is_ended(busy, signals):
    code = (
        "import contextlib, hashlib, time, concurrent.futures as futures\n"
        "from lcrag.runs.processes import NotedSignals, end_process, stopped_by_signals\n"
        "say = lambda: print('begun', flush=True)\n"
        "with stopped_by_signals(lambda number: end_process(128 + number)), contextlib.ExitStack() as stack:\n"
        f"    say()\n    {BUSY[busy]}\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        time.sleep(0.5)
        for number in signals:
            process.send_signal(number)
            time.sleep(0.5)
        killing = threading.Timer(60, process.kill)
        killing.start()
        assert process.wait() == 128 + signals[-1]
        killing.cancel()


def test_a_signal_that_the_process_was_started_to_ignore_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with NotedSignals(held=True) as held:
            signal.raise_signal(signal.SIGINT)
        assert not held.number
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_ended_process_waits_for_no_thread():
    code = (
        "import concurrent.futures as futures, time; from lcrag.runs.processes import end_process;"
        "futures.ThreadPoolExecutor(1).submit(time.sleep, 60); print('said'); end_process(143)"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50)
    assert (ended.returncode, ended.stdout) == (143, "said\n")


def test_every_program_is_kept_in_the_users_cache_for_one_kind_of_processor(tmp_path, monkeypatch):
    folders = set()
    for machine in ("x86_64", "aarch64"):
        monkeypatch.setattr("platform.machine", lambda machine=machine: machine)
        set_compilation_cache(environment := {"XDG_CACHE_HOME": str(tmp_path)}, enabled=True)
        assert environment.items() >= SETTINGS.items()
        folders.add(environment[FOLDER])
    name = next(iter(SETTINGS))
    set_compilation_cache(environment := {FOLDER: "/elsewhere", name: "7"}, enabled=True)
    assert environment == SETTINGS | {FOLDER: "/elsewhere", name: "7"}, "what the user has set stays"
    assert len(folders) == 2
    assert all(folder.startswith(str(tmp_path / "lcrag" / "compiled")) for folder in folders)


@pytest.mark.parametrize(
    ("coordinator", "named"),
    [("localhost:9", "localhost,a.example"), ("[::1]:9", "::1,a.example"), ("b.example:9", None)],
)
def test_no_proxy_is_asked_for_a_coordinator_on_this_machine(coordinator, named, monkeypatch):
    def initialize(**_):
        asked.append(os.environ.get("no_grpc_proxy"))
        raise RuntimeError("enough")

    asked = []
    monkeypatch.setattr("jax.distributed.initialize", initialize)
    monkeypatch.setenv("no_proxy", "a.example")
    monkeypatch.setenv("no_grpc_proxy", "")
    monkeypatch.delenv("no_grpc_proxy")
    with pytest.raises(UserError, match="cannot be joined: enough"):
        join({"coordinator_address": coordinator, "num_processes": 2, "process_id": 0}, "")
    assert asked == [named]


@pytest.mark.parametrize(("words", "switched"), [((), None), (("--no_compilation_cache",), "false")])
def test_every_command_uses_it_unless_a_switch_says_no(words, switched, tmp_path, monkeypatch, capsys):
    environment = {"XDG_CACHE_HOME": str(tmp_path)}
    monkeypatch.setattr(main.os, "environ", environment)
    assert main.run(["sample", "Why?", f"--gin_file={tmp_path / 'absent.gin'}", *words]) == 2
    assert environment.get(SWITCH) == switched
    assert (FOLDER in environment) == (switched is None)
    assert "absent.gin" in capsys.readouterr().err
