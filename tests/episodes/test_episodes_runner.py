"""The runner: slots, batches of searches, failures, the sampler in its place, and several processes."""

import dataclasses
import functools
import re
import threading
import time

import jax
import numpy as np
import pytest
from episode_scripts import (
    answering,
    assert_same,
    fickle,
    hit,
    lcrl_programs,
    question,
    run_alone,
    runner,
    search,
    searches_then_answers,
    slow,
)
from support import tiny_config, tiny_tokenizer
from support.scripted_sampler import ScriptedSampler

from lcrag.collectives import (
    allgather_bytes,
    check_same_everywhere,
    compare_across_processes,
    without_collectives,
)
from lcrag.episodes import (
    Abandoned,
    Complete,
    ContextFull,
    Generate,
    GenerationFailure,
    Observe,
    Outcome,
    RetrievalFailure,
    Retrieve,
    Runner,
    TranslationFailure,
    information,
)
from lcrag.episodes.programs import Completion, FoundPassages
from lcrag.episodes.runner import (
    _as_programs_see,
)
from lcrag.episodes.running_episode import NOT_FINITE
from lcrag.errors import UserError
from lcrag.methods.baselines.rag import rag
from lcrag.methods.lcrl import hierarchical_search
from lcrag.policy import initialise, log_probabilities
from lcrag.retries import Patience
from lcrag.sampling import Sampler, SlotSampler

NO_WAIT = Patience(attempts=3, first_wait_seconds=0.0)


@functools.cache
def reference():
    """The records of 24 programs, one after the other."""
    return runner(fickle, slots=1).run(lcrl_programs(24))


def test_slots_blocks_order_neighbours_and_slow_searches_change_no_episode():
    for arguments in ({"slots": 3, "block": 5}, {"slots": 64, "search": slow(0.01)}, {"slots": 7, "block": 100}):
        assert_same(runner(fickle, **arguments).run(lcrl_programs(24)), reference())
    assert_same(runner(fickle).run(lcrl_programs(24)[11:12]), [reference()[11]])
    assert_same(runner(fickle).run(lcrl_programs(24)[::-1]), reference()[::-1])
    assert len({record.outcome.answer for record in reference()}) == 2
    assert {record.counts["searches"] for record in reference()} >= {0, 1, 2, 3}


def test_records_are_yielded_as_episodes_finish():
    r = runner(fickle, slots=4, block=1)
    stream = r.stream(lcrl_programs(24))
    first = next(stream)
    assert r.sampler.running  # the others have not finished yet
    assert_same(sorted([first, *stream], key=lambda record: record.episode), reference())


def test_an_abandoned_run_leaves_the_sampler_usable():
    r, abandoned = runner(fickle), threading.Event()

    def between():
        if abandoned.is_set():
            raise Abandoned

    stream = r.stream(lcrl_programs(24), between=between)
    next(stream)
    abandoned.set()
    with pytest.raises(Abandoned):
        list(stream)
    stream = r.stream(lcrl_programs(24))
    next(stream)
    stream.close()
    assert not r.sampler.running
    assert_same(r.run(lcrl_programs(24)), reference())


def test_the_wait_for_searches_is_measured():
    r = runner(searches_then_answers, search=slow(0.3))  # which begins before the wait does
    started = time.monotonic()
    r.run(lcrl_programs(2))
    assert 0.1 <= r.statistics.retrieval_wait_seconds <= time.monotonic() - started


def test_a_run_that_waits_for_a_search_can_be_ended():
    r, searching = runner(fickle, slots=4), threading.Event()

    def between():
        if searching.is_set():
            raise Abandoned

    def search(*_):
        searching.set()
        time.sleep(60)

    r.search = search
    before = time.monotonic()
    with pytest.raises(Abandoned):
        list(r.stream(lcrl_programs(24), between=between))
    assert time.monotonic() - before < 30


def test_each_token_knows_who_wrote_it():
    tokenizer = tiny_tokenizer()
    r = runner(fickle)
    r.sampler.policy_version = 3
    for record in r.run(lcrl_programs(16)):
        assert (record.policy_version, record.finished) == (3, True)
        assert not record.log_probabilities[~record.by_policy].any()
        assert tokenizer.decode(record.tokens[record.turn == -1]) == record.prompt == "Capital of Peru?\n"
        for index, turn in enumerate(record.turns):
            mine = record.turn == index
            assert (record.by_policy[mine] == (turn.by == "policy")).all()
            assert tokenizer.decode(record.tokens[mine]).replace("<eos>", "").startswith(turn.text)
        assert record.counts["policy_tokens"] == record.by_policy.sum()


