"""Several processes train one policy and learn what one would, on one lane or several, in turn or one step ahead.

One of them writes the run's folder, and what ends one of them ends all.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from experiment_parts import json_lines, measured, save_tiny_policy, written_episodes
from joined_processes import free_port
from test_sft import demonstrations, write

PROGRAM = """
import os
import signal
import sys
import time
from pathlib import Path

process, processes, port, tests, command, event, folder, output, *words = sys.argv[1:]
sys.path[:0] = [tests, str(Path(tests).parent), str(Path(tests).parent / "runs")]
from joined_processes import join

join(process, processes, port)

from experiment_parts import words_of
from test_sft import sft

from lcrag import main
from lcrag.errors import UserError
from lcrag.files import Journal
from lcrag.learning import learners
from lcrag.retrieval import Collections

calls, search = [], Collections.search

def disturbed(learn):
    def learning(self, batch):
        calls.append(None)
        if event.startswith("SIG") and event.split()[1] == str(len(calls)):
            os.kill(os.getpid(), getattr(signal, event.split()[0]))
        return learn(self, batch)
    return learning

def searching(self, *arguments):
    if event == "broken searches":
        raise UserError("no collection can be read")
    if event == "slow searches":
        time.sleep(5)
    hits = search(self, *arguments)
    return [best[:-1] for best in hits] if event == "fewer hits" else hits

append, saved = Journal.append, []

def saving(self, rows):
    append(self, rows)
    saved.append(None)
    if event.endswith("answers") and len(saved) == 1 + int(event.split()[1]):  # after a header
        os.kill(os.getpid(), signal.SIGKILL)

if process == "1":  # the event befalls one process
    Collections.search, Journal.append = searching, saving
    for learner in (learners.Learner, learners.SupervisedLearner):
        learner.learn = disturbed(learner.learn)
    words += event.split()[1:] if event.startswith("binding") else []

mesh, folder, output = ("policy.mesh=@mesh()", "mesh.data=-1"), Path(folder), Path(output)
if command == "sft":
    sys.exit(sft(folder, output, *mesh, rows=Path(words[0]), steps=4))
sys.argv = ["lcrag", *words_of(command, folder, *mesh, "Method.reward=@lengths()", *words, output=output)]
sys.exit(main.run())
"""
WEIGHTS = "policy/model.safetensors"
WITHOUT_EVALUATION = "train.evaluation=None"
AHEAD = (
    *("train.staleness=1", "PolicyGradient.importance_cap=2.0", "PolicyGradient.kl_coefficient=0.01"),
    *("train.updates_per_rollout=2", "train.checkpoint_every=2", "train.episodes_every=1"),
)
pytestmark = pytest.mark.slow


def together(command, folder, output, *words, event="none", processes=2, devices=2):
    """Exit status and errors of processes that run a command on some devices together."""
    environment = os.environ | {"XLA_FLAGS": f"--xla_force_host_platform_device_count={devices // processes}"}
    port, tests, running = free_port(), Path(__file__).parent, []
    logs = [output.with_name(f"errors_{number}") for number in range(processes)]
    try:
        for number, log in enumerate(logs):
            line = [sys.executable, "-c", PROGRAM, number, processes, port, tests, command, event, folder, output]
            with log.open("w") as stderr, output.with_name(f"said_{number}").open("w") as stdout:
                running.append(
                    subprocess.Popen([*map(str, line), *map(str, words)], env=environment, stdout=stdout, stderr=stderr)
                )
        status = [process.wait(timeout=900) for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()
    return status, [log.read_text() for log in logs]


def trained(tiny, output, *words, lanes=1, steps=3, **options):
    sizes = (f"Lanes.count={lanes}", f"Sampler.slots={2 * lanes}", f"train.questions_per_step={lanes}")
    words = (f"STEPS={steps}", *(() if lanes == 1 else (*sizes, WITHOUT_EVALUATION)), *words)
    return together("train", tiny, output, *words, **options)


def steps_of(output):
    return [record["step"] for record in json_lines(output / "metrics.jsonl")]


def assert_same_run(one, other, steps=3):
    assert measured(one) == measured(other)
    assert steps_of(one) == list(range(steps))
    assert written_episodes(one, f"step_{steps - 1}") == written_episodes(other, f"step_{steps - 1}")
    assert (one / WEIGHTS).read_bytes() == (other / WEIGHTS).read_bytes()


def test_two_processes_write_once_stop_together_and_continue(tiny, tmp_path):
    """The second one alone gets the signal, in the third step, which both finish and save."""
    rows, output = write(tmp_path / "rows.jsonl", demonstrations()), tmp_path / "run"
    status, errors = together("sft", tiny, output, rows, event="SIGTERM 3")
    assert status == [143, 143], errors
    assert {path.name for path in (output / "checkpoints").iterdir()} == {"2", "3"}
    assert steps_of(output) == [0, 1, 2]
    assert len(list(output.glob("*tfevents*"))) == 1
    assert not (output / "report.md").exists()
    status, errors = together("sft", tiny, output, rows)
    assert status == [0, 0], errors
    assert steps_of(output) == [0, 1, 2, 3]
    status, errors = together("sft", tiny, output, rows)  # which has finished: nothing is trained or evaluated
    assert status == [0, 0], errors
    assert len(list(output.glob("*tfevents*"))) == 2
    assert (output / "report.md").exists()
    assert (output / WEIGHTS).is_file()


def test_two_processes_on_one_lane_learn_and_answer_what_one_with_their_devices_does(tiny, tmp_path):
    """Bit for bit: from the same episodes, since each of them has all answers of the searches."""
    one, two = tmp_path / "one", tmp_path / "two"
    for output, processes in ((one, 1), (two, 2)):
        status, errors = trained(tiny, output, steps=2, processes=processes)
        assert status == [0] * processes, errors
    assert_same_run(one, two, steps=2)
    for path in (one / "answers").iterdir():
        assert path.read_bytes() == (two / "answers" / path.name).read_bytes()
    for output, processes in ((one, 2), (two, 1)):  # each continues as the other began
        status, errors = trained(tiny, output, processes=processes)
        assert status == [0] * processes, errors
    assert_same_run(one, two)
    status, errors = trained(tiny, two, "SEED=1")
    assert status == [2, 2], errors
    assert all("holds another run" in error for error in errors), errors


@pytest.mark.parametrize(
    ("event", "words", "clues"),
    [
        ("broken searches", (), ("the retrieval service failed in process 1", "no collection can be read")),
        ("fewer hits", (), ("the retrieval service answered processes 0 and 1 differently",) * 2),
        (
            "broken searches",
            ("Lanes.count=2", "train.questions_per_step=2", *AHEAD),
            ("the rollout failed in process 1, whose error says why", "no collection can be read"),
        ),
        ("none", AHEAD, ("2 processes share one lane",) * 2),
    ],
    ids=["failed", "answered differently", "failed ahead", "one lane ahead"],
)
def test_what_ends_one_process_ends_all_with_a_sentence(event, words, clues, tiny, tmp_path):
    status, errors = trained(tiny, tmp_path / "run", WITHOUT_EVALUATION, *words, steps=1, event=event)
    assert status == [2, 2], errors
    for error, clue in zip(errors, clues, strict=True):
        assert clue in error
        assert "Traceback" not in error


@pytest.mark.parametrize(
    ("lanes", "devices", "processes"),
    [(4, 4, (1, 2, 4)), (3, 2, (1, 2))],
    ids=["even shares", "two lanes in one process, one in the other"],
)
def test_the_number_of_processes_changes_nothing(lanes, devices, processes, tiny, tmp_path):
    outputs = [tmp_path / f"on_{number}" for number in processes]
    for output, number in zip(outputs, processes, strict=True):
        status, errors = trained(tiny, output, lanes=lanes, devices=devices, processes=number)
        assert status == [0] * number, errors
    for output in outputs[1:]:
        assert_same_run(outputs[0], output)


@pytest.mark.parametrize("words", [(), AHEAD], ids=["in turn", "ahead"])
def test_a_signal_to_one_process_stops_all_after_its_step_and_others_continue(words, tiny, tmp_path):
    """On as many devices bit for bit; the searches of the second process are slow in the run that is not broken."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    status, errors = trained(tiny, whole, *words, lanes=2, event="slow searches")
    assert status == [0, 0], errors
    status, errors = trained(tiny, broken, *words, lanes=2, event="SIGTERM 2")
    assert status == [128 + signal.SIGTERM] * 2, errors
    assert steps_of(broken) == [0, 1]
    status, errors = trained(tiny, broken, *words, lanes=2, processes=1)
    assert status == [0], errors
    assert_same_run(whole, broken)


