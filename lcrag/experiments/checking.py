"""What cannot work, said in one sentence before anything is written or computed."""

from collections.abc import Iterable

from jax.sharding import Mesh

from lcrag.data.questions import Question
from lcrag.episodes import Runner
from lcrag.errors import UserError
from lcrag.experiments.method import ProgramOf
from lcrag.learning import Layout
from lcrag.retrieval import SearchableCollections


def check_counts(name: str, **counts: int) -> None:
    """Refuses a number below 1.

    Args:
      name: The configurable whose parameters `counts` are.

    Raises:
      UserError: there is one.
    """
    for parameter, count in counts.items():
        if count < 1:
            raise UserError(f"{name}.{parameter} is {count}: give it a value of 1 or more")


def check_questions(
    questions: Iterable[Question], collections: SearchableCollections, runner: Runner, program: ProgramOf
) -> None:
    """Finds a language without a collection, and a prompt longer than the context, at whatever step it would come.

    Raises:
      UserError: there is one.
    """
    questions = list(questions)
    missing = sorted({question.language for question in questions} - set(collections.languages))
    if missing:
        raise UserError(
            f"there are questions in {', '.join(missing)} but collections only in {', '.join(collections.languages)}:"
            " build the missing ones or ask in fewer languages"
        )
    runner.check([(question, program(question), 0) for question in questions])


def check_rows(layout: Layout, context: int, mesh: Mesh) -> None:
    """Refuses training rows that a full context would not fit, or that cannot be divided among the devices.

    Raises:
      UserError: they are such rows.
    """
    layout.row_length(context)
    shares = mesh.shape["data"] * mesh.shape["fsdp"]
    if layout.rows % shares:
        raise UserError(f"Layout.rows is {layout.rows} for {shares} devices: make it a multiple of {shares}")
