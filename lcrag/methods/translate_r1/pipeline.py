"""Answer-preserving translation (Translate-R1, section 3.2 and appendix L): models, stages, quotas, the report.

A source that a stage removes is replaced by another one until a language has its quota. The stages are functions of the
models' answers, so equal answers give equal questions. Only `RequestCache` waits for models.
"""

import asyncio
import contextlib
import dataclasses
import functools
import hashlib
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import gin

from lcrag.data.questions import Coupled, Question, coupled, language_of, seeded_order
from lcrag.data.rows import question_row
from lcrag.episodes import Completer, Completion, GenerationFailure, Translator
from lcrag.errors import Count, Share, UserError, typed
from lcrag.evaluation.tables import Cell, Table, row_of
from lcrag.methods.translate_r1.texts import (
    DOMAINS,
    LABEL,
    MATHEMATICS,
    MULTIPLE_CHOICE,
    TRANSLATION,
    Domain,
    Parts,
    domain_of,
    joined,
    judge_prompt,
    parts_in,
    parts_of,
    portions_of,
    split_options,
    translation_prompt,
    versions_of,
)
from lcrag.models.completers import LOCAL, ChatEndpoint, user_message
from lcrag.rewards.domains import LETTERS, chrf, length_ratio, repetition_ratio
from lcrag.sampling import SamplingParameters

# --- The models that translate and judge ---

TRANSLATOR, JUDGE = "translator", "judge"  # the roles


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelRequest:
    """One request to a model: its answer depends on nothing else."""

    role: str
    prompt: str
    max_tokens: int  # of the answer
    number: int = 0  # of the answer to this prompt; the first is greedy, later ones are sampled

    def key(self, model: str) -> str:
        """Identifies the request to a model, in 32 hexadecimal digits."""
        content = json.dumps([model, *dataclasses.astuple(self)], ensure_ascii=False)
        return hashlib.sha256(content.encode()).hexdigest()[:32]

    @property
    def sampling(self) -> SamplingParameters:
        """Sampling parameters of the answer; the seed has 31 bits and depends on the request alone."""
        seed = int(self.key(""), 16) % 2**31
        return SamplingParameters(max_tokens=self.max_tokens, temperature=0.7 if self.number else 0.0, seed=seed)


@runtime_checkable
class Model(Protocol):
    """A model that answers up to `in_flight` requests concurrently; `name` identifies it wherever it is served."""

    name: str
    in_flight: int

    async def answer(self, request: ModelRequest) -> str:
        """Returns the whole answer; a `UserError` (unavailable, or refused) ends the run."""


class RequestCache(contextlib.AbstractAsyncContextManager):
    """Sends requests to models (by role) and stores every answer; an asynchronous context manager.

    On exit, or after a failed request, it starts no further requests, but waits for the answers in flight and stores
    them. `answered` has stored answers by the requests' keys; `store` stores rows `{"key", "role", "answer"}` durably
    and is called on a thread, one call at a time.
    """

    def __init__(
        self,
        models: Mapping[str, Model],
        answered: Mapping[str, str],
        store: Callable[[Sequence[Mapping[str, Any]]], None],
    ):
        self._models, self._answered, self._store = models, answered, store
        self._slots = {role: asyncio.Semaphore(model.in_flight) for role, model in models.items()}
        self._sent: dict[str, asyncio.Task[str]] = {}
        self._unwritten: list[Mapping[str, Any]] = []
        self._writing = asyncio.Lock()
        self._closed = False

    async def __aexit__(self, *_: object) -> None:
        self._closed = True
        await asyncio.gather(*self._sent.values(), return_exceptions=True)

    async def __call__(self, request: ModelRequest) -> str:
        """Returns the answer to a request; equal requests are sent once."""
        if request.role not in self._models:
            raise UserError(
                f"there is no {request.role} to ask: bind translations.{request.role} = @{request.role}/EndpointModel()"
            )
        key = request.key(self._models[request.role].name)
        if key in self._answered:
            return self._answered[key]
        if key not in self._sent:
            self._sent[key] = asyncio.create_task(self._send(key, request))
        return await asyncio.shield(self._sent[key])  # a cancelled caller does not cancel the request

    async def _send(self, key: str, request: ModelRequest) -> str:
        async with self._slots[request.role]:
            if self._closed:
                raise asyncio.CancelledError
            try:
                answer = await self._models[request.role].answer(request)
            except Exception:
                self._closed = True
                raise
            # One write stores all rows that arrived during the previous one: a durable write takes milliseconds.
            self._unwritten.append({"key": key, "role": request.role, "answer": answer})
            async with self._writing:
                rows, self._unwritten = self._unwritten, []
                if rows:
                    await asyncio.to_thread(self._store, rows)
        return answer