def run_and_keep(script):
    """The record of one program, and the tokens that the sampler had in its slot."""
    r, kept = runner(script), []
    free = r.sampler.free
    r.sampler.free = lambda slots: (kept.extend(r.sampler.tokens(s) for s in slots if r.sampler.length(s)), free(slots))
    (record,) = r.run(lcrl_programs(1))
    return record, kept[0]


@pytest.mark.parametrize("texts", [("no", "<search>Peru</search>", "well"), ("", "", ""), ("<answer>Lima</answer>",)])
def test_an_end_of_sequence_that_did_not_end_the_episode_is_dropped(texts):
    """Only the one at the end of the whole episode is the policy's token, and learned."""
    tokenizer, written = tiny_tokenizer(), iter(texts)
    record, kept = run_and_keep(lambda *_: next(written, ""))
    text = record.prompt + "".join(turn.text for turn in record.turns)
    answered = texts[-1].startswith("<answer>")
    assert tokenizer.decode(record.tokens) == text + ("" if answered else "<eos>")
    assert record.tokens.tolist() == kept  # what the sampler continued is what is learned
    assert record.counts["policy_tokens"] == record.by_policy.sum() == np.count_nonzero(record.log_probabilities)
    policy = [turn.text for turn in record.turns if turn.by == "policy"]
    assert record.counts["empty_turns"] == policy.count("")


@pytest.mark.parametrize(
    ("text", "asked", "expected"),
    [
        ("Lima is the capital.", "Capital of Peru?", (1, 1)),
        ("Quito is the capital.", "Capital of Peru?", (0, 0)),
        ("Quito is in the north. " * 9 + "Lima is in the south.", "Capital of Peru?", (1, 0)),
        ("Quito is in the north. " * 9 + "Lima is in the south.", "Is Lima the capital of Peru?", (1, 0)),
    ],
)
@pytest.mark.parametrize("opens", [True, False])
def test_a_gold_is_retrieved_and_shown_unless_it_is_cut_away(text, asked, expected, opens):
    """In the prompt of RAG or in an observation."""
    r = runner(searches_then_answers, cut_passages="end", search=lambda queries, *_: [[hit("Peru", "en", text)]])
    about = question(text=asked)
    settings = {"observation_tokens": 90, "passages": 1}
    if opens:
        program = rag(about, ("en",), wording="atlas", **settings)
    else:
        program = hierarchical_search(about, ("en",), prompt="atlas", style="atlas", budget=1, **settings)
    (record,) = r.run([(about, program, 0)])
    assert (record.counts["answer_retrieved"], record.counts["answer_shown"]) == expected


def test_sampled_ids_are_never_encoded_again():
    """A stop string that ends inside a token leaves the rest of the token in the context."""
    record, kept = run_and_keep(lambda *_: "<answer>Lima</answer><information> passage")
    assert record.turns[0].text == "<answer>Lima</answer>"
    assert record.tokens.tolist() == kept


def test_shared_prompts_are_prefilled_once_and_observations_appended_in_one_call():
    batches = []
    r = runner(searches_then_answers, slots=8, search=lambda *asked: batches.append(asked[0]) or search(*asked))
    r.run(lcrl_programs(8))
    assert (r.sampler.appends, r.sampler.forks) == ([1, 8], [7])
    assert [len(queries) for queries in batches] == [4]  # equal searches of a batch are one


def test_a_search_need_not_wait_for_the_end_of_another():
    """The first search ends only after the second has begun."""
    begun = [threading.Event(), threading.Event()]

    def patient(queries, languages, passages):
        number = 1 if begun[0].is_set() else 0
        begun[number].set()
        assert begun[1].wait(60)
        return search(queries, languages, passages)

    def script(context, generation):
        return ("" if generation.episode == 0 else "hm " * 4) + searches_then_answers(context, generation)

    records = runner(script, slots=2, search=patient, wait_for_searches=False).run(lcrl_programs(2, budget=1))
    assert [record.counts["searches"] for record in records] == [1, 1]
    assert [record.counts["retrieval_failures"] for record in records] == [0, 0]


