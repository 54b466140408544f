"""A policy that searches, as a function of questions: R-Search-as-a-Tool (arXiv:2506.04185, section 5.1)."""

import dataclasses
from collections.abc import Callable, Sequence

from lcrag.data.questions import LANGUAGES, Question, fault_of
from lcrag.episodes import Program, RetrievalFailure, Runner
from lcrag.episodes.programs import LoggedSearch, log_searches
from lcrag.errors import UserError
from lcrag.retrieval import Hit, SearchableCollections
from lcrag.retrieval.service import default_among


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """The result of a question."""

    question: str
    language: str  # ISO 639-1 code
    answer: str | None  # the policy's answer
    evidence: str | None  # evidence that the policy wrote from the passages, if it is asked for any
    passages: tuple[Hit, ...]  # distinct passages of all searches, in the order found
    searches: tuple[str, ...]  # its queries, in order
    failed_searches: int  # requests to the collections that failed after every retry; the policy was informed
    failure: str | None  # why a search or another model failed; a failed model ends the episode
    finished: bool  # whether the program ran to its end; False: the context was full


class SearchTool:
    """A policy that searches, as a function of questions; not thread-safe.

    Every episode uses the same random numbers, so findings do not depend on the other questions of a call.

    Args:
      runner: Runs the episodes with the policy, at the tool's temperature.
      program: Builds the episode program of a question; `Outcome.extra["evidence"]` is its evidence.
      collections: The collections to search.
      default_language: Language of questions without one; None: English if it has a collection, or the only language.

    Attributes:
      languages: Languages of questions: those of the collections for which prompts have a name.
    """

    def __init__(
        self,
        *,
        runner: Runner,
        program: Callable[[Question], Program],
        collections: SearchableCollections,
        default_language: str | None = None,
    ):
        self.runner, self.program, self.collections = runner, program, collections
        self.default_language = default_among(collections.languages, default_language)
        self.languages = [language for language in collections.languages if language in LANGUAGES]
        # A short question fits, so a later one that does not is too long itself.
        short = [Question(id="tool", dataset="tool", language=code, text="?", answers=()) for code in self.languages]
        runner.check([(question, program(question), 0) for question in short])

    def __call__(self, questions: Sequence[str], languages: Sequence[str] | None = None) -> list[Findings]:
        """Searches for and answers questions in one run of the engine.

        Args:
          questions: Texts.
          languages: Language of each; None: the default language for all.
        """
        named: Sequence[str | None] = languages or [None] * len(questions)
        return self.answer([self.question(text, language) for text, language in zip(questions, named, strict=True)])

    def question(self, text: str, language: str | None = None) -> Question:
        """Returns a valid question, in the default language if none is named; otherwise raises a UserError."""
        text, language = text.strip(), self.default_language if language is None else language
        if fault := fault_of(text):
            raise UserError(f"the question {fault if text else 'is empty'}: ask something")
        if language not in self.languages:
            known = ", ".join(self.languages)
            raise UserError(f"questions cannot be asked in language {language!r}: name one of {known}")
        question = Question(id="tool", dataset="tool", language=language, text=text, answers=())
        try:
            self.runner.check([(question, self.program(question), 0)])
        except UserError as error:
            raise UserError(
                f"the question does not fit the policy's context of {self.runner.sampler.context} tokens, which also"
                " holds its prompt and an answer: ask a shorter one"
            ) from error
        return question

    def answer(self, questions: Sequence[Question]) -> list[Findings]:
        """Runs the episodes of valid questions; a UserError says that no search is possible."""
        logs: list[list[LoggedSearch]] = [[] for _ in questions]
        logged = (log_searches(self.program(question), log) for question, log in zip(questions, logs, strict=True))
        programs = [(question, program, 0) for question, program in zip(questions, logged, strict=True)]
        findings = []
        for record, searches in zip(self.runner.run(programs), logs, strict=True):
            hits: dict[tuple[str, str], Hit] = {}
            for hit in (passage for search in searches for passage in search.passages):
                assert isinstance(hit, Hit)
                hits.setdefault((hit.language, hit.id), hit)
            findings.append(
                Findings(
                    question=record.question.text,
                    language=record.question.language,
                    answer=record.outcome.answer,
                    evidence=record.outcome.extra.get("evidence") or None,
                    passages=tuple(hits.values()),
                    searches=tuple(query for search in searches for query in search.request.queries),
                    failed_searches=sum(isinstance(search.answer, RetrievalFailure) for search in searches),
                    failure=record.failure,
                    finished=record.finished,
                )
            )
        return findings