@gin.register
@typed
class EndpointModel:
    """A chat model served by an OpenAI-compatible endpoint; its key is OPENAI_API_KEY of the environment.

    Args:
      url: The endpoint, up to `/v1`.
      attempts, seconds: Attempts per answer while the endpoint is unavailable, and the timeout of each.
    """

    def __init__(self, model: str, url: str = LOCAL, in_flight: Count = 192, attempts: int = 6, seconds: float = 120.0):
        self.name, self.in_flight = model, in_flight
        self._endpoint = ChatEndpoint(model, url, attempts=attempts, seconds=seconds)
        self._threads = ThreadPoolExecutor(in_flight, thread_name_prefix="endpoint")

    async def answer(self, request: ModelRequest) -> str:
        """Returns the endpoint's answer."""
        chosen, messages = request.sampling, user_message(request.prompt)
        say = functools.partial(
            self._endpoint.say, messages, temperature=chosen.temperature, max_tokens=chosen.max_tokens, seed=chosen.seed
        )
        return (await asyncio.get_running_loop().run_in_executor(self._threads, say)).text


@gin.register
@typed
class CompleterModel:
    """A `Completer`, such as a local checkpoint; requests that arrive during a batch form the next one.

    Answers are stored under its `name`; a batch has at most `in_flight` requests.
    """

    def __init__(self, completer: Completer, name: str = "local", in_flight: Count = 256):
        self.name, self.in_flight = name, in_flight
        self._completer = completer
        self._waiting: list[tuple[ModelRequest, asyncio.Future[Completion | GenerationFailure]]] = []
        self._working = asyncio.Lock()

    async def answer(self, request: ModelRequest) -> str:
        """Returns the answer from the batch that the request is part of; a failed batch fails all of it."""
        answer: asyncio.Future[Completion | GenerationFailure] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, answer))
        await asyncio.sleep(0)  # lets other tasks add their requests to the batch
        async with self._working:
            batch, self._waiting = self._waiting, []
            prompts = [(waiting.prompt, waiting.sampling) for waiting, _ in batch]
            try:
                completions = await asyncio.to_thread(self._completer, prompts) if batch else ()
            except Exception as error:
                for _, future in batch:
                    future.set_exception(error)
            else:
                for (_, future), completion in zip(batch, completions, strict=True):
                    future.set_result(completion)
        completion = await answer
        if isinstance(completion, GenerationFailure):
            raise UserError(f"{self.name} fails: {completion.reason}")
        return completion.text


# --- The stages ---

Ask: TypeAlias = Callable[[ModelRequest], Awaitable[str]]

STAGES = ("source filter", "forward translation", "heuristics", "back-translation", "judge")
SOURCE, FORWARD, HEURISTICS, BACK, JUDGED = STAGES
SAME, DIFFERENT, NEITHER = "SAME", "DIFFERENT", "neither SAME nor DIFFERENT"

JUDGE_RETRIES = 3
ANSWERS_TRIED = 64
_JUDGE_TOKENS = 2048  # reasoning models need most of them


@gin.register
@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Thresholds:
    """Thresholds of the stages (Translate-R1, appendix L)."""

    natural_language: Share = 0.8  # minimum share of natural language in a source
    characters: int = 2000  # a mathematical problem must be shorter; the paper limits no other domain
    repetition: Share = 0.3  # maximum repetition ratio of a translation's 10-grams of characters
    min_length: float = 0.2  # minimum and maximum ratio of a translation's length to its source's, in characters
    max_length: float = 3.0
    copy: Share = 0.9  # maximum chrF of a translation to its source
    round_trip: Share = 0.4  # minimum chrF of a back-translation to the source
    round_trip_texts: Share = 0.35  # the same for the domain `translation`, whose short texts vary more


