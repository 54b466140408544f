"""`lcrag export RUN --to=FORMAT`, which needs neither a configuration nor a policy."""

import json
import pathlib
import shutil
import sys

import pytest

from lcrag import main
from lcrag.commands.formats.messages import messages_of
from lcrag.data.demonstrations import read_demonstrations
from lcrag.data.rows import BadRows

EPISODES = pathlib.Path(__file__).parent / "episodes.jsonl"
ROWS = [json.loads(line) for line in EPISODES.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def run(tmp_path):
    """A run's folder with the episodes of two steps and of an evaluation."""
    episodes = tmp_path / "run" / "episodes"
    episodes.mkdir(parents=True)
    for name in ("step_2", "step_10", "after_greedy"):
        shutil.copy(EPISODES, episodes / f"{name}.jsonl")
    return tmp_path / "run"


def export(*words, to, output):
    return main.run(["export", *map(str, words), f"--to={to}", f"--output_dir={output}"])


def names(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))


def test_trajectories_become_the_same_files_again(run, tmp_path, capsys):
    assert export(run, to="atif", output=tmp_path / "atif") == 0
    assert export(tmp_path / "atif", to="episodes", output=tmp_path / "new" / "run") == 0
    assert names(tmp_path / "new/run/episodes") == names(run / "episodes")
    for path in (run / "episodes").iterdir():
        assert (tmp_path / "new/run/episodes" / path.name).read_bytes() == path.read_bytes()
    assert "3 files of" in capsys.readouterr().out


@pytest.mark.parametrize(("word", "name"), [("10", "step_10"), ("after_greedy", "after_greedy")])
def test_a_step_or_an_evaluation_alone(run, tmp_path, word, name):
    assert export(run, word, to="atif", output=tmp_path / "out") == 0
    assert names(tmp_path / "out") == [f"{name}.jsonl"]
    first = json.loads((tmp_path / "out" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[0])
    assert (first["session_id"], first["trajectory_id"]) == ("run", f"run/{name}/1")


def test_messages_are_the_demonstrations_that_the_episodes_are(run, tmp_path):
    assert export(run, "2", to="messages", output=tmp_path / "out") == 0
    files = run / "episodes" / "step_2.jsonl", tmp_path / "out" / "step_2.jsonl"
    ours, theirs = (read_demonstrations([path], BadRows()) for path in files)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.opening, one.turns, one.topic) == (other.opening, other.turns, other.topic)


def test_messages_of_a_chat_have_its_system_its_opening_and_weights():
    row = ROWS[0] | {"system": "Search.", "opening": ["Where?", "Passages"], "prompt": "<user>Where?<model>Passages"}
    row |= {"turns": [row["turns"][0] | {"learn": False}, *row["turns"][1:]]}
    made = messages_of(row)["messages"]
    assert [each["role"] for each in made] == ["system", "user", "user", "assistant", "user", "assistant"]
    assert [each["content"] for each in made[:3]] == ["Search.", "Where?", "Passages"]
    assert [each.get("weight") for each in made[3:]] == [0, None, None]


def test_a_log_that_inspect_reads(run, tmp_path):
    logs = pytest.importorskip("inspect_ai.log", reason="the package inspect-ai is not installed")
    assert export(run, "2", to="inspect", output=tmp_path / "out") == 0
    log = logs.read_eval_log(str(tmp_path / "out" / "step_2.eval"))
    assert [log.status, log.eval.task, log.eval.dataset.samples] == ["success", "run/step_2", len(ROWS)]
    samples = {sample.id: sample for sample in log.samples}
    assert len(samples) == len(ROWS)
    for row in ROWS:
        sample = samples[f"{row['dataset']}/{row['question_id']}/{row['language']}"]
        assert [each.text for each in sample.messages] == [row["prompt"], *(turn["text"] for turn in row["turns"])]
        assert {name: score.value for name, score in sample.scores.items()} == row["rewards"]
        assert sample.metadata["outcome"] == row["outcome"]
        [usage] = sample.model_usage.values()
        assert usage.output_tokens == row["outcome"]["counts"]["policy_tokens"]
    [mean] = [score.metrics["mean"].value for score in log.results.scores if score.name == "total"]
    assert mean == pytest.approx(sum(row["rewards"]["total"] for row in ROWS) / len(ROWS))