def test_runs_that_wait_for_searches_serve_the_same_slots_together():
    """Rounding depends on the shapes of a batch: they must not depend on how long a search takes."""
    delays = iter([0.02, 0.0, 0.05, 0.01] * 50)

    def varying(queries, languages, passages):
        return slow(next(delays))(queries, languages, passages)

    steady, jittered = runner(fickle, slots=6), runner(fickle, slots=6, search=varying)
    for each in (steady, jittered):
        each.run(lcrl_programs(24))
    assert steady.sampler.appends == jittered.sampler.appends
    assert steady.sampler.statistics == jittered.sampler.statistics


def test_a_search_that_recovers_leaves_no_trace():
    calls = []

    def shaky(*arguments):
        calls.append(arguments)
        if len(calls) % 3:
            raise ConnectionError("try again")
        return search(*arguments)

    assert_same(runner(fickle, slots=64, search=shaky, retries=NO_WAIT).run(lcrl_programs(24)), reference())
    assert len(calls) > 3


def test_a_failed_search_is_counted_and_shown_and_fails_alone():
    def broken(queries, languages, passages):
        if "ja" in languages:
            raise TimeoutError("no answer")
        return search(queries, languages, passages)

    records = runner(searches_then_answers, search=broken, retries=NO_WAIT, slots=4).run(lcrl_programs(4, budget=1))
    assert [record.counts["retrieval_failures"] for record in records] == [0, 0, 0, 1]
    assert "The search failed" in records[3].turns[1].text
    assert "Lima is" in records[0].turns[1].text
    assert {(record.finished, record.outcome.answer) for record in records} == {(True, "Lima")}
    assert [record.failure for record in records] == [None] * 3 + ["a search failed: TimeoutError: no answer"]


def test_a_user_error_of_the_search_comes_at_once_and_leaves_the_sampler_usable():
    calls = []

    def missing(queries, languages, passages):
        calls.append(languages)
        raise UserError("no collection in language 'fi'")

    r = runner(lambda *_: "<search>a</search>", search=missing)
    with pytest.raises(UserError, match="'fi'"):
        r.run(lcrl_programs(8))
    assert len(calls) == 1
    r.search = search
    assert len(r.run(lcrl_programs(8))) == 8


@pytest.mark.parametrize("context", [40, 80, 150])
def test_a_full_context_ends_the_episode_and_is_marked(context):
    script = lambda *_: "<think>hm hm hm</think><search>capital</search>"  # noqa: E731
    for record in runner(script, context=context, slots=3).run(lcrl_programs(9, budget=20)):
        assert len(record.tokens) <= context
        assert (record.counts["context_full"], record.finished, record.outcome.answer) == (1, False, None)
        blocks = [turn.text for turn in record.turns if turn.text.startswith("<information>")]
        assert all(block.endswith("</information>\n") for block in blocks)


def test_a_program_may_search_before_it_speaks_and_never_use_the_device():
    asked = []

    def retrieve_then_read(question):
        ((hits,),) = yield Retrieve((question.text,), (question.language,), 1)
        yield Observe(f"{hits[0].text} {question.text}")
        return Outcome(answer=(yield Generate(stop=())))

    def silent():
        missing = yield Retrieve(("a",), ("nowhere",))
        return Outcome(answer="nothing", extra={"missing": missing})

    def searching(queries, languages, passages):
        return [] if "nowhere" in languages else search(queries, languages, passages)

    settings = {"max_tokens": 5, "temperature": 0.5, "top_p": 0.9, "seed": 11, "search": searching, "retries": NO_WAIT}
    r = runner(lambda _, generation: asked.append(generation) or "x", slots=1, **settings)
    one, two = r.run([(question(), retrieve_then_read(question()), 42), (question(), silent(), 1)])
    (g,) = asked  # generations take the run's defaults
    assert (g.max_tokens, g.temperature, g.top_p, g.seed, g.episode, g.stop) == (5, 0.5, 0.9, 11, 42, ())
    assert "Lima is the capital (en)" in one.prompt
    assert (two.outcome.answer, len(two.tokens)) == ("nothing", 0)
    assert isinstance(two.outcome.extra["missing"], RetrievalFailure)  # too few results are no empty passages
    assert "answered 0 of 1" in two.failure


def test_a_program_may_go_on_after_a_full_context():
    def stubborn():
        yield Observe("a")
        yield Generate(stop=())
        try:
            yield (Observe("b " * 1000), Retrieve(("late",), ("en",)))
        except ContextFull:
            found = yield Retrieve(("again",), ("en",), 1)
            return Outcome(answer=found[0][0][0].title)

    record = run_alone(stubborn(), lambda *_: "x", search=slow(0.02))
    assert (record.outcome.answer, record.counts["context_full"]) == ("again", 1)


