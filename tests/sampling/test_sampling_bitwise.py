"""With `bitwise`, sampling and training give every token of multi-turn episodes the same log-probability to the bit."""

import dataclasses
import functools

import jax
import numpy as np
import pytest
from support import tiny_config
from test_sampling_sampler import ONE_SHAPE, converse, make

from lcrag.errors import UserError
from lcrag.learning import Layout, Trajectory, make_score, pack
from lcrag.learning.learners import decoder_functions
from lcrag.policy import Lora, initialise, make_mesh
from lcrag.policy.bitwise import TILE

TEMPERATURE = 1.3  # of `converse`
LAYOUTS = {
    "one episode a row": Layout(rows=1, row_lengths=(128,), policy_shares=(1.0,), alignment=TILE),
    "packed": Layout(rows=2, row_lengths=(250,), policy_shares=(0.5, 1.0), alignment=TILE),
}


def model_of(**changes):
    config = tiny_config(bitwise=True, **changes)
    params = initialise(config, jax.random.key(0))
    # larger weights than at the start of training make attention and the choice of tokens less even
    return config, jax.tree.map(lambda x: 3 * x if x.ndim > 1 else x, params)


@pytest.fixture(scope="module")
def model():
    return model_of()


@functools.cache
def score_of(config):
    mesh = make_mesh(devices=jax.devices()[:1])
    return make_score(*decoder_functions(config, mesh), mesh, TEMPERATURE)


def differing(model, records, layout) -> tuple[int, int]:
    """Returns how many sampled tokens are scored otherwise by training, and how many there are."""
    config, params = model
    batch = pack(
        [
            Trajectory(
                tokens=np.array(record["tokens"]),
                by_policy=np.array(record["policy"]),
                log_probabilities=np.array(record["log_probabilities"], np.float32),
            )
            for record in records.values()
        ],
        layout,
    )
    scores = np.asarray(score_of(config)(params, batch))
    return int((scores != batch.sampling_log_probabilities)[batch.mask].sum()), int(batch.mask.sum())


@pytest.mark.parametrize(
    ("options", "slot_of"),
    [
        ({}, int),
        ({"windows": (), "append_rows": (1, 4), "append_tokens": (4, 8)}, lambda episode: 3 - episode),
        ({"slots": 7, "block": 3, "decode_rows": (2,), "windows": (96,), "append_tokens": (32,)}, int),
        ({"drafts": 2, **ONE_SHAPE}, int),
        ({"layers": "apart", **ONE_SHAPE}, int),
    ],
    ids=["plain", "other appends", "other blocks and windows", "drafts", "layers apart"],
)
def test_training_scores_what_was_sampled(model, options, slot_of):
    records = converse(make(model, **options), range(4), slot_of)
    for layout in LAYOUTS.values():
        count, total = differing(model, records, layout)
        assert total > 50
        assert count == 0


@pytest.mark.parametrize(
    "changes",
    [{"unroll_layers": True}, {"family": "qwen2", "head_width": 64, "heads": 2, "kv_heads": 1, "width": 128}],
    ids=["unrolled", "Qwen2.5 with heads of 64"],
)
def test_other_decoders(changes):
    model = model_of(**changes)
    records = converse(make(model, **ONE_SHAPE), range(4), int)
    assert differing(model, records, LAYOUTS["packed"])[0] == 0


def test_without_it_some_differ(model):
    config, params = model
    plain = dataclasses.replace(config, bitwise=False), params
    assert differing(plain, converse(make(plain), range(4), int), LAYOUTS["packed"])[0] > 0


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"compute_dtype": "bfloat16"}, "only 'float32'"),
        ({"lora": Lora()}, "adapters"),
        ({"head_width": 256}, "heads 256 wide"),
    ],
)
def test_what_it_does_not_support_is_refused(changes, said):
    with pytest.raises(UserError, match=said):
        tiny_config(bitwise=True, **changes)


def test_several_devices_are_refused(model):
    with pytest.raises(UserError, match="one CPU device"):
        make(model, mesh=make_mesh(devices=jax.devices()[:2], fsdp=2))
