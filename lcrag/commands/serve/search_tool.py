"""A policy that searches, as a function of questions: R-Search-as-a-Tool (arXiv:2506.04185, section 5.1)."""

import dataclasses
from collections.abc import Callable, Sequence

import pydantic

from lcrag.data.languages import LANGUAGES
from lcrag.data.questions import Question, fault_of
from lcrag.episodes import Program, RetrievalFailure, Runner
from lcrag.episodes.search_log import LoggedSearch, log_searches
from lcrag.errors import UserError
from lcrag.retrieval import Hit, SearchableCollections
from lcrag.retrieval.service import default_among

DATASET = "tool"
# Key of a program's evidence in `Outcome.extra`.
EVIDENCE = "evidence"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """The result of a question.

    Attributes:
      question: The question.
      language: ISO 639-1 code of its language.
      answer: The policy's answer; None without one.
      evidence: Evidence that the policy wrote from the passages; None if it wrote none, or is not asked for any.
      passages: Distinct passages of all searches, in the order found.
      searches: Its queries, in order.
      failed_searches: Requests to the collections that failed after every retry; the policy was informed.
      failure: Why a search or another model failed; a failed model ends the episode. None: no failure.
      finished: Whether the program ran to its end; False: the context was full.
    """

    question: str
    language: str
    answer: str | None
    evidence: str | None
    passages: tuple[Hit, ...]
    searches: tuple[str, ...]
    failed_searches: int
    failure: str | None
    finished: bool


FINDINGS = pydantic.TypeAdapter(Findings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchTool:
    """A policy that searches, as a function of questions; not thread-safe.

    Every episode uses the same random numbers, so findings do not depend on the other questions of a call.

    Attributes:
      runner: Runs the episodes with the policy, at the tool's temperature.
      program: Builds the episode program of a question; `Outcome.extra["evidence"]` is its evidence.
      collections: The collections to search.
      default_language: Language of questions without one; None: English if it has a collection, or the only language.

    Raises:
      UserError: The default language has no collection, or the program's prompt does not fit the context.
    """

    runner: Runner
    program: Callable[[Question], Program]
    collections: SearchableCollections
    default_language: str | None = None

    def __post_init__(self) -> None:
        default = default_among(self.collections.languages, self.default_language)
        object.__setattr__(self, "default_language", default)
        questions = (_question("?", language) for language in self.languages)
        self.runner.check([(question, self.program(question), 0) for question in questions])

    @property
    def languages(self) -> list[str]:
        """Languages of questions: those of the collections for which prompts have a name."""
        return [language for language in self.collections.languages if language in LANGUAGES]

    def __call__(self, questions: Sequence[str], languages: Sequence[str] | None = None) -> list[Findings]:
        """Searches for and answers questions in one run of the engine.

        Args:
          questions: Texts.
          languages: Language of each; None: the default language for all.

        Raises:
          UserError: A question is empty, does not fit the context, or is in a language that is not supported.
        """
        if languages is not None and len(languages) != len(questions):
            raise UserError(f"{len(languages)} languages for {len(questions)} questions: give one a question, or none")
        named = [None] * len(questions) if languages is None else languages
        return self.answer([self.question(text, language) for text, language in zip(questions, named, strict=True)])

    def question(self, text: str, language: str | None = None) -> Question:
        """Returns a valid question, in the default language if none is named.

        Raises:
          UserError: The question is not valid.
        """
        text = text.strip()
        if fault := fault_of(text):
            raise UserError(f"the question {fault if text else 'is empty'}: ask something")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError("the question contains a lone surrogate: send valid Unicode") from error
        known = ", ".join(self.languages)
        language = self.default_language if language is None else language
        if language is None:
            raise UserError(f"the question names no language and there is no default: there are {known}")
        if language not in self.languages:
            raise UserError(f"questions cannot be asked in language {language!r}: there are {known}")
        question = _question(text, language)
        try:
            self.runner.check([(question, self.program(question), 0)])
        except UserError as error:  # a short question fits: see __post_init__
            raise UserError(
                f"the question does not fit the policy's context of {self.runner.sampler.context} tokens, which also"
                " holds its prompt and an answer: ask a shorter one"
            ) from error
        return question

    def answer(self, questions: Sequence[Question]) -> list[Findings]:
        """Runs the episodes of valid questions (see `question`).

        Raises:
          UserError: A search is impossible, for example because a service is unreachable.
        """
        logs: list[list[LoggedSearch]] = [[] for _ in questions]
        programs = [
            (question, log_searches(self.program(question), log), 0)
            for question, log in zip(questions, logs, strict=True)
        ]
        found = []
        for record, searches in zip(self.runner.run(programs), logs, strict=True):
            hits: dict[tuple[str, str], Hit] = {}
            for hit in (passage for search in searches for passage in search.passages):
                assert isinstance(hit, Hit)
                hits.setdefault((hit.language, hit.id), hit)
            found.append(
                Findings(
                    question=record.question.text,
                    language=record.question.language,
                    answer=record.outcome.answer,
                    evidence=record.outcome.extra.get(EVIDENCE) or None,
                    passages=tuple(hits.values()),
                    searches=tuple(query for search in searches for query in search.request.queries),
                    failed_searches=sum(isinstance(search.answer, RetrievalFailure) for search in searches),
                    failure=record.failure,
                    finished=record.finished,
                )
            )
        return found


def _question(text: str, language: str) -> Question:
    return Question(id=DATASET, dataset=DATASET, language=language, text=text, answers=())
