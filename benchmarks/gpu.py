"""Times the parts of a paper's step on one GPU, next to `transformers` and PyTorch on the same sizes and card.

    python benchmarks/gpu.py [--only=sampler,update] [--rows=rows.jsonl] [--tiny]

Random weights of Qwen2.5-3B's shape are drawn on the device, in bfloat16 or, where they are learned, with float32
masters; nothing is read from disk. Each stage ends in rows, which are printed and appended to a file at once, so that a
run that is cut keeps them. `--tiny` runs everything in a minute on CPUs, at sizes whose figures mean nothing.
Only that has run so far.

- parity: the shipped policy's greedy tokens and log-probabilities on the card, in float32 and bfloat16, compared with
  float32 on the CPU, and the sampler's log-probabilities with the trainer's.
- sampler: a block of decoding at several numbers of contexts, and `generate` of `transformers`.
- rollouts: 256 episodes through the runner (a prompt of 350 tokens, three turns of 80 sampled tokens, two observations
  of 600; lengths are forced and searches answer at once), and `transformers` with its cache kept by hand, and without.
- update: 64 of these episodes, the clipped loss with a reference, in every `remat`, and PyTorch with autocast, SDPA and
  fused AdamW, at the faster of its micro-batches. Loss and gradient norm are compared on two episodes.
- step: LcRL's whole step on 1,536 episodes of these lengths, six updates and a reference, without searches.

A floor is the least time by the rates of a copy and of a matrix product, measured in the same run.
"""

import argparse
import dataclasses
import functools
import gc
import importlib.metadata
import itertools
import json
import os
import pathlib
import statistics
import string
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch uses the same card
import jax
import jax.numpy as jnp
import numpy as np
import tokenizers
import torch
import transformers
from flax import traverse_util
from real import drawn_episodes
from sampling import Sizes, our_rollouts, peer_model, rollouts_floor, their_rollouts
from timing import timed
from tokenizers import models, pre_tokenizers
from update import PyTorch, needed_flops

import lcrag
from lcrag.commands.benchmark import Machine, measured_machine
from lcrag.learning import Layout, PolicyGradient, Trajectory, adamw, group_advantages, pack
from lcrag.learning.learners import Learner
from lcrag.methods.lcrl import anti_consistency, language_coupled_reward
from lcrag.policy import (
    DecoderConfig,
    Policy,
    Tokenizer,
    compute_parameters,
    initialise,
    load_hugging_face,
    load_tokenizer,
    log_probabilities,
    make_mesh,
)
from lcrag.policy.hugging_face import stored_parameters
from lcrag.policy.parameters import cache_bytes, decode_bytes, forward_flops
from lcrag.rewards import c3_recall
from lcrag.sampling import Sampler, SamplingParameters, SlotSampler, continue_contexts

Row = dict[str, Any]
STAGES = ("parity", "sampler", "rollouts", "update", "step")
QWEN = DecoderConfig(
    family="qwen2",
    vocabulary_size=151936,
    width=2048,
    layers=36,
    heads=16,
    kv_heads=2,
    head_width=128,
    mlp_width=11008,
    max_positions=32768,
    rope_theta=1e6,
    tie_embeddings=True,
    compute_dtype="bfloat16",
)
SMALL = dataclasses.replace(
    QWEN, vocabulary_size=512, width=32, layers=2, heads=4, head_width=8, mlp_width=64, compute_dtype="float32"
)
# prompts sampled 4 times, an episode's tokens of each kind, and turns
ROLLOUTS = Sizes(prompts=64, samples=4, prompt=350, sampled=80, observed=600, turns=3)
STEP = dataclasses.replace(ROLLOUTS, prompts=512, samples=3)
FEW = Sizes(prompts=2, samples=2, prompt=40, sampled=4, observed=24, turns=3)


