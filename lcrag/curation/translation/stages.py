"""The stages that a source goes through in one language, and where it was removed (Translate-R1, Section 3.2)."""

import dataclasses
import functools
from collections.abc import Mapping

from lcrag.curation.translation.domains import Domain, domain_of
from lcrag.curation.translation.heuristics import defect
from lcrag.curation.translation.judging import Judge
from lcrag.curation.translation.parts import Parts, joined, parts_of
from lcrag.curation.translation.rendering import Render
from lcrag.curation.translation.thresholds import Thresholds
from lcrag.data.questions import Question
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
      translation: Its parts in the language, as far as they came.
      back: Its parts translated back.
      similarity: chrF of these to the source, in [0, 1]; None before that stage.
    """

    question: Question
    domain: Domain
    language: str
    stage: str = ""
    cause: str = ""
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
        domain, render = domain_of(question), self.renderings[language]
        source = parts_of(question, domain)
        made = functools.partial(Attempt, question=question, domain=domain, language=language)
        translation = await render(source, domain, question.language, language)
        if translation is None:
            return made(stage=FORWARD, cause=NO_OUTPUT)
        made = functools.partial(made, translation=translation)
        if cause := defect(joined(translation), joined(source), self.thresholds):
            return made(stage=HEURISTICS, cause=cause)
        back = await render(translation, domain, language, question.language)
        if back is None:
            return made(stage=BACK, cause=NO_OUTPUT)
        similarity = chrf(joined(back), [joined(source)])
        made = functools.partial(made, back=back, similarity=similarity)
        if similarity < self.thresholds.least_round_trip(domain):
            return made(stage=BACK, cause=LOST)
        match await self.judge(source, back, domain):
            case "SAME":
                return made()
            case "DIFFERENT":
                return made(stage=JUDGED, cause=DIFFERENT)
        return made(stage=JUDGED, cause=NEITHER)
