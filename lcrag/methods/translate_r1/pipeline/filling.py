"""Fills lanes: every source goes through the stages in the languages of its lane, and one that fails is replaced."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import TypeAlias

from lcrag.data.batches import Coupled
from lcrag.data.questions import Question
from lcrag.methods.translate_r1.pipeline.domains import domain_of
from lcrag.methods.translate_r1.pipeline.lanes import Sources, TranslationQuota
from lcrag.methods.translate_r1.pipeline.parts import versions_of
from lcrag.methods.translate_r1.pipeline.recycling import Tried, each_of, fill
from lcrag.methods.translate_r1.pipeline.stages import Attempt, Stages


@dataclasses.dataclass(frozen=True)
class Version:
    """A source in one language.

    Attributes:
      attempt: What became of it.
      questions: The questions it makes, none if a stage removed it; a version that the data set has is taken as it is.
    """

    attempt: Attempt
    questions: tuple[Question, ...]


Versions: TypeAlias = tuple[Version, ...]  # of one source in the languages of its lane


def is_whole(versions: Versions) -> bool:
    """Whether a source passed in every language of its lane."""
    return all(version.attempt.passed for version in versions)


async def fill_lanes(
    lanes: Sequence[TranslationQuota],
    sources: Sources,
    stages: Stages,
    *,
    attempts: int,
    width: int,
    seen: Callable[[bool], None],
) -> list[list[Tried[Versions]]]:
    """All attempts of every lane, the lanes side by side.

    Args:
      lanes: What to fill.
      sources: With what.
      stages: What each source goes through.
      attempts: For a place at most.
      width: Attempts of a lane under way at a time.
      seen: Called with every attempt, whether its place is filled.

    Raises:
      UserError: a model is away or never gives an answer that can be used.
    """

    async def filled(lane: TranslationQuota) -> list[Tried[Versions]]:
        async def attempt(found: Coupled) -> Versions:
            versions = await each_of(lane.languages, lambda code: _version(found, code, stages), width=width)
            seen(is_whole(tuple(versions)))
            return tuple(versions)

        pool = sources.pools[lane.domain.name]
        return await fill(pool, lane.places, attempts, attempt, is_whole, width=width)

    return await each_of(lanes, filled, width=len(lanes))


async def _version(found: Coupled, language: str, stages: Stages) -> Version:
    source = found[0]
    if own := next((version for version in found if version.language == language), None):
        return Version(Attempt(question=source, domain=domain_of(source), language=language), (own,))
    attempt = await stages.attempt(source, language)
    if not attempt.passed or attempt.translation is None:
        return Version(attempt, ())
    return Version(attempt, tuple(versions_of(source, attempt.domain, attempt.translation, language)))