@dataclasses.dataclass(frozen=True)
class Bench:
    """What all stages share."""

    config: DecoderConfig
    machine: Machine
    tiny: bool
    prompts: int  # of a step
    profiles: pathlib.Path | None

    def profile(self, name: str, work: Callable[[], object]) -> None:
        if self.profiles is not None:
            with jax.profiler.trace(str(self.profiles / name)):
                work()

    @property
    def mesh(self):
        return make_mesh(devices=jax.devices()[:1])

    def params(self) -> Any:
        """Draws float32 parameters."""
        return initialise(self.config, jax.random.key(0), self.mesh)

    def peer(self, dtype: torch.dtype) -> transformers.PreTrainedModel:
        return peer_model(self.config, dtype, "cuda" if torch.cuda.is_available() else "cpu")

    @property
    def tokenizer(self) -> Tokenizer:
        """Words of letters, one token each; the end of a text cannot be sampled, so that lengths are forced."""
        size = self.config.vocabulary_size
        words = itertools.islice(map("".join, itertools.product(string.ascii_lowercase, repeat=4)), size)
        backend = tokenizers.Tokenizer(models.WordLevel({f" {word}": n for n, word in enumerate(words)}, " aaaa"))
        backend.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_next")
        return Tokenizer(backend, eos_ids=(size,), pad_id=0)


def rates(seconds: Sequence[float] | float, amount: float, floor: float | None = None) -> Row:
    """Returns the fields of a row that come from measured seconds of an amount of tokens or episodes."""
    median = statistics.median(seconds if isinstance(seconds, Sequence) else [seconds])
    row = {"seconds": round(median, 4), "per_second": round(amount / median, 1)}
    return row if floor is None else row | {"share_of_floor": round(floor / median, 3)}


def synchronised(work: Callable[[], object]) -> Callable[[], None]:
    """Makes a function of PyTorch wait for the card."""

    def run() -> None:
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return run


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


# --- The stages ---


def parity(bench: Bench) -> Iterator[Row]:
    folder = pathlib.Path(lcrag.__file__).parent / "atlas" / "weights" / "long_sft"
    (config, params), tokenizer = load_hugging_face(folder), load_tokenizer(folder)
    asked = ("What is the currency of Finland?", "Quelle est la monnaie du Japon ?", "¿Cuál es el código de Chile?")
    prompts = [tokenizer.encode(text) for text in asked]
    request = SamplingParameters(max_tokens=32, temperature=0.0)
    settings = Sampler(slots=4, context=128, append_tokens=(32,))

    def sampled(dtype: str, device: jax.Device) -> list:
        used = dataclasses.replace(config, compute_dtype=dtype)
        with jax.default_matmul_precision("highest"):
            sampler = SlotSampler(used, params, tokenizer, settings, make_mesh(devices=[device]))
            return continue_contexts(sampler, [(tokens, request) for tokens in prompts])

    expected = sampled("float32", jax.devices("cpu")[0])
    for dtype in ("float32", "bfloat16"):
        found, used = sampled(dtype, jax.devices()[0]), dataclasses.replace(config, compute_dtype=dtype)
        same, gaps, trained = [], [], []
        for prompt, ours, theirs in zip(prompts, found, expected, strict=True):
            count = min(len(ours.tokens), len(theirs.tokens))
            differ = np.flatnonzero(ours.tokens[:count] != theirs.tokens[:count])
            until = int(differ[0]) if len(differ) else count
            same.append(until / count)
            gaps.append(np.abs(ours.log_probabilities[:until] - theirs.log_probabilities[:until]).max(initial=0))
            row = jnp.array([[*prompt, *ours.tokens]])
            with jax.default_matmul_precision("highest"):
                scores = log_probabilities(used, params, row[:, :-1], row[:, 1:])[0, len(prompt) - 1 :]
            trained.append(np.abs(np.asarray(scores) - ours.log_probabilities).max())
        yield {
            "work": f"greedy tokens in {dtype}, compared with float32 on the CPU",
            "side": "lcrag",
            "equal_until": round(float(np.mean(same)), 3),
            "log_probability_gap": float(max(gaps)),
            "sampling_training_gap": float(max(trained)),
        }