def test_parallel_requests_are_answered_in_the_order_requested():
    def program(asked):
        yield Observe(asked.text)
        first, text, none, second = yield (
            Retrieve(("a", "b"), ("en", "fr"), 1),
            Generate(stop=(), max_tokens=3),
            Observe("seen"),
            Retrieve(("c",), ("ja",), 2),
        )
        ids = [[hit.id for hits in query for hit in hits] for query in (*first, *second)]
        return Outcome(answer=text, extra={"ids": ids, "observed": none, "nothing": (yield ())})

    record = run_alone(program(question()), lambda *_: "Lima and more")
    ids = [["en-a", "fr-a"], ["en-b", "fr-b"], ["ja-c", "ja-c"]]
    assert record.outcome.extra == {"ids": ids, "observed": None, "nothing": ()}
    assert [turn.by for turn in record.turns] == ["policy", "environment"]
    assert (record.counts["searches"], record.counts["retrieval_rounds"]) == (3, 1)


def iter_once(request, error=None, result=None):
    yield request
    if error:
        raise error
    return result


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (iter_once(Observe("a"), error=KeyError("x")), KeyError),
        (iter_once("what"), TypeError),
        (iter_once(Generate(stop=())), ValueError),
        (iter_once(Observe("a"), result="Lima"), TypeError),
        (iter_once(Complete(prompt="")), ValueError),
        (iter_once(Complete(prompt=information([[[]]]), model="reader")), TypeError),
    ],
    ids=["its own error", "no request", "generates first", "no outcome", "no prompt", "a fitted prompt for others"],
)
def test_a_programs_bug_names_its_question(program, error):
    with pytest.raises(error) as caught:
        run_alone(program, asked=question(5, "ja"))
    assert caught.value.__notes__ == ["in the episode program of question d/5 (ja)"]


@pytest.mark.parametrize("place", [0, -1])
def test_probabilities_that_are_not_finite_end_their_episode_only(monkeypatch, place):
    result = ScriptedSampler._result

    def damaged(sampler, *arguments):
        sampled = result(sampler, *arguments)
        if arguments[-1].episode == 2:
            sampled.log_probabilities[place] = np.nan
        return sampled

    monkeypatch.setattr(ScriptedSampler, "_result", damaged)
    records = runner(searches_then_answers).run(lcrl_programs(4, budget=1))
    assert [record.finished for record in records] == [True, True, False, True]
    assert [record.failure for record in records] == [None, None, NOT_FINITE.reason, None]
    assert records[2].outcome.answer is None


@pytest.mark.parametrize("text", ["pourquoi? " * 40, "‹" * 10**7], ids=["long", "endless"])
def test_a_prompt_longer_than_the_context_is_refused_before_anything_is_sampled(text):
    """Of an endless one only as much is encoded as cannot fit."""
    r, long = runner(fickle, context=64), question(9, "fr", text)
    with pytest.raises(
        UserError, match=r"question d/9 \(fr\) has at least \d+ tokens, but the context holds 64"
    ) as error:
        r.run([*lcrl_programs(3), (long, answering(long), 3)])
    assert r.sampler.appends == []
    longest = max(map(len, tiny_tokenizer().token_bytes))
    assert 64 < int(re.search(r"least (\d+)", str(error.value))[1]) <= 3 * 4 * 64 * longest + 3  # 3 bytes a character


# --- With the sampler ---


@pytest.fixture(scope="module")
def params():
    return initialise(tiny_config(), jax.random.key(0))


def rollout(params, *, slots: int, search=search, eos_ids=None):
    tokenizer = dataclasses.replace(tiny_tokenizer(), eos_ids=eos_ids or tiny_tokenizer().eos_ids)
    settings = Sampler(slots=slots, context=192, block=8, append_tokens=(16, 64))
    sampler = SlotSampler(tiny_config(), params, tokenizer, settings)
    runner = Runner(sampler=sampler, tokenizer=tokenizer, search=search, max_tokens=12, seed=3)
    return runner.run([(asked, read_twice(asked), number) for asked, _, number in lcrl_programs(10)])


def read_twice(asked):
    """A random model never writes a tag, so this program searches on its behalf."""
    yield Observe(asked.text + "\n")
    texts = []
    for _ in range(2):
        texts.append((yield Generate(stop=(" a", "e"))))
        found = yield Retrieve((texts[-1],), ("en", "fr"), 1)
        yield Observe(information(found, "atlas", 60))
    return Outcome(answer=texts[-1], extra={"texts": texts})


