"""The held-out evaluation before and after training."""

import dataclasses
import pathlib
from typing import Any

from rich.console import Console

from lcrag.episodes import Runner
from lcrag.policy import Policy
from lcrag.retrieval import SearchableCollections
from lcrag.runs.answers import AFTER, BEFORE
from lcrag.sampling import Sampler
from lcrag.train.checking import check_questions
from lcrag.train.evaluation import Evaluation
from lcrag.train.lanes import Lanes
from lcrag.train.method import Method, ProgramOf


@dataclasses.dataclass(frozen=True)
class BoundEvaluation:
    """An evaluation bound to a policy, a method and collections; checked when it is built.

    Raises:
      UserError: A question does not fit the collections, or a reference policy has another shape.
    """

    evaluation: Evaluation
    policy: Policy
    method: Method
    collections: SearchableCollections
    sampler: Sampler | Lanes
    runner: Runner
    seed: int

    def __post_init__(self):
        questions, native = self.evaluation.questions, self.method.native_collections
        check_questions(questions, self.collections, self.runner, self._program, native_collections=native)
        self.evaluation.check_references(self.policy)

    @property
    def _program(self) -> ProgramOf:
        return self.method.with_settings(self.evaluation.program_settings).on(self.collections.languages)

    def before(self, folder: pathlib.Path, params: Any, console: Console) -> None:
        """Evaluates the policy that training starts from, if its evaluation is wanted, and the references."""
        if self.evaluation.before:
            self._run(BEFORE, folder, params, console)
        parts = self.sampler, self.runner, self._program, self.policy
        self.evaluation.run_references(folder, *parts, seed=self.seed, console=console)

    def after(self, folder: pathlib.Path, params: Any, console: Console) -> None:
        """Evaluates the trained policy."""
        self._run(AFTER, folder, params, console)

    def _run(self, label: str, folder: pathlib.Path, params: Any, console: Console) -> None:
        self.sampler.set_params(params)
        self.evaluation.run(folder, label, self.runner, self._program, self.policy, seed=self.seed, console=console)
