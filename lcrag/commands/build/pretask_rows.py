"""Rows of the pre-tasks of the tiny policies: copying, echoing, reading, judging, noting, translating.

They stand in for a pretrained multilingual model: copying teaches the induction circuit, reading and judging teach to
use passages in all thirteen languages.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Bool

from lcrag.atlas.fact_sampler import FactSampler
from lcrag.atlas.facts import Fact, subject_of
from lcrag.atlas.oracle import Reading
from lcrag.atlas.random_searcher import RandomSearcher
from lcrag.atlas.vocabulary import tags
from lcrag.atlas.wording import UNREAD, sentence_text
from lcrag.atlas.world import Chain, World, render_passage
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.learning import Trajectory
from lcrag.policy import Tokenizer

COPYING_TOKENS = 128
SPAN_TOKENS = (3, 10)
REPEATED_SHARE = 0.6
# (first step, size) of each alphabet.
ALPHABETS = ((0, 32), (900, 512), (1050, 4096))
FOREIGN_SHARE = 0.5
NATIVE_SHARE = 0.7
PRESENT_SHARE = 0.6
FOREIGN_PASSAGES = 4
NATIVE_PASSAGES = 3
NATIVE_PRESENT_SHARE = 0.55
SECOND_SEARCH_SHARE = 0.6
FURTHER_NOTES = 2
TRANSLATED_VALUES = 4
ECHO_SHARE = 0.25
# Shares of rows beside noting rows.
TRANSLATING_SHARE, NOTING_ECHO_SHARE, LATER_TRANSLATING_SHARE = 0.3, 0.1, 0.5


def copying_rows(vocabulary_size: int, rows_per_step: int, seed: int) -> Iterator[Trajectory]:
    """Yields rows of random spans without end; the loss covers the continuations of repeated spans.

    A row is a sequence of random spans, many of which are repeated; only repeated tokens can be predicted, and only by
    looking back. Small alphabets make the induction circuit appear quickly: half of the rows use one fixed alphabet,
    half a fresh random one, and the alphabet grows once copying works.
    """
    generator = np.random.default_rng(seed)
    row = 0
    while True:
        alphabet = [size for first, size in ALPHABETS if row >= first * rows_per_step][-1]
        alphabet = min(alphabet, vocabulary_size)
        words = generator if row % 2 else np.random.default_rng(alphabet)
        symbols, copied = _copying_row(generator, alphabet)
        tokens = words.permutation(vocabulary_size)[:alphabet][symbols].astype(np.int32)
        yield Trajectory(tokens, copied, np.zeros(COPYING_TOKENS, np.float32))
        row += 1


def _copying_row(generator: np.random.Generator, alphabet: int) -> tuple[np.ndarray, np.ndarray]:
    symbols, copied = np.zeros(COPYING_TOKENS, np.int64), np.zeros(COPYING_TOKENS, bool)
    filled = 0
    while filled < COPYING_TOKENS:
        length = min(int(generator.integers(*SPAN_TOKENS)), COPYING_TOKENS - filled)
        if filled > 12 and generator.random() < REPEATED_SHARE:
            start = int(generator.integers(0, filled - length))
            symbols[filled : filled + length] = symbols[start : start + length]
            copied[filled + 1 : filled + length] = True  # the first token of a span cannot be predicted
        else:
            symbols[filled : filled + length] = generator.integers(0, alphabet, length)
        filled += length
    return symbols, copied


def reading_rows(world: World, tokenizer: Tokenizer, seed: int) -> Iterator[Trajectory]:
    """Yields rows of passages and a question without end; the loss covers its keywords and the answering sentence.

    The passages precede the question; the answering sentence is written out in the question's language. There are no
    tags, searches or held-out facts, and most values are counterfactual.
    """
    generator = np.random.default_rng(seed)
    facts = FactSampler(world)
    while True:
        fact = facts.often_counterfactual(generator, facts.any(generator))
        language = str(generator.choice(LCRL_LANGUAGES))
        shown = str(generator.choice(LCRL_LANGUAGES)) if generator.random() < FOREIGN_SHARE else language
        lines = [facts.passage(generator, fact, shown)]
        for _ in range(int(generator.integers(1, 5))):
            other = facts.related(generator, fact)
            told_in = str(generator.choice(LCRL_LANGUAGES)) if generator.random() < FOREIGN_SHARE else language
            lines.append(facts.passage(generator, other, told_in, hidden=fact))
        order = generator.permutation(len(lines))
        context = "".join(f" {render_passage(lines[index])}\n" for index in order)
        question = world.question(Chain((fact,)), language)
        yield _text_row(
            tokenizer,
            f"{context}{question.text}\n",
            f" {question.extra['query']}\n {_sentence(world, fact, language)}\n",
        )


def judging_rows(world: World, tokenizer: Tokenizer, seed: int) -> Iterator[Trajectory]:
    """Yields rows in which the question comes first and the answering passage may be missing.

    Without it the answer is a question mark. There is either one passage in the question's language, or one in each of
    several others.
    """
    generator = np.random.default_rng(seed)
    facts = FactSampler(world)
    while True:
        fact = facts.often_counterfactual(generator, facts.any(generator))
        language = str(generator.choice(LCRL_LANGUAGES))
        one = generator.random() < NATIVE_SHARE
        others = [code for code in LCRL_LANGUAGES if code != language]
        shown_in = (language,) if one else tuple(map(str, generator.permutation(others)[:FOREIGN_PASSAGES]))
        present = generator.random(len(shown_in)) < (PRESENT_SHARE if one or generator.random() < 0.9 else 0.0)
        about = [fact if here else facts.related(generator, fact) for here in present]
        context = _passages(facts, generator, fact, shown_in, about)
        question = world.question(Chain((fact,)), language)
        answer = _sentence(world, fact, language) if present.any() else UNREAD
        yield _text_row(tokenizer, f"{question.text}\n {question.extra['query']}\n{context}", f" {answer}\n")


def noting_rows(world: World, tokenizer: Tokenizer, seed: int) -> Iterator[Trajectory]:
    """Yields rows of one or two searches' passages, each with a note, the value, and notes on other facts, without end.

    A note is a sentence about the fact as a passage writes it, one of several at random, or one with a question mark
    where no passage states it; the value is in the question's language. The first search shows passages in the
    question's language, the second in several others.
    """
    generator = np.random.default_rng(seed)
    facts, searcher = FactSampler(world), RandomSearcher(budget=2)
    while True:
        fact = facts.often_counterfactual(generator, facts.any(generator))
        language = str(generator.choice(LCRL_LANGUAGES))
        question = world.question(Chain((fact,)), language)
        parts, told, context = [f"{question.text}\n"], [fact], ""
        for shown_in, stating in _searches(generator, language):
            about = [fact if here else facts.related(generator, fact) for here in stating]
            block = _passages(facts, generator, fact, shown_in, about)
            context, told = context + block, told + about
            note, value = searcher.notes(generator, _readings(searcher, context), question)
            parts[-1] += f" {question.extra['query']}\n{block}"
            parts += [note, ""]
        parts[-2] += f" {value or UNREAD}\n"
        for _ in range(FURTHER_NOTES):
            other = facts.of_section(generator, told[int(generator.integers(len(told)))])
            if other.id == fact.id:
                continue
            question = world.question(Chain((other,)), language)
            note, value = searcher.notes(generator, _readings(searcher, context), question)
            parts[-1] += f"{question.text}\n"
            parts += [f"{note} {value or UNREAD}\n", ""]
        yield _text_row(tokenizer, *parts[:-1])


def _searches(
    generator: np.random.Generator, language: str
) -> list[tuple[tuple[str, ...], Bool[np.ndarray, " passages"]]]:
    """Returns the languages of each search's passages, and which of the passages state the fact."""
    native = (generator.permutation(NATIVE_PASSAGES) == 0) & (generator.random() < NATIVE_PRESENT_SHARE)
    searches = [((language,) * NATIVE_PASSAGES, native)]
    if generator.random() < SECOND_SEARCH_SHARE:
        others = [code for code in LCRL_LANGUAGES if code != language]
        shown_in = tuple(map(str, generator.permutation(others)[:FOREIGN_PASSAGES]))
        searches.append((shown_in, generator.random(FOREIGN_PASSAGES) < PRESENT_SHARE))
    return searches


