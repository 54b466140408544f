"""Several processes: how they are found, join, and say why they ended."""

import json
import os
import signal
import subprocess
import sys

import pytest
from joined_processes import free_port

from lcrag.errors import UserError
from lcrag.runs import cluster, guard
from lcrag.runs.cluster import Cluster, find_cluster

SLURM = {
    "SLURM_JOB_ID": "41",
    "SLURM_STEP_NODELIST": "node[1-2]",
    "SLURM_NTASKS": "2",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
}
NAMED = {"coordinator_address": "a:1", "num_processes": 2, "process_id": 1, "cluster_detection_method": "deactivate"}
XPK = {"JAX_COORDINATOR_ADDRESS": "a", "JAX_COORDINATOR_PORT": "1", "NNODES": "2", "NODE_RANK": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "1"}
JOINING = """
import json, os, signal, sys, time
from lcrag.runs.cluster import find_cluster, join, leave
from lcrag.runs.guard import guard
from lcrag.runs.stopping import end_process
from lcrag.errors import UserError

options, configuration, then = json.loads(sys.argv[1]), *sys.argv[2:]
found = find_cluster(options)
guard(found)
came = []
signal.signal(signal.SIGTERM, lambda *came_with: came.append(came_with))
try:
    join(found, configuration)
except UserError as error:
    print(f"lcrag: error: {error}", file=sys.stderr)
    leave()
    end_process(2)
os.kill(os.getpid(), signal.SIGTERM)
assert came, "JAX has taken SIGTERM"
if then == "killed":
    os.kill(os.getppid(), signal.SIGKILL)
while then:
    time.sleep(1)
"""


@pytest.mark.parametrize(
    ("options", "environment", "source", "arguments"),
    [
        ({"--coordinator": "a:1", "--processes": "2", "--process": "1"}, SLURM, "--coordinator", NAMED),
        ({"--coordinator": "a:1"}, SLURM, "--coordinator", NAMED),
        ({"--coordinator": "a:1"}, OPEN_MPI, "--coordinator", NAMED),
        ({}, XPK, "JAX_COORDINATOR_ADDRESS", NAMED),
        ({}, SLURM, "SLURM", {"cluster_detection_method": "slurm"}),
        (
            {},
            SLURM | {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_GPUS_ON_NODE": "3"},
            "SLURM",
            {"cluster_detection_method": "slurm", "local_device_ids": [0, 1, 2]},
        ),
        (
            {},
            OPEN_MPI | {"OMPI_MCA_orte_hnp_uri": "1.0;tcp://10.0.0.1:1"},
            "Open MPI",
            {"cluster_detection_method": "ompi"},
        ),
        ({}, {"TPU_WORKER_HOSTNAMES": "a,b"}, "Cloud TPU", {}),
        ({}, {"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"}, "Cloud TPU", {}),
    ],
)
def test_a_cluster_is_found(options, environment, source, arguments):
    found = find_cluster(options, environment)
    assert found is not None
    assert (found.source, found.arguments) == (source, arguments)


@pytest.mark.parametrize(
    ("options", "environment"),
    [
        ({}, {}),
        ({"--processes": "1"}, SLURM),
        ({"--coordinator": "a:1", "--processes": "1", "--process": "0"}, {}),
        ({}, SLURM | {"SLURM_NTASKS": "1"}),
        ({}, {name: value for name, value in SLURM.items() if name != "SLURM_STEP_NODELIST"}),
        ({}, {"OMPI_COMM_WORLD_SIZE": "1"}),
        ({}, {"TPU_WORKER_HOSTNAMES": "localhost"}),
        ({}, {"TPU_WORKER_HOSTNAMES": "a,b", "JAX_PLATFORMS": "proxy,cpu"}),
    ],
)
def test_a_machine_by_itself_joins_nothing(options, environment):
    assert find_cluster(options, environment) is None


def test_a_tpu_slice_is_known_by_its_metadata(tmp_path, monkeypatch):
    vendor = tmp_path / "0000:00:04.0" / "vendor"
    vendor.parent.mkdir()
    vendor.write_text("0x1ae0\n")
    assert cluster._has_tpu(tmp_path)
    assert not cluster._has_tpu(tmp_path / "0000:00:04.0")
    monkeypatch.setattr(cluster, "_has_tpu", lambda: True)
    for answers, expected in (
        ({"worker-network-endpoints": "a,b"}, True),
        ({"tpu-env": "ZONE: 'z'\nMEGASCALE_NUM_SLICES: '2'\n"}, True),
        ({"worker-network-endpoints": "a", "tpu-env": ""}, False),
        ({}, False),
    ):
        monkeypatch.setattr(cluster, "_metadata", lambda name, answers=answers: answers.get(name, ""))
        assert (find_cluster({}, {}) is not None) == expected


@pytest.mark.parametrize(
    ("options", "environment", "clue"),
    [
        ({"--coordinator": "a", "--processes": "2", "--process": "0"}, {}, "takes HOST:PORT, not 'a'"),
        ({"--coordinator": "a:1", "--processes": "2", "--process": "2"}, {}, "process 2 of 2: --process counts from 0"),
        ({"--coordinator": "a:1", "--processes": "2"}, {}, "--coordinator needs --process=I"),
        ({"--processes": "2", "--process": "0"}, {}, "need the address of the first one"),
        ({"--processes": "two"}, {}, "--processes takes a whole number, not 'two'"),
        ({"--join_seconds": "0"}, {}, "--join_seconds is 0"),
        ({}, OPEN_MPI, "add --coordinator=HOST:PORT"),
    ],
)
def test_what_is_wrong_is_said(options, environment, clue):
    with pytest.raises(UserError, match="^[^\n]+$") as error:
        find_cluster(options, environment)
    assert clue in str(error.value)


def test_errors_are_passed_on_but_for_the_end_of_jax():
    written, (reader, writer) = [], os.pipe()
    fatal = b"F1122 18:59:52.39 1 client.h:80] "
    fatal += b"Terminating process because the JAX distributed service detected fatal errors."
    os.write(writer, b"one\n[Gloo] Rank 0 is connected\ntwo\n" + fatal + b"\nstack\n")
    os.close(writer)
    assert guard.pass_on(reader, written.append) == fatal + b"\nstack\n"
    assert written == [b"one\n", b"two\n"]
    os.close(reader)


@pytest.mark.parametrize(
    ("status", "fatal", "clue", "ends_with"),
    [
        (2, "", "", 2),
        (-signal.SIGKILL, "", "process 1 was ended by SIGKILL, for want of memory perhaps", 137),
        (-signal.SIGABRT, "RPC: /xla.coordination.CoordinationService/RegisterTask", "within 9 seconds", 2),
        (-signal.SIGABRT, "(stopped sending heartbeats):\n0\n2\nThe tasks have crashed", "process 0, 2 was lost", 75),
        (-signal.SIGABRT, "RPC: /xla.coordination.CoordinationService/PollForError", "another process", 75),
    ],
)
def test_an_abrupt_end_is_explained(status, fatal, clue, ends_with):
    joining = Cluster(source="--coordinator", join_seconds=9, arguments=NAMED)
    sentence, status = guard.explanation(joining, status, fatal)
    assert clue in sentence
    assert status == ends_with


def processes_that_join(*, then, configurations=("same", "same"), environments=({}, {}), **options):
    """Exit status, output and errors of processes that join on loopback."""
    shared, started = {f"--{name}": str(value) for name, value in options.items()}, []
    for number, (configuration, after, more) in enumerate(zip(configurations, then, environments, strict=True)):
        own = shared | ({} if more else {"--process": str(number)})
        environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"} | more
        line = [sys.executable, "-c", JOINING, json.dumps(own), configuration, after]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(line, env=environment, **pipes))
    ends = [process.communicate(timeout=300) for process in started]
    return [(process.returncode, *end) for process, end in zip(started, ends, strict=True)]


