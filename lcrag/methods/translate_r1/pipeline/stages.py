"""The stages that a source passes in one language: translation, heuristics, back-translation, judge.

Translate-R1, section 3.2 and appendix L; stage 1, the source filter, is in `checks` and `quotas`.
"""

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from lcrag.data.questions import Question
from lcrag.episodes import Translator
from lcrag.errors import UserError
from lcrag.methods.translate_r1.pipeline.checks import Thresholds, Verdict, defect, verdict_in
from lcrag.methods.translate_r1.pipeline.domains import Domain, TextKind, domain_of
from lcrag.methods.translate_r1.pipeline.models import JUDGE, TRANSLATOR, ModelRequest
from lcrag.methods.translate_r1.pipeline.parts import Parts, Portion, joined, parts_in, parts_of, portions_of
from lcrag.methods.translate_r1.pipeline.prompts import judge_prompt, translation_prompt
from lcrag.rewards.domains.written_texts import chrf

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
    """Stops a run early if the model never gives a usable answer.

    Args:
      complaint: Message of the error.
    """

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
        domain = domain_of(question)
        source = parts_of(question, domain)
        attempt = Attempt(question=question, domain=domain, language=language)
        for portion in portions_of(source, domain):
            attempt = await self._round_trip(attempt, portion)
            if not attempt.passed:
                return attempt
        verdict = await self.judge(source, attempt.back or {}, domain)
        if verdict == "SAME":
            return attempt
        return dataclasses.replace(attempt, stage=JUDGED, cause=DIFFERENT if verdict == "DIFFERENT" else NEITHER)

    async def _round_trip(self, attempt: Attempt, portion: Portion) -> Attempt:
        """Takes a portion through stages 2 to 4."""
        source, home = portion.parts, attempt.question.language
        render = self.renderings[attempt.language]
        translation = await render(source, portion.kind, home, attempt.language)
        if translation is None:
            return _removed(attempt, portion, FORWARD, NO_OUTPUT)
        attempt = dataclasses.replace(attempt, translation=(attempt.translation or {}) | translation)
        if cause := defect(joined(translation), joined(source), self.thresholds):
            return _removed(attempt, portion, HEURISTICS, cause)
        back = await render(translation, portion.kind, attempt.language, home)
        if back is None:
            return _removed(attempt, portion, BACK, NO_OUTPUT)
        similarity = chrf(joined(back), [joined(source)])
        lowest = similarity if attempt.similarity is None else min(similarity, attempt.similarity)
        attempt = dataclasses.replace(attempt, back=(attempt.back or {}) | back, similarity=lowest)
        if similarity < self.thresholds.least_round_trip(attempt.domain):
            return _removed(attempt, portion, BACK, LOST)
        return attempt


def _removed(attempt: Attempt, portion: Portion, stage: str, cause: str) -> Attempt:
    return dataclasses.replace(attempt, stage=stage, cause=cause, portion=portion.name)
