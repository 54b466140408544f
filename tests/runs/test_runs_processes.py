"""Signals, the compilation cache, and how little is imported."""

import os
import signal
import subprocess
import sys
import threading

import pytest

from lcrag import main
from lcrag.errors import UserError
from lcrag.runs.processes import (
    FOLDER,
    SETTINGS,
    SIGNALS,
    SWITCH,
    HeldSignals,
    Stopped,
    exit_status,
    join,
    set_compilation_cache,
    stopped_by_signals,
)


@pytest.fixture(autouse=True)
def handlers_are_restored():
    before = [signal.getsignal(number) for number in SIGNALS]
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_sigterm_ends_a_block_at_once_as_ctrl_c_does():
    for number, error, status in ((signal.SIGTERM, Stopped, 143), (signal.SIGINT, KeyboardInterrupt, 130)):
        with pytest.raises(error) as stopped, stopped_by_signals():
            signal.raise_signal(number)
        assert exit_status(stopped.value) == status


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_deferred(number):
    with HeldSignals() as held:
        signal.raise_signal(number)
        signal.raise_signal(signal.SIGTERM)
        assert held.number == number
        with pytest.raises(Stopped) as stopped, held.let_through():
            raise AssertionError("a deferred signal ends the next block before it begins")
    assert exit_status(stopped.value) == 128 + number
    with pytest.raises(Stopped):
        held.raise_held()


def test_a_signal_is_let_through_where_it_may_be():
    done = []
    with HeldSignals() as held:
        with held.let_through():
            done.append("undisturbed")
        with pytest.raises(Stopped), held.let_through():
            signal.raise_signal(signal.SIGTERM)
            done.append("never")
        signal.raise_signal(signal.SIGTERM)  # shutdown is not disturbed
    assert done == ["undisturbed"]


@pytest.mark.parametrize("first", SIGNALS)
def test_ctrl_c_after_another_signal_waits_for_nothing(first):
    with HeldSignals():
        signal.raise_signal(first)
        with pytest.raises(KeyboardInterrupt) as interrupted:
            signal.raise_signal(signal.SIGINT)
    assert not isinstance(interrupted.value, Stopped)


def test_a_signal_that_the_process_was_started_to_ignore_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with HeldSignals() as held:
            signal.raise_signal(signal.SIGINT)
        assert not held.number
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_another_thread_runs_its_block_without():
    entered = []

    def work():
        with stopped_by_signals(), HeldSignals() as held:
            entered.append(held.number)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert entered == [0]


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
    assert len(folders) == 2
    assert all(folder.startswith(str(tmp_path / "lcrag" / "compiled")) for folder in folders)


def test_what_the_user_has_set_stays():
    name = next(iter(SETTINGS))
    environment = {FOLDER: "/elsewhere", name: "7"}
    set_compilation_cache(environment, enabled=True)
    assert environment == SETTINGS | {FOLDER: "/elsewhere", name: "7"}


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
