"""A frozen model that answers a question from evidence alone (R-Search, section 3.2.2)."""

import dataclasses
from collections.abc import Mapping, Sequence

from lcrag.episodes.completion import Completer
from lcrag.episodes.tags import ANSWER, INFORMATION, closing, neutralise, opening
from lcrag.errors import UserError
from lcrag.sampling import SamplingParameters


@dataclasses.dataclass(frozen=True)
class Reading:
    """How evidence is put to a reader.

    Attributes:
      prompt: With places for {question} and {evidence}.
      line: One line of the evidence.
      stop: Strings that end the answer; none of them is part of it.
    """

    prompt: str
    line: str = "{line}\n"
    stop: tuple[str, ...] = ()

    def of(self, question: str, evidence: str) -> str:
        """The prompt for one question; neither side can speak in tags or control tokens."""
        lines = filter(None, (line.strip() for line in neutralise(evidence).splitlines()))
        shown = "".join(self.line.format(line=line) for line in lines)
        return self.prompt.format(question=neutralise(question), evidence=shown)

    def answer_in(self, text: str) -> str:
        """The answer in what the reader wrote."""
        for stop in self.stop:
            text = text.partition(stop)[0]
        return text.strip()


READINGS = {
    "full": Reading(
        "Answer the question based on the given passages. Only give me the answer and do not output any other words."
        "\n\nThe following are given passages: {evidence}\nQuestion: {question}\n\nAnswer:"
    ),
    "atlas": Reading(
        "{question}\n" + f"{opening(INFORMATION)}\n" + "{evidence}" + f"{closing(INFORMATION)}\n{opening(ANSWER)}",
        line=" {line}\n",
        stop=(closing(ANSWER),),
    ),
}


class EvidenceReader:
    """Answers many questions in one batch, each from its own evidence and nothing else.

    Args:
      model: Completes prompts: a second checkpoint (`SamplerCompleter`) or an endpoint (`EndpointCompleter`).
      wording: "full" (table 5 of the paper) or "atlas", which the built-in policies can read.
      temperature: Of sampling.
      max_tokens: Longest answer.
      seed: Of sampling.

    Raises:
      UserError: there is no such wording.
    """

    def __init__(
        self, model: Completer, wording: str = "full", temperature: float = 0.1, max_tokens: int = 512, seed: int = 0
    ):
        if wording not in READINGS:
            raise UserError(f"there is no wording {wording!r} of a reader: choose one of {', '.join(READINGS)}")
        self._model, self._reading = model, READINGS[wording]
        self._temperature, self._max_tokens, self._seed = temperature, max_tokens, seed

    @property
    def hashes(self) -> Mapping[str, str]:
        """Fingerprints of what its model is made of; a model behind an endpoint does not tell."""
        return getattr(self._model, "hashes", {})

    def __call__(self, questions: Sequence[str], evidences: Sequence[str]) -> list[str]:
        """The answers, in order; a model that fails raises, and never counts as an empty answer."""
        if not questions:
            return []
        asked = [
            (self._reading.of(question, evidence), self._generation(place))
            for place, (question, evidence) in enumerate(zip(questions, evidences, strict=True))
        ]
        return [self._reading.answer_in(completion.text) for completion in self._model(asked)]

    def _generation(self, place: int) -> SamplingParameters:
        return SamplingParameters(
            stop=self._reading.stop,
            max_tokens=self._max_tokens,
            temperature=self._temperature,
            seed=self._seed,
            episode=place,
        )
