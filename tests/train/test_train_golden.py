"""Three steps of the smallest real training give the metrics of golden.json to 1e-5.

Policy, sampler, retrieval, rewards and update are real. Only which tokens are chosen is read from the file, because a
rounding error of another processor may choose another token, after which nothing can be compared; their
log-probabilities are computed. After a change that is meant to change numbers, sample the file anew:

    PYTHONPATH=tests python tests/train/test_train_golden.py
"""

import json
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

GOLDEN = Path(__file__).parent / "golden.json"
# The size of blocks is this run's own, so that no other test is given what is compiled here.
BINDINGS = (
    "STEPS=3",
    "Sampler.block=5",
    "train.evaluation=None",
    "train.episodes_every=1",
    "adamw.learning_rate=1e-3",
    "adamw.steps=3",
)
BINDINGS += ("language_coupled.weight=1.0", "language_coupled.floor=None")  # no answer is right, but penalties differ


def trained(tiny, output):
    from experiment_parts import json_lines, measured, run

    assert run("train", tiny, *BINDINGS, output=output) == 0
    files = [output / "episodes" / f"step_{step}.jsonl" for step in range(3)]
    return measured(output), [row["tokens"]["ids"] for path in files for row in json_lines(path)]


@pytest.fixture
def dictated(monkeypatch):
    """Makes samplers choose the tokens of the golden episodes."""
    contexts = json.loads(GOLDEN.read_text())["contexts"]
    table = np.zeros((len(contexts), 160), np.float32)  # in place of uniform numbers
    for episode, ids in enumerate(contexts):
        table[episode, : len(ids)] = ids

    def sample_token(logits, tokens, temperatures, top_ps, unscaled_scores):
        tokens = tokens.astype(jnp.int32)
        scores = jax.nn.log_softmax(logits / temperatures[:, None])
        return tokens, jnp.take_along_axis(scores, tokens[:, None], axis=-1)[:, 0]

    monkeypatch.setattr("lcrag.sampling.slots.streams", lambda seeds, episodes: episodes)
    monkeypatch.setattr("lcrag.sampling.slots.uniforms", lambda episodes, places: jnp.asarray(table)[episodes, places])
    monkeypatch.setattr("lcrag.sampling.slots.sample_token", sample_token)


def test_metrics_of_three_steps(dictated, tiny, tmp_path):
    golden = json.loads(GOLDEN.read_text())
    metrics, contexts = trained(tiny, tmp_path / "run")
    assert contexts == golden["contexts"]
    for found, expected in zip(metrics, golden["metrics"], strict=True):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name] == (value if value is None else pytest.approx(value, rel=1e-5, abs=1e-5)), name


if __name__ == "__main__":
    import conftest  # noqa: F401  devices and caches as in the tests
    from experiment_parts import build_tiny_collections, save_tiny_policy

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_tiny_policy(folder / "policy")
        build_tiny_collections(folder / "collections")
        found = dict(zip(("metrics", "contexts"), trained(folder, folder / "run"), strict=True))
    GOLDEN.write_text(json.dumps(found, indent=None).replace('], "', '],\n"').replace("}, {", "},\n{") + "\n")
