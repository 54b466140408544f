"""The folder of a run: continued, refused, incomplete lines, and nothing lost of what was written."""

import contextlib
import json

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lcrag.errors import UserError
from lcrag.runs import Journal, MetricsLog, check_folder, differences, is_writer, open_run, read_metrics
from lcrag.runs.answers import answers_path
from lcrag.runs.provenance import provenance

CONFIG = "# Parameters for train:\ntrain.steps = 3\ntrain.sampler = @Sampler()\nSampler.slots = 4\n"
ABOUT = {"seed": 0, "command": ["lcrag", "train"]}


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def steps_of(folder):
    return [record["step"] for record in read_metrics(folder)]


def assert_refused(part, path, config=CONFIG, about=ABOUT, **options):
    with pytest.raises(UserError, match=part), open_run(path, config=config, about=about, **options):
        pass


def test_a_new_run_then_the_same_run(tmp_path):
    with open_run(tmp_path / "a" / "b", config=CONFIG, about=ABOUT) as run:
        assert "continued" not in json.loads((run.path / "run.json").read_text())
        run.write_episodes(1, [{"answer": "東京"}])
    (run.path / "episodes" / "step_2.jsonl.123.tmp").write_text("of a killed process")
    with open_run(run.path, config=CONFIG.replace("3", "6"), about=ABOUT, may_change=("train.steps",)):
        pass
    assert [path.name for path in (run.path / "episodes").iterdir()] == ["step_1.jsonl"]
    assert "東京" in (run.path / "episodes" / "step_1.jsonl").read_text()
    assert len(json.loads((run.path / "run.json").read_text())["continued"]) == 1
    assert "steps = 6" in (run.path / "config.gin").read_text()


def test_of_several_processes_the_first_one_writes(tmp_path, monkeypatch):
    with open_run(tmp_path / "run", config=CONFIG, about=ABOUT) as run, run.metrics() as log:
        log.write(0, {"loss": 1.0})
        before = contents(tmp_path)
        monkeypatch.setattr(jax, "process_index", lambda: 1)
        assert is_writer(), "a single process is the writer, without a look at JAX's devices"
        monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
        with open_run(run.path, config=CONFIG, about=ABOUT) as other, other.metrics(0) as unwritten:
            unwritten.write(1, {"loss": 0.5})
            other.write_episodes(1, [{"answer": "東京"}])
            other.write_rows([{"answer": "東京"}])
            assert other.checkpoints == run.checkpoints
    assert before == contents(tmp_path)


@pytest.mark.parametrize(
    ("config", "about", "part"),
    [
        (CONFIG.replace("4", "8"), ABOUT, "Sampler.slots is 4 there and 8 here"),
        (CONFIG.replace("@Sampler", "@Other"), ABOUT, "train.sampler is @Sampler"),
        (CONFIG + "train.more = 1\n", ABOUT, "train.more is not set there"),
        (CONFIG, {**ABOUT, "seed": 1}, "seed is 0 there and 1 here"),
    ],
)
def test_another_run_is_refused_and_left_alone(tmp_path, config, about, part):
    with open_run(tmp_path, config=CONFIG, about=ABOUT):
        pass
    before = contents(tmp_path)
    assert_refused(part, tmp_path, config, about)
    assert before == contents(tmp_path)


def test_content_that_must_not_change(tmp_path):
    for policy in ("b", "c"):
        about = {**ABOUT, "hashes": {"rows": "a", "policy": policy}}
        with open_run(tmp_path, config=CONFIG, about=about, same_hashes=("rows",)):
            pass
    about["hashes"]["rows"] = "c"
    assert_refused("the content of its rows differs", tmp_path, about=about, same_hashes=("rows",))


def test_folders_that_are_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    assert_refused("thesis.tex", tmp_path)
    assert_refused("cannot write", tmp_path / "thesis.tex")
    with open_run(tmp_path / "run", config=CONFIG, about=ABOUT):
        assert_refused("another process", tmp_path / "run")  # a lock belongs to an open file, not to a process
    (tmp_path / "run" / "run.json").unlink()
    assert_refused("has lost its run.json", tmp_path / "run")


def test_all_differing_bindings_are_named(tmp_path):
    with open_run(tmp_path, config=CONFIG, about=ABOUT):
        pass
    config = CONFIG.replace("4", "8").replace("@Sampler", "@Other").replace("steps = 3", "steps = 6")
    parts = "Sampler.slots is 4 there and 8 here, train.sampler is @Sampler.* there and @Other.* here; choose"
    assert_refused(parts, tmp_path, config, may_change=("train.steps",))


