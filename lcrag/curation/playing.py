"""Episode programs played with a teacher in the policy's place, so that rows look as episodes do."""

import functools
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import TypeAlias

import numpy as np

from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Generate, Program, Retries, RetrievalFailure, Retrieve, Turn
from lcrag.episodes.batched_search import Search, answer_batch
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.episodes.live import LiveEpisode
from lcrag.episodes.requests import Found
from lcrag.errors import UserError
from lcrag.sampling import Sampled

# (question, the turns so far beginning with the prompt, what is asked) -> what the policy should write next, with its
# stop string
Teacher: TypeAlias = Callable[[Question, Sequence[Turn], Generate], str]
# (number of the program, what its search found) -> what it is shown
Edit: TypeAlias = Callable[[int, Found], Found]
USUAL_RETRIES = Retries()


def unedited(number: int, found: Found) -> Found:
    """Shows what was found."""
    return found


def play(
    cast: Sequence[tuple[Question, Program]],
    teacher: Teacher,
    search: Search,
    tokenizer: ContextTokenizer,
    *,
    context: int,
    answer_room: int = 16,
    edit: Edit = unedited,
    retries: Retries = USUAL_RETRIES,
    concurrency: int = 1,
) -> list[EpisodeRecord]:
    """Plays programs to their end, all side by side: the searches that they wait for go out as one batch.

    Args:
      cast: Each question with its fresh program.
      teacher: Writes what the policy should.
      search: Answers (query, language) pairs.
      tokenizer: Writes texts into contexts.
      context: Tokens that a context holds.
      answer_room: Tokens kept free behind every observation.
      edit: Changes what a search found before its program is shown it.
      retries: How a failing search is tried again.
      concurrency: Programs that the teacher writes for at a time; more than one where it waits for a model elsewhere.

    Returns:
      The records, in order; their log-probabilities are 0.

    Raises:
      UserError: a prompt does not fit the context, a search failed, or a program asks for what no teacher writes.
    """
    episodes = [
        LiveEpisode(question, program, number, tokenizer, context, answer_room)
        for number, (question, program) in enumerate(cast)
    ]
    for episode in episodes:
        episode.start()
    write = functools.partial(_write, teacher=teacher, tokenizer=tokenizer)
    playing = episodes
    while playing := [episode for episode in playing if episode.outcome is None]:
        _each(write, playing, concurrency)
        asked = [(episode, *search) for episode in playing for search in episode.take_searches()]
        answers = answer_batch(search, [request for *_, request in asked], retries)
        for (episode, exchange, part, request), answer in zip(asked, answers, strict=True):
            episode.searched(exchange, part, edit(episode.number, _found(answer, episode, request)))
    return [episode.record(policy_version=0) for episode in episodes]


def _each(write: Callable[[LiveEpisode], None], playing: Sequence[LiveEpisode], concurrency: int) -> None:
    if concurrency == 1:
        for episode in playing:
            write(episode)
        return
    with futures.ThreadPoolExecutor(concurrency) as workers:
        list(workers.map(write, playing))


def _write(episode: LiveEpisode, teacher: Teacher, tokenizer: ContextTokenizer) -> None:
    """Lets the teacher write as long as the program asks for nothing else."""
    while (request := episode.take_generation()) is not None:
        transcript = episode.transcript
        text = teacher(episode.question, [Turn("environment", transcript.prompt), *transcript.turns], request)
        tokens = np.asarray(tokenizer.encode(text), np.int32)
        episode.sampled(Sampled(tokens, np.zeros(len(tokens), np.float32), text, "stop"))
    if episode.take_asides():
        raise UserError(
            f"the program of {episode.name} completes prompts beside its dialogue, and no teacher writes those: make"
            " demonstrations of another program"
        )


def _found(answer: Found | RetrievalFailure, episode: LiveEpisode, request: Retrieve) -> Found:
    if isinstance(answer, RetrievalFailure):
        raise UserError(
            f"the search of {episode.name} for {request.queries[0]!r} failed ({answer.reason}): a demonstration needs"
            " its passages, so mend the search and begin again"
        )
    return answer