def test_a_failed_episode_is_an_error_without_scores(run, tmp_path):
    logs = pytest.importorskip("inspect_ai.log", reason="the package inspect-ai is not installed")
    failed = ROWS[0] | {"failure": "no answer", "rewards": {"total": None}, "turns": [], "language": "fi"}
    text = "".join(f"{json.dumps(row)}\n" for row in (ROWS[0] | {"rewards": {"total": 1.0}}, failed))
    (run / "episodes" / "step_2.jsonl").write_text(text, encoding="utf-8")
    assert export(run, "2", to="inspect", output=tmp_path / "out") == 0
    log = logs.read_eval_log(str(tmp_path / "out" / "step_2.eval"))
    assert (log.results.total_samples, log.results.completed_samples) == (2, 1)
    assert [score.metrics["mean"].value for score in log.results.scores] == [1.0]
    assert {sample.error.message for sample in log.samples if sample.error} == {"no answer"}


def test_without_inspect_the_log_is_one_sentence(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "inspect_ai", None)
    assert export(run, to="inspect", output=tmp_path / "out") == 2
    assert "pip install 'lcrag[inspect]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "to", "sentence"),
    [
        (("{run}",), "atf", "there is no format atf; did you mean atif?"),
        (("{run}", "7"), "atif", "holds no step_7.jsonl; there are step_2, step_10, after_greedy"),
        (("{run}", "2", "3"), "atif", "and optionally a step"),
        (("{run}/episodes",), "atif", "holds no episodes/*.jsonl"),
        (("{run}",), "episodes", "holds no files of trajectories"),
        (("{run}/episodes",), "episodes", "line 1, cannot be exported: its schema_version is None"),
        (("{run}", "--gin_file=quickstart.gin"), "atif", "takes no configuration"),
    ],
)
def test_a_mistake_is_one_sentence_and_leaves_nothing(run, tmp_path, capsys, words, to, sentence):
    assert export(*(word.format(run=run) for word in words), to=to, output=tmp_path / "out") == 2
    assert sentence in capsys.readouterr().err
    assert names(tmp_path) == names(run.parent)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "it is not JSON (Expecting property name enclosed in double quotes at column"),
        ("[]", "it is not a JSON object"),
        ("{}", "it holds no token ids"),
        ('{"tokens": {}}', "it has no 'prompt'"),
        ('{"prompt": 1, "turns": [], "tokens": 3}', "one of its fields has the wrong type"),
    ],
)
def test_a_damaged_row_names_file_and_line(run, tmp_path, capsys, line, problem):
    path = run / "episodes" / "step_10.jsonl"
    path.write_text(f"{EPISODES.read_text(encoding='utf-8')}{line}\n", encoding="utf-8")
    assert export(run, to="atif", output=tmp_path / "out") == 2
    error = capsys.readouterr().err
    assert f"{path}, line {len(ROWS) + 1}, cannot be exported" in error
    assert problem in error
    assert not (tmp_path / "out").exists()


def test_a_file_of_another_encoding_is_said_to_be(run, tmp_path, capsys):
    (run / "episodes" / "step_2.jsonl").write_bytes('{"prompt": "é"}\n'.encode("latin-1"))
    assert export(run, to="messages", output=tmp_path / "out") == 2
    assert "step_2.jsonl, line 1, cannot be exported: it is not UTF-8" in capsys.readouterr().err


def test_nothing_is_overwritten(run, capsys):
    assert export(run, to="atif", output=run) == 2
    assert "is not empty" in capsys.readouterr().err
    assert main.run(["export", str(run), "--to=atif"]) == 2
    assert "needs a folder to write to" in capsys.readouterr().err
