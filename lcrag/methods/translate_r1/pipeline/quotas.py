"""Quotas of translations, and recycling: a removed source is replaced until a language has its quota (section 3.2)."""

import asyncio
import collections
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

from lcrag.data.batches import Coupled, coupled, seeded_order
from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.errors import UserError
from lcrag.methods.translate_r1.pipeline.checks import Thresholds, unfit_source
from lcrag.methods.translate_r1.pipeline.domains import DOMAINS, TRANSLATION, Domain, domain_of
from lcrag.methods.translate_r1.pipeline.parts import versions_of
from lcrag.methods.translate_r1.pipeline.stages import SOURCE, Attempt, Stages

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TranslationQuota:
    """The number of questions wanted of a domain; a source fills a place by passing in all `languages`."""

    domain: Domain
    languages: tuple[str, ...]
    places: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
    """The result of the source filter.

    Attributes:
      pools: Domain -> its sources, each with the existing versions, the source first. The order of trying them is the
        same for every language, so that languages mostly share their questions.
      removed: Sources that the filter removed.
    """

    pools: Mapping[str, Sequence[Coupled]]
    removed: Sequence[Attempt]


def filter_sources(questions: Iterable[Question], thresholds: Thresholds, *, preferred: str, seed: int) -> Sources:
    """Applies stage 1 to all questions.

    Args:
      questions: Questions of any domains and languages, with one or several versions each.
      thresholds: Thresholds of the filter.
      preferred: Language of the version that becomes the source, if there are several.
      seed: Seed of the order.

    Raises:
      UserError: a question has an unknown domain, or no question passes.
    """
    pools: dict[str, dict[str, Coupled]] = collections.defaultdict(dict)
    removed = []
    for versions in coupled(questions):
        source, *others = sorted(versions, key=lambda version: version.language != preferred)
        domain = domain_of(source)
        if cause := unfit_source(source, domain, thresholds):
            attempt = Attempt(question=source, domain=domain, language=source.language, stage=SOURCE, cause=cause)
            removed.append(attempt)
        else:
            pools[domain.name][source.coupling] = (source, *others)
    if not pools:
        raise UserError(
            f"no question is left to translate: the source filter removed all {len(removed)}, the first as"
            f" {removed[0].cause}; give it other questions or set Thresholds"
        )
    ordered = {name: [pool[key] for key in seeded_order(pool, seed)] for name, pool in pools.items()}
    return Sources(pools=ordered, removed=removed)


def quotas_of(
    sources: Sources, languages: Sequence[str], places: int | Mapping[str, int], *, together: bool
) -> list[TranslationQuota]:
    """Returns the quotas of every domain that has sources.

    Sources of the domain `translation` are not translated into a language that some of them are written in.

    Args:
      sources: The sources.
      languages: Codes of the target languages.
      places: Questions per language and domain: one number, or a number for each language.
      together: Whether a question must pass in all languages, rather than in each on its own.

    Raises:
      UserError: a language is unknown, repeated or has no number, or languages that go together have different numbers.
    """
    wanted = _places(languages, places)
    quotas = []
    for domain in (DOMAINS[name] for name in DOMAINS if name in sources.pools):
        written = {versions[0].language for versions in sources.pools[domain.name]} if domain is TRANSLATION else ()
        codes = [code for code in languages if code not in written]
        if together and codes:
            if len({wanted[code] for code in codes}) > 1:
                raise UserError("translations.places has several numbers, but all languages go together: give one")
            quotas.append(TranslationQuota(domain=domain, languages=tuple(codes), places=wanted[codes[0]]))
        elif not together:
            quotas += [TranslationQuota(domain=domain, languages=(code,), places=wanted[code]) for code in codes]
    return quotas


def languages_to_translate(quotas: Iterable[TranslationQuota], sources: Sources) -> list[str]:
    """Returns the languages in which some source of their quotas has no version, in the order of the quotas."""
    return list(
        dict.fromkeys(
            code
            for quota in quotas
            for code in quota.languages
            if not all(_version_in(versions, code) for versions in sources.pools[quota.domain.name])
        )
    )


def _version_in(versions: Coupled, language: str) -> Question | None:
    return next((version for version in versions if version.language == language), None)