def test_a_killed_process_ends_the_others_and_fewer_continue(tiny, tmp_path):
    """The run goes on with both lanes on one device, which is another mesh."""
    output, saving = tmp_path / "run", "train.checkpoint_every=1"
    status, errors = trained(tiny, output, saving, lanes=2, event="SIGKILL 2")
    assert status[1] == -signal.SIGKILL
    assert status[0] in (1, -signal.SIGABRT), errors  # told by its connection, or by JAX's coordination service
    assert steps_of(output) == [0]
    status, errors = trained(tiny, output, saving, lanes=2, processes=1, devices=1)
    assert status == [0], errors
    assert steps_of(output) == [0, 1, 2]


def test_an_evaluation_whose_process_was_killed_asks_only_the_other_questions(tiny, tmp_path):
    """Each process saves the answers of its lane."""
    straight, output = tmp_path / "straight", tmp_path / "run"
    facts = "held_out/atlas_questions.limit=2"  # the languages of a fact stay together, in one lane
    words = ("Lanes.count=2", "Sampler.slots=4", "Evaluation.temperatures={'greedy': 0.0}", facts)
    status, errors = together("evaluate", tiny, straight, *words)
    assert status == [0, 0], errors
    status, errors = together("evaluate", tiny, output, *words, event="SIGKILL 3 answers")
    assert status[1] == -signal.SIGKILL
    first, second = (len(json_lines(output / f"answers/LcRL_greedy_saved{own}.jsonl")) - 1 for own in ("", "_1"))
    assert second == 3
    status, errors = together("evaluate", tiny, output, *words)
    assert status == [0, 0], errors
    assert f"{first + second} of 26 answers are saved" in (tmp_path / "said_0").read_text()
    answers = [json_lines(each / "answers/LcRL_greedy.jsonl") for each in (output, straight)]
    assert answers[0] == answers[1]
    assert not list(output.glob("answers/*_saved*"))


def test_hosts_with_other_weights_are_refused(tiny, tmp_path):
    """The second process reads another policy of the same shape."""
    save_tiny_policy(tmp_path / "other", seed=1)
    status, errors = trained(tiny, tmp_path / "run", lanes=2, event=f"binding policy.folder='{tmp_path / 'other'}'")
    assert status == [2, 2], errors
    assert all("process 1 reads another folder of the policy than process 0" in error for error in errors), errors
