"""Batches have few shapes, hold every text once, and are spread over devices that do not wait for one another."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.errors import UserError
from lcrag.retrieval.encoder import (
    LARGEST_SCORES,
    Encoder,
    _compiled_embed,
    batches,
    pad_rows,
    rows_mesh,
)


@given(st.lists(st.integers(1, 8192), max_size=700), st.sampled_from([64, 512, 8192]), st.integers(1, 8))
def test_every_text_is_in_one_batch_that_holds_it(lengths, longest, devices):
    lengths = [min(length, longest) for length in lengths]
    seen = []
    for chunk, (rows, tokens) in batches(lengths, longest, devices):
        seen += chunk
        assert len(chunk) <= rows
        assert rows % devices == 0
        assert max(lengths[index] for index in chunk) <= tokens <= longest
        assert rows // devices == 1 or rows // devices * tokens**2 <= LARGEST_SCORES
    assert sorted(seen) == list(range(len(lengths)))


def test_a_long_text_does_not_widen_short_ones():
    shapes = [shape for _, shape in batches([12] * 255 + [8192], 8192, 1)]
    assert [tokens for _, tokens in shapes].count(8192) == 1
    assert shapes[-1] == (1, 8192)


def test_all_devices_compute_and_none_waits_for_another(encoder):
    mesh = rows_mesh()
    assert mesh.size == 8 == len(encoder.params["embeddings_norm"]["scale"].sharding.device_set)
    arguments = (mesh, encoder.config, "mean", encoder.params, *pad_rows([[1, 2]] * 16, (16, 16)))
    program = _compiled_embed.lower(*arguments).compile()
    assert program.output_shardings.shard_shape((16, 16)) == (2, 16)
    for collective in ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert collective not in program.as_text()


def test_many_devices_agree_with_one(encoder):
    texts = [f"text {'longer ' * (number % 5)}{number}" for number in range(40)]
    alone = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("rows",))
    rows = encoder.tokenize(texts, "query")
    params = jax.device_put(encoder.params, jax.devices()[0])
    one = _compiled_embed(alone, encoder.config, "mean", params, *pad_rows(rows, (40, 32)))
    np.testing.assert_allclose(encoder.encode(texts), one, atol=1e-5)


def test_an_encoder_may_have_a_device_of_its_own(encoder):
    own = Encoder(encoder.config, encoder.settings, encoder.params, encoder.tokenizer, devices=3)
    assert own.params["embeddings_norm"]["scale"].sharding.device_set == {jax.local_devices()[3]}
    np.testing.assert_allclose(own.encode(["a", "b"]), encoder.encode(["a", "b"]), atol=1e-6)
    assert rows_mesh("cpu").devices.tolist() == jax.local_devices(backend="cpu")


def test_a_device_that_is_not_there_is_named():
    with pytest.raises(UserError, match="devices = 8, but this host has devices 0 to 7"):
        rows_mesh(8)