def _places(languages: Sequence[str], places: int | Mapping[str, int]) -> dict[str, int]:
    if not languages or len(set(languages)) < len(languages):
        raise UserError(f"translations.languages is {' '.join(languages) or 'empty'}: name each language once")
    for code in languages:
        language_of(code)
        if not isinstance(places, int) and code not in places:
            raise UserError(f"translations.places has no number for {code}: name how many questions it gets")
    wanted = {code: places if isinstance(places, int) else places[code] for code in languages}
    return wanted


@dataclasses.dataclass(frozen=True)
class Tried(Generic[Result]):
    """An attempt to fill a place (from 0) of a quota, the number of the attempt for this place (from 1), its result."""

    place: int
    attempt: int
    result: Result


async def fill(
    pool: Iterable[Item],
    places: int,
    attempts: int,
    attempt: Callable[[Item], Awaitable[Result]],
    passed: Callable[[Result], bool],
    *,
    width: int,
) -> list[Tried[Result]]:
    """Fills places from a pool whose items are used once each, in order; returns all attempts, round by round.

    In every round each empty place gets the next item. The items that are tried therefore depend on the pool and the
    results, but not on the order in which results arrive.

    Args:
      pool: The items.
      places: Number of places.
      attempts: Maximum attempts per place.
      attempt: Tries an item.
      passed: Whether a result fills its place.
      width: Maximum concurrent attempts.
    """
    left, empty, tried = iter(pool), list(range(places)), []
    for number in range(1, attempts + 1):
        dealt = list(zip(empty, left, strict=False))
        results = await each_of([item for _, item in dealt], attempt, width=width)
        tried += [Tried(place, number, result) for (place, _), result in zip(dealt, results, strict=True)]
        filled = {place for (place, _), result in zip(dealt, results, strict=True) if passed(result)}
        empty = [place for place in empty if place not in filled]
        if not empty or not dealt:
            break
    return tried


async def each_of(items: Sequence[Item], do: Callable[[Item], Awaitable[Result]], *, width: int) -> list[Result]:
    """Applies `do` to every item, at most `width` at a time; returns the results in order.

    Raises the first exception of an item; no further item is started.
    """
    results: dict[int, Result] = {}
    numbered = iter(enumerate(items))

    async def work() -> None:
        for number, item in numbered:
            results[number] = await do(item)

    workers = [asyncio.ensure_future(work()) for _ in range(min(width, len(items)))]
    try:
        await asyncio.gather(*workers)
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    return [results[number] for number in range(len(items))]


@dataclasses.dataclass(frozen=True)
class Version:
    """A source in one language, and the questions made of it: none if a stage removed it."""

    attempt: Attempt
    questions: tuple[Question, ...]


Versions: TypeAlias = tuple[Version, ...]  # of one source, in the languages of its quota


def all_passed(versions: Versions) -> bool:
    """Whether a source passed in every language of its quota."""
    return all(version.attempt.passed for version in versions)


async def fill_quotas(
    quotas: Sequence[TranslationQuota],
    sources: Sources,
    stages: Stages,
    *,
    attempts: int,
    width: int,
    seen: Callable[[bool], None],
) -> list[list[Tried[Versions]]]:
    """Fills all quotas concurrently; returns all attempts of each.

    Args:
      quotas: The quotas.
      sources: The sources that may fill them.
      stages: The stages that each source passes.
      attempts: Maximum attempts per place.
      width: Maximum concurrent attempts of a quota.
      seen: Called after every attempt with whether it filled its place.
    """

    async def filled(quota: TranslationQuota) -> list[Tried[Versions]]:
        async def attempt(found: Coupled) -> Versions:
            versions = tuple(await each_of(quota.languages, lambda code: _version(found, code, stages), width=width))
            seen(all_passed(versions))
            return versions

        pool = sources.pools[quota.domain.name]
        return await fill(pool, quota.places, attempts, attempt, all_passed, width=width)

    return await each_of(quotas, filled, width=len(quotas))


async def _version(found: Coupled, language: str, stages: Stages) -> Version:
    source = found[0]
    if own := _version_in(found, language):
        return Version(Attempt(question=source, domain=domain_of(source), language=language), (own,))
    attempt = await stages.attempt(source, language)
    if not attempt.passed or attempt.translation is None:
        return Version(attempt, ())
    return Version(attempt, tuple(versions_of(source, attempt.domain, attempt.translation, language)))
