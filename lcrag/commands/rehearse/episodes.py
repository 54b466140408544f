"""Runs a program's episodes with a script in the policy's place, and measures their lengths and searches."""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from lcrag.commands.rehearse.scripted_policy import Script, ScriptedSampler
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Program, Runner
from lcrag.episodes.host_services import Search
from lcrag.episodes.requests import (
    Complete,
    FittedText,
    FoundPassage,
    Observe,
    Request,
    TextTokenizer,
)
from lcrag.episodes.runner import Progress
from lcrag.episodes.search_log import Asking, LoggedSearch, Requests, intercepted, log_searches
from lcrag.policy import Tokenizer
from lcrag.rewards.matching import holds_answer
from lcrag.rewards.text import segmented
from lcrag.train.method import ProgramOf

NO_LIMIT = 2**40
PERCENTILES = (50, 90, 99, 100)
WORDS_FROM = 500  # number of texts of each language in which tokens per word are counted


@dataclasses.dataclass(eq=False)
class WatchedText:
    """A `FittedText` that records the part of it that was shown."""

    text: FittedText
    shown: str | None = None
    whole: str | None = None

    def fit(self, tokenizer: TextTokenizer, room_tokens: int) -> str | None:
        """Returns the text in at most `room_tokens`; None if it does not fit."""
        self.shown = self.text.fit(tokenizer, room_tokens)
        if self.whole is None:
            self.whole = unlimited(self.text).fit(tokenizer, NO_LIMIT)
        return self.shown


def unlimited(text: FittedText) -> FittedText:
    """Returns a fitted text without its own limits: its fields `..._tokens`, and those of fitted texts inside it."""
    if not dataclasses.is_dataclass(text) or isinstance(text, type):
        return text
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(text):
        value = getattr(text, field.name)
        if field.name.endswith("_tokens") and isinstance(value, int):
            changes[field.name] = NO_LIMIT
        elif isinstance(value, FittedText):
            changes[field.name] = unlimited(value)
    return dataclasses.replace(text, **changes)


def watch_texts(program: Program, texts: list[WatchedText]) -> Program:
    """Wraps a fresh program and appends every fitted text that it shows to `texts`, in order."""

    def watched(asked: Requests) -> Asking:
        parts = asked if isinstance(asked, tuple) else (asked,)
        shown = tuple(_watched(each, texts) for each in parts)
        return (yield shown if isinstance(asked, tuple) else shown[0])

    return intercepted(program, watched)


def _watched(request: Request, texts: list[WatchedText]) -> Request:
    if isinstance(request, Observe) and not isinstance(request.text, str):
        texts.append(WatchedText(request.text))
        return dataclasses.replace(request, text=texts[-1])
    if isinstance(request, Complete) and not isinstance(request.prompt, str):
        texts.append(WatchedText(request.prompt))
        return dataclasses.replace(request, prompt=texts[-1])
    return request