def _readings(searcher: RandomSearcher, context: str) -> list[Reading]:
    return searcher.reader.readings([f"<information>\n{context}</information>"])


def translating_rows(world: World, tokenizer: Tokenizer, seed: int) -> Iterator[Trajectory]:
    """Yields rows of questions, each with a sentence in another language and the value in its own, without end."""
    generator = np.random.default_rng(seed)
    facts = FactSampler(world)
    while True:
        parts = [""]
        for _ in range(TRANSLATED_VALUES):
            fact = facts.often_counterfactual(generator, facts.any(generator))
            language, other = map(str, generator.permutation(LCRL_LANGUAGES)[:2])
            parts[-1] += f"{world.question(Chain((fact,)), language).text}\n {_sentence(world, fact, other)}\n"
            parts += [f" {world.values(fact, language)[0]}\n", ""]
        yield _text_row(tokenizer, *parts[:-1])


def _passages(
    facts: FactSampler, generator: np.random.Generator, fact: Fact, languages: Sequence[str], about: Sequence[Fact]
) -> str:
    """Returns lines of a passage in each language about each fact; none but those about `fact` state it."""
    passages = (
        facts.passage(generator, own, code, hidden=None if own is fact else fact)
        for own, code in zip(about, languages, strict=True)
    )
    return "".join(f" {render_passage(passage)}\n" for passage in passages)


