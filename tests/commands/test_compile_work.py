"""Bytes and operations are counted in programs of known work, and in pieces of a TPU's and a GPU's text."""

import functools
import importlib.util

import jax
import jax.numpy as jnp
import pytest

from lcrag.commands.compile.compiling import finding_of
from lcrag.commands.compile.gpu_targets import plugin_installed
from lcrag.commands.compile.hlo import Program
from lcrag.commands.compile.lowering import CompilePlan
from lcrag.commands.compile.topologies import target_of
from lcrag.commands.compile.work import work_of
from lcrag.learning import Layout, PolicyGradient, adamw
from lcrag.policy import DecoderConfig, make_mesh
from lcrag.sampling import SamplerConfig

ITEM = 4  # bytes of a float32


def counted(function, *shapes, donated=()):
    arguments = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    return work_of(Program.of(jax.jit(function, donate_argnums=donated).lower(*arguments).compile().as_text()))


def test_a_product():
    work, outside = counted(jnp.dot, (64, 32), (32, 16))
    assert work.flops == 2 * 64 * 32 * 16
    assert work.bytes >= ITEM * (64 * 32 + 32 * 16 + 64 * 16)
    assert outside.flops == outside.bytes == 0


def test_a_scan_counts_every_iteration_and_reads_one_slice_of_the_stack_in_each():
    layers, rows, width = 6, 8, 128

    def scanned(x, stack):
        return jax.lax.scan(lambda x, kernel: (jnp.tanh(x @ kernel), None), x, stack)[0]

    work, _ = counted(scanned, (rows, width), (layers, width, width))
    assert work.flops == layers * 2 * rows * width * width
    stack = ITEM * layers * width * width
    assert stack <= work.bytes < 4 * stack  # XLA:CPU may copy a slice before the product reads it, but never the stack


def test_an_update_in_place_counts_what_is_written():
    def written(cache, new):
        return jax.lax.fori_loop(
            0, 10, lambda at, cache: jax.lax.dynamic_update_slice(cache, new * jnp.tanh(cache[0, 0]), (at, 0)), cache
        )

    work, _ = counted(written, (1000, 64), (1, 64), donated=0)
    assert work.bytes < ITEM * 1000 * 64


def test_a_loop_of_unknown_length_is_the_unit_of_work():
    def looped(x, kernel):
        return jax.lax.while_loop(lambda x: x[0, 0] < 9, lambda x: x @ kernel, x @ kernel @ kernel)

    work, outside = counted(looped, (16, 32), (32, 32))
    assert (work.flops, outside.flops) == (2 * 16 * 32 * 32, 2 * 2 * 16 * 32 * 32)


@pytest.mark.parametrize("wanted", [True, False])
def test_of_a_conditional_the_branch_of_a_false_predicate_counts(wanted):
    one, many = (functools.reduce(lambda f, _: lambda x, f=f: f(x) @ f(x), range(n), lambda x: x) for n in (1, 2))
    branches = (many, one) if wanted else (one, many)
    work, _ = counted(lambda x: jax.lax.cond(x[0, 0] > 0, *branches, x), (16, 16))
    assert work.flops == (1 if wanted else 2) * 2 * 16**3


TPU = """\
HloModule jit_step

%stacked (stack: bf16[36,2048,128], layer: s32[], x: bf16[16,2048]) -> bf16[16,128] {
  %stack = bf16[36,2048,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %layer = s32[]{:T(128)} parameter(1)
  %slice = bf16[1,2048,128]{2,1,0} dynamic-slice(%stack, %layer, %zero, %zero), dynamic_slice_sizes={1,2048,128}
  %kernel = bf16[2048,128]{1,0} bitcast(%slice)
  %x = bf16[16,2048]{1,0:T(8,128)(2,1)S(1)} parameter(2)
  ROOT %product = bf16[16,128]{1,0} convolution(%x, %kernel), dim_labels=bf_io->bf
}

%batched (scores: bf16[16,8,4096], values: bf16[16,4096,128]) -> bf16[16,8,128] {
  %scores = bf16[16,8,4096]{2,1,0} parameter(0)
  %values = bf16[16,4096,128]{2,1,0} parameter(1)
  ROOT %out = bf16[16,8,128]{2,1,0} convolution(%scores, %values), window={size=16 stride=15 lhs_dilate=16}, dim_labels=0bf_0io->0bf
}

ENTRY %main (stack: bf16[36,2048,128], x.1: bf16[16,2048]) -> bf16[16,128] {
  %stack.1 = bf16[36,2048,128]{2,1,0:T(8,128)(2,1)} parameter(0)
  %x.1 = bf16[16,2048]{1,0:T(8,128)(2,1)} parameter(1)
  %near = (bf16[16,2048]{1,0:T(8,128)(2,1)S(1)}, bf16[16,2048]{1,0}, u32[]{:S(2)}) copy-start(%x.1)
  %x.2 = bf16[16,2048]{1,0:T(8,128)(2,1)S(1)} copy-done(%near)
  %made = bf16[16,8,4096]{2,1,0:T(8,128)(2,1)S(1)} custom-call(%x.2), custom_call_target="tpu_custom_call"
  %ahead = ((bf16[36,2048,128]{2,1,0}), bf16[1,2048,128]{2,1,0:T(8,128)(2,1)S(1)}, s32[]{:S(2)}) slice-start(%stack.1), slice={[0:1], [0:2048], [0:128]}
  %other = bf16[16,4096,128]{2,1,0:T(8,128)(2,1)S(1)} broadcast(%x.2), dimensions={}
  %attended = bf16[16,8,128]{2,1,0:T(8,128)(2,1)S(1)} fusion(%made, %other), kind=kOutput, calls=%batched
  ROOT %fusion.1 = bf16[16,128]{1,0:T(8,128)(2,1)S(1)} fusion(%stack.1, %two, %x.2), kind=kOutput, calls=%stacked, backend_config={"window_config":{"estimated_cycles":"1825"}}
}
"""  # noqa: E501


