"""lcrag's side of the comparison with peers: python benchmarks/peers/lcrag_side.py generation|step|retrieval"""

import dataclasses
import functools
import pathlib
import tempfile
import time

import jax
import numpy as np
import work  # makes the folder of `timing` known; stays first
from timing import repeated, report

from lcrag.commands.benchmark import measured_machine
from lcrag.data.questions import Question
from lcrag.episodes import Generate, Observe, Outcome, Program, Runner
from lcrag.learning import (
    Layout,
    PolicyGradient,
    Trajectory,
    adamw,
    group_advantages,
    initial_state,
    make_score,
    make_update,
    pack,
)
from lcrag.policy import (
    DecoderConfig,
    hidden_states,
    initialise,
    load_tokenizer,
    make_mesh,
    unembed_log_probabilities,
)
from lcrag.policy.parameters import causal_mean, decode_bytes, forward_flops, update_flops
from lcrag.retrieval.collections import VECTORS, read_index, write_index
from lcrag.sampling import Sampler, SamplingParameters, SlotSampler

MODEL = DecoderConfig(
    vocabulary_size=work.VOCABULARY,
    width=work.WIDTH,
    layers=work.LAYERS,
    heads=work.HEADS,
    kv_heads=work.KV_HEADS,
    head_width=work.HEAD_WIDTH,
    mlp_width=work.MLP_WIDTH,
    max_positions=work.POSITIONS,
    unroll_layers=True,
)
LENGTH = work.PROMPT + work.NEW


def endless_tokenizer():
    """Returns the tokenizer with an end that cannot be sampled: lengths are forced."""
    return dataclasses.replace(load_tokenizer(work.TOKENIZER.parent), eos_ids=(work.VOCABULARY,))


def sampler() -> SlotSampler:
    block = min(32, work.NEW // 2)
    settings = Sampler(
        slots=work.EPISODES,
        context=LENGTH,
        block=block,
        min_finished_share=1.0,
        windows=tuple(range(work.PROMPT + block, LENGTH, block)),
        append_rows=(work.PROMPTS, work.EPISODES),
        append_tokens=(work.PROMPT,),
    )
    return SlotSampler(MODEL, initialise(MODEL, jax.random.key(0)), endless_tokenizer(), settings)


def generation_floor() -> float:
    """Returns the least seconds of generation by the rates of a copy and a matrix product."""
    machine = measured_machine(make_mesh(), MODEL.dtype, 5)
    flops = forward_flops(MODEL, work.EPISODES * work.PROMPT, attended=causal_mean(work.PROMPT), unembedded=0)
    seconds = machine.floor_seconds(flops, 0)
    for length in range(work.PROMPT, LENGTH):
        flops = forward_flops(MODEL, work.EPISODES, attended=length)
        seconds += machine.floor_seconds(flops, decode_bytes(MODEL, work.EPISODES, length))
    return seconds


def learning_floor() -> float:
    """Returns the least seconds of the reference's scores and the update."""
    machine = measured_machine(make_mesh(), MODEL.dtype, 5)
    sizes = {"tokens": work.EPISODES * LENGTH, "attended": causal_mean(LENGTH), "unembedded": work.EPISODES * work.NEW}
    return machine.floor_seconds(forward_flops(MODEL, **sizes) + update_flops(MODEL, **sizes), 0)


def generation() -> None:
    made, tokenizer = sampler(), endless_tokenizer()
    prompts = {i: np.array(tokenizer.encode(text)) for i, text in enumerate(work.texts(work.EPISODES, work.PROMPT, 1))}

    def generate() -> None:
        made.append(prompts)
        made.begin({slot: SamplingParameters(max_tokens=work.NEW, episode=slot) for slot in prompts})
        sampled = 0
        while made.running:
            sampled += sum(len(each.tokens) for each in made.decode().values())
        assert sampled == work.EPISODES * work.NEW, sampled
        made.free(prompts)

    amount = work.EPISODES * work.NEW
    report(work.GENERATION, "lcrag", repeated(generate, work.REPEATS), amount, "new tokens")
    report(work.GENERATION, "floor", [generation_floor()], amount, "new tokens")


def answering(prompt: str) -> Program:
    yield Observe(prompt)
    return Outcome(answer=(yield Generate(stop=())))


def step() -> None:
    made, tokenizer = sampler(), endless_tokenizer()
    runner = Runner(sampler=made, tokenizer=tokenizer, search=lambda *_: [], max_tokens=work.NEW, answer_room=work.NEW)
    hidden, unembed = (functools.partial(each, MODEL) for each in (hidden_states, unembed_log_probabilities))
    optimizer, layout = adamw(learning_rate=1e-6, steps=100), Layout(rows=8, row_lengths=(LENGTH,))
    score = make_score(hidden, unembed)
    update = make_update(hidden, unembed, PolicyGradient(kl_coefficient=0.04), optimizer)
    reference, state = (initialise(MODEL, jax.random.key(0)) for _ in range(2))
    state = initial_state(state, optimizer)
    prompts = work.texts(work.PROMPTS * (work.STEPS + 1), work.PROMPT, 4)
    question = Question(id="", dataset="benchmark", language="en", text="", answers=())
    groups = np.arange(work.EPISODES) // work.SAMPLES
    seconds = []
    for number in range(work.STEPS + 1):
        started = time.perf_counter()
        own = [prompts[number * work.PROMPTS + group] for group in groups]
        first = number * work.EPISODES
        programs = [
            (dataclasses.replace(question, id=str(i)), answering(text), first + i) for i, text in enumerate(own)
        ]
        records = runner.run(programs)
        sampled = time.perf_counter()
        rewards = np.array([len(record.outcome.answer or "") % 7 for record in records], float)
        advantages = group_advantages(rewards, groups)
        batch = pack([_trajectory(*each) for each in zip(records, advantages, strict=True)], layout)
        batch = batch.replace(reference_log_probabilities=np.asarray(score(reference, batch)))
        scored = time.perf_counter()
        state, metrics = jax.block_until_ready(update(state, batch))
        made.set_params(state.params, number + 1)
        ended = time.perf_counter()
        assert float(metrics["sampling_training_gap"]) < 1e-3
        seconds.append((ended - started, sampled - started, scored - sampled, ended - scored))
    phases = dict(zip(("generate", "score", "update"), np.median(seconds[1:], axis=0)[1:].tolist(), strict=True))
    report(work.STEP, "lcrag", [each[0] for each in seconds[1:]], work.EPISODES, "episodes", phases=phases)
    report(work.STEP, "floor", [generation_floor() + learning_floor()], work.EPISODES, "episodes")


def _trajectory(record, advantage: float) -> Trajectory:
    return Trajectory(record.tokens, record.by_policy, record.log_probabilities, float(advantage))


def retrieval() -> None:
    stored, queries, near = work.vectors()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        np.save(folder / VECTORS, stored)
        index = read_index(folder, write_index(folder))

        def search() -> np.ndarray:
            parts = range(0, len(queries), work.QUERY_BATCH)
            return np.concatenate(
                [index.search(queries[place : place + work.QUERY_BATCH], work.NEIGHBOURS)[0] for place in parts]
            )

        found = work.recall(search(), near)
        report(work.RETRIEVAL, "lcrag", repeated(search, work.REPEATS), len(queries), "queries", recall=found)


if __name__ == "__main__":
    work.run({"generation": generation, "step": step, "retrieval": retrieval})
