"""What the tiny policy is taught: copying, reading, clean demonstrations and random searches, none of it held out."""

import functools
import itertools
import re

import jax
import numpy as np
import pytest
from support import tiny_config

from lcrag.atlas import SPLITS, build_world
from lcrag.atlas.fact_sampler import FactSampler
from lcrag.atlas.facts import section_of, subject_of
from lcrag.atlas.oracle import Oracle
from lcrag.atlas.random_searcher import RandomSearcher
from lcrag.atlas.vocabulary import SHIPPED_FOLDER, TAG_NAMES
from lcrag.atlas.wording import UNKNOWN, query_text
from lcrag.commands.build import policy
from lcrag.commands.build.policy import atlas_decoder, fit
from lcrag.commands.build.pretask_rows import (
    COPYING_TOKENS,
    copying_rows,
    echo_rows,
    judging_rows,
    noting_rows,
    reading_rows,
    translating_rows,
)
from lcrag.curation.oracle_demonstrations import Demonstrator
from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.episodes import RETHINK
from lcrag.learning import Layout
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.policy import initialise, load_tokenizer, parameter_count
from lcrag.retrieval import Hit


@pytest.fixture(autouse=True)
def few_together(monkeypatch):
    """Demonstrators play few episodes at once: 24 are read."""
    monkeypatch.setattr("lcrag.curation.oracle_demonstrations.TOGETHER", 24)


@pytest.fixture(scope="module")
def world():
    return build_world(0)


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(SHIPPED_FOLDER)


def perfect_search(world):
    """The passage of the asked fact where a collection has its section, else one about something else."""
    sections = {
        query_text(code, fact.relation, world.name(subject_of(fact), code).text): section_of(fact)
        for fact in world.facts
        for code in LCRL_LANGUAGES
    }
    passages = {code: {passage.id: passage for passage in world.passages(code)} for code in LCRL_LANGUAGES}

    def hit(query: str, language: str) -> Hit:
        some = next(iter(passages[language].values()))
        passage = passages[language].get(f"{language}/{sections[query]}", some)
        return Hit(id=passage.id, title=passage.title, text=passage.text, score=1.0, language=language)

    return lambda queries, languages, k: [[hit(q, language)] for q, language in zip(queries, languages, strict=True)]


def program(question):
    return hierarchical_search(
        question, LCRL_LANGUAGES, budget=2, passages=1, prompt="atlas", style="atlas", observation_tokens=600
    )


def test_copied_tokens_have_been_seen_before_in_the_same_surroundings():
    for row in itertools.islice(copying_rows(4096, 4, seed=0), 12):
        assert len(row.tokens) == COPYING_TOKENS
        assert not row.by_policy[0]
        for place in np.flatnonzero(row.by_policy):
            pair = tuple(row.tokens[place - 1 : place + 1])
            before = list(zip(row.tokens[: place - 1], row.tokens[1:place], strict=True))
            assert pair in before


def test_told_facts_keep_their_kind_and_are_mostly_counterfactual(world):
    facts, generator = FactSampler(world), np.random.default_rng(0)
    drawn = [facts.any(generator) for _ in range(400)]
    told = [facts.often_counterfactual(generator, fact) for fact in drawn]
    assert all(world.splits[fact.id] == "train" for fact in drawn)
    assert all(a.id == b.id and a.relation == b.relation for a, b in zip(drawn, told, strict=True))
    assert 0.4 < np.mean([a.value != b.value for a, b in zip(drawn, told, strict=True)]) < 0.8


def told_in(tokenizer, row):
    """The facts that a row's passages state, in the languages of the passages."""
    lines = tokenizer.decode(row.tokens).split("\n")
    readings = Oracle().readings(f"<information>\n{line}\n</information>" for line in lines)
    return lines, {f"{each.relation}/{each.subject}" for each in readings}


@pytest.mark.parametrize("rows", [reading_rows, judging_rows, noting_rows, translating_rows])
def test_pre_tasks_never_show_a_held_out_fact(world, tokenizer, rows):
    kept_back = [split for split in SPLITS if split != "train"]
    asked = {question.text for split in kept_back for question in world.questions(split, hops=(1, 2, 3, 4))}
    held_out = {fact.id for fact in world.facts if world.splits[fact.id] in kept_back}
    for row in itertools.islice(rows(world, tokenizer, seed=1), 200):
        lines, told = told_in(tokenizer, row)
        assert not asked & set(lines)
        assert not told & held_out