def unfit_source(question: Question, domain: Domain, thresholds: Thresholds) -> str:
    """Returns why the source filter (stage 1) removes a question, empty if it passes.

    The share of natural language is that of the question without its options, which may be numbers.
    """
    if domain is MATHEMATICS and len(question.text) >= thresholds.characters:
        return "too long"
    stem = question.text
    if domain is MULTIPLE_CHOICE:
        options = split_options(question.text)
        if options is None or len(options.texts) < 4 or not all((options.stem, *options.texts.values())):
            return "no options A to D"
        if not set(question.answers) <= {*options.texts} & {*LETTERS}:
            return "the answer is no option"
        stem = options.stem
    return "" if natural_language_share(stem) >= thresholds.natural_language else "too little natural language"


# Formulas and code. A dollar sign opens a formula only before a character other than white space; it closes one only
# after such a character and not before a digit. "$5 and $10" are therefore prices.
_NOTATION = re.compile(
    r"```.*?```|`[^`\n]+`|\$\$.*?\$\$|\$(?=\S)[^$\n]*?(?<=\S)\$(?!\d)|\\\[.*?\\\]|\\\(.*?\\\)"
    r"|\\begin\{(\w+\*?)\}.*?\\end\{\1\}|\\[A-Za-z]+",
    re.DOTALL,
)


def natural_language_share(text: str) -> float:
    """Returns the share of prose (letters and their punctuation) in all prose and notation; 0 if there is neither.

    Notation is everything in a formula or in code, and outside of them every sign that prose does not use. Numbers,
    currency signs, `%` and `°` outside of formulas, which word problems are full of, are neither, nor are invisible
    signs such as joiners.
    """
    outside = _NOTATION.sub(" ", text)
    notation = len("".join(text.split())) - len("".join(outside.split()))
    prose = 0
    for character in outside:
        category = unicodedata.category(character)
        if character.isspace() or category == "Cf" or character in "%°" or category[0] == "N" or category == "Sc":
            continue
        punctuation = character in ".,;:!?'\"()-" if character.isascii() else category[0] == "P"
        if category[0] in "LM" or punctuation:
            prose += 1
        else:
            notation += 1
    return prose / (prose + notation) if prose + notation else 0.0


def defect(translation: str, source: str, thresholds: Thresholds) -> str:
    """Returns the name of a translation's first defect by the heuristics (stage 3), or "" if it has none."""
    if repetition_ratio(translation) > thresholds.repetition:
        return "repeats itself"
    length = length_ratio(translation, source)
    if not thresholds.min_length <= length <= thresholds.max_length:
        return "too short" if length < thresholds.min_length else "too long"
    return "a copy of the source" if chrf(translation, [source]) > thresholds.copy else ""


def verdict_in(answer: str) -> str:
    """Returns `SAME`, `DIFFERENT` or `NEITHER`: what a judge's answer (stage 5) says in its last tags, or without tags.

    Case and surrounding punctuation do not matter.
    """
    tagged = re.findall(r"<verdict>(.*?)</verdict>", answer, re.DOTALL | re.IGNORECASE)
    verdict = (tagged[-1] if tagged else answer).strip(" \t\r\n.!*_`'\"").upper()
    return verdict if verdict in (SAME, DIFFERENT) else NEITHER


@dataclasses.dataclass
class Attempt:
    """What became of a source in one language."""

    question: Question  # the source
    domain: Domain
    language: str  # the target language
    stage: str = ""  # the stage that removed it; empty if it passed
    cause: str = ""  # why that stage removed it
    portion: str = ""  # what that stage removed, `LABEL` or `TEXT`, in a domain that translates them separately
    translation: Parts = dataclasses.field(default_factory=dict)  # so far
    back: Parts = dataclasses.field(default_factory=dict)  # so far
    similarity: float | None = None  # chrF of the back-translation to the source, the minimum of label and text
    questions: Sequence[Question] = ()  # made of it if it passed

    @property
    def passed(self) -> bool:
        """Whether no stage removed it."""
        return not self.stage

    def removed(self, stage: str, cause: str) -> "Attempt":
        """Returns itself, removed by a stage."""
        self.stage, self.cause = stage, cause
        return self


