"""A run with a critic: what it logs, keeps and continues from, and what `lcrag compile` computes of one."""

import jax
import numpy as np
import pytest
from experiment_parts import assert_same_bits, json_lines, measured, run, saved_state
from support import tiny_config, tiny_tokenizer

from lcrag.commands.compile import AbstractRun, device_bytes, lower
from lcrag.learning import Critic, Layout, PolicyGradient, Trajectory, adamw
from lcrag.learning.learners import Learner
from lcrag.policy import Lora, Policy, add_lora, initialise, load_hugging_face, make_mesh
from lcrag.sampling import SamplerConfig
from lcrag.train.rollout import Lanes

# Everything that an update of PPO may ask of the policies of before it.
BINDINGS = (
    "train.evaluation=None",
    "train.episodes_every=1",
    "train.checkpoint_every=1",
    "train.updates_per_rollout=2",
    "train.passes_per_rollout=2",
    "PolicyGradient.importance_cap=2.0",
    "adamw.steps=12",
)


def train(tiny, output, *bindings, steps=3):
    bindings = (*BINDINGS, f"train.steps={steps}", *bindings)
    return run("train", tiny, *bindings, gin_files=("objective/ppo.gin",), output=output)


@pytest.fixture(scope="module")
def learned(tiny, tmp_path_factory):
    output = tmp_path_factory.mktemp("learned") / "run"
    assert train(tiny, output) == 0
    return output


def test_what_is_logged(learned):
    metrics = json_lines(learned / "metrics.jsonl")
    names = ("loss/value", "value/mean", "value/clipped", "value/explained_variance", "return/mean", "advantage/std")
    names += ("critic/gradient_norm", "critic/learning_rate", "critic/skipped", "reward/kl_penalty", "importance/mean")
    assert all(np.isfinite(record[name]) for record in metrics for name in names)
    assert all(record["sampling_training_gap"] <= 1e-4 and record["update/skipped"] == 0 for record in metrics)
    assert metrics[0]["reward/kl_penalty"] == pytest.approx(0, abs=1e-6)
    assert metrics[0]["critic/skipped"] == 0
    assert metrics[0]["loss/value"] > 0
    assert metrics[-1]["critic/gradient_norm"] > 0
    assert metrics[0]["return/mean"] == pytest.approx(metrics[0]["advantage/mean"])  # a new critic's values are all 0


def test_the_policy_and_its_critic_are_learned_and_kept(learned, tiny):
    first, last = saved_state(learned, 1), saved_state(learned, 3)
    assert first.keys() == last.keys()
    assert last["['step']"] == last["['critic']['step']"] == 12
    head = "['critic']['params']['value_head']['kernel']"
    assert np.abs(first[head]).max() > 0
    assert np.abs(last[head] - first[head]).max() > 0
    body = "['layers']['mlp']['up']['kernel']"
    assert np.abs(last[f"['critic']['params']{body}"] - last[f"['params']{body}"]).max() > 0
    _, before = load_hugging_face(tiny / "policy")
    assert np.abs(last[f"['params']{body}"] - before["layers"]["mlp"]["up"]["kernel"]).max() > 0


def test_one_step_and_two_more_are_three(learned, tiny, tmp_path):
    assert train(tiny, tmp_path / "run", steps=1) == 0
    assert train(tiny, tmp_path / "run") == 0
    straight = saved_state(learned, 3)
    assert len(straight) > 40
    assert_same_bits(straight, saved_state(tmp_path / "run", 3))
    assert measured(learned) == measured(tmp_path / "run")


def test_a_critic_needs_no_group(tiny, tmp_path, capsys):
    alone = ("Method.coupling='independent'", "Method.samples=1", "train.questions_per_step=4")
    assert run("train", tiny, *BINDINGS[:1], *alone, "train.steps=1", output=tmp_path / "grpo") == 2
    assert "groups of one have no baseline" in capsys.readouterr().err
    assert train(tiny, tmp_path / "ppo", *alone, steps=1) == 0


def run_of(mesh, **changes):
    optimizer = adamw(learning_rate=1e-3, steps=5)
    return AbstractRun(
        tiny_config(compute_dtype="bfloat16", **changes),
        mesh,
        Lanes(
            sampler=SamplerConfig(
                slots=8, context=64, block=4, append_rows=(4,), append_tokens=(16,), gather_parameters=False
            ),
            runner=print,
        ),
        objective=PolicyGradient(),
        optimizer=optimizer,
        layout=Layout(rows=8, row_lengths=(64,)),
        critic=Critic(optimizer=optimizer, kl_in_reward=0.01),
    )  # fmt: skip


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["full", "lora"])
def test_abstract_arrays_are_those_of_a_learner(lora):
    mesh = make_mesh(fsdp=2, tensor=2)
    run = run_of(mesh, lora=lora, tie_embeddings=False)
    config, params = tiny_config(compute_dtype="bfloat16", tie_embeddings=False), None
    params = initialise(config, jax.random.key(0), mesh)
    if lora is not None:
        params = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), params)
        config, params = add_lora(config, params, lora, jax.random.key(1), mesh)
    policy = Policy("tiny", config, params, tiny_tokenizer(), mesh)
    learner = Learner(policy, run.objective, run.optimizer, Layout(rows=8, row_lengths=(64,)), 1.0, run.critic)
    described = [
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.sharding), state)
        for state in (run.critic_state, learner.state.critic)
    ]
    assert described[0] == described[1]
    residents = run.residents
    on_a_device = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(learner.state.critic)]
    assert residents["critic's train state"] == sum(on_a_device)
    assert residents["reference policy"] > 0
    frozen = run.parameters[1]["unembedding"] if lora else ()  # what the policy freezes and no critic has
    shared = residents["frozen parameters"] - device_bytes(frozen)
    assert lower(run, "critic")[1] == pytest.approx(sum(residents.values()) - sum(on_a_device) - shared)


def test_a_small_rollout_has_fewer_mini_batches():
    """Dynamic sampling may leave fewer episodes than `updates_per_rollout`."""
    config, mesh = tiny_config(layers=1), make_mesh(devices=jax.devices()[:1])
    policy = Policy("tiny", config, initialise(config, jax.random.key(0), mesh), tiny_tokenizer(), mesh)
    layout = Layout(rows=1, row_lengths=(8,), policy_shares=(1.0,))
    learner = Learner(policy, PolicyGradient(), adamw(learning_rate=1e-3, steps=5), layout, 1.0, parts=3)
    episode = Trajectory(np.arange(5), np.arange(5) > 2, np.full(5, -3.0, np.float32), advantage=1.0)
    learner.learn([episode, episode])
    assert int(learner.state.step) == 2
