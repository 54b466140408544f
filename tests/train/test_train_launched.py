"""`lcrag launch ssh` trains with real processes, one of which is killed: they are started again and continue."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from experiment_parts import json_lines, words_of
from joined_processes import free_port

SSH = '#!/bin/sh\nfor word; do line=$word; done\nexec sh -c "$line"\n'


@pytest.mark.slow
def test_a_killed_process_is_started_again_and_the_run_continues(tiny, tmp_path):
    ssh, output, logs = tmp_path / "bin" / "ssh", tmp_path / "run", tmp_path / "logs"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    program = tmp_path / "lcrag"
    program.write_text(
        f'#!/bin/sh\necho $$ >> {tmp_path}/pids\nexec {shlex.quote(sys.executable)} -m lcrag.main "$@"\n'
    )
    program.chmod(0o755)
    mesh = ("policy.mesh=@mesh()", "mesh.data=2", "train.evaluation=None", "STEPS=6", "train.checkpoint_every=1")
    words = words_of("train", tiny, *mesh, output=output)
    command = [word for word in words if "one_device" not in word]  # which only tests register
    options = ["--hosts=localhost,localhost", f"--port={free_port()}", f"--logs={logs}", f"--folder={Path.cwd()}"]
    options += [f"--lcrag={program}", "--pause_seconds=0", "--grace_seconds=60"]
    environment = os.environ | {"PATH": f"{ssh.parent}{os.pathsep}{os.environ['PATH']}"}
    environment["XLA_FLAGS"] = "--xla_force_host_platform_device_count=1"
    line = [sys.executable, "-m", "lcrag.main", "launch", "ssh", *options, "--", *command]
    launcher = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        while launcher.poll() is None and not (output / "checkpoints" / "2").exists():
            time.sleep(0.05)
        assert launcher.poll() is None, (logs / "localhost-0.log").read_text()
        os.kill(int((tmp_path / "pids").read_text().split()[-1]), signal.SIGKILL)
        _, errors = launcher.communicate(timeout=900)
    finally:
        launcher.kill()
    assert launcher.returncode == 0, errors
    assert [record["step"] for record in json_lines(output / "metrics.jsonl")] == list(range(6))
    for number in range(2):
        said = (logs / f"localhost-{number}.log").read_text().splitlines()
        first = f"lcrag: process {number} of 2 on 1 host (--coordinator): 2 devices, 1 here (cpu)"
        assert said[0] == first
        assert said.count(first) >= 2
    assert "ended with status" in errors
