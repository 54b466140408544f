"""Reading: what a pretrained multilingual model brings along, taught to the tiny one in all thirteen languages.

A row is a few passages, a question, its keywords, and the passage that answers it written out in the
question's language. There are no tags, no searches and no held-out facts in it; most values are
counterfactual. Later rows also teach to tell whether the passages hold the answer at all.
"""

from collections.abc import Iterator

import numpy as np

from lcrag.atlas import World, render_passage
from lcrag.atlas.oracle import FactSampler
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.learning import Trajectory
from lcrag.policy import Tokenizer

FOREIGN_SHARE = 0.5
NATIVE_SHARE = 0.7
PRESENT_SHARE = 0.55
UNKNOWN = "?"


def reading_rows(world: World, tokenizer: Tokenizer, seed: int) -> Iterator[Trajectory]:
    """Rows without end; only the keywords and the answering passage are learned from."""
    generator = np.random.default_rng(seed)
    facts = FactSampler(world)
    while True:
        fact = facts.told(generator, facts.any(generator))
        language = str(generator.choice(LCRL_LANGUAGES))
        shown = str(generator.choice(LCRL_LANGUAGES)) if generator.random() < FOREIGN_SHARE else language
        lines = [world.passage(fact, shown)]
        for _ in range(int(generator.integers(1, 8))):
            other = facts.related(generator, fact)
            told_in = str(generator.choice(LCRL_LANGUAGES)) if generator.random() < FOREIGN_SHARE else language
            lines.append(world.passage(other, told_in))
        order = generator.permutation(len(lines))
        context = "".join(f" {render_passage(lines[index])}\n" for index in order)
        question = world.question(fact, language)
        answer = f" {question.extra['query']}\n {render_passage(world.passage(fact, language))}\n"
        yield _row(tokenizer, f"{context}{question.text}\n", answer)


def judging_rows(world: World, tokenizer: Tokenizer, seed: int) -> Iterator[Trajectory]:
    """Rows in which the question comes first and its passage may be missing: then the answer is a question mark.

    The passages are either one in the question's language or one in each other language.
    """
    generator = np.random.default_rng(seed)
    facts = FactSampler(world)
    while True:
        fact = facts.told(generator, facts.any(generator))
        language = str(generator.choice(LCRL_LANGUAGES))
        one = generator.random() < NATIVE_SHARE
        shown_in = (language,) if one else tuple(code for code in LCRL_LANGUAGES if code != language)
        present = generator.random(len(shown_in)) < (PRESENT_SHARE if one or generator.random() < 0.9 else 0.0)
        context = "".join(
            f" {render_passage(world.passage(fact if here else facts.related(generator, fact), code))}\n"
            for here, code in zip(present, shown_in, strict=True)
        )
        question = world.question(fact, language)
        answer = render_passage(world.passage(fact, language)) if present.any() else UNKNOWN
        yield _row(tokenizer, f"{question.text}\n {question.extra['query']}\n{context}", f" {answer}\n")


def _row(tokenizer: Tokenizer, given: str, wanted: str) -> Trajectory:
    before, after = tokenizer.encode(given), tokenizer.encode(wanted)
    by_policy = np.arange(len(before) + len(after)) >= len(before)
    return Trajectory(np.asarray(before + after, np.int32), by_policy, np.zeros(len(by_policy), np.float32))
