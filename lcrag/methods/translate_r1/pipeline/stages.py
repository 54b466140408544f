"""Answer-preserving translation: the stages that a source passes, and the recycling that fills quotas.

Translate-R1, section 3.2 and appendix L. A source that a stage removes is replaced by another one until a language has
its quota. The stages are functions of the models' answers, so equal answers give equal questions.
"""

import asyncio
import collections
import dataclasses
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from lcrag.data.batches import Coupled, coupled, seeded_order
from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.episodes import Translator
from lcrag.errors import UserError
from lcrag.methods.translate_r1.pipeline.checks import Thresholds, Verdict, defect, unfit_source, verdict_in
from lcrag.methods.translate_r1.pipeline.models import JUDGE, TRANSLATOR, ModelRequest
from lcrag.methods.translate_r1.pipeline.texts import (
    DOMAINS,
    TRANSLATION,
    Domain,
    Parts,
    TextKind,
    domain_of,
    joined,
    judge_prompt,
    parts_in,
    parts_of,
    portions_of,
    translation_prompt,
    versions_of,
)
from lcrag.rewards.domains.written_texts import chrf

Item = TypeVar("Item")
Result = TypeVar("Result")


SOURCE, FORWARD, HEURISTICS = "source filter", "forward translation", "heuristics"
BACK, JUDGED = "back-translation", "judge"
STAGES = (SOURCE, FORWARD, HEURISTICS, BACK, JUDGED)

NO_OUTPUT, LOST, DIFFERENT, NEITHER = "no output", "low chrF", "DIFFERENT", "neither SAME nor DIFFERENT"

JUDGE_RETRIES = 3
ANSWERS_TRIED = 64
_JUDGE_TOKENS = 2048  # reasoning models need most of them

Ask: TypeAlias = Callable[[ModelRequest], Awaitable[str]]
# (parts, their kind, code of their language, code of the target language) -> the translated parts, None on failure
Render: TypeAlias = Callable[[Mapping[str, str], TextKind, str, str], Awaitable[Parts | None]]
# (original, back-translation, domain) -> the verdict
Judge: TypeAlias = Callable[[Mapping[str, str], Mapping[str, str], Domain], Awaitable[Verdict]]


class UsableAnswers:
    """Stops a run early if the model never gives a usable answer; `complaint` begins the message."""

    def __init__(self, complaint: str):
        self._complaint, self._seen, self._usable = complaint, 0, False

    def count(self, answer: str, *, usable: bool) -> None:
        """Counts an answer.

        Raises:
          UserError: none of the first 64 answers is usable.
        """
        self._usable |= usable
        self._seen += 1
        if not self._usable and self._seen >= ANSWERS_TRIED:
            raise UserError(
                f"{self._complaint} in {ANSWERS_TRIED} answers, it says {answer[:200]!r}: choose another model"
            )


def prompted_rendering(ask: Ask) -> Render:
    """Translates by prompting the model with the role `translator` (stages 2 and 4)."""
    usable = UsableAnswers("the translator writes no translation between <output> and </output>")

    async def render(parts: Mapping[str, str], kind: TextKind, source: str, target: str) -> Parts | None:
        prompt = translation_prompt(parts, kind, source, target)
        answer = await ask(ModelRequest(role=TRANSLATOR, prompt=prompt, max_tokens=kind.max_tokens))
        found = parts_in(answer, parts)
        usable.count(answer, usable=found is not None)
        return found

    return render


def exact_rendering(translator: Translator) -> Render:
    """Translates with an exact translator, such as the look-up of constructed languages, on another thread."""

    async def render(parts: Mapping[str, str], kind: TextKind, source: str, target: str) -> Parts | None:
        texts = await asyncio.to_thread(translator, list(parts.values()), source, target)
        rendered = {key: text for key, text in zip(parts, texts, strict=True) if isinstance(text, str) and text.strip()}
        return rendered if rendered.keys() == parts.keys() else None

    return render


