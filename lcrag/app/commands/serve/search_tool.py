"""The Python call: questions in, findings out."""

import dataclasses
from collections.abc import Callable, Sequence

from lcrag.app.commands.serve.findings import Findings, findings_of
from lcrag.data.languages import LANGUAGES
from lcrag.data.questions import Question
from lcrag.episodes import Program, Runner
from lcrag.episodes.search_log import LoggedSearch, log_searches
from lcrag.errors import UserError
from lcrag.retrieval import SearchableCollections
from lcrag.retrieval.service import default_among

DATASET = "tool"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchTool:
    """A policy that searches, as a function. One call at a time.

    Every question is an episode with the same random numbers: what is found depends on the question alone, whoever
    else is asked about in the same call.

    Attributes:
      runner: The engine, which holds the policy; its temperature is the tool's.
      program: Builds a question's episode program. If its `Outcome.extra` has "evidence", that is the evidence.
      collections: What is searched.
      default_language: Of questions that name none; None: English if there is such a collection, or the only one
        there is.

    Raises:
      UserError: the default language has no collection, or the program cannot begin.
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
        """The languages that questions can be asked in: those of collections that prompts have a name for."""
        return [language for language in self.collections.languages if language in LANGUAGES]

    def __call__(self, questions: Sequence[str], languages: Sequence[str] | None = None) -> list[Findings]:
        """Searches for and answers some questions, as many at once as the sampler has slots.

        Args:
          questions: In any of `languages`.
          languages: The language of each; None: the default language for all.

        Raises:
          UserError: a question is empty, longer than the policy's context, or in a language that cannot be asked in.
        """
        if languages is not None and len(languages) != len(questions):
            raise UserError(f"{len(languages)} languages for {len(questions)} questions: give one a question, or none")
        named = [None] * len(questions) if languages is None else languages
        return self.answer([self.question(text, language) for text, language in zip(questions, named, strict=True)])

    def question(self, text: str, language: str | None = None) -> Question:
        """A question that can be asked.

        Raises:
          UserError: it cannot, and why.
        """
        if not text.strip():
            raise UserError("the question is empty: ask something")
        question = _question(_whole(text.strip()), self._language(language))
        try:
            self.runner.check([(question, self.program(question), 0)])
        except UserError as error:  # the program began with a short question, see __post_init__
            raise UserError(
                f"the question does not fit the policy's context of {self.runner.sampler.context} tokens, in which its"
                " prompt and an answer must have room: ask a shorter one"
            ) from error
        return question

    def answer(self, questions: Sequence[Question]) -> list[Findings]:
        """Runs the engine over some questions.

        Args:
          questions: From `question`.

        Raises:
          UserError: a search is impossible, such as one of a service that is away.
        """
        notes: list[list[LoggedSearch]] = [[] for _ in questions]
        cast = zip(questions, notes, strict=True)
        programs = [(question, log_searches(self.program(question), noted), 0) for question, noted in cast]
        records = self.runner.run(programs)
        return [findings_of(record, noted) for record, noted in zip(records, notes, strict=True)]

    def _language(self, language: str | None) -> str:
        known = ", ".join(self.languages)
        language = self.default_language if language is None else language
        if language is None:
            raise UserError(f"the question names no language and there is no default: there are {known}")
        if language not in self.languages:
            raise UserError(f"questions cannot be asked in language {language!r}: there are {known}")
        return language


def _question(text: str, language: str) -> Question:
    return Question(id=DATASET, dataset=DATASET, language=language, text=text, answers=())


def _whole(text: str) -> str:
    """The text, unless it holds halves of characters, which no tokenizer takes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError("the question holds half of a character (a lone surrogate): send whole characters") from error
    return text