def test_what_a_tpu_makes_of_them():
    work, _ = work_of(Program.of(TPU))
    products = 2 * 16 * 2048 * 128, 2 * 16 * 8 * 4096 * 128  # the second one with a batch of 16
    assert work.flops == sum(products)
    prefetched = 2 * (16 * 2048 + 2048 * 128)  # an array, and a slice of a stack
    assert work.moved_bytes == prefetched
    assert work.bytes == prefetched + 2 * 2048 * 128  # and another slice; nothing of what is in vector memory
    assert (work.cycles, work.kernels) == (1825, 1)
    assert [each.name for each in work.largest] == ["ahead", "fusion.1", "near"]


GPU = """\
HloModule jit_step

ENTRY %main (x: bf16[64,32], y: bf16[32,16]) -> bf16[64,16] {
  %x = bf16[64,32]{1,0} parameter(0)
  %y = bf16[32,16]{1,0} parameter(1)
  %gemm = (bf16[64,16]{1,0}, s8[1024]{0}) custom-call(%x, %y), custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"],"rhs_contracting_dimensions":["0"]}}}
  ROOT %out = bf16[64,16]{1,0} get-tuple-element(%gemm), index=0
}
"""  # noqa: E501


def test_a_call_of_cublas():
    assert work_of(Program.of(GPU))[0].flops == 2 * 64 * 32 * 16


needs_libtpu = pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed")
# What is compiled for absent devices is stored, but cannot be read back without a client for them.
stored = pytest.mark.filterwarnings("ignore:Error reading persistent compilation cache entry")
needs_cuda = pytest.mark.skipif(not plugin_installed(), reason="XLA for CUDA is not installed")


def found(topology, program, **sizes):
    """Compiles a policy whose weights and cache do not fit a cache memory for absent devices."""
    target = target_of(topology)
    plan = CompilePlan(
        config=DecoderConfig(
            family="qwen2",
            vocabulary_size=8192,
            width=1024,
            layers=4,
            heads=8,
            kv_heads=2,
            head_width=128,
            mlp_width=2048,
            max_positions=4096,
            compute_dtype="bfloat16",
        ),
        mesh=make_mesh(devices=target.devices, **sizes),
        objective=PolicyGradient(),
        optimizer=adamw(learning_rate=1e-3, steps=5),
        layout=Layout(rows=4, row_lengths=(1024,)),
        sampler=SamplerConfig(
            slots=64, context=1024, block=8, append_rows=(8,), append_tokens=(128,), gather_parameters=True
        ),
    )
    with target.pretended():
        return finding_of(plan, program, None, target.accelerator)


@pytest.mark.slow
@needs_libtpu
@stored
def test_a_tpu_decodes_without_copies():
    decode = found("v5e:2x2", "decode", data=1, fsdp=2, tensor=2)
    work = decode.compilation.work
    assert work.flops == pytest.approx(decode.cost.flops, rel=0.01)
    assert work.bytes < 1.1 * decode.cost.bytes
    assert work.moved_bytes < 0.12 * work.bytes  # prefetches


@pytest.mark.slow
@needs_libtpu
@stored
def test_a_tpu_stores_no_scores_of_a_window():
    append = found("v5e:2x2", "append", data=1, fsdp=2, tensor=2)
    work = append.compilation.work
    assert work.kernels == 4  # one a layer
    assert work.flops + append.kernel_flops == pytest.approx(append.cost.flops)
    assert work.flops < 0.9 * append.cost.flops  # scores and weighted values are the kernels'


@pytest.mark.slow
@needs_cuda
@stored
def test_a_gpu_decodes_without_copies():
    decode = found("h200:1", "decode")
    work = decode.compilation.work
    assert work.flops == pytest.approx(decode.cost.flops, rel=0.01)
    assert work.bytes < 1.6 * decode.cost.bytes
    assert work.moved_bytes < 0.02 * work.bytes