@pytest.mark.parametrize(
    ("command", "config", "part"),
    [
        ("train", "train.steps = 6\ntrain.steps = 7\nOther.slots = 9\n", None),
        (
            "train",
            "SLOTS = 8\nSampler.slots = %SLOTS\ntrain.sampler = @Other()\n",
            "slots is 4 .* train.sampler is @Sam",
        ),
        ("sft", "sft.steps = 6\n", "the run of another command than sft"),
    ],
)
def test_what_is_known_before_anything_is_built(tmp_path, command, config, part):
    with open_run(tmp_path, config=CONFIG, about=ABOUT):
        pass
    before = contents(tmp_path)
    with pytest.raises(UserError, match=part) if part else contextlib.nullcontext():
        check_folder(tmp_path, command, config, may_change=("train.steps",))
    assert before == contents(tmp_path)


def test_folders_that_are_refused_before_anything_is_built(tmp_path):
    check_folder(tmp_path / "new" / "run", "train", CONFIG)
    assert not (tmp_path / "new").exists()
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(UserError, match="thesis.tex is a file"):
        check_folder(tmp_path / "thesis.tex" / "run", "train", CONFIG)
    with pytest.raises(UserError, match="holds thesis.tex but no run"):
        check_folder(tmp_path, "train", CONFIG)
    with open_run(tmp_path / "run", config=CONFIG, about=ABOUT) as run:
        with pytest.raises(UserError, match="another process is writing"):
            check_folder(run.path, "train", CONFIG)


@pytest.mark.parametrize(
    "other", ["train.languages = \\\n    ('en',\n     'fi')\n", "X = 'fi'\ntrain.languages = ['en', %X]\n"]
)
def test_values_compare_by_meaning(other):
    assert differences(other, "train.languages = ('en', 'fi')\n") is None


def test_metrics_continue_without_doubles(tmp_path):
    with MetricsLog(tmp_path) as log:
        for step in range(5):
            log.write(step, {"reward/total": np.float32(step), "loss/policy": float("nan")})
    with MetricsLog(tmp_path, after_step=2) as log:
        log.write(3, {"reward/total": 30.0})
        with pytest.raises(ValueError, match="already"):
            log.write(3, {})
    assert steps_of(tmp_path) == [0, 1, 2, 3]
    assert read_metrics(tmp_path)[1] == {"step": 1, "reward/total": 1.0, "loss/policy": None}
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("reward/total")
    assert [(event.step, event.value) for event in events] == [(0, 0), (1, 1), (2, 2), (3, 30)]


@pytest.mark.parametrize("torn", ['{"step": 2, "rew', '{"step": 2}garbage\n', '{"step": 2, "x": "\udce2'])
def test_an_incomplete_last_line_is_left_out(tmp_path, torn):
    (tmp_path / "metrics.jsonl").write_bytes(('{"step": 0}\n{"step": 1}\n' + torn).encode("utf-8", "surrogateescape"))
    assert steps_of(tmp_path) == [0, 1]
    with MetricsLog(tmp_path, after_step=1) as log:
        log.write(2, {"x": 3.0})
    assert steps_of(tmp_path) == [0, 1, 2]


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\nnonsense\n{"step": 2}\n')
    with pytest.raises(UserError, match="metrics.jsonl:2"):
        read_metrics(tmp_path)


def test_a_journal_is_continued(tmp_path):
    path = tmp_path / "journal.jsonl"
    Journal(path).append([{"a": 1}, {"b": "ä"}])
    with path.open("a") as file:
        file.write('{"torn": ')
    journal = Journal(path)
    assert journal.rows == [{"a": 1}, {"b": "ä"}]
    journal.append([{"c": (1, 2)}])
    assert journal.rows[-1] == {"c": [1, 2]}
    assert Journal(path).rows == journal.rows
    assert path.read_text() == '{"a": 1}\n{"b": "ä"}\n{"c": [1, 2]}\n'


@pytest.mark.parametrize("line", ["what", "[1]"])
def test_a_journals_line_that_is_no_object_is_named(tmp_path, line):
    (tmp_path / "journal.jsonl").write_text(f'{{"a": 1}}\n{line}\n')
    with pytest.raises(UserError, match="line 2 is not"):
        Journal(tmp_path / "journal.jsonl")


@pytest.mark.parametrize("label", ["../../there", "/etc/there", "a b/../c", "\0"])
def test_no_label_names_another_folder(tmp_path, label):
    assert answers_path(tmp_path, label, "greedy").resolve().parent == tmp_path / "answers"


def test_run_json_holds_no_secret(monkeypatch):
    monkeypatch.setattr("sys.argv", ["lcrag", "sample", "why http://me:hunter2@host/?", "http://host/?api_key=hunter2"])
    assert provenance(seed=0)["command"] == ["lcrag", "sample", "why http://***@host/?", "http://host/?api_key=***"]