@dataclasses.dataclass
class Stages:
    """Stages 2 to 5."""

    ask: Ask
    thresholds: Thresholds
    # Language -> an exact translator into it and back, such as the look-up of constructed languages; the others are
    # translated by the model with the role `translator`.
    exact: Mapping[str, Translator]
    answers: Counter[tuple[str, bool]] = dataclasses.field(default_factory=Counter, init=False)  # of (role, usable)

    async def attempt(self, question: Question, language: str) -> Attempt:
        """Takes a source through the stages, up to the first that removes it."""
        domain, home, exact = domain_of(question), question.language, self.exact.get(language)
        source, thresholds = parts_of(question, domain), self.thresholds
        min_round_trip = thresholds.round_trip_texts if domain is TRANSLATION else thresholds.round_trip
        made = Attempt(question, domain, language)
        for portion, described, parts in portions_of(source, domain):
            made.portion = portion
            forward = await self._translate(parts, described, home, language, exact)
            if forward is None:
                return made.removed(FORWARD, "no output")
            made.translation |= forward
            if cause := defect(joined(forward), joined(parts), thresholds):
                return made.removed(HEURISTICS, cause)
            back = await self._translate(forward, described, language, home, exact)
            if back is None:
                return made.removed(BACK, "no output")
            made.back |= back
            kept = chrf(joined(back), [joined(parts)])
            made.similarity = kept if made.similarity is None else min(kept, made.similarity)
            if kept < min_round_trip:
                return made.removed(BACK, "low chrF")
        made.portion = ""
        if (verdict := await self._judge(source, made.back, domain)) != SAME:
            return made.removed(JUDGED, verdict)
        made.questions = versions_of(question, domain, made.translation, language)
        return made

    async def _translate(
        self, parts: Parts, domain: Domain, source: str, target: str, exact: Translator | None
    ) -> Parts | None:
        """Translates parts in either direction (stages 2 and 4); None on failure."""
        if exact is not None:
            texts = await asyncio.to_thread(exact, list(parts.values()), source, target)
            usable = all(isinstance(text, str) and text.strip() for text in texts)
            return {key: str(text) for key, text in zip(parts, texts, strict=True)} if usable else None
        prompt = translation_prompt(parts, domain, source, target)
        answer = await self.ask(ModelRequest(role=TRANSLATOR, prompt=prompt, max_tokens=domain.max_tokens))
        translated = parts_in(answer, parts)
        self._count(TRANSLATOR, answer, usable=translated is not None)
        return translated

    async def _judge(self, original: Parts, back: Parts, domain: Domain) -> str:
        """Asks for the verdict (stage 5), up to four times until an answer has one."""
        if original == back:
            return SAME
        prompt = judge_prompt(original, back, domain)
        for number in range(1 + JUDGE_RETRIES):
            answer = await self.ask(ModelRequest(role=JUDGE, prompt=prompt, max_tokens=_JUDGE_TOKENS, number=number))
            verdict = verdict_in(answer)
            self._count(JUDGE, answer, usable=verdict != NEITHER)
            if verdict != NEITHER:
                return verdict
        return NEITHER

    def _count(self, role: str, answer: str, *, usable: bool) -> None:
        """Stops the run if no answer of a model is usable so far: it would use up all sources."""
        self.answers[role, usable] += 1
        if not self.answers[role, True] and self.answers[role, False] >= ANSWERS_TRIED:
            raise UserError(
                f"none of the {role}'s first {ANSWERS_TRIED} answers is usable, the last one says {answer[:200]!r}:"
                " choose another model"
            )


class Sources(NamedTuple):
    """The result of the source filter."""

    # Domain -> its sources, each with the existing versions, the source first. Every language tries them in this order,
    # so languages mostly share their questions.
    pools: Mapping[str, Sequence[Coupled]]
    removed: Sequence[Attempt]


def filter_sources(questions: Iterable[Question], thresholds: Thresholds, *, preferred: str, seed: int) -> Sources:
    """Applies stage 1 to all questions; `preferred` is the language of the version that becomes the source."""
    pools: dict[str, dict[str, Coupled]] = defaultdict(dict)
    removed = []
    for versions in coupled(questions):
        source, *others = sorted(versions, key=lambda version: version.language != preferred)
        domain = domain_of(source)
        if cause := unfit_source(source, domain, thresholds):
            removed.append(Attempt(source, domain, source.language).removed(SOURCE, cause))
        else:
            pools[domain.name][source.coupling] = (source, *others)
    if not pools:
        raise UserError(
            f"no question is left to translate: the source filter removed all {len(removed)}, the first as"
            f" {removed[0].cause}; give it other questions or set Thresholds"
        )
    return Sources({name: [pool[key] for key in seeded_order(pool, seed)] for name, pool in pools.items()}, removed)


