"""Completions outside the dialogue: fresh contexts with their own random numbers, never mixed up, never trained on."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from episode_scripts import LANGUAGES, assert_same, chat_tokenizer, hit, noisy, question, run_alone, runner, slow
from support import tiny_tokenizer
from support.scripted_sampler import ScriptedSampler

from lcrag.episodes import (
    Chat,
    Complete,
    Completion,
    ContextFull,
    Generate,
    GenerationFailed,
    GenerationFailure,
    Observe,
    Outcome,
    Retrieve,
    episode_json,
    information,
)
from lcrag.episodes.programs import log_searches
from lcrag.errors import UserError
from lcrag.methods.baselines.d_rag import d_rag
from lcrag.methods.baselines.rag import rag
from lcrag.models.completers import SamplerCompleter


def consulting(asked):
    yield Observe(asked.text)
    for _ in range(3):
        thought = yield Generate(stop=("</search>",))
        first, found, second = yield (
            Complete(prompt=f"one {thought}"),
            Retrieve((thought,), ("en",), 1),
            Complete(prompt=f"two {asked.text}", max_tokens=5),
        )
        yield Observe(f" {first.text} {second.text} {found[0][0][0].title}")
    return Outcome(answer=(yield Generate(stop=())))


def programs(count):
    asked = [question(number, text=f"Q{number}?") for number in range(count)]
    return [(each, consulting(each), number) for number, each in enumerate(asked)]


def completing(*requests):
    answers = []
    for request in requests:
        answers.append((yield request))
    return Outcome(answer=None, extra={"answers": answers})


def completed(*requests, script=noisy, **arguments):
    return run_alone(completing(*requests), script, **arguments).outcome.extra["answers"]


def test_slots_neighbours_and_timing_change_no_completion():
    """One slot is enough: an episode that awaits a completion gives its slot up for it."""
    reference = runner(noisy, slots=1)
    records = reference.run(programs(12))
    assert reference.statistics.evictions == 12 * 3
    for arguments in (
        {"slots": 3, "block": 3},
        {"slots": 5, "search": slow(0.005)},
        {"slots": 64, "block": 100},
        {"slots": 4, "search": slow(0.005), "wait_for_searches": False},
    ):
        other = runner(noisy, **arguments)
        assert_same(other.run(programs(12)), records)
        assert other.statistics.evictions == 0 or arguments["slots"] < 64


def test_completions_are_counted_recorded_and_not_in_the_dialogue():
    record = run_alone(consulting(question()))
    assert record.counts["completions"] == 6 == len(record.completions)
    assert record.counts["completion_tokens"] == sum(each.tokens for each in record.completions) > 0
    assert (record.counts["generations"], record.counts["policy_tokens"]) == (4, record.by_policy.sum())
    assert [(each.prompt[:3], each.model) for each in record.completions] == [("one", None), ("two", None)] * 3
    line = json.loads(json.dumps(episode_json(record, rewards={"total": np.nan})))
    assert line["completions"][1] == dataclasses.asdict(record.completions[1])
    assert line["rewards"] == {"total": None}
    chat = run_alone(completing(Complete(prompt="Hm?")), lambda *_: "ok", tokenizer=chat_tokenizer(), chat=Chat())
    assert [(each.prompt, each.opening) for each in chat.completions] == [("<eos>[user]Hm?<eos>[assistant]", "Hm?")]


def test_equal_completions_are_samples_with_random_numbers_of_their_own_of_a_prompt_prefilled_once():
    streams = []

    def script(context, generation):
        streams.append((generation.seed, generation.episode))
        return noisy(context, generation)

    r = runner(script, slots=8)
    (record,) = r.run([(question(), completing(Observe("Question"), (Complete(prompt="Name a city:"),) * 6), 0)])
    assert (r.sampler.appends, r.sampler.forks) == ([1], [5])
    assert len({each.text for each in record.outcome.extra["answers"][1]}) > 3
    assert len(set(streams)) == 6


def test_a_completion_takes_its_own_limits_and_the_runs_defaults():
    asked = {}

    def script(context, generation):
        asked[context] = generation
        return "a b c d e f </stop> g"

    own = Complete(prompt="own", stop=("</stop>",), max_tokens=30, temperature=0.3, top_p=0.5)
    limits = {"max_tokens": 4, "temperature": 0.8, "top_p": 0.9, "context": 64}
    [[first, _]] = completed((own, Complete(prompt="default")), script=script, **limits)
    own, default = ((g.max_tokens, g.temperature, g.top_p, g.stop) for g in (asked["own"], asked["default"]))
    assert (own, default) == ((30, 0.3, 0.5, ("</stop>",)), (4, 0.8, 0.9, ()))
    assert asked["own"].unscaled_scores  # what FLARE reads as confidence is at temperature 1
    assert first.text == "a b c d e f </stop>"


def test_a_completion_may_use_the_room_for_an_answer_and_no_more():
    prompt = "Name a city"
    context = len(tiny_tokenizer().encode(prompt)) + 16 + 5
    [written] = completed(Complete(prompt=prompt, max_tokens=1000), script=lambda *_: "a b " * 50, context=context)
    assert (written.tokens, written.finish_reason) == (16 + 5, "length")


def test_a_completion_has_the_text_and_log_probability_of_each_token():
    requests = Complete(prompt="São ", stop=("ü",)), Complete(prompt="São ", max_tokens=3)
    stopped, cut = completed(*requests, script=lambda *_: "日本 Zürich")
    assert (stopped.finish_reason, stopped.text) == ("stop", "日本 Zü")
    assert "".join(stopped.pieces).startswith(stopped.text)
    assert (cut.finish_reason, cut.tokens) == ("length", 3)
    for each in (stopped, cut):
        assert len(each.pieces) == len(each.log_probabilities) == each.tokens
        assert max(each.log_probabilities) < 0
    [spread] = completed(Complete(prompt="x"), script=lambda *_: "🙂 ไทย")
    assert "".join(spread.pieces) == spread.text == "🙂 ไทย"
    assert spread.pieces[-1] == ""
    assert "" in spread.pieces[:-1]  # a token that holds part of a character only


@pytest.mark.parametrize("program", [rag, d_rag])
def test_passages_leave_room_for_the_markup_of_the_chat_template(program):
    """The opening is the user's turn: the template's markup takes room too."""

    def long(queries, languages, passages):
        text = "Lima is the capital. " * 40
        return [[hit(query, language, text)] for query, language in zip(queries, languages, strict=True)]

    record = run_alone(
        program(question(), LANGUAGES, wording="atlas", observation_tokens=10_000),
        lambda *_: "<answer>Lima</answer>",
        context=200,
        search=long,
        tokenizer=chat_tokenizer(),
        chat=Chat(system="Be brief. " * 8),
    )
    assert (record.outcome.answer, record.finished) == ("Lima", True)
    prompts = [record.prompt, *(each.prompt for each in record.completions)]
    assert all("</information>\n<eos>[assistant]" in prompt for prompt in prompts)
    assert 150 < len(record.tokens[record.turn == -1]) <= 200 - 16 or program is d_rag


def test_a_prompt_adapts_to_the_room_or_the_context_is_full():
    def program(prompt):
        try:
            first, second = yield Complete(prompt="short"), Complete(prompt=prompt)
        except ContextFull:
            third = yield Complete(prompt="again")
            return Outcome(answer=third.text)
        return Outcome(answer=second.text)

    r = runner(lambda context, _: "again" if context == "again" else "fits", context=64)
    fitted = information([r.search(["q"], ["en"], 40)], "atlas")
    fits, full = r.run([(question(), program(prompt), 0) for prompt in (fitted, "much too long " * 30)])
    assert [(each.outcome.answer, each.counts["context_full"], each.finished) for each in (fits, full)] == [
        ("fits", 0, True),
        ("again", 1, False),
    ]
    assert fits.completions[1].prompt.endswith("</information>\n")
    assert [each.prompt for each in full.completions] == ["again"]


def test_an_episode_that_ends_drops_its_requests():
    """Its observation does not fit, so it no longer waits for the completions requested with it."""
    r = runner(noisy, slots=1)
    last = (Complete(prompt="p"), Complete(prompt="q"), Observe("b " * 1000))
    records = r.run([(question(n), completing(Observe("a"), Generate(stop=()), last), n) for n in range(4)])
    for record in records:
        assert (record.counts["context_full"], record.counts["completion_tokens"], record.completions) == (1, 0, ())


# Other models.


def reading(asked, model="reader"):
    yield Observe(asked.text)
    evidence = yield Generate(stop=("e",))
    answers = yield (
        Complete(prompt=f"read {evidence}", model=model, temperature=0.1),
        Complete(prompt="check"),
        Retrieve((evidence,), ("fr",), 1),
    )
    return Outcome(answer=answers[0].text, extra={"checked": answers[1].text})


def asked_models(count, **arguments):
    asked = [question(number) for number in range(count)]
    return [(each, reading(each, **arguments), number) for number, each in enumerate(asked)]


def test_another_model_is_asked_in_batches():
    calls = []

    def reader(requests):
        calls.append(requests)
        return [Completion(text=f"{prompt}!", finish_reason="stop", tokens=len(prompt)) for prompt, _ in requests]

    records = runner(noisy, slots=8, completers={"reader": reader}).run(asked_models(8))
    assert sum(map(len, calls)) == 8 > len(calls)
    for record in records:
        assert record.outcome.answer == f"read {record.turns[0].text}!"
        assert [each.model for each in record.completions] == ["reader", None]
        assert record.counts["completions"] == 2
    generations = [generation for call in calls for _, generation in call]
    assert {generation.temperature for generation in generations} == {0.1}
    assert len({(generation.seed, generation.episode) for generation in generations}) == 8
    others = runner(noisy, slots=1, completers={"reader": reader}, wait_for_searches=False).run(asked_models(8))
    assert_same(records, others)


def test_a_model_that_fails_ends_the_run():
    r = runner(noisy, completers={"reader": lambda requests: 1 / 0})
    with pytest.raises(ZeroDivisionError):
        r.run(asked_models(3))
    r.completers = {"reader": lambda requests: []}
    with pytest.raises(RuntimeError, match="reader answered 0 of"):
        r.run(asked_models(3))
    assert len(r.run(programs(2))) == 2
    with pytest.raises(UserError, match=r"question d/0 \(en\) asks the model 'judge', but the runner has reader"):
        r.run(asked_models(1, model="judge"))


def test_mistakes_with_a_model_on_this_machine_are_one_sentence(monkeypatch):
    tokenizer = tiny_tokenizer()
    reader = SamplerCompleter(ScriptedSampler(tokenizer, noisy, context=32), tokenizer, Chat())
    long = question(text="x" * 80)
    with pytest.raises(UserError, match="leaves no room in a context of 32"):
        run_alone(reading(long), lambda *_: "x" * 60 + "e", max_tokens=100, completers={"reader": reader})
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr("lcrag.collectives._allgather", lambda state: np.stack([state, state]))
    assert reader([]) == [], "a reward asks it between the steps, in every process"
    with pytest.raises(UserError, match="cannot answer during rollouts in 2 processes: serve it"):
        runner(noisy, completers={"reader": reader}, max_tokens=6).run(asked_models(1))


def test_the_failure_of_another_model_ends_its_episode_only_unless_it_is_caught():
    def consulting_reader(asked):
        yield Observe(asked.text)
        try:
            read = yield Complete(prompt=asked.id, model="reader")
        except GenerationFailed as failed:
            if asked.id == "1":
                raise
            return Outcome(answer=str(failed))
        return Outcome(answer=read.text)

    def fails_except_for_the_first(requests):
        fine = Completion(text="fine", finish_reason="eos", tokens=1)
        return [fine if prompt == "0" else GenerationFailure("cut") for prompt, _ in requests]

    asked = [question(number) for number in range(3)]
    programs = [(each, log_searches(consulting_reader(each), []), number) for number, each in enumerate(asked)]
    records = runner(noisy, completers={"reader": fails_except_for_the_first}).run(programs)
    assert [episode_json(record).get("failure") for record in records] == [None, "cut", None]
    assert [record.outcome.answer for record in records] == ["fine", None, "cut"]
    assert [record.finished for record in records] == [True, False, True]
