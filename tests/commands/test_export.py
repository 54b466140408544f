"""`lcrag export`: a checkpoint becomes a folder that `transformers` opens; with `--to`, episodes lose nothing.

`episodes.jsonl` holds rows of `lcrag train --gin_file=METHOD/atlas.gin --gin.STEPS=1` for lcrl (two), r_search, rag_r1,
globalrag and translate_r1, all begun with the policy `atlas/cold_start`.
"""

import json
import pathlib
import shutil

import gin
import numpy as np
import pytest
import transformers
from experiment_parts import run
from safetensors.numpy import load_file

from lcrag import main
from lcrag.commands.export import IN_STEPS, messages_of, trajectory_of
from lcrag.data.demonstrations import read_demonstrations
from lcrag.data.rows import BadRows
from lcrag.policy import load_hugging_face, load_tokenizer, save_hugging_face

EPISODES = pathlib.Path(__file__).parent / "episodes.jsonl"
LINES = EPISODES.read_text(encoding="utf-8").splitlines()
ROWS = [json.loads(line) for line in LINES]
BARE = {
    "dataset": "d",
    "prompt": "Q\n",
    "turns": [{"by": "policy", "text": "a"}, {"by": "environment", "text": "b"}, {"by": "environment", "text": "c"}],
    "advantage": None,
    "tokens": {"ids": [5, 6, 7, 8], "log_probabilities": [-0.5], "pieces": [[-1, 1], [0, 1], [1, 1], [2, 1]]},
}
UNUSUAL = (
    BARE,  # observations in a row
    BARE | {"tokens": BARE["tokens"] | {"log_probabilities": [None]}},
    BARE | {"tokens": {"ids": [5, 6], "log_probabilities": [], "pieces": [[-1, 1], [2, 1]]}},
    BARE | {"turns": [], "tokens": {"ids": [5], "log_probabilities": [], "pieces": [[-1, 1]]}},
    BARE | {"turns": BARE["turns"][::-1], "tokens": BARE["tokens"] | {"log_probabilities": [-0.0]}},
    BARE | {"opening": ["Q"], "system": "s", "completions": [{"model": None, "text": "x"}], "failure": "down"},
)


def export(*words, output=None):
    gin.clear_config()
    return main.run(["export", *map(str, words), *([f"--output_dir={output}"] if output else [])])


def assert_same_weights(folder, other):
    ours, saved = (load_file(each / "model.safetensors") for each in (folder, other))
    assert ours.keys() == saved.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, saved[name])


def test_the_latest_checkpoint_is_what_the_run_saved_as_its_policy(finished, tmp_path):
    """Also where the modules that made the run's rows are gone."""
    run, out = shutil.copytree(finished, tmp_path / "lr[1]"), tmp_path / "out[a-z] {x}*"
    mine = "sft.rows = @my_rows\nsft.validation_rows = @mine/my_rows\nmy_rows.file = 'gone.jsonl'\n"
    (run / "config.gin").write_text(f"import no_such_module\n{(run / 'config.gin').read_text()}\n{mine}")
    assert export(run, output=out) == 0
    assert_same_weights(out, finished / "policy")
    model = transformers.AutoModelForCausalLM.from_pretrained(out)
    sizes = [value.size for value in load_file(out / "model.safetensors").values()]
    assert sum(parameter.numel() for parameter in model.parameters()) == sum(sizes)
    assert load_tokenizer(out).fingerprint() == load_tokenizer(finished / "policy").fingerprint()


def test_an_earlier_step_and_another_dtype(finished, tmp_path):
    assert export(finished, 1, "--gin.export.dtype='bfloat16'", output=tmp_path / "out") == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    _, first = load_hugging_face(tmp_path / "out")
    _, last = load_hugging_face(finished / "policy")
    assert not np.array_equal(first["embedding"], last["embedding"])
    np.testing.assert_allclose(first["embedding"], last["embedding"], rtol=2e-2, atol=2e-2)


