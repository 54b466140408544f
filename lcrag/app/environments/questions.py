"""An experiment without its policy: held-out questions, search over its collections, and scores of answers."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from lcrag.app.composition.commands import compose
from lcrag.app.composition.stand_ins import Call, Kind
from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.episodes.observation import STYLES
from lcrag.episodes.prompts import answer_language
from lcrag.episodes.tags import answer_in, neutralise
from lcrag.errors import UserError
from lcrag.retrieval import SearchableCollections
from lcrag.rewards import c3_recall, exact_match, flexible_exact_match

PROMPT = (
    "Answer the question. The tool `search` returns passages of one collection, that of the language you name: "
    "{collections}. Search as often as you need, then give the answer inside <answer> and </answer> without detailed "
    "illustrations. The answer must be in {wanted}. For example, <answer> {example} </answer>. Question: {question}\n"
)
METRICS: Mapping[str, Callable[..., np.ndarray]] = {
    "c3_recall": c3_recall,
    "exact_match": exact_match,
    "flexible_exact_match": flexible_exact_match,
}
_NOT_BUILT: tuple[Kind, ...] = ("policy", "mesh", "model")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuestionsAndCollections:
    """The questions and collections of an environment.

    Attributes:
      questions: The questions of the experiment's evaluation.
      collections: The collections to search.
      passages: Number of passages that a search returns.
    """

    questions: Sequence[Question]
    collections: SearchableCollections
    passages: int = 3

    def prompt(self, question: Question) -> str:
        """Returns the prompt: the question with instructions on the tool and on the form and language of the answer."""
        wanted = language_of(answer_language(question))
        collections = ", ".join(self.collections.languages)
        text = neutralise(question.text)
        return PROMPT.format(collections=collections, wanted=wanted.name, example=wanted.example, question=text)

    def search(self, query: str, language: str) -> str:
        """Searches the collection of a language and returns the passages as text, best first.

        Raises:
          UserError: the language has no collection, or the search service fails.
        """
        if language not in self.collections.languages:
            raise UserError(f"there is no collection {language!r}, but {', '.join(self.collections.languages)}")
        [hits] = self.collections.search([query], [language], self.passages)
        passage = STYLES["search_r1"].passage
        return "".join(passage(number, hit.title, hit.text) for number, hit in enumerate(hits, start=1))


def open_experiment(
    gin_files: Sequence[str], bindings: Sequence[str] = (), passages: int = 3
) -> QuestionsAndCollections:
    """Opens the questions and collections of an experiment, and sets gin's configuration in this process.

    Args:
      gin_files: Values of `--gin_file=` as for `lcrag evaluate`.
      bindings: Bindings as after `--gin.`, such as `held_out/atlas_questions.limit = 10`.
      passages: Number of passages that a search returns.

    Raises:
      UserError: the configuration cannot be read, or its data is missing.
    """
    made = compose("evaluate", gin_files, bindings, {kind: _nothing for kind in _NOT_BUILT}).arguments
    questions = made["evaluation"].questions
    return QuestionsAndCollections(questions=questions, collections=made["collections"], passages=passages)


def _nothing(call: Call) -> None:
    """Stand-in for objects that an environment does not need, such as the policy."""


def scores(text: str, golds: Sequence[str]) -> dict[str, float]:
    """Returns the metrics of the answer in a policy's last text; all are 0 if the text contains no answer."""
    answer = answer_in(text)
    return {name: 0.0 if answer is None else float(score([answer], [golds])[0]) for name, score in METRICS.items()}
