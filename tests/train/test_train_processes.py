"""Several processes train one policy and learn what one would; one of them writes the run's folder, all are refused it
together, stop at one step, and continue."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from experiment_parts import json_lines, measured, written_episodes
from joined_processes import free_port
from test_sft import demonstrations, write

JOINED = """
import signal
import sys
from pathlib import Path

process, processes, port, tests, folder, output, *words = sys.argv[1:]
sys.path[:0] = [tests, str(Path(tests).parent), str(Path(tests).parent / "runs")]
from joined_processes import join

join(process, processes, port)
folder, output, mesh = Path(folder), Path(output), ("policy.mesh=@mesh()", "mesh.data=2")
"""
FINE_TUNING = """
from lcrag.learning.learners import SupervisedLearner
from joined_processes import free_port
from test_sft import sft

rows, stop = words

learn, calls = SupervisedLearner.learn, []

def signalled(self, batch):
    calls.append(None)
    if len(calls) == int(stop) and process == "1":
        signal.raise_signal(signal.SIGTERM)
    return learn(self, batch)

SupervisedLearner.learn = signalled
sys.exit(sft(folder, output, *mesh, rows=Path(rows), steps=4))
"""
REINFORCEMENT = """
from experiment_parts import run

sys.exit(run("train", folder, *mesh, "STEPS=2", *words, output=output))
"""
FAILING_SEARCH = """
from experiment_parts import run

from lcrag.errors import UserError
from lcrag.retrieval import Collections

search = Collections.search

def broken(self, queries, languages, k):
    if process != "1":
        return search(self, queries, languages, k)
    if words:
        return [hits[:-1] for hits in search(self, queries, languages, k)]
    raise UserError("no collection can be read")

Collections.search = broken
sys.exit(run("train", folder, *mesh, "STEPS=1", "train.evaluation=None", output=output))
"""


def together(folder, program, *words, processes=2, devices=2):
    """Exit status and errors of processes that run a program on some devices; the errors are kept in the folder."""
    port = free_port()
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices // processes}"}
    tests, logs, running = Path(__file__).parent, [folder / f"errors_{number}" for number in range(processes)], []
    try:
        for number, log in enumerate(logs):
            line = [sys.executable, "-c", JOINED + program, number, processes, port, tests, *words]
            with log.open("w") as stderr:
                process = subprocess.Popen([*map(str, line)], env=environment, stdout=subprocess.DEVNULL, stderr=stderr)
            running.append(process)
        status = [process.wait(timeout=900) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return status, [log.read_text() for log in logs]


@pytest.mark.slow
def test_two_processes_write_once_stop_together_and_continue(tiny, tmp_path):
    """The second one alone gets the signal, in the third step, which both finish and save."""
    rows, output = write(tmp_path / "rows.jsonl", demonstrations()), tmp_path / "run"
    status, errors = together(tmp_path, FINE_TUNING, tiny, output, rows, 3)
    assert status == [143, 143], errors
    assert {path.name for path in (output / "checkpoints").iterdir()} == {"2", "3"}
    assert [record["step"] for record in json_lines(output / "metrics.jsonl")] == [0, 1, 2]
    assert len(list(output.glob("*tfevents*"))) == 1
    assert not (output / "report.md").exists()
    status, errors = together(tmp_path, FINE_TUNING, tiny, output, rows, 0)
    assert status == [0, 0], errors
    assert [record["step"] for record in json_lines(output / "metrics.jsonl")] == [0, 1, 2, 3]
    assert len(list(output.glob("*tfevents*"))) == 2
    assert (output / "report.md").exists()
    assert (output / "policy" / "model.safetensors").is_file()


@pytest.mark.slow
def test_two_processes_learn_what_one_with_their_devices_learns(tiny, tmp_path):
    """Bit for bit: from the same episodes, since each of them has all answers of the searches."""
    one, two = tmp_path / "one", tmp_path / "two"
    for output, processes in ((one, 1), (two, 2)):
        status, errors = together(tmp_path, REINFORCEMENT, tiny, output, processes=processes)
        assert status == [0] * processes, errors
    assert measured(one) == measured(two)
    assert len(measured(one)) == 2
    learned = (
        "policy/model.safetensors",
        *(f"answers/{path.name}" for path in (one / "answers").iterdir()),
    )
    assert all((one / path).read_bytes() == (two / path).read_bytes() for path in learned)
    assert written_episodes(one, "step_1") == written_episodes(two, "step_1")
    for output, processes in ((one, 2), (two, 1)):  # each continues as the other began
        status, errors = together(tmp_path, REINFORCEMENT, tiny, output, "STEPS=3", processes=processes)
        assert status == [0] * processes, errors
    assert measured(one) == measured(two)
    assert len(measured(one)) == 3
    assert (one / learned[0]).read_bytes() == (two / learned[0]).read_bytes()
    status, errors = together(tmp_path, REINFORCEMENT, tiny, two, "SEED=1")
    assert status == [2, 2], errors
    assert all("holds another run" in error for error in errors), errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "clues"),
    [
        ((), ("the retrieval service failed in process 1", "no collection can be read")),
        (("fewer",), ("the retrieval service answered processes 0 and 1 differently",) * 2),
    ],
    ids=["failed", "answered differently"],
)
def test_a_search_that_fails_in_one_process_stops_all_with_a_sentence(words, clues, tiny, tmp_path):
    status, errors = together(tmp_path, FAILING_SEARCH, tiny, tmp_path / "run", *words)
    assert status == [2, 2], errors
    for error, clue in zip(errors, clues, strict=True):
        assert clue in error
        assert "Traceback" not in error
