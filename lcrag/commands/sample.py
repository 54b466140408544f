"""`lcrag sample`: answers questions and prints each episode as it is generated, coloured by author."""

import contextlib
import dataclasses
import io
import logging
import pathlib
import sys
from collections.abc import Sequence

import gin
from rich.console import Console

from lcrag.data.questions import Question, fault_of, language_of, with_question_mark
from lcrag.episodes.running_episode import RunningEpisode
from lcrag.errors import Seed, UserError, typed
from lcrag.policy import Policy
from lcrag.retrieval import SearchableCollections
from lcrag.runs import check_used
from lcrag.runs.display import EpisodePrinter
from lcrag.train.method import Method
from lcrag.train.rollout import Lanes, Rollouts


@gin.configurable
@typed
def sample(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    policy: Policy,
    collections: SearchableCollections,
    method: Method,
    lanes: Lanes,
    language: str = "en",
    temperature: float = 0.0,
    seed: Seed = 0,
) -> None:
    """Answers the question given, or every question typed or piped in, and prints the episodes.

    Args:
      words: The question; empty: each line of standard input is a question with a separate episode.
      temperature: 0 is greedy.
    """
    name, console = language_of(language).name, Console()
    if temperature < 0:
        raise UserError(f"sample.temperature is {temperature}: 0 is greedy, and none may be below")
    rollouts = Rollouts(lanes.single(), policy, collections, method, seed)
    runner, program = rollouts.runner, rollouts.program
    runner.temperature = temperature

    def checked(text: str) -> Question:
        if fault := fault_of(text):
            raise UserError(f"the question {fault}: {text[:60]!r}")
        question = Question(id="typed", dataset="typed", language=language, text=with_question_mark(text), answers=())
        rollouts.check([question])
        return question

    def answer(text: str) -> None:
        """Runs an episode and prints its texts as they come, then its completions outside the dialogue."""
        question, printer = checked(text), EpisodePrinter(console)
        prompt_shown, turns_shown = 0, 0  # in characters, in turns

        def show(episode: RunningEpisode) -> None:
            nonlocal prompt_shown, turns_shown
            transcript = episode.transcript
            if more := transcript.prompt[prompt_shown:]:
                printer.add("environment", more)
            for turn in transcript.turns[turns_shown:]:
                printer.add(turn.by, turn.text)
            prompt_shown, turns_shown = len(transcript.prompt), len(transcript.turns)

        [record] = dataclasses.replace(runner, watch=show).run([(question, program(question), 0)])
        printer.finish()
        for completion in record.completions:
            said = f"outside the dialogue, by {completion.model or 'the policy'}"
            console.print(said, style="dim", markup=False)
            printer = EpisodePrinter(console)
            printer.add("environment", completion.prompt)
            printer.add("policy", completion.text)
            printer.finish()
        console.print(f"answer: {record.outcome.answer}", markup=False)

    checked(" ".join(words) or "?")
    check_used()
    logging.getLogger("lcrag.activity").info("")
    console.print(f"[dim]{name}[/dim]")
    if words:
        answer(" ".join(words))
    elif sys.stdin.isatty():
        with contextlib.suppress(ImportError):
            import readline  # noqa: F401  edits the line, and remembers earlier ones
        console.print("[dim]A question, or Ctrl-D to end.[/dim]")
        with contextlib.suppress(EOFError):
            while True:
                text = console.input("[bold]> [/bold]").strip()
                try:
                    if text:
                        answer(text)
                except UserError as error:  # which does not end the conversation
                    console.print(f"{error}", markup=False)
        console.print()
    else:
        count = 0
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
        for count, line in enumerate(filter(None, map(str.strip, sys.stdin)), start=1):  # noqa: B007
            answer(line)
        if not count:
            raise UserError('lcrag sample needs a question: lcrag sample "What is the currency code of France?"')
