"""What became of everything, in numbers: what each stage removed, per language and domain."""

import collections
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lcrag.methods.translate_r1.pipeline.filling import Versions, is_whole
from lcrag.methods.translate_r1.pipeline.lanes import Sources, TranslationQuota
from lcrag.methods.translate_r1.pipeline.parts import LABEL
from lcrag.methods.translate_r1.pipeline.recycling import Tried
from lcrag.methods.translate_r1.pipeline.stages import STAGES, Attempt


def account(
    sources: Sources,
    lanes: Sequence[TranslationQuota],
    tried: Sequence[Sequence[Tried[Versions]]],
    roles: Iterable[str],
) -> dict[str, Any]:
    """The content of `report.json`.

    Args:
      sources: What passed the source filter, and what did not.
      lanes: What was to be filled.
      tried: All attempts of each.
      roles: Who was asked, for each request that was ever made.
    """
    languages = [
        _language(lane, number, attempts)
        for lane, attempts in zip(lanes, tried, strict=True)
        for number in range(len(lane.languages))
    ]
    return {
        "sources": _sources(sources),
        "languages": languages,
        "requests": dict(sorted(collections.Counter(roles).items())),
    }


def _sources(sources: Sources) -> dict[str, Any]:
    removed: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for attempt in sources.removed:
        removed[attempt.domain.name][attempt.cause] += 1
    return {
        domain: {
            "read": len(sources.pools.get(domain, ())) + removed[domain].total(),
            "removed": dict(removed[domain].most_common()),
        }
        for domain in sorted({*sources.pools, *removed})
    }


def _language(lane: TranslationQuota, number: int, tried: Sequence[Tried[Versions]]) -> dict[str, Any]:
    attempts = [each.result[number].attempt for each in tried]
    filled = sum(is_whole(each.result) for each in tried)
    similarities = [each.similarity for each in attempts if each.passed and each.similarity is not None]
    return {
        "domain": lane.domain.name,
        "language": lane.languages[number],
        "places": lane.places,
        "filled": filled,
        "attempts": len(attempts),
        "passed": sum(each.passed for each in attempts),
        "removed": _removed(attempts),
        "texts_spared": sum(each.portion == LABEL for each in attempts),
        "chrf": sum(similarities) / len(similarities) if similarities else None,
    }


def _removed(attempts: Iterable[Attempt]) -> Mapping[str, Mapping[str, int]]:
    """Stage -> cause -> how often, all stages but the first; in a cause the portion, if one was removed alone."""
    causes: dict[str, collections.Counter[str]] = {stage: collections.Counter() for stage in STAGES[1:]}
    for attempt in attempts:
        if not attempt.passed:
            named = f"{attempt.portion}: {attempt.cause}" if attempt.portion else attempt.cause
            causes[attempt.stage][named] += 1
    return {stage: dict(counts.most_common()) for stage, counts in causes.items()}
