"""Several processes train one policy: one of them writes the run's folder, all stop at one step, and all continue."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from experiment_parts import json_lines
from test_experiments_sft import demonstrations, write

PROGRAM = """
import signal
import sys

import jax

process, port, tests, folder, output, rows, stop = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=int(process))
sys.path.insert(0, tests)

from pathlib import Path
from test_experiments_sft import sft
from lcrag.experiments.supervised import Imitator

learn, calls = Imitator.learn, []

def signalled(self, batch):
    calls.append(None)
    if len(calls) == int(stop) and process == "1":
        signal.raise_signal(signal.SIGTERM)
    return learn(self, batch)

Imitator.learn = signalled
mesh = ("policy.mesh=@mesh()", "mesh.data=2")
sys.exit(sft(Path(folder), Path(output), *mesh, rows=Path(rows), steps=4))
"""


def free_port() -> int:
    with socket.socket() as opened:
        opened.bind(("localhost", 0))
        return opened.getsockname()[1]


def both(folder, *words):
    """Exit status and errors of two processes that run the program together; the errors are kept in the folder."""
    port, environment = free_port(), os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    tests, logs, processes = Path(__file__).parent, [folder / f"errors_{number}" for number in (0, 1)], []
    try:
        for number, log in enumerate(logs):
            program = [sys.executable, "-c", PROGRAM, str(number), str(port), str(tests), *map(str, words)]
            with log.open("w") as stderr:
                process = subprocess.Popen(program, env=environment, stdout=subprocess.DEVNULL, stderr=stderr)
            processes.append(process)
        status = [process.wait(timeout=900) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return status, [log.read_text() for log in logs]


@pytest.mark.slow
def test_two_processes_write_once_stop_together_and_continue(tiny, tmp_path):
    """The second one alone is told to stop, in the third step, which both finish and save."""
    rows, output = write(tmp_path / "rows.jsonl", demonstrations()), tmp_path / "run"
    status, errors = both(tmp_path, tiny, output, rows, 3)
    assert status == [143, 143], errors
    assert {path.name for path in (output / "checkpoints").iterdir()} == {"2", "3"}
    assert [record["step"] for record in json_lines(output / "metrics.jsonl")] == [0, 1, 2]
    assert len(list(output.glob("*tfevents*"))) == 1 and not (output / "report.md").exists()
    status, errors = both(tmp_path, tiny, output, rows, 0)
    assert status == [0, 0], errors
    assert [record["step"] for record in json_lines(output / "metrics.jsonl")] == [0, 1, 2, 3]
    assert len(list(output.glob("*tfevents*"))) == 2 and (output / "report.md").exists()
    assert (output / "policy" / "model.safetensors").is_file()