def test_two_tasks_of_slurm_join_and_a_killed_one_ends_the_other():
    job = SLURM | {"SLURM_STEP_NODELIST": "localhost", "JAX_COORDINATOR_PORT": str(free_port())}
    tasks = [job | {"SLURM_PROCID": str(number)} for number in range(2)]
    ends = processes_that_join(then=("wait", "killed"), environments=tasks, heartbeat_seconds=4, join_seconds=120)
    first, second = ends
    for number, (_, said, _) in enumerate(ends):
        lines = [line for line in said.splitlines() if not line.startswith("[Gloo]")]  # which Gloo prints at any time
        assert lines == [f"lcrag: process {number} of 2 on 1 host (SLURM): 4 devices, 2 here (cpu)"]
    assert first[0] == 75
    assert first[2].splitlines()[-1].startswith("lcrag: error: process 1 was lost, so this process ended too")
    assert second[0] == -signal.SIGKILL


def test_two_processes_with_different_configurations_both_end():
    named = {"coordinator": f"localhost:{free_port()}", "processes": 2}
    for status, _, errors in processes_that_join(then=("", ""), configurations=("one", "other"), **named):
        assert status == 2
        assert errors.count("the configuration of process 1 on") == 1
        assert "(process 1 has other): give all of them the same" in errors


def test_a_coordinator_that_nobody_answers_ends_in_a_sentence():
    named = {"coordinator": f"localhost:{free_port()}", "processes": 2, "join_seconds": 1}
    ((status, _, errors),) = processes_that_join(then=("",), configurations=("",), environments=({},), **named)
    assert status == 2
    assert errors.startswith("lcrag: error: process 0 and the others did not find each other at localhost:")
    assert errors.count("\n") == 1
