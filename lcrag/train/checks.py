"""Checks of a configuration before anything is written or computed."""

from collections.abc import Iterable

from lcrag.data.questions import Question, fault_of
from lcrag.episodes import Runner
from lcrag.errors import UserError
from lcrag.learning import Layout
from lcrag.policy import AnyMesh
from lcrag.retrieval import SearchableCollections
from lcrag.rewards import Reward, TermSum
from lcrag.train.method import ProgramOf


def check_models(models: Iterable[object]) -> None:
    """Calls the method `check` of every model that has one, which raises a UserError if it cannot be loaded."""
    for model in models:
        getattr(model, "check", lambda: None)()


def check_text(what: str, text: str) -> None:
    """Raises a UserError if a text cannot be a question."""
    if fault := fault_of(text):
        raise UserError(f"{what} {fault}: {text[:60]!r}")


def check_questions(
    questions: Iterable[Question],
    collections: SearchableCollections,
    runner: Runner,
    program: ProgramOf,
    *,
    native_collections: bool = True,
) -> None:
    """Checks questions before their episodes are run.

    There must be questions, collections in their languages and the tools that their programs offer, and the prompts
    must fit the context.

    Args:
      questions: The questions.
      collections: The collections to search.
      runner: Runs the episode programs.
      program: Builds the program of a question.
      native_collections: Whether every question must have a collection in its language.

    Raises:
      UserError: a check failed.
    """
    questions = list(questions)
    if not questions:
        raise UserError("there is no question to ask: name another split, other languages or other files")
    for question in questions:
        check_text(f"the question {question.coupling} in {question.language}", question.text)
    missing = sorted({question.language for question in questions} - set(collections.languages))
    if missing and native_collections:
        raise UserError(
            f"there are questions in {', '.join(missing)} but collections only in {', '.join(collections.languages)}:"
            " build the missing ones or ask in fewer languages"
        )
    runner.check([(question, program(question), 0) for question in questions])


def check_rewarded(reward: Reward | None, questions: Iterable[Question]) -> None:
    """Checks before sampling that a reward can score every question and that its models can be loaded.

    Args:
      reward: The reward; None: answers are not scored, and nothing is checked.
      questions: The questions.

    Raises:
      UserError: the reward cannot score a question (the text names the question and the missing data), or a model of
        the reward cannot be loaded.
    """
    if not isinstance(reward, TermSum):
        return
    check_models(reward.models.values())
    for question in questions:
        reward.check(f"{question.coupling} in {question.language} ({question.text[:60]!r})", question.extra)


def check_rows(layout: Layout, context: int, mesh: AnyMesh) -> None:
    """Raises a UserError if training rows cannot hold a full context or be divided among the devices."""
    layout.row_length(context)
    check_shares(layout, mesh)


def check_shares(layout: Layout, mesh: AnyMesh) -> None:
    """Raises a UserError if training rows cannot be divided among the devices."""
    shares = mesh.shape["data"] * mesh.shape["fsdp"]
    if layout.rows % shares:
        raise UserError(f"Layout.rows is {layout.rows} for {shares} devices: make it a multiple of {shares}")
