"""Demonstrations of the atlas's players: clean, counterfactual, and none of it held out."""

import functools
import itertools

import numpy as np
import pytest

from lcrag.atlas import build_world
from lcrag.atlas.encoder import SHIPPED_FOLDER
from lcrag.atlas.facts import UNKNOWN, query_text, section_of, subject_of
from lcrag.atlas.oracle import Oracle, RandomSearcher
from lcrag.commands.build import slips_in
from lcrag.curation.rows import demonstrate
from lcrag.data.questions import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.episodes import RETHINK
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.policy import load_tokenizer
from lcrag.retrieval import Hit

WORLD, TOKENIZER = build_world(0), load_tokenizer(SHIPPED_FOLDER)


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


def demonstrated(count, player, questions=None, *, invalid_limit=1, **options):
    program = functools.partial(
        hierarchical_search,
        collections=LCRL_LANGUAGES,
        budget=2,
        passages=1,
        invalid_limit=invalid_limit,
        prompt="atlas",
        style="atlas",
    )
    questions = WORLD.questions("train") if questions is None else questions
    parts = {"world": WORLD, "questions": questions, "search": perfect_search(), "tokenizer": TOKENIZER}
    records = demonstrate(**parts, program=program, oracle=player, seed=0, **options)
    return list(itertools.islice(records, count))


def test_demonstrations_are_clean_and_tell_policy_from_environment():
    questions = WORLD.questions("train", languages=LCRL_TRAINING[:3])
    rows, searches = demonstrated(24, Oracle(budget=2), questions), []
    for row in rows:
        by_policy, by_environment = (TOKENIZER.decode(row.tokens[row.by_policy == side]) for side in (True, False))
        assert by_policy.startswith("<search> ")
        assert by_policy.endswith("</answer>")
        assert "<answer>" not in by_environment
        assert "<search>" not in by_environment
        searches.append(by_policy.count("<search>"))
    assert set(searches) == {1, 2}
    np.testing.assert_array_equal(demonstrated(1, Oracle(budget=2), questions)[0].tokens, rows[0].tokens)


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