@pytest.fixture(scope="module")
def records(params):
    return rollout(params, slots=4)


@pytest.fixture(scope="module")
def ended(params):
    """Episodes most of whose turns end by one of many end tokens, which are dropped from the context."""
    return rollout(params, slots=4, eos_ids=tuple(range(0, tiny_config().vocabulary_size, 5)))


@pytest.mark.parametrize("name", ["records", "ended"])
def test_a_token_s_log_probability_is_the_trainers(params, name, request):
    """They are those of one forward pass over the whole context."""
    for record in request.getfixturevalue(name)[:4]:
        tokens = np.pad(record.tokens, (0, 192 - len(record.tokens)))[None]  # one shape, one program
        expected = np.asarray(log_probabilities(tiny_config(), params, tokens[:, :-1], tokens[:, 1:]))[0]
        places = np.flatnonzero(record.by_policy)
        np.testing.assert_allclose(record.log_probabilities[places], expected[places - 1], atol=1e-4)


def test_no_end_of_sequence_stays_inside_an_episode(params, ended):
    for record in ended:
        assert not (record.tokens[record.by_policy] % 5 == 0).any()  # observations follow both turns
        assert record.counts["policy_tokens"] == record.by_policy.sum()
    assert sum(record.counts["empty_turns"] for record in ended) > 0
    assert_same(ended, rollout(params, slots=4, eos_ids=tuple(range(0, tiny_config().vocabulary_size, 5))))


def test_slots_and_timing_change_no_token(params, records):
    for one, two in zip(records, rollout(params, slots=8, search=slow(0.005)), strict=True):
        np.testing.assert_array_equal(one.tokens, two.tokens)
        np.testing.assert_allclose(one.log_probabilities, two.log_probabilities, atol=1e-5)
        assert one.turns == two.turns
    assert len({record.outcome.answer for record in records}) > 5


# --- Several processes ---


@pytest.fixture
def other(monkeypatch):
    """Pretends two processes; the second one's bytes, or None if it fails, are in the list; else they are equal."""
    contents = []

    def allgather(state):
        if not contents:
            return np.stack([state, state])
        content = contents[0]
        if state.dtype == np.int32:
            return np.array([state, [-1 if content is None else len(content)]], np.int32)
        return np.stack([state, np.frombuffer(content.ljust(len(state), b"?"), np.uint8)])

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr("lcrag.collectives._allgather", allgather)
    return contents


def test_a_failure_in_one_process_stops_all(other):
    with pytest.raises(ZeroDivisionError):
        compare_across_processes("the search", lambda: 1 / 0, repr)
    with pytest.raises(RuntimeError, match="full"):
        allgather_bytes("the rollout", RuntimeError("the disk is full"))
    other.append(None)
    with pytest.raises(UserError, match="failed in process 1"):
        compare_across_processes("the search", lambda: [1, 2], repr)
    other[0] = b"x" * 5000
    assert allgather_bytes("the rollout", b"abc") == [b"abc", other[0]]


def test_scores_and_reasons_may_differ():
    found, queries = [[[hit("Peru", "en")]]], ("Peru",)
    assert _as_programs_see(FoundPassages(found, queries)) == [[[("Peru", "Lima is the capital (en)")]]]
    for failure in (GenerationFailure, RetrievalFailure, TranslationFailure):
        assert _as_programs_see(failure("at 12:01")) == _as_programs_see(failure("at 12:02"))
    completion = Completion(text="Lima", finish_reason="eos", tokens=1)
    assert (_as_programs_see(completion), _as_programs_see("Lima")) == ("Lima", "Lima")


def test_a_run_stops_where_another_process_is_answered_differently(other):
    assert len(runner(searches_then_answers).run(lcrl_programs(4))) == 4
    other.append(b"7" * 32)
    with pytest.raises(UserError, match="the retrieval service answered processes 0 and 1"):
        runner(searches_then_answers).run(lcrl_programs(4))
    with without_collectives():
        assert len(runner(searches_then_answers).run(lcrl_programs(4))) == 4


def test_hosts_with_other_files_are_named(other):
    other.append(b'{"questions": "1", "encoder": "2"}')
    check_same_everywhere({"encoder": "2", "questions": "1"})
    with pytest.raises(UserError, match="process 1 reads another encoder"):
        check_same_everywhere({"encoder": "3", "questions": "1"})
