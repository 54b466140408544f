"""The stages that a source goes through in one language, and where it was removed (Translate-R1, Section 3.2)."""

import dataclasses
from collections.abc import Mapping

from lcrag.data.questions import Question
from lcrag.methods.translate_r1.pipeline.domains import Domain, domain_of
from lcrag.methods.translate_r1.pipeline.heuristics import defect
from lcrag.methods.translate_r1.pipeline.judging import Judge
from lcrag.methods.translate_r1.pipeline.parts import Parts, Portion, joined, parts_of, portions_of
from lcrag.methods.translate_r1.pipeline.rendering import Render
from lcrag.methods.translate_r1.pipeline.thresholds import Thresholds
from lcrag.rewards.domains.heuristics import chrf

SOURCE, FORWARD, HEURISTICS = "source filter", "forward translation", "heuristics"
BACK, JUDGED = "back-translation", "judge"
STAGES = (SOURCE, FORWARD, HEURISTICS, BACK, JUDGED)

NO_OUTPUT, LOST, DIFFERENT, NEITHER = "no output", "low chrF", "DIFFERENT", "neither SAME nor DIFFERENT"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Attempt:
    """What became of a source in one language.

    Attributes:
      question: The source.
      domain: Its domain.
      language: What it was to be translated into.
      stage: The stage that removed it; empty: it passed.
      cause: Why that stage did.
      portion: What that stage removed it for, `LABEL` or `TEXT`, in a domain that translates them one after the other.
      translation: Its parts in the language, as far as they came.
      back: Its parts translated back.
      similarity: chrF of these to the source, in [0, 1], the lower one of label and text where they go one after the
        other; None before that stage.
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
      renderings: Who translates into a language and back from it, by its code.
      judge: Compares original and back-translation.
      thresholds: The numbers that they compare with.
    """

    renderings: Mapping[str, Render]
    judge: Judge
    thresholds: Thresholds

    async def attempt(self, question: Question, language: str) -> Attempt:
        """Takes a source through the stages, up to the first that removes it.

        Raises:
          UserError: a model is away or never gives an answer that can be used.
        """
        domain = domain_of(question)
        source = parts_of(question, domain)
        attempt = Attempt(question=question, domain=domain, language=language)
        for portion in portions_of(source, domain):
            attempt = await self._there_and_back(attempt, portion)
            if not attempt.passed:
                return attempt
        match await self.judge(source, attempt.back or {}, domain):
            case "SAME":
                return attempt
            case "DIFFERENT":
                return dataclasses.replace(attempt, stage=JUDGED, cause=DIFFERENT)
        return dataclasses.replace(attempt, stage=JUDGED, cause=NEITHER)

    async def _there_and_back(self, attempt: Attempt, portion: Portion) -> Attempt:
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
