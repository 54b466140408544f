"""A taskset for verifiers: `vf-eval lcrag ...`; needs `pip install 'lcrag[verifiers]'`.

verifiers finds the taskset in the module `lcrag`. The search tool runs as one server for all rollouts.
"""

from collections.abc import Iterable

import verifiers.v1 as vf

from lcrag.app.environments.questions import open_experiment, scores
from lcrag.errors import UserError


class SearchConfig(vf.SharedToolsetConfig):
    """Settings of the search tool.

    Attributes:
      gin_files: Gin files of the experiment.
      bindings: Bindings such as `held_out/atlas_questions.limit = 10`.
      passages: Number of passages that a search returns.
    """

    gin_files: list[str] = ["quickstart.gin"]
    bindings: list[str] = []
    passages: int = 3


class QuestionsConfig(vf.TasksetConfig):
    """Settings of the taskset.

    Attributes:
      search: The experiment, whose held-out questions are the tasks, and its search tool. `search.runtime` or
        `search.url` says where the tool runs.
    """

    search: SearchConfig = SearchConfig()


class Search(vf.Toolset[SearchConfig, vf.State]):
    """Searches the collections of an experiment."""

    TOOL_PREFIX = None

    async def setup(self) -> None:
        """Opens the collections; called once per server."""
        config = self.config
        self.opened = open_experiment(config.gin_files, config.bindings, config.passages)

    @vf.tool
    def search(self, query: str, language: str) -> str:
        """Searches passages in the collection of a language, such as "en"; write the query in that language."""
        try:
            return self.opened.search(query, language)
        except UserError as error:
            return f"The search failed: {error}."


class QuestionData(vf.TaskData):
    """A question as serialised by verifiers; `answers` are its golden answers."""

    answers: tuple[str, ...]
    language: str


class QuestionTask(vf.Task[QuestionData, vf.State, vf.TaskConfig]):
    """A question whose answer is compared with the golden answers."""

    @vf.reward
    async def c3_recall(self, trace: vf.Trace) -> float:
        """Returns the character 3-gram recall of the answer, LcRL's reward."""
        return scores(trace.last_reply, self.data.answers)["c3_recall"]

    @vf.metric
    async def matches(self, trace: vf.Trace) -> dict[str, float]:
        """Returns the other metrics of the answer."""
        own = scores(trace.last_reply, self.data.answers)
        return {name: value for name, value in own.items() if name != "c3_recall"}


class QuestionTaskset(vf.Taskset[QuestionTask, QuestionsConfig]):
    """The held-out questions of an experiment."""

    def load(self) -> Iterable[QuestionTask]:
        """Yields a task for each question."""
        search = self.config.search
        opened = open_experiment(search.gin_files, search.bindings, search.passages)
        for question in opened.questions:
            data = QuestionData(
                id=question.key,
                name=question.key,
                prompt=opened.prompt(question),
                answers=question.answers,
                language=question.language,
            )
            yield QuestionTask(data, self.config.task)

    @classmethod
    def toolsets(cls, config: QuestionsConfig) -> list[vf.Toolset]:
        """Returns the search tool, which runs as one server for all rollouts."""
        return [Search(config.search)]


if __name__ == "__main__":
    Search.run()
