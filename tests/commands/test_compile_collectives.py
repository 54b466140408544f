"""Collectives are read from programs whose collectives are known, and from pieces of a TPU's text."""

import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh, PartitionSpec

from lcrag.commands.compile.compilation import Collective, collectives_of
from lcrag.commands.compile.hlo import Program

MESH = Mesh(jax.devices()[:4], ("x",))


def program(function, *shapes):
    """The text of a function of arrays whose first axis is spread over four devices."""
    everywhere = functools.partial(jax.shard_map, mesh=MESH, check_vma=False)
    spread = everywhere(function, in_specs=PartitionSpec("x"), out_specs=PartitionSpec("x"))
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return jax.jit(spread).lower(*arguments).compile().as_text()


def read(function, *shapes):
    return Program.of(program(function, *shapes))


def by_kind(text):
    return {each.kind: each for each in collectives_of(Program.of(text))}


def gather_and_sum(x):  # [2, 8] on each device
    gathered = jax.lax.all_gather(x, "x", tiled=True)
    return jax.lax.psum(jnp.tanh(x), "x") + gathered.sum(0)


def scatter(x):  # [4, 8] on each device
    return jax.lax.psum_scatter(x, "x", tiled=True)


@pytest.mark.parametrize(
    ("function", "shape", "expected"),
    [
        (gather_and_sum, (8, 8), {"all-gather": (1, 1, 8 * 8 * 4), "all-reduce": (1, 1, 2 * 8 * 4)}),
        (scatter, (16, 8), {"reduce-scatter": (1, 1, 4 * 8 * 4)}),
        (jnp.tanh, (8, 8), {}),
    ],
)
def test_collectives_of_known_programs(function, shape, expected):
    assert by_kind(program(function, shape)) == {kind: Collective(kind, *found) for kind, found in expected.items()}


def test_loops_of_known_length_count_their_iterations():
    def inner(total, _):
        return jax.lax.psum(jnp.tanh(total), "x"), None

    def outer(total, _):
        return jax.lax.scan(inner, total, None, length=5)[0], None

    [found] = collectives_of(read(lambda x: jax.lax.scan(outer, x, None, length=3)[0], (8, 8)))
    assert (found.kind, found.executions, found.bytes) == ("all-reduce", 15 * found.places, 15 * 2 * 8 * 4)


def test_loops_of_unknown_length_count_once():
    def looped(x):
        return jax.lax.while_loop(lambda y: y[0, 0] < 9, lambda y: jax.lax.psum(y, "x") + 1, x)

    [found] = collectives_of(read(looped, (8, 8)))
    assert (found.executions, found.bytes) == (1, 2 * 8 * 4)


TPU = """\
HloModule jit_step

%all-reduce-scatter.1 (input: bf16[2048,128]) -> bf16[1024,128] {
  %input = bf16[2048,128]{1,0:T(8,128)(2,1)} parameter(0)
  %all-reduce.9 = bf16[2048,128]{1,0:T(8,128)(2,1)} all-reduce(%input), channel_id=1, to_apply=%add
  ROOT %slice = bf16[1024,128]{1,0} dynamic-slice(%all-reduce.9, %zero)
}

%stage (piece: bf16[2,8]) -> bf16[4,8] {
  %piece = bf16[2,8]{1,0} parameter(0)
  ROOT %all-gather.1 = bf16[4,8]{1,0:T(8,128)(2,1)S(1)} all-gather(%piece), channel_id=30, dimensions={0}
}

%next_stage (piece.1: bf16[2,8]) -> bf16[4,8] {
  %piece.1 = bf16[2,8]{1,0} parameter(0)
  ROOT %all-gather.2 = bf16[4,8]{1,0} all-gather(%piece.1), channel_id=30, dimensions={0}
}

%cond (carry: (s32[], bf16[2,8])) -> pred[] {
  %constant.1 = s32[]{:T(128)} constant(36)
  %carry = (s32[]{:T(128)}, bf16[2,8]{1,0:T(8,128)(2,1)}) parameter(0)
  %count = s32[]{:T(128)} get-tuple-element(%carry), index=0
  ROOT %lt = pred[]{:T(512)} compare(%count, %constant.1), direction=LT, metadata={op_name="while/cond/lt"}
}

%body (carry.1: (s32[], bf16[2,8])) -> (s32[], bf16[2,8]) {
  %carry.1 = (s32[], bf16[2,8]{1,0}) parameter(0)
  %half = bf16[2,8]{1,0} get-tuple-element(%carry.1), index=1
  %first = bf16[4,8]{1,0} fusion(%half), kind=kCustom, calls=%stage
  %second = bf16[4,8]{1,0} fusion(%half), kind=kCustom, calls=%next_stage
  ROOT %out = (s32[], bf16[2,8]{1,0}) tuple(%count, %half)
}

ENTRY %main (x: bf16[2048,128]) -> bf16[1024,128] {
  %x = bf16[2048,128]{1,0} parameter(0)
  %while.1 = (s32[]{:T(128)}, bf16[2,8]{1,0:T(8,128)(2,1)}) while(%tuple), condition=%cond, body=%body
  %permute = (f32[8]{0}, f32[8]{0}, u32[]{:S(2)}, u32[]{:S(2)}) collective-permute-start(%y), channel_id=7
  %y = f32[8]{0} constant({...})
  ROOT %scattered = bf16[1024,128]{1,0} fusion(%x), kind=kCustom, calls=%all-reduce-scatter.1
}
"""


def test_what_a_tpu_makes_of_them():
    expected = {
        "reduce-scatter": (1, 1, 2048 * 128 * 2),  # a fusion around an all-reduce
        "all-gather": (1, 36, 36 * 4 * 8 * 2),  # in two stages of one channel, in a scan of 36 layers
        "collective-permute": (1, 1, 8 * 4),
    }
    assert by_kind(TPU) == {kind: Collective(kind, *found) for kind, found in expected.items()}