def prompted_judge(ask: Ask) -> Judge:
    """Asks the model with the role `judge` for the verdict (stage 5), up to four times until an answer has one.

    A back-translation that equals the original is SAME without a request.
    """
    usable = UsableAnswers("the judge says neither SAME nor DIFFERENT")

    async def judge(original: Mapping[str, str], back: Mapping[str, str], domain: Domain) -> Verdict:
        if original == back:
            return "SAME"
        prompt = judge_prompt(original, back, domain)
        for number in range(1 + JUDGE_RETRIES):
            answer = await ask(ModelRequest(role=JUDGE, prompt=prompt, max_tokens=_JUDGE_TOKENS, number=number))
            verdict = verdict_in(answer)
            usable.count(answer, usable=verdict != "neither")
            if verdict != "neither":
                return verdict
        return "neither"

    return judge


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """The result of a source in one language.

    Attributes:
      question: The source.
      domain: Its domain.
      language: The target language.
      stage: The stage that removed it; empty if it passed.
      cause: Why that stage removed it.
      portion: Which portion that stage removed, `LABEL` or `TEXT`, in a domain that translates them separately.
      translation: The translated parts so far.
      back: The parts translated back so far.
      similarity: chrF of the back-translation to the source, in [0, 1]; the minimum of label and text if they are
        translated separately; None before that stage.
      questions: The questions made of it if it passed.
    """

    question: Question
    domain: Domain
    language: str
    stage: str = ""
    cause: str = ""
    portion: str = ""
    translation: Parts | None = None
    back: Parts | None = None
    similarity: float | None = None
    questions: tuple[Question, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no stage removed it."""
        return not self.stage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stages:
    """Stages 2 to 5.

    Attributes:
      renderings: Language code -> translates into that language and back.
      judge: Compares originals with back-translations.
      thresholds: Thresholds of the heuristics and the round trip.
    """

    renderings: Mapping[str, Render]
    judge: Judge
    thresholds: Thresholds

    async def attempt(self, question: Question, language: str) -> Attempt:
        """Takes a source through the stages, up to the first that removes it.

        Raises:
          UserError: a model is unavailable or never gives a usable answer.
        """
        domain, home, render = domain_of(question), question.language, self.renderings[language]
        source = parts_of(question, domain)
        translation: Parts = {}
        back: Parts = {}
        similarity: float | None = None

        def ended(stage: str = "", cause: str = "", portion: str = "", questions: Iterable[Question] = ()) -> Attempt:
            return Attempt(
                question=question,
                domain=domain,
                language=language,
                stage=stage,
                cause=cause,
                portion=portion,
                translation=translation or None,
                back=back or None,
                similarity=similarity,
                questions=tuple(questions),
            )

        for name, kind, parts in portions_of(source, domain):
            forward = await render(parts, kind, home, language)
            if forward is None:
                return ended(FORWARD, NO_OUTPUT, name)
            translation |= forward
            if cause := defect(joined(forward), joined(parts), self.thresholds):
                return ended(HEURISTICS, cause, name)
            returned = await render(forward, kind, language, home)
            if returned is None:
                return ended(BACK, NO_OUTPUT, name)
            back |= returned
            kept = chrf(joined(returned), [joined(parts)])
            similarity = kept if similarity is None else min(kept, similarity)
            if kept < self.thresholds.min_round_trip(domain):
                return ended(BACK, LOST, name)
        verdict = await self.judge(source, back, domain)
        if verdict != "SAME":
            return ended(JUDGED, DIFFERENT if verdict == "DIFFERENT" else NEITHER)
        return ended(questions=versions_of(question, domain, translation, language))


class TranslationQuota(NamedTuple):
    """How many questions a domain needs; a source counts if it passes in every language."""

    domain: Domain
    languages: tuple[str, ...]
    places: int


class Sources(NamedTuple):
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
    return Sources({name: [pool[key] for key in seeded_order(pool, seed)] for name, pool in pools.items()}, removed)


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
    if not languages or len(set(languages)) < len(languages):
        raise UserError(f"translations.languages is {' '.join(languages) or 'empty'}: name each language once")
    for code in languages:
        language_of(code)
        if not isinstance(places, int) and code not in places:
            raise UserError(f"translations.places has no number for {code}: name how many questions it gets")
    wanted = {code: places if isinstance(places, int) else places[code] for code in languages}
    quotas = []
    for domain in (DOMAINS[name] for name in DOMAINS if name in sources.pools):
        written = {versions[0].language for versions in sources.pools[domain.name]} if domain is TRANSLATION else ()
        codes = tuple(code for code in languages if code not in written)
        if together and len({wanted[code] for code in codes}) > 1:
            raise UserError("translations.places has several numbers, but all languages go together: give one")
        groups = ([codes] if codes else []) if together else [(code,) for code in codes]
        quotas += [TranslationQuota(domain, group, wanted[group[0]]) for group in groups]
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


@dataclasses.dataclass(frozen=True)
class AttemptResult(Generic[Result]):
    """The result of an attempt to fill a place (from 0) of a quota, and its number for this place (from 1)."""

    place: int
    attempt: int
    result: Result


Attempts: TypeAlias = tuple[Attempt, ...]  # of one source, in the languages of its quota


def all_passed(attempts: Attempts) -> bool:
    """Whether a source passed in every language of its quota."""
    return all(attempt.passed for attempt in attempts)


async def fill(
    pool: Iterable[Item],
    places: int,
    attempts: int,
    attempt: Callable[[Item], Awaitable[Result]],
    passed: Callable[[Result], bool],
    *,
    width: int,
) -> list[AttemptResult[Result]]:
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
        tried += [AttemptResult(place, number, result) for (place, _), result in zip(dealt, results, strict=True)]
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


async def fill_quotas(
    quotas: Sequence[TranslationQuota],
    sources: Sources,
    stages: Stages,
    *,
    attempts: int,
    width: int,
    seen: Callable[[bool], None],
) -> list[list[AttemptResult[Attempts]]]:
    """Fills all quotas concurrently; returns all attempts of each.

    Args:
      quotas: The quotas.
      sources: The sources that may fill them.
      stages: The stages that each source passes.
      attempts: Maximum attempts per place.
      width: Maximum concurrent attempts of a quota.
      seen: Called after every attempt with whether it filled its place.
    """

    async def filled(quota: TranslationQuota) -> list[AttemptResult[Attempts]]:
        async def tried(versions: Coupled) -> Attempts:
            async def in_language(code: str) -> Attempt:
                if own := _version_in(versions, code):
                    return Attempt(question=versions[0], domain=quota.domain, language=code, questions=(own,))
                return await stages.attempt(versions[0], code)

            found = tuple(await each_of(quota.languages, in_language, width=width))
            seen(all_passed(found))
            return found

        return await fill(sources.pools[quota.domain.name], quota.places, attempts, tried, all_passed, width=width)

    return await each_of(quotas, filled, width=len(quotas))