def sampler(bench: Bench) -> Iterator[Row]:
    config, block = bench.config, 4 if bench.tiny else 64
    sizes = [(4, 64)] if bench.tiny else [(32, 1024), (128, 1024), (256, 1024), (384, 1024), (256, 2048)]
    params = jax.jit(functools.partial(compute_parameters, config), donate_argnums=0)(bench.params())
    drawn = jax.jit(lambda cache: jax.tree.map(lambda x: jax.random.normal(jax.random.key(1), x.shape, x.dtype), cache))
    for slots, window in sizes:
        settings = Sampler(slots=slots, context=window, block=block, append_tokens=(32,))
        ours = SlotSampler(config, params, bench.tokenizer, settings, bench.mesh)
        request = SamplingParameters(max_tokens=block)
        # Contexts of random keys and values: nothing is prefilled, and one shape is compiled.
        ours._state = ours._state._replace(cache=drawn(ours._state.cache))

        def decode(ours=ours, length=window - block, request=request) -> None:
            ours._lengths[:] = length
            ours._state = ours._state._replace(lengths=jnp.full(ours.slots, length, jnp.int32))
            ours.begin({slot: dataclasses.replace(request, episode=slot) for slot in range(ours.slots)})
            while ours.running:
                ours.decode()

        _, compiling = timed(decode)
        seconds = [timed(decode)[1] for _ in range(3)]
        bench.profile(f"decode_{slots}_{window}", decode)
        read = window - block / 2
        flops, moved = forward_flops(config, slots, attended=read), decode_bytes(config, slots, read)
        floor = block * bench.machine.floor_seconds(flops, moved)
        about = {"work": f"decode {slots} contexts of {window}", "compiling": round(compiling, 1)}
        about["cache_gib"] = round(cache_bytes(config, slots, window) / 2**30, 2)
        yield about | {"side": "lcrag"} | rates(seconds, slots * block, floor)
        del ours
        gc.collect()
    del params
    model = bench.peer(torch.bfloat16)
    for slots, window in sizes[2:3] or sizes:
        prompt = torch.randint(5, config.vocabulary_size, (slots, window - block), device=model.device)
        for cache in ("dynamic", "static"):  # with "static", `transformers` compiles on a GPU
            options = {"do_sample": True, "top_k": 0, "pad_token_id": 0, "cache_implementation": cache}

            def generate(tokens: int, prompt=prompt, options=options) -> None:
                model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, **options)

            # Prefilling is subtracted: the time of one token is that of the prompt.
            run = {tokens: synchronised(functools.partial(generate, tokens)) for tokens in (1, 4, block)}
            _, compiling = timed(run[4])
            one, whole = (timed(run[tokens])[1] for tokens in (1, block))
            about = {"work": f"decode {slots} contexts of {window}", "compiling": round(compiling, 1)}
            yield about | {"side": f"transformers, {cache} cache"} | rates(whole - one, slots * (block - 1))


def rollouts(bench: Bench) -> Iterator[Row]:
    sizes = FEW if bench.tiny else ROLLOUTS
    params = jax.jit(functools.partial(compute_parameters, bench.config), donate_argnums=0)(bench.params())
    run, sampling = our_rollouts(bench.config, params, bench.tokenizer, sizes, **gpu_sampler(sizes))
    del params
    shapes, compiling = timed(sampling.warm_up)
    run()
    floor = rollouts_floor(bench.machine, bench.config, sizes)
    before = dataclasses.replace(sampling.statistics)
    seconds = [timed(run)[1] for _ in range(2)]
    now, work = sampling.statistics, f"{sizes.episodes} episodes of {sizes.length} tokens"
    parts = {
        f"{name}_seconds": round((getattr(now, f"{name}_seconds") - getattr(before, f"{name}_seconds")) / 2, 3)
        for name in ("append", "decode")
    }
    yield (
        {"work": work, "side": "lcrag", "compiling": round(compiling, 1), "shapes": shapes}
        | parts
        | rates(seconds, sizes.sampled_tokens, floor)
    )
    del run, sampling
    free()
    model = bench.peer(torch.bfloat16)
    for side, keeps in {"transformers, cache kept by hand": True, "transformers, history prefilled": False}.items():
        short = dataclasses.replace(sizes, sampled=2, turns=2)
        synchronised(their_rollouts(model, short, keeps))()  # warms up
        peer = synchronised(their_rollouts(model, sizes, keeps))
        yield {"work": work, "side": side} | rates(timed(peer)[1], sizes.sampled_tokens, floor)


def gpu_sampler(sizes: Sizes) -> Row:
    """Returns the settings of a sampler that differ from those of `real.py`."""
    long = sizes.observed > 100
    return {"append_rows": (32,) if long else (4,), "append_tokens": (304,) if long else (16,), "block": 40}