@dataclasses.dataclass
class Quota:
    """How many questions a domain needs; a source counts if it passes in every language."""

    domain: Domain
    languages: tuple[str, ...]
    places: int
    # (place, number of the attempt to fill it, what became of a source in each language), round by round
    tried: list[tuple[int, int, Sequence[Attempt]]] = dataclasses.field(default_factory=list)


def quotas_of(
    sources: Sources, languages: Sequence[str], places: int | Mapping[str, int], *, together: bool
) -> list[Quota]:
    """Returns the quotas of every domain that has sources.

    Sources of the domain `translation` are not translated into a language that some of them are written in.

    Args:
      places: Questions per language and domain: one number, or a number for each language.
      together: Whether a question must pass in all languages, rather than in any one.
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
        quotas += [Quota(domain, group, wanted[group[0]]) for group in groups]
    return quotas


def languages_to_translate(quotas: Iterable[Quota], sources: Sources) -> list[str]:
    """Returns the languages in which some source of their quotas has no version, in the order of the quotas."""
    lacking = (
        code
        for quota in quotas
        for code in quota.languages
        if not all(_version_in(versions, code) for versions in sources.pools[quota.domain.name])
    )
    return list(dict.fromkeys(lacking))


def _version_in(versions: Coupled, language: str) -> Question | None:
    return next((version for version in versions if version.language == language), None)


def all_passed(attempts: Sequence[Attempt]) -> bool:
    """Whether a source passed in every language of its quota."""
    return all(attempt.passed for attempt in attempts)


async def fill_quotas(
    quotas: Sequence[Quota],
    sources: Sources,
    stages: Stages,
    *,
    attempts: int,
    width: int,
    seen: Callable[[bool], None],
) -> None:
    """Fills all quotas concurrently: sets their `tried`.

    In every round each empty place of a quota gets the next source of its domain. The sources that are tried therefore
    depend on the pool and the results, but not on the order in which results arrive.

    Args:
      attempts: Maximum attempts per place.
      width: Maximum concurrent attempts of a quota.
      seen: Called after every attempt with whether it filled its place.
    """

    async def attempt(quota: Quota, versions: Coupled) -> Sequence[Attempt]:
        async def in_language(code: str) -> Attempt:
            if version := _version_in(versions, code):
                return Attempt(versions[0], quota.domain, code, questions=(version,))
            return await stages.attempt(versions[0], code)

        made = await asyncio.gather(*map(in_language, quota.languages))
        seen(all_passed(made))
        return made

    async def fill(quota: Quota) -> None:
        left, empty = iter(sources.pools[quota.domain.name]), list(range(quota.places))
        made: list[tuple[int, int, Sequence[Attempt]]]

        async def work(number: int, dealt: Iterator[tuple[int, Coupled]]) -> None:
            for place, versions in dealt:
                made.append((place, number, await attempt(quota, versions)))

        for number in range(1, attempts + 1):
            made, dealt = [], zip(empty, left, strict=False)
            # `width` workers share the round, for a quota may have thousands of places.
            await asyncio.gather(*(work(number, dealt) for _ in range(width)))
            quota.tried += sorted(made, key=lambda result: result[0])
            filled = {place for place, _, results in made if all_passed(results)}
            empty = [place for place in empty if place not in filled]
            if not empty or not made:
                break

    await asyncio.gather(*map(fill, quotas))


# --- The report ---


def attempt_rows(sources: Sources, quotas: Iterable[Quota]) -> Iterator[dict[str, Any]]:
    """Yields a row for every attempt: those of the source filter, then each quota's in the order of its rounds."""

    def row(attempt: Attempt) -> dict[str, Any]:
        return {
            "id": attempt.question.id,
            "dataset": attempt.question.dataset,
            "domain": attempt.domain.name,
            "source": attempt.question.language,
            "language": attempt.language,
            "removed_by": attempt.stage or None,
            "cause": attempt.cause or None,
            "portion": attempt.portion or None,
            "chrf": attempt.similarity,
            "translation": attempt.translation or None,
            "back_translation": attempt.back or None,
        }

    yield from map(row, sources.removed)
    for quota in quotas:
        for place, number, attempts in quota.tried:
            for attempt in attempts:
                yield row(attempt) | {"place": place, "attempt": number}


