"""The questions of the embedded world, and the translator of its comprehension questions."""

from collections.abc import Callable, Sequence
from typing import Literal

import gin

from lcrag.atlas import World, build_world
from lcrag.atlas import comprehension as atlas
from lcrag.atlas.independent_facts import comparison_questions, conjunction_questions
from lcrag.composition.stand_ins import replaceable
from lcrag.data.batches import Coupled, coupled
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.data.questions import MATHEMATICS, MULTIPLE_CHOICE, Question
from lcrag.limits import Count, Seed


@gin.configurable
def atlas_world(seed: Seed = 0, complete: Sequence[str] = ()) -> World:
    """The embedded world; see `lcrag.atlas.build_world`.

    Args:
      seed: Of the splits and of what the collections hold.
      complete: Languages whose collections hold every fact right.
    """
    return build_world(seed, tuple(complete))


@gin.configurable
@replaceable("questions")
def atlas_questions(
    split: str,
    languages: Sequence[str] = LCRL_LANGUAGES,
    hops: Sequence[Literal[1, 2, 3, 4]] = (1,),
    copyable: bool | None = None,
    limit: Count | None = None,
    world: Callable[[], World] = atlas_world,
) -> list[Question]:
    """The atlas's questions of a split, every language version of a question together.

    Args:
      split: train, validation, held_out or unseen.
      languages: Languages to ask in.
      hops: Numbers of facts that a question needs.
      copyable: Only answers used as they are in every language (True), only translated ones (False), or both.
      limit: At most this many questions, each in all languages, spread evenly over the split.
      world: Builds the atlas.
    """
    return _limited(world().questions(split, languages, hops, copyable), limit)


@gin.configurable
@replaceable("questions")
def atlas_comparisons(
    split: str,
    languages: Sequence[str] = LCRL_LANGUAGES,
    limit: Count | None = None,
    world: Callable[[], World] = atlas_world,
) -> list[Question]:
    """The atlas's comparison questions of a split; see `lcrag.atlas.independent_facts`.

    Args:
      split: train, validation, held_out or unseen.
      languages: Languages to ask in.
      limit: At most this many questions, each in all languages, spread evenly over the split.
      world: Builds the atlas.
    """
    return _limited(comparison_questions(world(), split, languages), limit)


@gin.configurable
@replaceable("questions")
def atlas_conjunctions(
    split: str,
    languages: Sequence[str] = LCRL_LANGUAGES,
    limit: Count | None = None,
    world: Callable[[], World] = atlas_world,
) -> list[Question]:
    """The atlas's questions over three independent facts; see `lcrag.atlas.independent_facts`.

    Args:
      split: train, validation, held_out or unseen.
      languages: Languages to ask in.
      limit: At most this many questions, each in all languages, spread evenly over the split.
      world: Builds the atlas.
    """
    return _limited(conjunction_questions(world(), split, languages), limit)


def _limited(questions: Sequence[Question], limit: int | None) -> list[Question]:
    """At most `limit` questions, each in all its languages."""
    table = coupled(questions)
    return [question for versions in _spread(table, limit or len(table)) for question in versions]


def _spread(items: Sequence[Coupled], count: int) -> list[Coupled]:
    """At most `count` items, evenly spaced."""
    count = min(count, len(items))
    return [items[index * len(items) // count] for index in range(count)]


@gin.configurable
@replaceable("questions")
def comprehension_questions(
    split: str,
    languages: Sequence[str] = atlas.LANGUAGES,
    domains: Sequence[str] = (MATHEMATICS, MULTIPLE_CHOICE),
    limit: Count | None = None,
    world: Callable[[], World] = atlas_world,
) -> list[Question]:
    """Sums in stories and choices about countries; see `lcrag.atlas.comprehension`.

    Args:
      split: demonstrations, validation, train or held_out.
      languages: Languages to ask in.
      domains: mathematics, multiple_choice or both.
      limit: At most this many questions of each domain, each in all languages.
      world: Builds the atlas.
    """
    return atlas.ComprehensionTasks(world()).questions(split, languages, domains, limit)


@gin.configurable
def comprehension_translator(world: Callable[[], World] = atlas_world) -> atlas.ComprehensionTranslator:
    """Returns the exact translator of the comprehension questions."""
    return atlas.ComprehensionTranslator(atlas.ComprehensionTasks(world()))
