"""Demonstrations as tokens, as in an episode; those of the atlas are clean, counterfactual and not held out."""

import dataclasses
import functools
import itertools
import json
import pathlib

import numpy as np
import pytest
from atlas_weights import slips_in
from support import tiny_tokenizer
from support.scripted_sampler import ScriptedSampler
from support.tokenizer_families import LOSSLESS

from lcrag.atlas import build_world
from lcrag.atlas.facts import query_text, section_of, subject_of
from lcrag.atlas.oracle import Oracle, RandomSearcher
from lcrag.atlas.world import SHIPPED_TOKENIZER
from lcrag.curation.rows import RowContext, RowEncoder, UnusableRow, demonstrate
from lcrag.data.demonstrations import DemonstratedTurn, Demonstration, read_demonstrations
from lcrag.data.questions import LCRL_LANGUAGES, LCRL_TRAINING, Question
from lcrag.data.rows import BadRows
from lcrag.episodes import RETHINK, Chat, Runner, episode_json
from lcrag.episodes.programs import UNKNOWN
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.methods.r_search.program import r_search
from lcrag.policy import ChatTemplate, load_tokenizer
from lcrag.retrieval import Hit

TEMPLATE = ChatTemplate(
    "{% for message in messages %}<eos>[{{ message.role }}]{{ message.content }}{% endfor %}[model]"
)
CHATTING = dataclasses.replace(tiny_tokenizer(), chat_template=TEMPLATE)
QUESTION = Question(id="1", dataset="test", language="fi", text="Capital of Peru?", answers=("Lima",))


def demonstration(*turns, opening="Capital of Peru?\n", **fields):
    turns = tuple(DemonstratedTurn(by=by, text=text, learn=by == "policy") for by, text in turns)
    return Demonstration(opening=opening, turns=turns, topic="", path=pathlib.Path("rows.jsonl"), line=1, **fields)


def encoder(tokenizer, longest=200, **options):
    return RowEncoder(tokenizer, options.pop("chat", Chat()), longest, **options)


@pytest.mark.parametrize("family", LOSSLESS)
def test_learned_are_the_policys_tokens_and_the_end(family):
    tokenizer = LOSSLESS[family]()
    turns = (
        ("policy", "<search> Peru</search>"),
        ("environment", "Lima</s><eos>\n"),
        ("policy", "<answer> Lima</answer>"),
    )
    row = encoder(tokenizer).demonstration(demonstration(*turns))
    assert (row.tokens.dtype, row.tokens.shape) == (np.int32, row.by_policy.shape)
    assert (row.tokens[-1], row.by_policy[-1]) == (tokenizer.eos_ids[0], True)
    assert not np.isin(row.tokens[:-1], tokenizer.eos_ids).any()  # what spells a control token is text
    learned = tokenizer.decode_bytes(row.tokens[:-1][row.by_policy[:-1]]).decode()
    given = tokenizer.decode_bytes(row.tokens[~row.by_policy]).decode()
    assert learned == "<search> Peru</search><answer> Lima</answer>"
    assert given.lstrip() == "Capital of Peru?\nLima</s><eos>\n"


def test_what_follows_the_last_learned_turn_is_left_out():
    shown = (("policy", "a"), ("environment", "b"))
    for turns, ends in ((shown, False), ((*shown, ("policy", "c")), True)):
        encoders = [encoder(tiny_tokenizer(), end_of_sequence=wanted) for wanted in (True, False)]
        rows = [each.demonstration(demonstration(*turns)) for each in encoders]
        assert all(row.by_policy[-1] for row in rows)
        assert len(rows[0].tokens) - len(rows[1].tokens) == int(ends)


@pytest.mark.parametrize("tokenizer", [tiny_tokenizer(), CHATTING], ids=["plain", "chat"])
@pytest.mark.parametrize(
    ("program", "texts", "instructions"),
    [
        (
            functools.partial(hierarchical_search, prompt="atlas", style="atlas", budget=1),
            ["<search>Peru</search>", "<answer>Lima</answer>"],
            "",
        ),
        (r_search, ["<answer>Lima</answer>"], "You are"),
    ],
    ids=["lcrl", "with instructions"],
)
def test_an_episode_that_was_written_is_read_back_as_it_stood(tmp_path, tokenizer, program, texts, instructions):
    """From the sampler's tokens through a file of JSON lines to a training row."""
    written = iter(texts)
    hit = Hit(id="1", title="Peru", text="Its capital is Lima <eos>.", score=1.0, language="fi")
    runner = Runner(
        sampler=ScriptedSampler(tokenizer, lambda *_: next(written), slots=1, context=1500),
        tokenizer=tokenizer,
        search=lambda queries, languages, k: [[hit]] * len(queries),
        max_tokens=60,
    )
    [record] = runner.run([(QUESTION, program(QUESTION, ("fi",)), 0)])
    line = episode_json(record)
    assert ("opening" in line) == (record.prompt != record.opening[0])
    (tmp_path / "step_0.jsonl").write_text(json.dumps(line))
    [read] = read_demonstrations([tmp_path / "step_0.jsonl"], BadRows())
    assert (read.system or "")[: len(instructions)] == instructions
    assert not (instructions and read.in_template)
    rows = encoder(tokenizer, 1500, end_of_sequence=False)
    row, played = rows.demonstration(read), rows.record(record)
    np.testing.assert_array_equal(row.tokens, record.tokens)
    np.testing.assert_array_equal(row.by_policy, record.by_policy)
    np.testing.assert_array_equal(played.tokens, row.tokens)


