"""`lcrag launch`: what it prints, and what it does with programs that stand in for ssh, sbatch, srun and gcloud."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from lcrag import main

COMMAND = ("train", "--gin_file=quickstart.gin", "--gin.policy.folder='a b'", "--output_dir=gs://bucket/run")
SSH = """
for word; do line=$word; done
exec sh -c "$line"
"""
# Says who it is, then: fails once with the status in FAIL on process 1, or waits for SIGTERM if WAIT is set.
PROGRAM = """
echo "process $SLURM_PROCID $* in $(pwd) with $SETUP"
case "$*" in *--process=1*) if [ -n "$FAIL" ] && ! [ -e failed ]; then touch failed; exit $FAIL; fi ;; esac
if [ -n "$WAIT" ]; then trap 'echo saved; exit 143' TERM; echo waiting $$; while :; do sleep 0.05; done; fi
"""
SBATCH = "SLURM_JOB_ID=41 exec bash $1"
SRUN = """
while case $1 in --*) true ;; *) false ;; esac; do shift; done
SLURM_PROCID=0 "$@" & SLURM_PROCID=1 "$@"; status=$?; wait $!; exit $status
"""
GCLOUD = """
echo "$*" >> calls
case "$*" in
  *"queued-resources describe"*) cat state 2>/dev/null || { echo "ERROR: NOT_FOUND: no such resource" >&2; exit 1; } ;;
  *"queued-resources create"*) echo ACTIVE > state ;;
  *"queued-resources delete"*) rm state ;;
  *"tpu-vm describe"*) echo "10.0.0.1;10.0.0.2" ;;
  *"--worker=all"*) ;;
  *"tpu-vm ssh"*)
    for word; do line=$word; done
    case "$*" in
      *--worker=1*) [ -z "$PREEMPT" ] || [ -e gone ] || { touch gone; echo SUSPENDED > state; exit 255; } ;;
    esac
    exec sh -c "$line" ;;