@dataclasses.dataclass
class TimedSearch:
    """A search that measures its calls.

    Attributes:
      search: Answers (query, language) pairs.
      seconds: Duration of each successful call.
      pairs: Number of (query, language) pairs of each of these calls.
      errors: Type of the error and its first line -> number of calls that failed with it.
    """

    search: Search
    seconds: list[float] = dataclasses.field(default_factory=list)
    pairs: list[int] = dataclasses.field(default_factory=list)
    errors: dict[str, int] = dataclasses.field(default_factory=lambda: defaultdict(int))

    def __call__(self, queries: list[str], languages: list[str], k: int) -> Sequence[Sequence[FoundPassage]]:
        """Searches; an error is counted and raised again."""
        started = time.monotonic()
        try:
            found = self.search(queries, languages, k)
        except Exception as error:
            self.errors[f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"] += 1
            raise
        self.seconds.append(time.monotonic() - started)
        self.pairs.append(len(queries))
        return found


@dataclasses.dataclass(frozen=True, kw_only=True)
class Played:
    """One scripted episode.

    Attributes:
      record: The episode.
      searches: Its searches with their results.
      texts: The fitted texts that were shown.
    """

    record: EpisodeRecord
    searches: Sequence[LoggedSearch]
    texts: Sequence[WatchedText]

    @property
    def language(self) -> str:
        """Language of the question."""
        return self.record.question.language

    def turn_tokens(self, by: str) -> list[int]:
        """Returns the length of each turn of one author, after the prompt."""
        counts = np.bincount(self.record.turn + 1, minlength=len(self.record.turns) + 1)[1:]
        return [int(count) for turn, count in zip(self.record.turns, counts, strict=True) if turn.by == by]

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt."""
        return int(np.count_nonzero(self.record.turn < 0))

    @property
    def truncated(self) -> list[bool]:
        """For each fitted text, whether it was cut or not shown at all."""
        return [text.shown != text.whole for text in self.texts]

    @property
    def answer_found(self) -> bool:
        """Whether a passage that was found holds a gold answer."""
        passages = (f"{each.title} {each.text}" for search in self.searches for each in search.passages)
        return holds_answer(passages, self.record.question.answers)

    @property
    def answer_shown(self) -> bool:
        """Whether a gold answer was found, and is in the text that the policy was shown."""
        shown = (text.shown or "" for text in self.texts)
        return self.answer_found and holds_answer(shown, self.record.question.answers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptedEpisodes:
    """The episodes of a script.

    Attributes:
      played: One episode for each prompt.
      search: The search with its measurements.
      clients: Largest number of episodes that searched at once.
      appended_tokens: Environment tokens that were prefilled, those of completions outside the dialogue included.
    """

    played: Sequence[Played]
    search: TimedSearch
    clients: int
    appended_tokens: int


def play_script(
    prompts: Sequence[Question],
    program: ProgramOf,
    runner: Runner,
    tokenizer: Tokenizer,
    *,
    slots: int,
    generated_tokens: int,
    queries: int = 1,
    calls: int = 0,
    progress: Progress | None = None,
) -> ScriptedEpisodes:
    """Runs one episode of each prompt, `slots` of them at once.

    Args:
      prompts: The questions.
      program: Builds a question's program.
      runner: Runs them with a script instead of its sampler.
      tokenizer: The policy's tokenizer.
      slots: Contexts held at once.
      generated_tokens, queries, calls: See `Script`.
      progress: Called with (finished, total).
    """
    script = Script(questions=dict(enumerate(prompts)), generated_tokens=generated_tokens, queries=queries, calls=calls)
    sampler = ScriptedSampler(tokenizer, script, slots=slots, context=runner.sampler.context)
    search = TimedSearch(runner.search)
    searches: list[list[LoggedSearch]] = [[] for _ in prompts]
    texts: list[list[WatchedText]] = [[] for _ in prompts]
    programs = [
        (each, watch_texts(log_searches(program(each), searches[number]), texts[number]), number)
        for number, each in enumerate(prompts)
    ]
    records = dataclasses.replace(runner, sampler=sampler, search=search).run(programs, progress=progress)
    played = [
        Played(record=record, searches=own, texts=shown)
        for record, own, shown in zip(records, searches, texts, strict=True)
    ]
    return ScriptedEpisodes(
        played=played, search=search, clients=min(slots, len(prompts)), appended_tokens=sampler.appended_tokens
    )


def spread(values: Iterable[float]) -> dict[str, float]:
    """Returns mean, percentiles and maximum; empty without values."""
    found: Float[np.ndarray, " n"] = np.asarray(list(values), float)
    if not len(found):
        return {}
    cuts = zip(PERCENTILES, np.percentile(found, PERCENTILES), strict=True)
    return {"mean": float(found.mean())} | {f"p{cut}" if cut < 100 else "most": float(value) for cut, value in cuts}


def lengths(played: Sequence[Played]) -> dict[str, Any]:
    """Returns the lengths of some episodes in tokens, and their counts of searches and cut observations."""
    truncated = [cut for each in played for cut in each.truncated]
    counts = [each.record.counts for each in played]
    return {
        "episodes": len(played),
        "prompt_tokens": spread(each.prompt_tokens for each in played),
        "observation_tokens": spread(length for each in played for length in each.turn_tokens("environment")),
        "generation_tokens": spread(length for each in played for length in each.turn_tokens("policy")),
        "episode_tokens": spread(len(each.record.tokens) for each in played),
        "truncated_observations": float(np.mean(truncated)) if truncated else 0.0,
        "full_contexts": float(np.mean([each["context_full"] for each in counts])),
        "searches": float(np.mean([each["searches"] for each in counts])),
        "tool_calls": float(np.mean([each.get("tool_calls", 0) for each in counts])),
        "retrieval_rounds": float(np.mean([each["retrieval_rounds"] for each in counts])),
        "retrieval_failures": sum(each["retrieval_failures"] for each in counts),
    }


def tokens_per_word(texts_of: Mapping[str, Sequence[str]], tokenizer: Tokenizer) -> dict[str, float]:
    """Returns tokens per word of each language's texts.

    In scripts without spaces between words, each character is a word.
    """
    ratios = {}
    for language, texts in sorted(texts_of.items()):
        chosen = list(dict.fromkeys(texts))[:WORDS_FROM]
        words = sum(len(segmented(text).split()) for text in chosen)
        if words:
            ratios[language] = sum(len(tokenizer.encode_ordinary(text)) for text in chosen) / words
    return ratios


def texts_by_language(played: Sequence[Played]) -> dict[str, list[str]]:
    """Returns the questions and the found passages, by language."""
    texts: dict[str, list[str]] = defaultdict(list)
    for each in played:
        texts[each.language].append(each.record.question.text)
        for search in each.searches:
            for passage in search.passages:
                texts[getattr(passage, "language", each.language)].append(passage.text)
    return texts