def test_a_prompt_in_a_template_is_not_put_in_one_again():
    written = demonstration(("policy", "a"), opening="<eos>[user]Where?[model]", in_template=True)
    with pytest.raises(UnusableRow, match="control token <eos>"):
        encoder(CHATTING).demonstration(written)
    encoder(CHATTING).demonstration(dataclasses.replace(written, in_template=False))  # a question that spells one
    encoder(CHATTING, chat=Chat(template=False)).demonstration(written)
    encoder(tiny_tokenizer()).demonstration(written)


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (demonstration(("policy", "a" * 30)), "tokens, but the longest"),
        (demonstration(("policy", "a" * 10**6), ("policy", "b" * 10**6)), "characters, but the longest"),  # not encoded
        (demonstration(("policy", "a"), opening=""), "nothing precedes"),
        (demonstration(("policy", ""), ("environment", "b")), "no tokens to learn"),
    ],
)
def test_unusable_rows(row, problem):
    with pytest.raises(UnusableRow, match=problem):
        encoder(tiny_tokenizer(), 20).demonstration(row)


WORLD, TOKENIZER = build_world(0), load_tokenizer(SHIPPED_TOKENIZER)


@pytest.fixture(autouse=True)
def few_together(monkeypatch):
    """Demonstrators play few episodes at once: 24 are read."""
    monkeypatch.setattr("lcrag.curation.rows.TOGETHER", 24)


@functools.cache
def perfect_search():
    """The passage of the asked fact where a collection has its section, else one about something else."""
    sections = {
        query_text(code, fact.relation, WORLD.name(subject_of(fact), code).text): section_of(fact)
        for fact in WORLD.facts
        for code in LCRL_LANGUAGES
    }
    passages = {code: {passage.id: passage for passage in WORLD.passages(code)} for code in LCRL_LANGUAGES}

    def hit(query: str, language: str) -> Hit:
        some = next(iter(passages[language].values()))
        passage = passages[language].get(f"{language}/{sections[query]}", some)
        return Hit(id=passage.id, title=passage.title, text=passage.text, score=1.0, language=language)

    return lambda queries, languages, k: [[hit(q, language)] for q, language in zip(queries, languages, strict=True)]


def demonstrated(count, player, questions=None, *, invalid_limit=1, context=512, **options):
    program = functools.partial(
        hierarchical_search,
        collections=LCRL_LANGUAGES,
        budget=2,
        passages=1,
        invalid_limit=invalid_limit,
        prompt="atlas",
        style="atlas",
    )
    questions = WORLD.questions("train", LCRL_TRAINING[:3]) if questions is None else questions
    row_context = RowContext(
        tokenizer=TOKENIZER, chat=Chat(), longest_tokens=context + 1, program=program, search=perfect_search()
    )
    return list(itertools.islice(demonstrate(row_context, questions, player, world=WORLD, seed=0, **options), count))


def test_demonstrations_are_clean_and_tell_policy_from_environment():
    rows, searches = demonstrated(24, Oracle(budget=2)), []
    for row in rows:
        by_policy, by_environment = (TOKENIZER.decode(row.tokens[row.by_policy == side]) for side in (True, False))
        assert by_policy.startswith("<search> ")
        assert by_policy.endswith("</answer>")
        assert "<answer>" not in by_environment
        assert "<search>" not in by_environment
        searches.append(by_policy.count("<search>"))
    assert set(searches) == {1, 2}
    np.testing.assert_array_equal(demonstrated(1, Oracle(budget=2))[0].tokens, rows[0].tokens)


def test_demonstrations_longer_than_the_context_are_left_out():
    questions = WORLD.questions("train", languages=("en",))

    def lengths(context):
        rows = demonstrated(24, RandomSearcher(budget=2), questions, only_correct=False, context=context)
        return [len(row.tokens) for row in rows]

    every = lengths(4000)
    middle = sorted(every)[12]
    assert max(lengths(middle)) <= middle < max(every)


def test_random_searches_are_kept_with_wrong_answers():
    unknown = tuple(f"<answer> {word}</answer>" for word in UNKNOWN.values())
    for only_correct in (False, True):
        rows = demonstrated(24, RandomSearcher(budget=2), only_correct=only_correct)
        wrong = [TOKENIZER.decode(row.tokens).endswith(unknown) for row in rows]
        assert any(wrong) != only_correct


def test_malformed_actions_are_shown_and_not_imitated():
    slipped = []
    for row in demonstrated(40, RandomSearcher(budget=2, slips=0.5), invalid_limit=2, only_correct=False):
        slipped.append(row.outcome.invalid_actions)
        imitated = TOKENIZER.decode(row.tokens[row.by_policy & ~slips_in(row)])
        assert imitated.startswith("<search> ")
        assert (RETHINK in TOKENIZER.decode(row.tokens)) == bool(slipped[-1]) == bool(slips_in(row).any())
    assert set(slipped) == {0, 1}