def test_reading_asks_for_keywords_and_the_answering_sentence(world, tokenizer):
    for row in itertools.islice(reading_rows(world, tokenizer, seed=1), 100):
        wanted = tokenizer.decode(row.tokens[row.by_policy])
        assert wanted.endswith("\n")
        assert wanted.count("\n") == 2


def test_judging_answers_only_what_it_is_shown(world, tokenizer):
    answered = []
    for row in itertools.islice(judging_rows(world, tokenizer, seed=0), 200):
        wanted = tokenizer.decode(row.tokens[row.by_policy])
        answered.append(wanted.strip() != "?")
        if answered[-1]:
            _, shown = told_in(tokenizer, row)
            said = Oracle().readings([f"<information>\n{wanted}</information>"])
            assert shown & {f"{each.relation}/{each.subject}" for each in said}
    assert 0.4 < np.mean(answered) < 0.9


def spans(tokenizer, row):
    """The texts of a row that are given and wanted in turn."""
    groups = itertools.groupby(range(len(row.tokens)), key=lambda place: bool(row.by_policy[place]))
    return [(wanted, tokenizer.decode(row.tokens[list(places)])) for wanted, places in groups]


def readings_in(lines):
    return Oracle().readings(f"<information>\n{line}\n</information>" for line in lines)


def test_notes_are_in_the_passages_and_values_in_the_question_s_language(world, tokenizer):
    unread, searches = [], set()
    questions = {question.text: question for question in world.questions("train")}
    for row in itertools.islice(noting_rows(world, tokenizer, seed=0), 200):
        lines = []
        for wanted, text in spans(tokenizer, row):
            if not wanted:
                lines += text.split("\n")
                question = next(questions[line] for line in reversed(lines) if line in questions)
                continue
            note, *value = text.strip().split("\n ")
            unread.append(note.endswith(": ?"))
            known, about = readings_in(lines), (question.extra["kind"], question.extra["subject"][1])
            if unread[-1]:
                assert about not in {(each.relation, each.subject) for each in known}
                assert value in ([], ["?"])
            else:
                [reading] = [each for each in readings_in([note]) if (each.relation, each.subject) == about]
                assert reading in known
                assert value in ([], [Oracle().in_language(reading, question.language)])
        searches.add(lines.count(f" {questions[lines[0]].extra['query']}"))
    assert searches == {1, 2}
    assert 0.1 < np.mean(unread) < 0.5


def test_translated_values_are_in_the_question_s_language(world, tokenizer):
    questions = {question.text: question for question in world.questions("train")}
    for row in itertools.islice(translating_rows(world, tokenizer, seed=0), 100):
        texts = [text for _, text in spans(tokenizer, row)]
        for given, wanted in zip(texts[::2], texts[1::2], strict=True):
            text, sentence, _ = given.split("\n")
            about = questions[text].extra["kind"], questions[text].extra["subject"][1]
            [reading] = [each for each in readings_in([sentence]) if (each.relation, each.subject) == about]
            assert wanted == f" {Oracle().in_language(reading, questions[text].language)}\n"


def test_echoes_show_every_tag_in_every_language_and_close_it(world, tokenizer):
    seen = set()
    for row in itertools.islice(echo_rows(world, tokenizer, seed=0), 300):
        given, wanted = (tokenizer.decode(row.tokens[row.by_policy == side]) for side in (False, True))
        for tag, text in re.findall(r"<(\w+)> (.*?)</\1>", wanted):
            seen.add(tag)
            assert f" {text}\n<{tag}>\n" in given
        assert re.sub(r"<(\w+)> .*?</\1>", "", wanted) == ""
    assert seen == set(TAG_NAMES)


