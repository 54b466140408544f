"""Sampling in slots against one plain forward pass and `transformers`, and the invariances of a run."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from flax import traverse_util
from hypothesis import given
from hypothesis import strategies as st
from support import SENTENCES, tiny_config, tiny_gemma, tiny_tokenizer
from support.random_decoders import saved_decoder

from lcrag.errors import UserError
from lcrag.policy import (
    Lora,
    abstract_parameters,
    add_lora,
    compute_parameters,
    hidden_states,
    initialise,
    load_hugging_face,
    logits,
    make_mesh,
    unembed,
)
from lcrag.sampling import Sampler, SamplingParameters, SlotSampler, generate
from lcrag.sampling import slots as slots_module
from lcrag.sampling.sampler import _split
from lcrag.sampling.slots import compiled_functions

NARROW = tiny_config(compute_dtype="bfloat16")
SMALL = Sampler(slots=4, context=64, block=6, append_rows=(4,), append_tokens=(8,))
ENTRIES = {0: [5, 6, 7, 8], 1: [9, 10]}
STOP = ("</search>", "e", "円")
ONE_SHAPE = {"windows": (), "append_tokens": (32,)}  # fewer programs than by default, where they are not the subject


@pytest.fixture(scope="module")
def model(request):
    config = tiny_config(**getattr(request, "param", {}))
    return config, initialise(config, jax.random.key(0))


with_windows = pytest.mark.parametrize("model", [{}, tiny_gemma()], indirect=True, ids=["qwen3", "gemma3"])


def make(model, mesh=None, **options):
    sizes = {"slots": 4, "context": 128, "block": 8, "windows": (64,), "append_rows": (2,), "append_tokens": (16, 32)}
    return SlotSampler(*model, tiny_tokenizer(), Sampler(**(sizes | options)), mesh)


def converse(sampler: SlotSampler, episodes, slot_of, turns: int = 3, seed: int = 5) -> dict[int, dict]:
    """Runs multi-turn episodes of observations and generations; returns the tokens of each."""
    tokenizer = tiny_tokenizer()
    records = {episode: {"tokens": [], "policy": [], "log_probabilities": []} for episode in episodes}
    owner = {slot_of(episode): episode for episode in episodes}
    for turn in range(turns):
        texts = {slot: tokenizer.encode(SENTENCES[(owner[slot] + turn) % 4])[: 9 + owner[slot]] for slot in owner}
        sampler.append(texts)
        for slot, ids in texts.items():
            _extend(records[owner[slot]], ids, False, np.zeros(len(ids)))
        common = {"stop": STOP, "max_tokens": 11, "temperature": 1.3, "seed": seed}
        sampler.begin({slot: SamplingParameters(**common, episode=episode) for slot, episode in owner.items()})
        while sampler.running:
            for slot, sampled in sampler.decode().items():
                _extend(records[owner[slot]], sampled.tokens, True, sampled.log_probabilities)
    return records


def finished(sampler: SlotSampler) -> dict:
    done: dict = {}
    while sampler.running:
        done |= sampler.decode()
    return done


def _extend(record, tokens, policy, log_probabilities):
    record["tokens"] += [int(token) for token in tokens]
    record["policy"] += [policy] * len(tokens)
    record["log_probabilities"] += [float(each) for each in log_probabilities]


@pytest.fixture(scope="module")
def records(model):
    return converse(make(model), range(4), int)


@pytest.fixture(scope="module")
def reference(records):
    return tokens_of(records)


@with_windows
def test_multi_turn_cache_equals_one_full_forward_pass(model, records):
    config, params = model
    for record in records.values():
        tokens = np.pad(record["tokens"], (0, 128 - len(record["tokens"])))[None]  # one shape, one program
        full = jax.nn.log_softmax(logits(config, params, tokens[:, :-1])[0] / 1.3)
        full = np.take_along_axis(np.asarray(full), tokens[0, 1:, None], axis=1)[:, 0]
        policy = np.flatnonzero(record["policy"])
        np.testing.assert_allclose(np.array(record["log_probabilities"])[policy], full[policy - 1], atol=1e-4)


@pytest.mark.parametrize("model", [tiny_gemma()], indirect=True, ids=["gemma3"])
@pytest.mark.parametrize("seed", range(3))
def test_caches_of_sliding_windows_are_short_and_exact(model, seed):
    """Random appends, with and without the last sampled token, generations, forks and new contexts."""
    config, params = model
    sampler = make(model, context=256, windows=(24, 48, 96), append_tokens=(4, 32), layers="apart")
    caches = sampler._state.cache
    # a window of 5 and an append of 32, in tiles of 16; layer 1 sees everything
    assert [each.keys.shape[-2] for each in caches] == [48, 256, 48]

    @jax.jit
    def expected(tokens):
        return jax.nn.log_softmax(logits(config, params, tokens[None])[0])

    random, contexts, may_drop = np.random.default_rng(seed), {}, set()
    for step in range(30):
        slots = [int(slot) for slot in np.flatnonzero(random.random(4) < 0.6)]
        fits = [slot for slot in slots if len(contexts.get(slot, [])) < 256 - 60]
        action = random.choice(["append", "sample", "fork", "free"], p=[0.4, 0.45, 0.1, 0.05])
        if action == "append" and fits:
            new = {slot: random.integers(1, 250, random.integers(1, 50)).tolist() for slot in fits}
            dropping = [slot for slot in fits if slot in may_drop and random.random() < 0.5]
            for slot in dropping:
                contexts[slot].pop()
            sampler.append(new, dropping)
            for slot, tokens in new.items():
                contexts.setdefault(slot, []).extend(tokens)
                may_drop.discard(slot)
        elif action == "sample" and (fits := [slot for slot in fits if slot in contexts]):
            request = SamplingParameters(max_tokens=int(random.integers(1, 12)), temperature=1.0, seed=seed)
            sampler.begin(dict.fromkeys(fits, request))
            for slot, sampled in finished(sampler).items():
                first = len(contexts[slot])
                contexts[slot] += sampled.tokens.tolist()
                scores = np.asarray(expected(np.pad(contexts[slot], (0, 256 - len(contexts[slot])))))
                scores = scores[np.arange(first, len(contexts[slot])) - 1, sampled.tokens]
                np.testing.assert_allclose(sampled.log_probabilities, scores, atol=1e-4, err_msg=f"step {step}")
                may_drop.add(slot)
        elif action == "fork" and contexts:
            source = int(random.choice(list(contexts)))
            targets = [slot for slot in slots if slot != source]
            sampler.fork(source, targets)
            for slot in targets:
                contexts[slot] = list(contexts[source])
                may_drop.discard(slot)
        elif action == "free":
            sampler.free(slots)
            for slot in slots:
                contexts.pop(slot, None)
                may_drop.discard(slot)
    assert max(map(len, contexts.values())) > 96


def tokens_of(records: dict[int, dict]) -> dict[int, list[int]]:
    return {episode: record["tokens"] for episode, record in records.items()}


@pytest.mark.parametrize(
    ("options", "slot_of"),
    [
        ({}, lambda episode: 3 - episode),
        ({"slots": 8, "block": 3, **ONE_SHAPE}, lambda episode: 2 * episode + 1),
        ({"windows": (), "append_rows": (1, 4), "append_tokens": (4, 8)}, int),
        ({"min_finished_share": 1.0}, int),
        ({"slots": 8, "decode_rows": (1, 4), **ONE_SHAPE}, int),
    ],
    ids=["permuted", "more slots and shorter blocks", "other buckets", "late ends of blocks", "idle slots left out"],
)
def test_an_episode_depends_on_nothing_but_itself(model, reference, options, slot_of):
    assert tokens_of(converse(make(model, **options), range(4), slot_of)) == reference
    assert tokens_of(converse(make(model, **options), [2], lambda episode: 0)) == {2: reference[2]}


OTHER_SLOTS = {"slots": 8, "decode_rows": (2, 5), "block": 3, **ONE_SHAPE}, {}
SHARDED = {"gather_parameters": True, **ONE_SHAPE}, {"fsdp": 2, "tensor": 4}  # there are two key-value heads


@pytest.mark.parametrize(
    ("form", "options", "mesh"), [("stacked", *SHARDED), ("apart", *OTHER_SLOTS), ("apart, keys transposed", *SHARDED)]
)
@with_windows
def test_every_form_of_the_layers_samples_the_same(monkeypatch, model, records, form, options, mesh):
    """The forms of TPUs, GPUs and CPUs."""
    layers, *transposed = form.split(", ")
    monkeypatch.setattr(slots_module.SamplerForm, "transposes_keys", bool(transposed))
    compiled_functions.cache_clear()
    devices = jax.devices()[: math.prod(mesh.values())]
    sampler = make(model, mesh=make_mesh(devices=devices, **mesh), layers=layers, **options)
    got = converse(sampler, range(4), lambda episode: sampler.slots - 1 - episode)
    compiled_functions.cache_clear()
    assert tokens_of(got) == tokens_of(records)
    for episode, record in records.items():
        np.testing.assert_allclose(got[episode]["log_probabilities"], record["log_probabilities"], atol=1e-4)


def test_a_tpus_kernel_appends_the_same(monkeypatch):
    """Long and short contexts, and one whose padding would exceed the window; the kernel is interpreted."""
    model = tiny_config(max_positions=512), initialise(tiny_config(), jax.random.key(0))
    ids, mesh = np.random.default_rng(0).integers(5, 300, 400).tolist(), make_mesh(2, 1, 2, jax.devices()[:4])
    sizes = {"slots": 4, "context": 256, "windows": (), "append_rows": (4,), "append_tokens": (128,)}
    sampled = []
    for kernel in (False, True):
        monkeypatch.setattr(slots_module, "has_chunk_kernel", lambda *_, kernel=kernel: kernel)
        compiled_functions.cache_clear()
        sampler = make(model, mesh=mesh, **sizes)
        for lengths in ((100, 3, 128, 1), (90, 2, 100, 60)):
            sampler.append({slot: ids[slot : slot + length] for slot, length in enumerate(lengths)})
        sampler.begin({slot: SamplingParameters(max_tokens=9, episode=slot) for slot in range(4)})
        sampled.append({slot: each.tokens.tolist() for slot, each in finished(sampler).items()})
    compiled_functions.cache_clear()
    assert sampled[0] == sampled[1]


def test_merged_adapters_sample_the_same(model, reference):
    config, params = model
    config, params = add_lora(config, params, Lora(rank=2), jax.random.key(1))
    noise = np.random.default_rng(0)
    moved = {
        path: leaf + noise.normal(0, 0.05, leaf.shape).astype(np.float32) if path[-1] == "lora_b" else leaf
        for path, leaf in traverse_util.flatten_dict(params).items()
    }
    adapted = config, traverse_util.unflatten_dict(moved)
    merged = make(adapted, layers="apart", **ONE_SHAPE)
    unmerged = make(adapted, layers="stacked", merge_adapters=False, **ONE_SHAPE)
    one, other = (converse(each, range(3), int) for each in (merged, unmerged))
    assert tokens_of(one) == tokens_of(other)
    assert all(tokens != reference[episode] for episode, tokens in tokens_of(one).items())
    for episode, record in one.items():
        np.testing.assert_allclose(record["log_probabilities"], other[episode]["log_probabilities"], atol=1e-4)
    assert not any("lora" in jax.tree_util.keystr(path) for path, _ in jax.tree.leaves_with_path(merged._params))


def test_a_block_goes_on_with_fewer_rows(model):
    sampler = make(model, decode_rows=(1, 2), min_finished_share=1.0, block=16)
    sampler.append({slot: tiny_tokenizer().encode(SENTENCES[0]) for slot in range(4)})
    lengths = {0: 2, 1: 12, 2: 2, 3: 6}
    sampler.begin({slot: SamplingParameters(max_tokens=length, episode=slot) for slot, length in lengths.items()})
    found = {slot: len(each.tokens) for slot, each in sampler.decode().items()}
    assert found == lengths
    assert sampler.statistics.slot_steps == 4 * 2 + 2 * 4 + 1 * 6


@pytest.mark.parametrize("how", ["append", "fork"])
def test_a_generation_that_was_given_up_does_not_go_on_in_its_slot(model, how):
    ids = tiny_tokenizer().encode(SENTENCES[0])
    fresh, sampler = make(model), make(model)
    fresh.append({0: ids})
    fresh.begin({0: SamplingParameters(max_tokens=12, episode=7)})
    expected = finished(fresh)[0]
    sampler.append(dict.fromkeys(range(3), ids))
    sampler.begin({slot: SamplingParameters(max_tokens=60, episode=slot) for slot in range(3)})
    sampler.decode()
    sampler.free(range(3))
    sampler.append({0: ids, 1: ids} if how == "append" else {0: ids})
    if how == "fork":
        sampler.fork(0, [1])
    for slot in (0, 1):  # while the first one samples, the second one waits
        sampler.begin({slot: SamplingParameters(max_tokens=12, episode=7)})
        assert finished(sampler)[slot].tokens.tolist() == expected.tokens.tolist()


def test_idle_slots_do_not_ask_for_a_nucleus(monkeypatch, model):
    seen, sample = [], slots_module.sample_token

    def noted(logits, draws, temperatures, top_ps, *more):
        jax.debug.callback(lambda shares: seen.append(float(shares.min())), top_ps)
        return sample(logits, draws, temperatures, top_ps, *more)

    monkeypatch.setattr(slots_module, "sample_token", noted)
    compiled_functions.cache_clear()
    sampler = make(model, **ONE_SHAPE)
    for slot, top_p in enumerate((0.5, 1.0)):
        sampler.append({slot: [5, 6]})
        sampler.begin({slot: SamplingParameters(max_tokens=4, top_p=top_p)})
        finished(sampler)
    compiled_functions.cache_clear()
    jax.effects_barrier()
    assert (seen[0], seen[-1]) == (0.5, 1.0)


def test_nothing_is_compiled_after_warm_up(model):
    sampler = make(model)
    count = sampler.warm_up([STOP])
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))
    converse(sampler, range(4), int)
    sampler.fork(0, [1])
    assert sampler.statistics.compiled_shapes == count
    assert not [name for name in compiled if "backend_compile" in name]


def test_limits_and_the_end_of_the_context(model):
    sampler = make(model, context=32, windows=())
    ids = tiny_tokenizer().encode(SENTENCES[2])[:28]
    sampler.append({1: ids, 2: ids[:5]})
    sampler.begin({1: SamplingParameters(max_tokens=100), 2: SamplingParameters(max_tokens=6)})
    found = {slot: (len(each.tokens), each.finish_reason) for slot, each in finished(sampler).items()}
    assert found == {1: (4, "length"), 2: (6, "length")}
    assert sampler.length(1) == 32
    with pytest.raises(UserError, match="exceeds the 256 positions"):
        make(model, context=4096)
    with pytest.raises(UserError, match="append_tokens is empty"):
        make(model, append_tokens=())


def random_parameters(seed: int):
    """Far from their initial values, so that rounding shows."""
    draw = np.random.default_rng(seed).normal
    shapes = abstract_parameters(NARROW)
    return jax.tree.map(lambda leaf: jnp.asarray(draw(0.0, 0.1, leaf.shape), jnp.float32), shapes)


def sampled(sampler: SlotSampler) -> list:
    sampler.append(ENTRIES)
    sampler.begin({slot: SamplingParameters(max_tokens=8, episode=slot) for slot in ENTRIES})
    done = finished(sampler)
    sampler.free(ENTRIES)
    return [(done[slot].tokens.tolist(), done[slot].log_probabilities.tolist()) for slot in ENTRIES]


def test_matrices_are_narrow_norms_are_wide_and_results_do_not_change_by_a_bit():
    params = random_parameters(0)
    found = compute_parameters(NARROW, params)
    for path, leaf in jax.tree.leaves_with_path(found):
        assert leaf.dtype == ("float32" if "scale" in jax.tree_util.keystr(path) else "bfloat16")
    tokens = jnp.arange(24).reshape(2, 12)
    logits = jax.jit(lambda each: unembed(NARROW, each, hidden_states(NARROW, each, tokens)))
    np.testing.assert_array_equal(logits(params), logits(found))
    again = compute_parameters(NARROW, found)  # what serves as it is is not copied
    assert all(one is other for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(again), strict=True))


def test_new_masters_replace_the_samplers_copy():
    """A sampler samples from the masters it was last given, on one device and on several."""
    first, second = random_parameters(0), random_parameters(1)
    sampler = SlotSampler(NARROW, first, tiny_tokenizer(), SMALL)
    before = sampled(sampler)
    sampler.set_params(second, 1)
    after = sampled(sampler)
    assert before != after
    assert after == sampled(SlotSampler(NARROW, second, tiny_tokenizer(), SMALL))
    sampler.set_params(compute_parameters(NARROW, first), 0)
    assert sampled(sampler) == before
    mesh = make_mesh(data=2, fsdp=1, tensor=1, devices=jax.devices()[:2])
    spread = sampled(SlotSampler(NARROW, first, tiny_tokenizer(), SMALL, mesh))
    assert [tokens for tokens, _ in spread] == [tokens for tokens, _ in before]


@pytest.mark.parametrize(
    ("count", "parts"),
    [(0, ()), (1, (4,)), (5, (8,)), (20, (16, 4)), (13, (16,)), (24, (16, 8)), (48, (48,)), (101, (48, 48, 8))],
)
def test_rows_and_tokens_are_split_at_the_least_cost(count, parts):
    assert _split(count, (4, 8, 16, 48), 4) == parts
    assert _split(8191 - count, (8, 8192), 4) == (8192,)  # in many small steps


@given(st.integers(1, 700), st.sets(st.integers(1, 256), min_size=1, max_size=4), st.floats(0, 300))
def test_no_single_size_is_cheaper_than_the_split(count, sizes, part_cost):
    sizes = tuple(sorted(sizes))
    parts = _split(count, sizes, part_cost)
    assert sum(parts) >= count > sum(parts[:-1])
    assert list(parts) == sorted(parts, reverse=True)
    rest = count % sizes[-1]  # the largest size is cut off first
    if rest:
        last = parts[count // sizes[-1] :]
        for size in sizes:
            calls = -(-rest // size)
            assert sum(last) + len(last) * part_cost <= calls * (size + part_cost) + 1e-6


# --- Generate ---

TOKENS = 32
PROMPT_LENGTHS = (3, 70, 21, 1, 40)  # more than the slots, so that one is admitted late


def greedy_of_transformers(model, prompts) -> list[list[int]]:
    """Continues each prompt without an end; the prompts form one batch, padded on the left."""
    longest = max(map(len, prompts))
    rows = torch.tensor([[0] * (longest - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    model.generation_config.eos_token_id = None
    with torch.no_grad():
        new = model.generate(rows, attention_mask=mask, max_new_tokens=TOKENS, do_sample=False, pad_token_id=0)
    return new[:, longest:].tolist()


def until(tokens: list[int], ends: tuple[int, ...]) -> list[int]:
    """The tokens up to and including the first that ends a text."""
    return tokens[: next((place for place, token in enumerate(tokens) if token in ends), TOKENS) + 1]


@pytest.fixture(scope="module", params=["qwen2", "gemma3"])
def models(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    return saved_decoder(folder, request.param), *load_hugging_face(folder)


def ending(endless: list[list[int]]) -> tuple[int, int]:
    """Returns two ids: one that no text has, and one from the middle of the first text that some other text lacks."""
    here = next(token for token in endless[0][TOKENS // 4 :] if any(token not in text for text in endless[1:]))
    return min(set(range(TOKENS * len(endless) + 1)).difference(*endless)), here


def test_greedy_tokens_and_every_end(models):
    """Two ids end a text; those that hold neither go on to the last token."""
    model, config, params = models
    random = np.random.default_rng(1)
    prompts = [random.integers(0, config.vocabulary_size, length).tolist() for length in PROMPT_LENGTHS]
    endless = greedy_of_transformers(model, prompts)
    ends = ending(endless)
    tokenizer = dataclasses.replace(tiny_tokenizer(), eos_ids=ends)
    results = generate(config, params, tokenizer, prompts, max_tokens=TOKENS, temperature=0.0, slots=4)
    expected = [until(tokens, ends) for tokens in endless]
    assert [result.tokens.tolist() for result in results] == expected
    reasons = ["eos" if tokens[-1] in ends else "length" for tokens in expected]
    assert [result.finish_reason for result in results] == reasons
    assert {"eos", "length"} == set(reasons)


def test_text_ends_with_the_stop_string(model):
    prompt = "Hello there"
    [free] = generate(*model, tiny_tokenizer(), [prompt], max_tokens=9, temperature=0.0)
    text = tiny_tokenizer().decode(free.tokens[:3])
    [stopped] = generate(*model, tiny_tokenizer(), [prompt], (text[-1],), max_tokens=9, temperature=0.0)
    assert stopped.finish_reason == "stop"
    assert stopped.text == text[: text.index(text[-1]) + 1]


def test_a_model_may_have_more_rows_than_its_tokenizer_has_tokens():
    config = tiny_config(vocabulary_size=tiny_tokenizer().vocabulary_size + 40)
    params = initialise(config, jax.random.key(0))
    params["embedding"] = params["embedding"].at[-40:].multiply(30)  # unused rows are sampled now and then
    [result] = generate(config, params, tiny_tokenizer(), ["abc"], ("zz",), max_tokens=30, temperature=2.0)
    assert len(result.tokens) == 30
    assert result.tokens.max() >= tiny_tokenizer().vocabulary_size


@pytest.mark.parametrize(
    ("vocabulary_size", "prompts", "sentence"),
    [
        (383, ["abc"], "has 384 tokens, but the model embeds only 383"),
        (384, ["a", ""], "prompt 1 is empty"),
        (384, ["word " * 300], "leaves no room"),
    ],
)
def test_what_cannot_be_continued_is_refused(vocabulary_size, prompts, sentence):
    config = tiny_config(vocabulary_size=vocabulary_size)
    with pytest.raises(UserError, match=sentence):
        generate(config, initialise(config, jax.random.key(0)), tiny_tokenizer(), prompts, max_tokens=2)


def test_a_second_call_of_similar_size_compiles_nothing(model):
    prompts = ["Hello there", "EUR", "Rome"]
    first = generate(*model, tiny_tokenizer(), prompts, max_tokens=9)
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: compiled.append(name))
    second = generate(*model, tiny_tokenizer(), [*prompts, "a"], max_tokens=11)
    assert not [name for name in compiled if "backend_compile" in name]
    for one, other in zip(first, second, strict=False):
        assert one.tokens.tolist() == other.tokens[: len(one.tokens)].tolist()


def test_a_prompt_begins_once_with_the_beginning_ids(model):
    [eos], (config, params) = tiny_tokenizer().eos_ids, model
    tokenizer = dataclasses.replace(tiny_tokenizer(), beginning_ids=(eos,))
    prompts = ["EUR", "<eos>EUR", [eos, *tokenizer.encode("EUR")]]
    first, *others = generate(config, params, tokenizer, prompts, max_tokens=6, temperature=0.0)
    for other in others:
        np.testing.assert_array_equal(first.tokens, other.tokens)
        np.testing.assert_allclose(first.log_probabilities, other.log_probabilities, rtol=1e-5)
    [without] = generate(config, params, tiny_tokenizer(), ["EUR"], max_tokens=6, temperature=0.0)
    assert np.abs(first.log_probabilities[:1] - without.log_probabilities[:1]).max() > 1e-4