def question_rows(quotas: Iterable[Quota]) -> list[dict[str, Any]]:
    """Returns the questions of all filled places as rows that `lcrag.data.rows` reads.

    Versions of one question share their id, which begins with the data set's name if there are several data sets.
    """
    filled = [attempts for quota in quotas for *_, attempts in quota.tried if all_passed(attempts)]
    questions = [question for attempts in filled for attempt in attempts for question in attempt.questions]
    several = len({question.dataset for question in questions}) > 1
    return [question_row(question, identity=question.coupling if several else None) for question in questions]


def translation_report(sources: Sources, quotas: Sequence[Quota], roles: Iterable[str]) -> dict[str, Any]:
    """Counts what each stage removed per domain and language, and the requests by their `roles`: `report.json`."""
    unfit = Counter((attempt.domain.name, attempt.cause) for attempt in sources.removed)

    def causes_of(counts: Counter[tuple[str, str]], group: str) -> dict[str, int]:
        return {cause: count for (of, cause), count in counts.most_common() if of == group}

    read = Counter({domain: len(pool) for domain, pool in sources.pools.items()})
    read.update(attempt.domain.name for attempt in sources.removed)
    languages = []
    for quota in quotas:
        for place, language in enumerate(quota.languages):
            attempts = [attempts[place] for *_, attempts in quota.tried]
            similarities = [
                attempt.similarity for attempt in attempts if attempt.passed and attempt.similarity is not None
            ]
            # A cause names the portion if that was removed alone.
            causes = Counter(
                (attempt.stage, f"{attempt.portion}: {attempt.cause}" if attempt.portion else attempt.cause)
                for attempt in attempts
                if not attempt.passed
            )
            languages.append(
                {
                    "domain": quota.domain.name,
                    "language": language,
                    "places": quota.places,
                    "filled": sum(all_passed(attempts) for *_, attempts in quota.tried),
                    "attempts": len(attempts),
                    "passed": sum(attempt.passed for attempt in attempts),
                    "removed": {stage: causes_of(causes, stage) for stage in STAGES[1:]},
                    "texts_spared": sum(attempt.portion == LABEL for attempt in attempts),
                    "chrf": sum(similarities) / len(similarities) if similarities else None,
                }
            )
    return {
        "sources": {domain: {"read": read[domain], "removed": causes_of(unfit, domain)} for domain in sorted(read)},
        "languages": languages,
        "requests": dict(sorted(Counter(roles).items())),
    }


def report_tables(report: Mapping[str, Any]) -> list[Table]:
    """Returns two tables of a report: what the source filter removed, and the other stages in each language."""
    sources, languages = report["sources"], report["languages"]
    causes = list(dict.fromkeys(cause for domain in sources.values() for cause in domain["removed"]))
    filtered = tuple(
        row_of(name.replace("_", " "), domain["read"], *(domain["removed"].get(cause, 0) for cause in causes))
        for name, domain in sources.items()
    )
    lines: dict[str, list[tuple[Cell, ...]]] = {}
    for row in languages:
        removed = (sum(counts.values()) for counts in row["removed"].values())
        chrf = "–" if row["chrf"] is None else f"{row['chrf']:.3f}"
        numbers = (row["places"], row["filled"], row["attempts"], *removed)
        lines.setdefault(row["domain"], []).append(row_of(language_of(row["language"]).name, *numbers, chrf))
    spared = sum(row["texts_spared"] for row in languages)
    requests = ", ".join(f"{count:,} of the {role}" for role, count in report["requests"].items()) or "none"
    return [
        Table(
            title="Source filter: questions read, and removed because of",
            header=("domain", "read", *causes),
            sections=(filtered,),
        ),
        Table(
            title="Places filled, sources tried for them, and what each stage removed",
            header=("", "places", "filled", "tried", *STAGES[1:], "chrF"),
            sections=tuple(map(tuple, lines.values())),
            section_titles=tuple(domain.replace("_", " ") for domain in lines),
            note=f"chrF: mean of the back-translations that passed. Requests: {requests}."
            + (f" Texts never translated, since their label failed: {spared:,}." if spared else ""),
        ),
    ]