def test_demonstrations_are_clean_and_tell_policy_from_environment(world, tokenizer):
    questions = world.questions("train", languages=LCRL_TRAINING[:3], hops=(1,))
    demonstrator = Demonstrator(world, questions, program, perfect_search(world), tokenizer, Oracle(budget=2))
    searches = []
    for row in itertools.islice(demonstrator.stream(0), 24):
        by_policy, by_environment = (tokenizer.decode(row.tokens[row.by_policy == side]) for side in (True, False))
        assert by_policy.startswith("<search> ")
        assert by_policy.endswith("</answer>")
        assert "<answer>" not in by_environment
        assert "<search>" not in by_environment
        searches.append(by_policy.count("<search>"))
    assert set(searches) == {1, 2}
    again = next(Demonstrator(world, questions, program, perfect_search(world), tokenizer, Oracle(budget=2)).stream(0))
    np.testing.assert_array_equal(next(demonstrator.stream(0)).tokens, again.tokens)


def test_demonstrations_longer_than_the_context_are_left_out(world, tokenizer):
    questions = world.questions("train", languages=("en",))

    def lengths(context):
        parts = world, questions, program, perfect_search(world), tokenizer, RandomSearcher(budget=2)
        demonstrator = Demonstrator(*parts, only_correct=False, context=context)
        return [len(row.tokens) for row in itertools.islice(demonstrator.stream(0), 24)]

    every = lengths(4000)
    middle = sorted(every)[12]
    assert max(lengths(middle)) <= middle < max(every)


def test_random_searches_are_kept_with_wrong_answers(world, tokenizer):
    questions = world.questions("train")
    texts = []
    for only_correct in (False, True):
        player = RandomSearcher(budget=2)
        demonstrator = Demonstrator(
            world, questions, program, perfect_search(world), tokenizer, player, only_correct=only_correct
        )
        texts.append([tokenizer.decode(row.tokens) for row in itertools.islice(demonstrator.stream(0), 24)])
    unknown = [f"<answer> {word}</answer>" for word in UNKNOWN.values()]
    assert any(text.endswith(tuple(unknown)) for text in texts[0])
    assert not any(text.endswith(tuple(unknown)) for text in texts[1])


def test_malformed_actions_are_shown_and_not_imitated(world, tokenizer):
    player = RandomSearcher(budget=2, slips=0.5)
    program_with_retries = functools.partial(
        hierarchical_search,
        collections=LCRL_LANGUAGES,
        budget=2,
        passages=1,
        invalid_limit=2,
        prompt="atlas",
        style="atlas",
    )
    demonstrator = Demonstrator(
        world,
        world.questions("train"),
        program_with_retries,
        perfect_search(world),
        tokenizer,
        player,
        only_correct=False,
    )
    slipped = []
    for row in itertools.islice(demonstrator.stream(0), 40):
        slipped.append(row.outcome.invalid_actions)
        imitated = tokenizer.decode(row.tokens[row.by_policy & ~policy.slips_in(row)])
        assert imitated.startswith("<search> ")
        assert (RETHINK in tokenizer.decode(row.tokens)) == bool(slipped[-1])
        assert bool(policy.slips_in(row).any()) == bool(slipped[-1])
    assert set(slipped) == {0, 1}


def fitted(folder, progress):
    config = tiny_config()
    return fit(
        config,
        initialise(config, jax.random.key(0)),
        itertools.cycle(itertools.islice(copying_rows(config.vocabulary_size, 4, seed=0), 3)),
        steps=12,
        tokens_per_step=256,
        learning_rate=1e-2,
        layout=Layout(rows=2, row_lengths=(128,)),
        progress=progress,
        folder=folder,
    )


def test_fitting_lowers_the_loss(tmp_path):
    losses = []
    fitted(tmp_path, lambda step, metrics: losses.append(metrics["loss/supervised"]))
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.5


def test_an_interrupted_stage_continues(tmp_path, monkeypatch):
    def interrupted(step, metrics):
        if step == 7:
            raise KeyboardInterrupt

    monkeypatch.setattr(policy, "CHECKPOINT_EVERY", 5)
    whole = fitted(tmp_path / "whole", lambda step, metrics: None)
    with pytest.raises(KeyboardInterrupt):
        fitted(tmp_path / "parts", interrupted)
    steps = []
    again = fitted(tmp_path / "parts", lambda step, metrics: steps.append(step))
    assert steps == list(range(6, 13))
    jax.tree.map(np.testing.assert_array_equal, again, whole)


def test_the_tiny_policy_is_plain_qwen3_of_a_million_parameters():
    config = atlas_decoder(4096)
    assert config.family == "qwen3"
    assert parameter_count(config) == 1_312_128
