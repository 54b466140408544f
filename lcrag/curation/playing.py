"""Runs episode programs with a text writer in the policy's place, and judges the trajectories.

The records have the same form as episodes of the policy.
"""

from collections.abc import Callable, Sequence
from concurrent import futures
from typing import TypeAlias

import numpy as np

from lcrag.data.questions import Question
from lcrag.episodes import (
    Complete,
    Completion,
    EpisodeRecord,
    Generate,
    Program,
    Retries,
    RetrievalFailure,
    Retrieve,
    Search,
    Translate,
    TranslationFailure,
    Translator,
    Turn,
)
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.episodes.host_services import answer_batch, answer_translations
from lcrag.episodes.requests import Found
from lcrag.episodes.running_episode import PendingRequest, RunningEpisode
from lcrag.errors import UserError, lookup
from lcrag.rewards import ANSWER_TERMS
from lcrag.sampling import Sampled

# (question, the turns so far beginning with the prompt, the request) -> the policy's next text, with its stop string;
# the only turn of a completion is its prompt
TextWriter: TypeAlias = Callable[[Question, Sequence[Turn], Generate | Complete], str]
# (index of the program, the results of its search) -> the results that it sees
Edit: TypeAlias = Callable[[int, Found], Found]
USUAL_RETRIES = Retries()
ANSWER_ROOM = 16  # tokens kept free after every observation


def play(
    programs: Sequence[tuple[Question, Program]],
    writer: TextWriter,
    search: Search,
    tokenizer: ContextTokenizer,
    *,
    context: int,
    edit: Edit = lambda number, found: found,
    retries: Retries = USUAL_RETRIES,
    concurrency: int = 1,
    translator: Translator | None = None,
    progress: Callable[[int, int], None] = lambda finished, total: None,
) -> list[EpisodeRecord]:
    """Runs programs to their end in lockstep and returns their records; log-probabilities are 0.

    The searches and translations that the programs wait for at the same time are batched. The writer also writes the
    completions that a program requests of its policy; `EpisodeRecord.completions` holds them.

    Args:
      programs: Each question with its fresh program.
      context: Size of a context, in tokens.
      edit: Changes the results of a search before its program sees them.
      concurrency: Number of concurrent calls of the writer; above 1 for writers that wait for a remote model.
      translator: Makes translations; None: a program that requests one is rejected.
      progress: Called with (finished, total) after every round of turns.

    Raises:
      UserError: a prompt does not fit the context, a search or a translation failed, or a program requests a completion
        of another model or, without a translator, a translation.
    """
    episodes = [
        RunningEpisode(question, program, number, tokenizer, context, ANSWER_ROOM)
        for number, (question, program) in enumerate(programs)
    ]
    for episode in episodes:
        episode.start()

    def write_turns(episode: RunningEpisode) -> None:
        """Writes the policy's texts until the program waits for another request."""
        while (request := episode.take_generation()) is not None:
            transcript = episode.transcript
            # The chat template around the prompt is the policy's, not the writer's.
            prompt = "\n\n".join(filter(None, (transcript.system, "".join(transcript.opening))))
            text = writer(episode.question, [Turn("environment", prompt), *transcript.turns], request)
            tokens = np.asarray(tokenizer.encode(text), np.int32)
            episode.sampled(Sampled(tokens, np.zeros(len(tokens), np.float32), text, "stop"))

    def complete(asked: tuple[PendingRequest, Complete]) -> Completion:
        """Returns the writer's text for a completion in a fresh context."""
        pending, request = asked
        if request.model is not None:
            raise UserError(
                f"the program of {pending.episode.name} asks the model {request.model!r} for a completion, but a"
                " teacher writes the policy's texts only: demonstrate the program without another model"
            )
        text = writer(pending.episode.question, [Turn("environment", pending.opening.written)], request)
        return Completion(text=text, finish_reason="stop", tokens=len(tokenizer.encode(text)))

    playing = episodes
    with futures.ThreadPoolExecutor(concurrency) as workers:
        map_each = map if concurrency == 1 else workers.map
        while playing := [episode for episode in playing if episode.outcome is None]:
            list(map_each(write_turns, playing))
            waiting = [pending for episode in playing for pending in episode.take_pending()]
            completions = [(pending, pending.request) for pending in waiting if isinstance(pending.request, Complete)]
            for (pending, _), completion in zip(completions, list(map_each(complete, completions)), strict=True):
                pending.answer(completion)

            searches = [(pending, pending.request) for pending in waiting if isinstance(pending.request, Retrieve)]
            answers = answer_batch(search, [request for _, request in searches], retries)
            for (pending, retrieval), found in zip(searches, answers, strict=True):
                if isinstance(found, RetrievalFailure):
                    raise UserError(
                        f"the search of {pending.episode.name} for {retrieval.queries[0]!r} failed ({found.reason}): a"
                        " demonstration needs its passages, so fix the search and start again"
                    )
                pending.answer(edit(pending.episode.number, found))

            translations = [(pending, pending.request) for pending in waiting if isinstance(pending.request, Translate)]
            if translations and translator is None:
                raise UserError(
                    f"the program of {translations[0][0].episode.name} translates, but its demonstrator has no"
                    " translator: set oracle_demonstrations.translator = @LookUpTranslator() or another one"
                )
            texts = answer_translations(translator, [r for _, r in translations], retries) if translator else []
            for (pending, translation), text in zip(translations, texts, strict=True):
                if isinstance(text, TranslationFailure):
                    raise UserError(
                        f"the translation of {translation.text!r} for {pending.episode.name} failed ({text.reason}): a"
                        " demonstration needs it, so fix the translator and start again"
                    )
                pending.answer(text)
            progress(sum(episode.outcome is not None for episode in episodes), len(episodes))
    return [episode.record() for episode in episodes]


KEPT = "kept"
CONTEXT_FULL, NO_ANSWER, WRONG = "the context was full", "no answer", "a wrong answer"
INVALID, TOO_MANY, EMPTY = "an invalid action", "a query too many", "an empty query"
VERDICTS = (KEPT, WRONG, NO_ANSWER, CONTEXT_FULL, INVALID, TOO_MANY, EMPTY)


def right(records: Sequence[EpisodeRecord], answer: str) -> list[bool]:
    """Returns whether each episode's answer is a golden one: whether the answer reward of a name is 1."""
    reward = lookup(ANSWER_TERMS, answer, "answer reward")
    scores = reward([record.outcome.answer for record in records], [record.question.answers for record in records])
    return [score >= 1.0 for score in scores.tolist()]


def verdict(record: EpisodeRecord, correct: bool) -> str:
    """Returns `KEPT`, or the first reason why an episode is not imitated.

    A demonstration has a right answer and also follows the program's format.
    """
    if not record.finished:
        return CONTEXT_FULL
    if record.outcome.answer is None:
        return NO_ANSWER
    if not correct:
        return WRONG
    if record.outcome.invalid_actions:
        return INVALID
    if record.outcome.counts.get("dropped_queries"):
        return TOO_MANY
    return EMPTY if record.outcome.counts.get("empty_queries") else KEPT