def update(bench: Bench) -> Iterator[Row]:
    sizes = FEW if bench.tiny else dataclasses.replace(ROLLOUTS, prompts=16)
    config, episodes = bench.config, drawn_episodes(sizes, bench.config.vocabulary_size)
    tokens, floor = sizes.episodes * sizes.length, bench.machine.floor_seconds(needed_flops(config, episodes))
    work = f"update on {sizes.episodes} episodes of {sizes.length} tokens"
    params, found = bench.params(), {}
    model = bench.peer(torch.float32).train()
    flat = traverse_util.flatten_dict(params, sep="/")
    with torch.no_grad():
        for name, place in stored_parameters(config).items():
            leaf = flat[place.path] if place.layer is None else flat[place.path][place.layer]
            tensor = torch.from_dlpack(leaf)
            model.get_parameter(name).copy_(tensor.T if place.transposed else tensor)
    del params, flat, leaf, tensor
    peer = PyTorch(model, episodes[:2], 1, kl=KL)
    found["PyTorch"] = peer()
    for rows in (1, 2) if bench.tiny else (2, 4, 8):
        run = synchronised(peer)
        try:
            peer.take(episodes[:rows], rows)
            run()  # warms up
            peer.take(episodes, rows)
            seconds = timed(run)[1]
        except torch.OutOfMemoryError:
            yield {"work": work, "side": f"PyTorch, rows of {rows}", "failed": "out of memory"}
            break
        yield {"work": work, "side": f"PyTorch, rows of {rows}"} | rates(seconds, tokens, floor) | peak_of_torch()
    del model, peer, run
    free()
    variants = [("dots", 2)] if bench.tiny else [("dots", 4), ("full", 2)]
    for remat, rows in variants:
        learner = our_learner(bench, sizes, remat, rows, parts=1)
        metrics, compiling = timed(lambda learner=learner: learner.learn(episodes[:2]))
        found[f"lcrag, {remat}"] = metrics["loss/policy"] + KL * metrics["loss/kl"], metrics["gradient_norm"]
        seconds = [timed(lambda learner=learner: learner.learn(episodes))[1] for _ in range(2)]
        bench.profile(f"update_{remat}", lambda learner=learner, few=episodes[: 4 * rows]: learner.learn(few))
        about = {"work": work, "side": f"lcrag, {remat}, rows of {rows}", "compiling": round(compiling, 1)}
        yield about | rates(seconds, tokens, floor) | peak_of_jax()
        del learner
        gc.collect()
    yield {"work": "loss and gradient norm of two episodes", "side": "both"} | found


KL = 5e-4


