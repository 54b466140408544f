"""Tasks for inspect: `inspect eval lcrag/search_questions --model=...`; needs `pip install 'lcrag[inspect]'`.

inspect finds the tasks through the entry point `inspect_ai`.
"""

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState, generate, use_tools
from inspect_ai.tool import Tool, ToolError, tool

from lcrag.app.environments.questions import METRICS, QuestionsAndCollections, open_experiment, scores
from lcrag.episodes.tags import answer_in
from lcrag.errors import UserError


@task
def search_questions(
    gin_file: str | list[str] = "quickstart.gin",
    bindings: str | list[str] = "",
    passages: int = 3,
    message_limit: int = 20,
) -> Task:
    """Returns a task with the held-out questions of an experiment and a search tool over its collections.

    Args:
      gin_file: The experiment's gin file, or several separated by commas, as for `lcrag evaluate --gin_file=`.
      bindings: Bindings separated by semicolons, such as `held_out/atlas_questions.limit = 10`.
      passages: Number of passages that a search returns.
      message_limit: Maximum number of messages in a dialogue.
    """
    opened = open_experiment(_parts(gin_file, ","), _parts(bindings, ";"), passages)
    samples = [
        Sample(
            id=question.key,
            input=opened.prompt(question),
            target=list(question.answers),
            metadata={"language": question.language, "dataset": question.dataset},
        )
        for question in opened.questions
    ]
    return Task(
        dataset=MemoryDataset(samples, name=", ".join(_parts(gin_file, ","))),
        solver=[use_tools(search(opened)), generate()],
        scorer=answers(),
        message_limit=message_limit,
    )


def _parts(given: str | list[str], separator: str) -> tuple[str, ...]:
    """Splits a text at a separator; a list is what inspect's command line makes of a text with commas."""
    text = given if isinstance(given, str) else ",".join(given)
    return tuple(part.strip() for part in text.split(separator) if part.strip())


@tool
def search(opened: QuestionsAndCollections) -> Tool:
    """Returns the search tool over an experiment's collections."""

    async def execute(query: str, language: str) -> str:
        """Searches passages.

        Args:
          query: What to look for, in the language of the collection.
          language: Code of the collection's language, such as "en".
        """
        try:
            return opened.search(query, language)
        except UserError as error:
            raise ToolError(str(error)) from error

    return execute


@scorer(metrics={name: [mean(), stderr()] for name in METRICS})
def answers() -> Scorer:
    """Returns a scorer that compares the answer in the last <answer> with the golden answers."""

    async def score(state: TaskState, target: Target) -> Score:
        text = state.output.completion
        return Score(value=scores(text, list(target)), answer=answer_in(text), explanation=text)

    return score