def echo_rows(world: World, tokenizer: Tokenizer, seed: int) -> Iterator[Trajectory]:
    """Yields rows that repeat a name or a value between tags, in all languages, without end.

    They show the form of every tag and nothing of its use: a text, a tag, and the text again between that tag and its
    end. So no tag belongs to the languages or the situations in which it was first seen.
    """
    generator = np.random.default_rng(seed)
    facts = FactSampler(world)
    openings = [opening for opening in tags() if not opening.startswith("</")]
    while True:
        language = str(generator.choice(LCRL_LANGUAGES))
        given, wanted = "", ""
        for _ in range(int(generator.integers(1, 4))):
            fact, tag = facts.any(generator), str(generator.choice(openings))
            text = (
                world.name(subject_of(fact), language).text
                if generator.random() < 0.5
                else world.values(fact, language)[0]
            )
            given += f" {text}\n{tag}\n"
            wanted += f"{tag} {text}</{tag[1:]}"
        yield _text_row(tokenizer, given, wanted)


def mixed(rows: Iterator[Trajectory], others: Iterator[Trajectory], share: float, seed: int) -> Iterator[Trajectory]:
    """Yields rows, of which a share is taken from `others`, without end."""
    generator = np.random.default_rng(seed)
    while True:
        yield next(others if generator.random() < share else rows)


def _sentence(world: World, fact: Fact, language: str) -> str:
    """Returns the sentence that states a fact, after its subject's name."""
    name = world.name(subject_of(fact), language).text
    return f"{name}: {sentence_text(language, fact.relation, world.values(fact, language)[0])}"


def _text_row(tokenizer: Tokenizer, *parts: str) -> Trajectory:
    """Returns a row of texts that are given and wanted in turn."""
    encoded = [tokenizer.encode(part) for part in parts]
    by_policy = np.repeat(np.arange(len(parts)) % 2 == 1, [len(tokens) for tokens in encoded])
    tokens = np.asarray([token for part in encoded for token in part], np.int32)
    return Trajectory(tokens, by_policy, np.zeros(len(tokens), np.float32))