def test_merged_adapters_are_stored_as_their_base(tiny, tmp_path):
    """In the dtype of the folder, whatever the compute dtype; the values are those of `test_policy_parameters`."""
    own = shutil.copytree(tiny, tmp_path / "own")
    config, params = load_hugging_face(tiny / "policy")
    save_hugging_face(own / "policy", config, params, dtype="bfloat16")
    adapters = ("Computation.lora=@Lora()", "Lora.rank=2", "policy.computation=@Computation()")
    bindings = (*adapters, "Computation.compute_dtype='float32'", "STEPS=1", "train.evaluation=None")
    assert run("train", own, *bindings, output=tmp_path / "run") == 0
    assert export(tmp_path / "run", output=tmp_path / "out") == 0
    assert_same_weights(tmp_path / "out", tmp_path / "run/policy")
    assert {str(value.dtype) for value in load_file(tmp_path / "out" / "model.safetensors").values()} == {"bfloat16"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


# --- Episodes.


def exported(row):
    return json.loads(json.dumps(trajectory_of(row, session_id="run", trajectory_id="run/step_0/1")))


def row_of(trajectory):
    """The row of a trajectory, with its keys in the original order: the oracle that the conversion loses nothing."""
    context, written = [], []  # tokens so far; (author, text, token ids, log-probabilities) of each turn
    for step in trajectory["steps"]:
        if step["source"] == "agent":
            metrics = step["metrics"]
            assert metrics["prompt_token_ids"] == context
            scores = metrics["logprobs"] if "logprobs" in metrics else metrics["extra"]["logprobs"]
            own = [("policy", step["message"], metrics["completion_token_ids"], scores)]
        else:
            own = [("environment", step["message"], step["extra"]["token_ids"], [])]
        for result in step.get("observation", {"results": []})["results"]:
            own.append(("environment", result["content"], result["extra"]["token_ids"], []))
        context += [token for _, _, ids, _ in own for token in ids]
        written += own
    tokens = {
        "ids": context,
        "log_probabilities": [score for _, _, _, scores in written for score in scores],
        "pieces": [[number, len(ids)] for number, (_, _, ids, _) in enumerate(written, start=-1) if ids],
    }
    turns = [{"by": by, "text": text} for by, text, _, _ in written[1:]]
    row = {**trajectory["extra"], "prompt": written[0][1], "turns": turns, "tokens": tokens}
    return {key: row[key] for key in trajectory["extra"]["lcrag"]["keys"]}


@pytest.mark.parametrize("row", (*ROWS, *UNUSUAL))
def test_a_trajectory_keeps_every_byte_of_a_row(row):
    assert json.dumps(row_of(exported(row))) == json.dumps(row)


@pytest.mark.parametrize("package", ["atif", "harbor.models.trajectories"])
def test_models_of_the_format_accept_it_and_lose_nothing(package):
    """`atif` copies the models of RFC 0001; Harbor's own need Python 3.12."""
    models = pytest.importorskip(package, reason=f"the package {package.partition('.')[0]} is not installed")
    for row in (*ROWS, *UNUSUAL):
        trajectory = models.Trajectory.model_validate(exported(row))
        assert row_of(trajectory.model_dump(mode="json", exclude_unset=True)) == row
    with pytest.raises(ValueError, match="forbid|not permitted"):
        models.Trajectory.model_validate(exported(ROWS[0]) | {"advantage": 1.0})


def test_steps_hold_what_the_policy_saw_and_wrote():
    row, trajectory = ROWS[0], exported(ROWS[0])
    prompt, first, second = trajectory["steps"][:3]
    [observation] = first["observation"]["results"]
    assert [prompt["source"], first["source"], second["source"]] == ["user", "agent", "agent"]
    assert [prompt["extra"]["mask"], first["extra"]["mask"], observation["extra"]["mask"]] == [0, 1, 0]
    assert {key: first["extra"][key] for key in ("policy_version", "advantage", "language")}.items() <= row.items()
    assert all(trajectory["extra"][key] == row[key] for key in row.keys() - set(IN_STEPS))


@pytest.mark.parametrize(
    "change",
    [
        lambda row: row.pop("tokens"),
        lambda row: row["tokens"]["ids"].pop(),
        lambda row: row["tokens"]["pieces"].reverse(),
        lambda row: row["turns"].pop(),
        lambda row: row["turns"][0].update(learn=False),
    ],
)
def test_a_row_whose_tokens_do_not_agree_is_not_exported(change):
    row = json.loads(LINES[0])
    change(row)
    with pytest.raises(ValueError, match="token"):
        exported(row)


@pytest.fixture
def episodes(tmp_path):
    (tmp_path / "run" / "episodes").mkdir(parents=True)
    for name in ("step_2", "step_10", "after_greedy"):
        shutil.copy(EPISODES, tmp_path / "run" / "episodes" / f"{name}.jsonl")
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("words", "names"),
    [((), ("after_greedy", "step_10", "step_2")), (("10",), ("step_10",)), (("after_greedy",), ("after_greedy",))],
)
def test_a_run_a_step_or_an_evaluation(episodes, tmp_path, words, names):
    assert export(episodes, *words, "--to=atif", output=tmp_path / "out") == 0
    assert sorted(path.stem for path in (tmp_path / "out").iterdir()) == list(names)
    for name in names:
        first = json.loads((tmp_path / "out" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()[0])
        assert (first["session_id"], first["trajectory_id"]) == ("run", f"run/{name}/1")
        assert row_of(first) == ROWS[0]


def test_messages_are_the_demonstrations_that_the_episodes_are(episodes, tmp_path):
    assert export(episodes, "2", "--to=messages", output=tmp_path / "out") == 0
    files = episodes / "episodes" / "step_2.jsonl", tmp_path / "out" / "step_2.jsonl"
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


@pytest.mark.parametrize(
    ("to", "line"),
    [("atif", b"[]"), ("atif", b'{"prompt": 1, "turns": 0, "tokens": 3}'), ("messages", b'{"prompt": "\xe9"}')],
)
def test_a_damaged_row_is_named(episodes, tmp_path, capsys, line, to):
    path = episodes / "episodes" / "step_10.jsonl"
    path.write_bytes(EPISODES.read_bytes() + line + b"\n")
    assert export(episodes, f"--to={to}", output=tmp_path / "out") == 2
    assert f"{path}, line {len(ROWS) + 1}," in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
