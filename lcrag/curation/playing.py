"""Episode programs played with a teacher in the policy's place, so that rows look as episodes do."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from lcrag.data.questions import Question
from lcrag.episodes import (
    EpisodeRecord,
    Generate,
    Program,
    Retries,
    RetrievalFailure,
    Retrieve,
    Translate,
    TranslationFailure,
    Translator,
    Turn,
)
from lcrag.episodes.batched_search import Search, answer_batch
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.episodes.exchange import Exchange
from lcrag.episodes.live import RunningEpisode
from lcrag.episodes.requests import Found
from lcrag.episodes.transcript import Transcript
from lcrag.episodes.translation import answer_translations
from lcrag.errors import UserError
from lcrag.sampling import Sampled

# (question, the turns so far beginning with the prompt, what is asked) -> what the policy should write next, with its
# stop string
Teacher: TypeAlias = Callable[[Question, Sequence[Turn], Generate], str]
# (number of the program, what its search found) -> what it is shown
Edit: TypeAlias = Callable[[int, Found], Found]
USUAL_RETRIES = Retries()
Asked = TypeVar("Asked", Retrieve, Translate)


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
    translator: Translator | None = None,
) -> list[EpisodeRecord]:
    """Plays programs to their end, all side by side: the searches and translations that they wait for go out as one
    batch each.

    Args:
      cast: Each question with its fresh program.
      teacher: Writes what the policy should.
      search: Answers (query, language) pairs.
      tokenizer: Writes texts into contexts.
      context: Tokens that a context holds.
      answer_room: Tokens kept free behind every observation.
      edit: Changes what a search found before its program is shown it.
      retries: How a failing search or translation is tried again.
      concurrency: Programs that the teacher writes for at a time; more than one where it waits for a model elsewhere.
      translator: Makes translations; None: there is none.

    Returns:
      The records, in order; their log-probabilities are 0.

    Raises:
      UserError: a prompt does not fit the context, a search or a translation failed, there is no translator for one, or
        a program asks for what no teacher writes.
    """
    episodes = [
        RunningEpisode(question, program, number, tokenizer, context, answer_room)
        for number, (question, program) in enumerate(cast)
    ]
    for episode in episodes:
        episode.start()
    write = functools.partial(_write, teacher=teacher, tokenizer=tokenizer)
    playing = episodes
    while playing := [episode for episode in playing if episode.outcome is None]:
        _each(write, playing, concurrency)
        searches: list[_Errand[Retrieve]] = []
        translations: list[_Errand[Translate]] = []
        for episode in playing:
            for exchange, part, request in episode.take_errands():
                if isinstance(request, Retrieve):
                    searches.append(_Errand(episode, exchange, part, request))
                else:
                    translations.append(_Errand(episode, exchange, part, request))
        _search(searches, search, edit, retries)
        _translate(translations, translator, retries)
    return [episode.record(policy_version=0) for episode in episodes]


def _each(write: Callable[[RunningEpisode], None], playing: Sequence[RunningEpisode], concurrency: int) -> None:
    if concurrency == 1:
        for episode in playing:
            write(episode)
        return
    with futures.ThreadPoolExecutor(concurrency) as workers:
        list(workers.map(write, playing))


def _write(episode: RunningEpisode, teacher: Teacher, tokenizer: ContextTokenizer) -> None:
    """Lets the teacher write as long as the program asks for nothing else."""
    while (request := episode.take_generation()) is not None:
        turns = [Turn("environment", _opening(episode.transcript)), *episode.transcript.turns]
        text = teacher(episode.question, turns, request)
        tokens = np.asarray(tokenizer.encode(text), np.int32)
        episode.sampled(Sampled(tokens, np.zeros(len(tokens), np.float32), text, "stop"))
    if episode.take_asides():
        raise UserError(
            f"the program of {episode.name} completes prompts beside its dialogue, and no teacher writes those: make"
            " demonstrations of another program"
        )


def _opening(transcript: Transcript) -> str:
    """What the environment said first; the chat template around it is that of the policy, not of the teacher."""
    return "\n\n".join(filter(None, (transcript.system, "".join(transcript.opening))))


@dataclasses.dataclass(frozen=True, eq=False)
class _Errand(Generic[Asked]):
    """A search or translation, who asked for it, and as which part of what."""

    episode: RunningEpisode
    exchange: Exchange
    part: int
    request: Asked


def _search(asked: Sequence[_Errand[Retrieve]], search: Search, edit: Edit, retries: Retries) -> None:
    answers = answer_batch(search, [each.request for each in asked], retries)
    for each, answer in zip(asked, answers, strict=True):
        shown = edit(each.episode.number, _found(answer, each.episode, each.request))
        each.episode.returned(each.exchange, each.part, shown)


def _translate(asked: Sequence[_Errand[Translate]], translator: Translator | None, retries: Retries) -> None:
    if not asked:
        return
    if translator is None:
        raise UserError(
            f"the program of {asked[0].episode.name} translates, but its demonstrator has no translator: give it one,"
            " as in oracle_demonstrations.translator = @LookUpTranslator()"
        )
    answers = answer_translations(translator, [each.request for each in asked], retries)
    for each, answer in zip(asked, answers, strict=True):
        if isinstance(answer, TranslationFailure):
            raise UserError(
                f"the translation of {each.request.text!r} for {each.episode.name} failed ({answer.reason}): a"
                " demonstration needs it, so mend the translator and begin again"
            )
        each.episode.returned(each.exchange, each.part, answer)


def _found(answer: Found | RetrievalFailure, episode: RunningEpisode, request: Retrieve) -> Found:
    if isinstance(answer, RetrievalFailure):
        raise UserError(
            f"the search of {episode.name} for {request.queries[0]!r} failed ({answer.reason}): a demonstration needs"
            " its passages, so mend the search and begin again"
        )
    return answer