esac
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A working directory, programs in it on the path, and no options of the environment."""
    monkeypatch.chdir(tmp_path)
    programs = {
        "ssh": SSH,
        "lcrag": PROGRAM,
        "sbatch": SBATCH,
        "srun": SRUN,
        "gcloud": GCLOUD,
        "git": "",
        "xpk": "echo $*",
    }
    programs["scontrol"] = "echo $* >> calls"
    for name, lines in programs.items():
        path = tmp_path / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{lines}")
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def launch(*words, command=COMMAND):
    return main.run(["launch", *words, "--", *command])


def lines(path):
    return path.read_text().splitlines()


QUICK = ("--lcrag=lcrag", "--pause_seconds=0", "--grace_seconds=5")


def test_the_commands_of_every_kind_are_printed(capsys):
    kinds = {
        "ssh": ("--hosts=a,b", "--port=1234"),
        "slurm": ("--nodes=2", "--gpus=8", "--partition=big"),
        "pod": ("--zone=us-west4-a", "--accelerator=v5litepod-16", "--spot", "--delete"),
        "xpk": ("--cluster=c", "--accelerator=v5litepod-16", "--image=i"),
    }
    printed = {}
    for kind, options in kinds.items():
        assert launch(kind, *options, "--dry_run") == 0
        printed[kind] = capsys.readouterr().out
    first, second = printed["ssh"].splitlines()
    assert "--coordinator=a:1234 --processes=2 --process=0" in first
    assert second.startswith("ssh -o BatchMode=yes -o ServerAliveInterval=30 b ")
    for directive in ("nodes=2", "gpus-per-node=8", "partition=big", "signal=TERM@120", "requeue"):
        assert f"#SBATCH --{directive}\n" in printed["slurm"]
    steps = [line.split()[3:5] for line in printed["pod"].splitlines()]
    assert [" ".join(step) for step in steps] == [
        "queued-resources create",
        "queued-resources describe",
        *("--output=logs/lcrag.tar.gz HEAD", "tpu-vm scp", "tpu-vm ssh", "tpu-vm describe", "tpu-vm ssh"),
        "queued-resources delete",
    ]
    assert " --spot " in printed["pod"].splitlines()[0]
    assert printed["xpk"].startswith("xpk workload create --workload=lcrag --cluster=c --tpu-type=v5litepod-16")
    for text in printed.values():
        assert "train --gin_file=quickstart.gin" in text


def test_words_with_spaces_reach_the_program(folder):
    assert launch("ssh", "--hosts=a,b", "--setup=export SETUP=it", *QUICK) == 0
    said = [lines(folder / "logs" / f"{name}.log") for name in "ab"]
    for number, (line,) in enumerate(said):
        assert "--gin.policy.folder='a b' --output_dir=gs://bucket/run --coordinator=a:8476" in line
        assert line.endswith(f"--process={number} in {folder} with it")


def test_a_lost_process_starts_all_again(folder, monkeypatch, capsys):
    monkeypatch.setenv("FAIL", "75")
    assert launch("ssh", "--hosts=a,b", *QUICK) == 0
    assert [len(lines(folder / "logs" / f"{name}.log")) for name in "ab"] == [2, 2]
    assert "b ended with status 75" in capsys.readouterr().err


def test_a_mistake_is_not_tried_again(folder, monkeypatch, capsys):
    monkeypatch.setenv("FAIL", "2")
    assert launch("ssh", "--hosts=a,b", *QUICK) == 2
    assert "the command cannot run on b, as logs/b.log says" in capsys.readouterr().err
    assert len(lines(folder / "logs" / "a.log")) == 1


def test_what_always_fails_ends(monkeypatch, capsys):
    monkeypatch.setenv("FAIL", "9")
    assert launch("ssh", "--hosts=a,b", "--restarts=0", *QUICK) == 2
    assert "b ended with status 9 at start 1, the last" in capsys.readouterr().err


def test_sigterm_reaches_every_process(folder, monkeypatch):
    monkeypatch.setenv("WAIT", "1")
    logs = [folder / "logs" / f"{name}.log" for name in "ab"]

    def signal_when_all_wait():
        while not all(log.exists() and "waiting" in log.read_text() for log in logs):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=signal_when_all_wait)
    thread.start()
    with pytest.raises(SystemExit) as ended:
        launch("ssh", "--hosts=a,b", *QUICK)
    thread.join()
    assert ended.value.code == 143
    assert [lines(log)[-1] for log in logs] == ["saved", "saved"]


def test_a_launcher_that_is_killed_leaves_no_process(folder, monkeypatch):
    monkeypatch.setenv("WAIT", "1")
    line = [sys.executable, "-m", "lcrag.main", "launch", "ssh", "--hosts=a", *QUICK, "--", *COMMAND]
    launcher = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    log = folder / "logs" / "a.log"
    while not (log.exists() and log.read_text().endswith("\n")):
        time.sleep(0.02)
    while len(lines(log)) < 2:
        time.sleep(0.02)
    process = int(log.read_text().split()[-1])
    launcher.kill()
    launcher.wait()
    with pytest.raises(ProcessLookupError):
        while True:
            os.kill(process, 0)
            time.sleep(0.02)


def test_slurm_runs_a_task_on_every_node_and_requeues(folder, monkeypatch, capsys):
    assert launch("slurm", "--nodes=2", "--gpus=8", "--lcrag=lcrag", "--setup=export SETUP=it") == 0
    said = capsys.readouterr().out.splitlines()
    assert sorted(line.partition(" --gin_file")[0] for line in said) == ["process 0 train", "process 1 train"]
    assert all(line.endswith(f"in {folder} with it") for line in said)
    assert not (folder / "calls").exists()
    monkeypatch.setenv("FAIL", "143")
    (folder / "bin" / "lcrag").write_text("#!/bin/sh\nexit $FAIL\n")
    assert launch("slurm", "--nodes=2", "--lcrag=lcrag") == 2
    assert lines(folder / "calls") == ["requeue 41"]
    monkeypatch.setenv("SLURM_RESTART_COUNT", "20")
    assert launch("slurm", "--nodes=2", "--lcrag=lcrag") == 2
    assert lines(folder / "calls") == ["requeue 41"]


def test_a_preempted_pod_is_requested_again(folder, monkeypatch):
    monkeypatch.setenv("PREEMPT", "1")
    pod = ("--zone=z", "--accelerator=v5litepod-16", "--folder=.", "--delete")
    assert launch("pod", *pod, *QUICK) == 0
    calls = [line.partition("--")[0].split()[3:] for line in lines(folder / "calls")]
    requests = [words[0] for words in calls if words[0] in ("create", "delete")]
    assert requests == ["create", "delete", "create", "delete"]
    assert lines(folder / "logs" / "lcrag-1.log")[-1].startswith("process  train --gin_file=quickstart.gin")
    assert not (folder / "state").exists()


def test_what_is_missing_is_named(folder, capsys):
    (folder / "bin" / "xpk").unlink()
    assert launch("xpk", "--cluster=c", "--accelerator=v5litepod-16", "--image=i") == 2
    assert "there is no command xpk: pip install xpk" in capsys.readouterr().err