def our_learner(bench: Bench, sizes: Sizes, remat: str, rows: int, parts: int) -> Learner:
    """Returns a learner with the loss and optimizer of lcrl/paper.gin; batches of fewer episodes share its program."""
    config = dataclasses.replace(bench.config, remat=remat)
    policy = Policy("random", config, bench.params(), bench.tokenizer, bench.mesh)
    share = sizes.turns * sizes.sampled / sizes.length
    layout = Layout(
        rows=rows,
        row_lengths=(-(-sizes.length // 64) * 64,),
        policy_shares=(1.03 * share, 1.0),
        min_micro_batches=-(-sizes.episodes // (parts * rows)),
        min_episodes=rows,
    )
    objective = PolicyGradient(kl_coefficient=KL)
    return Learner(policy, objective, adamw(learning_rate=1e-6, steps=1000), layout, 1.0, parts=parts)


def step(bench: Bench) -> Iterator[Row]:
    sizes = FEW if bench.tiny else dataclasses.replace(STEP, prompts=bench.prompts)
    slots, rows, parts = (4, 2, 1) if bench.tiny else (256, 4, 6)
    learner = our_learner(bench, sizes, "dots", rows, parts)
    started = time.perf_counter()
    run, sampling = our_rollouts(
        bench.config, learner.params, bench.tokenizer, sizes, slots=slots, **gpu_sampler(sizes)
    )
    shapes = sampling.warm_up()
    draw = drawn_episodes(dataclasses.replace(sizes, prompts=1), bench.config.vocabulary_size)
    learner.learn([draw[0]] * parts)
    row: Row = {"work": f"LcRL's step, {sizes.episodes} episodes of {sizes.length} tokens", "side": "lcrag"}
    row |= {"shapes": shapes, "compiling": round(time.perf_counter() - started, 1)}

    newest = learner.params, learner.policy_version
    _, row["copy_seconds"] = timed(lambda: (sampling.set_params(*newest), sampling.wait()))
    records, row["rollout_seconds"] = timed(run)
    statistics_ = sampling.statistics
    row |= {"append_seconds": statistics_.append_seconds, "decode_seconds": statistics_.decode_seconds}
    row["sampled_per_second"] = round(sizes.sampled_tokens / row["rollout_seconds"], 1)
    answers = [record.turns[-1].text[-200:] for record in records]
    groups = np.arange(len(records)) // (sizes.samples * 8)

    def reward() -> np.ndarray:
        recalls = c3_recall(answers, [["some gold answer", "another"]] * len(answers))
        return language_coupled_reward(recalls, anti_consistency(answers, recalls, groups))

    rewards, row["reward_seconds"] = timed(reward)
    advantages = np.asarray(group_advantages(rewards + np.arange(len(rewards)) % 7, groups))
    trajectories = [
        Trajectory(record.tokens, record.by_policy, record.log_probabilities, float(advantage))
        for record, advantage in zip(records, advantages, strict=True)
    ]
    yield row | {"so_far": True}
    metrics, learned = timed(lambda: learner.learn(trajectories))
    # the reference alone, which `learn` computes as well
    batch = pack(trajectories[::parts], learner._layout)
    _, scored = timed(lambda: jax.device_get(learner._policy.score(batch, learner._reference)))
    row["reference_seconds"] = scored * parts
    row["update_seconds"] = learned - row["reference_seconds"]
    total = row["copy_seconds"] + row["rollout_seconds"] + row["reward_seconds"] + learned
    row = {name: round(value, 2) if isinstance(value, float) else value for name, value in row.items()}
    row |= {"gap": metrics["sampling_training_gap"], "filled": round(metrics["packing/filled"], 3)}
    yield row | rates(total, sizes.episodes) | {"hours_of_225_steps": round(total * 225 / 3600, 1)} | peak_of_jax()


# --- Rows ---


def peak_of_torch() -> Row:
    return {"peak_gib": round(torch.cuda.max_memory_allocated() / 2**30, 1)} if torch.cuda.is_available() else {}


def peak_of_jax() -> Row:
    memory = jax.devices()[0].memory_stats() or {}
    return {"peak_gib": round(memory["peak_bytes_in_use"] / 2**30, 1)} if "peak_bytes_in_use" in memory else {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(STAGES), help="stages, separated by commas")
    parser.add_argument("--rows", type=pathlib.Path, default=pathlib.Path("gpu.jsonl"), help="file to append rows to")
    parser.add_argument("--prompts", type=int, default=STEP.prompts, help="of the step, three episodes each")
    parser.add_argument("--profiles", type=pathlib.Path, help="folder for a profile of each kind of call")
    parser.add_argument("--tiny", action="store_true", help="tiny sizes, for CPUs too")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if unknown := set(chosen) - set(STAGES):
        sys.exit(f"gpu.py: no stage is called {min(unknown)}: the stages are {', '.join(STAGES)}")
    transformers.utils.logging.disable_progress_bar()
    config = SMALL if options.tiny else QWEN
    machine = measured_machine(make_mesh(devices=jax.devices()[:1]), config.dtype, repeats=5)
    bench = Bench(config, machine, options.tiny, options.prompts, options.profiles)
    packages = {name: importlib.metadata.version(name) for name in ("jax", "torch", "transformers")}
    about = {"card": jax.devices()[0].device_kind, "date": time.strftime("%Y-%m-%d")} | packages
    about |= {"copied_gb_per_second": round(machine.bytes_per_second / 1e9)}
    about |= {"tflop_per_second": round(machine.flops_per_second / 1e12, 1)}
    print(json.dumps(about), flush=True)
    failed = False
    for stage in chosen:
        started = time.perf_counter()
        try:
            for row in {"parity": parity, "sampler": sampler, "rollouts": rollouts, "update": update, "step": step}[
                stage
            ](bench):
                with options.rows.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"stage": stage} | row | peak_of_jax() | row | about) + "\n")
                print(stage, json.dumps(row), flush=True)
        except (RuntimeError, ValueError) as error:  # the other stages are worth having
            failed = True
            print(f"{stage} failed: {error!r:.2000}", flush=True)
        print(f"{stage} took {time.perf_counter() - started:.0f} s", flush=True)
        free()
    sys.exit(failed)


if __name__ == "__main__":
    main()
