"""A user's mistake: exit status 2, one line that begins `lcrag: error:`, and nothing written before is touched."""

import shutil

import pytest
from experiment_parts import assert_same_bits, contents, json_lines, measured, one_device, run, saved_state

from lcrag.errors import UserError
from lcrag.retrieval import load_collections
from lcrag.train.setup import policy


@pytest.fixture
def refused(tiny, capfd):
    """Runs a command that must be refused, and gives its one line."""

    def runs(command, *bindings, **options):
        assert run(command, tiny, *bindings, **options) == 2
        error = capfd.readouterr().err
        assert error.startswith("lcrag: error: "), error
        assert error.count("\n") == 1, error
        return error

    return runs


@pytest.mark.parametrize(
    ("bindings", "part"),
    [
        (("language_coupled.answer='bleu'",), "'bleu'"),
        (("policy.mesh=@mesh()", "mesh.data=3"), "mesh of data=3"),
        (("policy.folder='nowhere'",), "nowhere"),
        (("Sampler.context=100000",), "context=100000"),
        (("Sampler.context=20",), "the context holds 20"),
        (("Sampler.context=200",), "Layout.row_lengths"),
        (("TRAINING_LANGUAGES=('fi',)",), "groups of one"),
        (("train.questions_per_step=7",), "a step of 7"),
        (("train.checkpoint_every=0",), "train.checkpoint_every is 0"),
        (("train.max_rollouts=2", "train.critic=@critic/Critic()"), "train.max_rollouts is 2"),
        (("train.staleness=1",), "objective/importance_correction.gin"),
        (("Runner.temperature=0.0",), "Runner.temperature is 0.0"),
        (("policy.mesh=@mesh()", "Sampler.slots=8"), "Layout.rows is 4 for 8 devices"),
        (("Evaluation.references={'other': 'atlas/long_sft'}",), "atlas/long_sft has another shape"),
        (("hierarchical_search.prompt='lcrll'",), "'lcrll'"),
    ],
)
def test_impossible_configurations(refused, tmp_path, bindings, part):
    files = ("objective/ppo.gin",) if "critic" in str(bindings) else ()
    assert part in refused("train", *bindings, gin_files=files, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_language_without_a_collection_in_which_only_the_evaluation_asks(refused, tiny, tmp_path):
    shutil.copytree(tiny / "collections", tmp_path / "some")
    shutil.rmtree(tmp_path / "some" / "th")
    error = refused("train", f"load_collections.folder='{tmp_path / 'some'}'", output=tmp_path / "run")
    assert "questions in th but collections only in ar, de, en" in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "file",
    [
        *("collections/fi/vectors.npy", "collections/fi/passages.arrow", "collections/fi/meta.json"),
        *("collections/encoder/model.safetensors", "policy/model.safetensors", "policy/tokenizer.json"),
    ],
)
def test_a_truncated_file_is_named(tiny, tmp_path, file):
    kind, _, name = file.partition("/")
    folder = shutil.copytree(tiny / kind, tmp_path / "damaged")
    (folder / name).write_bytes((folder / name).read_bytes()[:100])
    with pytest.raises(UserError, match=str(folder)):
        load_collections(folder) if kind == "collections" else policy(str(folder), one_device())


def test_the_folder_of_another_run_or_of_none(refused, finished, tmp_path):
    before = contents(finished)
    bindings = ("SEED=1", "Runner.temperature=0.5", "BUDGET=1", "Method.coupling='pivot'", "STEPS=9")
    error = refused("train", "train.checkpoint_every=1", *bindings, output=finished)
    assert "holds another run: Method.coupling is 'parallel' there and 'pivot' here, " in error
    for part in ("train.seed is 0 there and 1 here", "Runner.temperature is 1.0", "hierarchical_search.budget is 2"):
        assert part in error
    assert "STEPS" not in error
    assert "another command than sft" in refused("sft", gin_files=("baselines/sft.gin",), output=finished)
    assert contents(finished) == before

    (tmp_path / "thesis.tex").write_text("x")
    assert "thesis.tex" in refused("train", output=tmp_path)
    assert "is not the folder of a run" in refused("report", output=tmp_path)
    assert contents(tmp_path) == {tmp_path / "thesis.tex": b"x"}


def damage_arrays(checkpoint):
    """Flips one bit in each."""
    for path in checkpoint.rglob("d/*"):
        content = path.read_bytes()
        path.write_bytes(content[:50] + bytes([content[50] ^ 1]) + content[51:])


def test_a_damaged_checkpoint_is_passed_over_unless_all_are(tiny, refused, finished, tmp_path, capfd):
    one, both = (shutil.copytree(finished, tmp_path / name) for name in ("one", "both"))
    for checkpoint in (one / "checkpoints" / "2", *(both / "checkpoints" / step for step in "12")):
        damage_arrays(checkpoint)
    assert run("train", tiny, "train.checkpoint_every=1", "STEPS=2", output=one) == 0
    assert "/2 is damaged and now called damaged_2_1" in capfd.readouterr().err
    assert_same_bits(saved_state(one, 2), saved_state(finished, 2))
    assert measured(one) == measured(finished)

    error = refused("train", "train.checkpoint_every=1", "STEPS=3", output=both)
    assert "no checkpoint in" in error
    assert [record["step"] for record in json_lines(both / "metrics.jsonl")] == [0, 1]
