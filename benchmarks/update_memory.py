"""Prints the peak memory of the update by compiler statistics: log-probabilities in blocks, remat policies, adapters.

    python benchmarks/update_memory.py [--topology=v5p:2x2x1] [--rows=8] [--time=2048] [--tiny]

Nothing runs and no weights are allocated: functions are compiled for one device, either local or of a TPU topology that
need not exist, and `memory_analysis()` is read. First, log-probabilities of [rows, time] targets and their gradient,
with 151,936 tokens and a float32 table: all logits at once ("plain"), compared with the blocks of training. Then the
GRPO update (bfloat16 activations) of a decoder with the sizes of Qwen2.5-3B for every remat policy, training all
parameters or adapters of rank 16 on a frozen bfloat16 base. CPUs compute bfloat16 through float32 copies and have no
fused attention, so their temporaries do not predict those of an accelerator.
"""

import argparse
import dataclasses

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table
from support import tiny_config

from lcrag.commands.compile.compilation import Compilation, compiled
from lcrag.commands.compile.lowering import CompilePlan, lower_update
from lcrag.commands.compile.topologies import target_of
from lcrag.learning import Layout, PolicyGradient, adamw
from lcrag.policy import DecoderConfig, Lora, logical_sharding, make_mesh, unembed, unembed_log_probabilities
from lcrag.sampling import SamplerConfig

QWEN2_5_3B = DecoderConfig(
    family="qwen2",
    vocabulary_size=151936,
    width=2048,
    layers=36,
    heads=16,
    kv_heads=2,
    head_width=128,
    mlp_width=11008,
    max_positions=32768,
    tie_embeddings=True,
    compute_dtype="bfloat16",
)
GIB = 2**30


def plain_log_probabilities(config: DecoderConfig, params, hidden, targets):
    """Computes the baseline: all logits at once."""
    everything = jax.nn.log_softmax(unembed(config, params, hidden))
    entropy = -jnp.sum(jnp.exp(everything) * everything, axis=-1)
    return jnp.take_along_axis(everything, targets[..., None], -1)[..., 0], entropy


def compiled_gradient(function, config: DecoderConfig, mesh, rows: int, time: int) -> Compilation:
    """Compiles the gradient of a sum of log-probabilities with respect to the table and the hidden states."""

    def gradient(table, hidden, targets):
        def total(table, hidden):
            found, entropy = function(config, {"embedding": table}, hidden, targets)
            return found.sum(), entropy.mean()

        return jax.value_and_grad(total, argnums=(0, 1), has_aux=True)(table, hidden)

    def abstract(shape, dtype, *axes):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=logical_sharding(mesh, *axes))

    table = abstract((config.vocabulary_size, config.width), jnp.float32, "vocabulary", "embed")
    hidden = abstract((rows, time, config.width), config.dtype, "batch", None, None)
    targets = abstract((rows, time), jnp.int32, "batch", None)
    return compiled("gradient", jax.jit(gradient).lower(table, hidden, targets))


def plan_of(config: DecoderConfig, mesh, rows: int, time: int) -> CompilePlan:
    """Returns the update of one packed micro-batch, half of whose tokens are sampled."""
    return CompilePlan(
        config=config,
        mesh=mesh,
        objective=PolicyGradient(),
        optimizer=adamw(learning_rate=1e-6, steps=100),
        layout=Layout(rows=rows, row_lengths=(time,), policy_shares=(0.5,)),
        sampler=SamplerConfig(
            slots=rows, context=time, block=1, append_rows=(1,), append_tokens=(1,), gather_parameters=False
        ),
    )


def show(console: Console, title: str, found: dict[str, Compilation]) -> None:
    """Prints a line per function, in GiB, with ratios to the first; rejected functions have only their total."""
    table = Table(title=f"{title} (GiB)")
    for name in ("", "arguments", "results", "temporaries", "together", "/ first", "seconds"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    needed = [each.memory.total if each.memory else each.refused_bytes for each in found.values()]
    for (name, each), together in zip(found.items(), needed, strict=True):
        memory = each.memory
        sizes = (memory.arguments, memory.outputs, memory.temporaries) if memory else ()
        cells = [f"{size / GIB:.2f}" for size in sizes] or ["", "", "refused"]
        table.add_row(name, *cells, f"{together / GIB:.2f}", f"{together / needed[0]:.3f}", f"{each.seconds:.0f}")
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topology", default="", help="a TPU topology, one of whose devices is compiled for")
    parser.add_argument("--rows", type=int, default=8, help="rows of a micro-batch")
    parser.add_argument("--time", type=int, default=2048, help="tokens of a row")
    parser.add_argument("--tiny", action="store_true", help="the tests' model and short rows: a smoke run")
    arguments = parser.parse_args()

    target, console = target_of(arguments.topology), Console(width=120)
    mesh = make_mesh(devices=target.devices[:1])
    config, rows, time = QWEN2_5_3B, arguments.rows, arguments.time
    if arguments.tiny:
        config, rows, time = tiny_config(vocabulary_size=151936, compute_dtype="bfloat16"), 2, 128
    functions = {"plain": plain_log_probabilities, "blocks": unembed_log_probabilities}
    gradients = {name: compiled_gradient(each, config, mesh, rows, time) for name, each in functions.items()}
    shape = f"[{rows}, {time}]"
    words = f"{config.vocabulary_size:,} words"
    show(console, f"log-probabilities of {shape} x {words} and their gradient, {target.name}", gradients)
    plain, blocks = (each.memory.temporaries if each.memory else each.refused_bytes for each in gradients.values())
    console.print(f"temporaries, plain / blocks: {plain / blocks:.1f}")

    updates = {}
    for lora in (None, Lora(rank=16)):
        for remat in ("none", "dots", "full"):
            changed = dataclasses.replace(config, remat=remat, lora=lora)
            name = f"{remat}, {'all learned' if lora is None else 'LoRA'}"
            updates[name] = compiled("update", lower_update(plan_of(changed, mesh, rows, time)))
    show(console, f"update of {shape} by remat policy, one device of {target.name}", updates)


if __name__ == "__main__":
    main()
