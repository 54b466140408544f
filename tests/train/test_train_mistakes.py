"""A user's mistake: exit status 2, one line that begins `lcrag: error:`, and nothing written before is touched."""

import shutil

import gin
import pytest
from experiment_parts import assert_same_bits, contents, json_lines, measured, one_device, run, saved_state

from lcrag import main
from lcrag.errors import UserError
from lcrag.retrieval import Collections, load_collections
from lcrag.train.load import policy


@pytest.fixture
def refused(tiny, capfd):
    """Runs a command that must be refused, and gives its one line."""

    def runs(command, *bindings, **options):
        assert run(command, options.pop("folder", tiny), *bindings, **options) == 2
        captured = capfd.readouterr()
        assert captured.err.startswith("lcrag: error: "), captured.err
        assert captured.err.count("\n") == 1, captured.err
        return captured.err

    return runs


@pytest.mark.parametrize(
    ("bindings", "parts"),
    [
        (("language_coupled.answer='bleu'",), ("'bleu'", "c3_recall")),
        (("policy.mesh=@mesh()", "mesh.data=3"), ("mesh of data=3",)),
        (("policy.folder='nowhere'",), ("nowhere",)),
    ],
)
def test_parts_that_cannot_be_made(refused, tmp_path, monkeypatch, bindings, parts):
    """Refused before the collections are opened."""
    monkeypatch.setattr(Collections, "__init__", lambda *_, **__: pytest.fail("collections were opened"))
    error = refused("train", *bindings, output=tmp_path / "run")
    assert all(part in error for part in parts), error


@pytest.mark.parametrize(
    ("bindings", "parts"),
    [
        (("Sampler.context=100000",), ("context=100000", "256 positions")),
        (("Sampler.context=20",), ("the prompt of question", "the context holds 20")),
        (("Sampler.context=200",), ("200 tokens", "Layout.row_lengths")),
        (("TRAINING_LANGUAGES=('fi',)",), ("groups of one",)),
        (("Method.coupling='independent'",), ("groups of one", "Method.samples")),
        (("train.questions_per_step=7",), ("a step of 7", "from 6")),
        (("Runner.temperature=0.0",), ("Runner.temperature is 0.0", "a positive one")),
        (("policy.mesh=@mesh()", "Sampler.slots=8"), ("Layout.rows is 4 for 8 devices",)),
        (("Evaluation.references={'other': 'atlas/long_sft'}",), ("atlas/long_sft has another shape",)),
        (("hierarchical_search.prompt='lcrll'",), ("'lcrll'",)),
    ],
)
def test_impossible_configurations(refused, tmp_path, bindings, parts):
    error = refused("train", *bindings, output=tmp_path / "run")
    assert all(part in error for part in parts), error
    assert not (tmp_path / "run").exists()


def test_a_metric_that_does_not_exist(refused, tmp_path):
    error = refused("evaluate", "evaluate.metrics=('bleu',)", output=tmp_path / "run")
    assert "no metric 'bleu' for evaluate.metrics: use c3_recall" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_language_without_a_collection(command, refused, tiny, tmp_path):
    """Also one in which only the evaluation asks."""
    shutil.copytree(tiny / "collections", tmp_path / "some")
    shutil.rmtree(tmp_path / "some" / "th")
    error = refused(command, f"load_collections.folder='{tmp_path / 'some'}'", output=tmp_path / "run")
    assert "questions in th but collections only in ar, de, en" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("fi/vectors.npy", lambda content: content[:-7]),
        ("fi/passages.arrow", lambda content: content[: len(content) // 2]),
        ("fi/meta.json", lambda content: content[: len(content) // 2]),
        ("encoder/model.safetensors", lambda content: content[:100]),
    ],
)
def test_a_corrupt_index(tiny, tmp_path, file, damage):
    folder = shutil.copytree(tiny / "collections", tmp_path / "damaged")
    (folder / file).write_bytes(damage((folder / file).read_bytes()))
    with pytest.raises(UserError, match=str(folder / file.partition("/")[0])):
        load_collections(folder)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "tokenizer.json"])
def test_a_corrupt_policy(tiny, tmp_path, file):
    folder = shutil.copytree(tiny / "policy", tmp_path / "damaged")
    (folder / file).write_bytes((folder / file).read_bytes()[:100])
    with pytest.raises(UserError, match=str(folder)):
        policy(str(folder), one_device())


@pytest.fixture
def unbuilt(monkeypatch):
    """Nothing may be opened before the folder is refused."""
    monkeypatch.setattr(Collections, "__init__", lambda *_, **__: pytest.fail("collections were opened"))


def test_the_folder_of_another_run(refused, unbuilt, finished):
    before = contents(finished)
    bindings = ("SEED=1", "Runner.temperature=0.5", "BUDGET=1", "Method.coupling='pivot'", "STEPS=9")
    error = refused("train", "train.checkpoint_every=1", *bindings, output=finished)
    assert "holds another run: Method.coupling is 'parallel' there and 'pivot' here, " in error
    for part in ("train.seed is 0 there and 1 here", "Runner.temperature is 1.0", "hierarchical_search.budget is 2"):
        assert part in error
    assert "STEPS" not in error
    assert "another command than sft" in refused("sft", gin_files=("baselines/sft.gin",), output=finished)
    assert contents(finished) == before


def test_a_folder_that_is_no_run(refused, unbuilt, tmp_path):
    (tmp_path / "thesis.tex").write_text("x")
    assert "thesis.tex" in refused("train", output=tmp_path)
    assert contents(tmp_path) == {tmp_path / "thesis.tex": b"x"}
    assert "is not the folder of a run" in refused("report", output=tmp_path)


def damage_arrays(checkpoint):
    """Flips one bit in each."""
    for path in checkpoint.rglob("d/*"):
        content = path.read_bytes()
        path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])


def test_a_corrupt_checkpoint_is_passed_over(tiny, finished, tmp_path, capfd):
    output = shutil.copytree(finished, tmp_path / "run")
    damage_arrays(output / "checkpoints" / "2")
    assert run("train", tiny, "train.checkpoint_every=1", "STEPS=2", output=output) == 0
    assert "/2 is damaged and now called damaged_2_1" in capfd.readouterr().err
    assert_same_bits(saved_state(output, 2), saved_state(finished, 2))
    assert measured(output) == measured(finished)


def test_only_corrupt_checkpoints_are_one_line(refused, finished, tmp_path):
    output = shutil.copytree(finished, tmp_path / "run")
    for step in (1, 2):
        damage_arrays(output / "checkpoints" / str(step))
    error = refused("train", "train.checkpoint_every=1", "STEPS=3", output=output)
    assert "no checkpoint in" in error
    assert "(step 2: " in error
    assert [record["step"] for record in json_lines(output / "metrics.jsonl")] == [0, 1]


@pytest.mark.parametrize("experiment", ["lcrl/paper.gin", "r_search/paper.gin"])
def test_the_papers_runs_lack_a_policy_only(experiment, tmp_path, capfd):
    """Every name in them is known, so that the first thing missed is the folder that nobody has downloaded."""
    gin.clear_config()
    words = ["--gin_file=platform/h100_8.gin", f"--gin_file={experiment}", "--gin.mesh.fsdp=8", "--gin.mesh.tensor=1"]
    where = [f"--gin.policy.folder='{tmp_path}/nowhere'", f"--output_dir={tmp_path}/run"]
    assert main.run(["train", *words, *where]) == 2
    error = capfd.readouterr().err
    assert "there is no such folder" in error or "LCRAG_DATA" in error, error
    assert not (tmp_path / "run").exists()
