"""Runs episode programs: composes slots, search and tokenizer, and turns what happened into records."""

import dataclasses
import functools
import time
from collections.abc import Mapping, Sequence

from lcrag.data.questions import Question
from lcrag.episodes.batched_search import Search, answer_batch
from lcrag.episodes.completion import Completer
from lcrag.episodes.context_text import Chat, ContextTokenizer
from lcrag.episodes.exchange import Stream
from lcrag.episodes.host_worker import HostWorker
from lcrag.episodes.live import RunningEpisode
from lcrag.episodes.record import EpisodeRecord
from lcrag.episodes.requests import TRANSLATION, Complete, Generate, Program
from lcrag.episodes.retrying import Retries
from lcrag.episodes.rollout import Progress, Rollout, RolloutStatistics, Serving, no_translator
from lcrag.episodes.translation import Translator, answer_translations
from lcrag.errors import UserError
from lcrag.policy import Tokenizer
from lcrag.sampling.continuation import SlotSampler
from lcrag.sampling.generation import Generation


@dataclasses.dataclass(kw_only=True)
class Runner:
    """Runs episode programs over a sampler's slots.

    Attributes:
      sampler: The device slots.
      tokenizer: Encodes what the environment writes; the sampler's own.
      search: (queries, languages, passages) -> for each (query, language) pair its hits, best first; called on
        another thread.
      max_tokens: Of a generation or completion that names no limit itself.
      temperature: Of a generation that names none itself.
      top_p: Of a generation that names none itself.
      seed: With an episode's number, names its random stream.
      chat: How the opening prompt is put to a model whose tokenizer has a chat template.
      answer_room: Tokens of the context kept free behind every observation.
      wait_for_searches: Hold the device back where a search, a translation or another model takes longer than the
        block decoded meanwhile, so that a run can be repeated bit for bit; without it the device goes on, and results
        differ by rounding.
      retries: How a failing search or translation is tried again.
      translator: Makes the translations that programs ask for, called on a thread of its own; None: there is none, and
        a program that offers the policy translation is refused.
      completers: Models other than the policy that a program may ask by name, each called on a thread of its own.
      statistics: Of the latest run.

    Raises:
      UserError: `answer_room` leaves nothing of the context, or the chat template cannot do what `chat` asks.
    """

    sampler: SlotSampler
    tokenizer: Tokenizer
    search: Search
    max_tokens: int = 256
    temperature: float = 1.0
    top_p: float = 1.0
    seed: int = 0
    chat: Chat = Chat()
    answer_room: int = 16
    wait_for_searches: bool = True
    retries: Retries = Retries()
    translator: Translator | None = None
    completers: Mapping[str, Completer] = dataclasses.field(default_factory=dict)
    statistics: RolloutStatistics = dataclasses.field(default_factory=RolloutStatistics, init=False)

    def __post_init__(self):
        context = self.sampler.context
        if not 0 < self.answer_room < context:
            raise UserError(f"answer_room={self.answer_room} must be positive and below the context, {context} tokens")
        self.chat.check(self.tokenizer)

    def run(
        self,
        programs: Sequence[tuple[Question, Program, int]],
        *,
        policy_version: int = 0,
        progress: Progress | None = None,
    ) -> list[EpisodeRecord]:
        """Runs programs to their end; uses every slot of the sampler and leaves them all free.

        Args:
          programs: (question, its fresh program, number that names its random stream).
          policy_version: Of the sampler's parameters, written into the records.
          progress: Called with (finished, total) whenever an episode has finished.

        Returns:
          The records, in the order of `programs`.

        Raises:
          UserError: a prompt does not fit the context or offers a tool that is not there (before anything is sampled),
            or a search or a model was asked for that does not exist.
        """
        started = time.monotonic()
        self.statistics = RolloutStatistics()
        episodes = self._start(programs)
        serving = self._serving()
        try:
            Rollout(serving, episodes, self.statistics, progress).run()
        finally:
            for worker in serving.workers:
                worker.close()
            self.sampler.free(range(self.sampler.slots))
            self.statistics.retrieval_batches = serving.searches.batches
            self.statistics.seconds = time.monotonic() - started
        return [episode.record(policy_version) for episode in episodes]

    def check(self, programs: Sequence[tuple[Question, Program, int]]) -> None:
        """Runs programs up to the first thing they wait for, and no further.

        Raises:
          UserError: a prompt does not fit the context, or offers a tool that is not there.
        """
        self._start(programs)

    def _start(self, programs: Sequence[tuple[Question, Program, int]]) -> list[RunningEpisode]:
        """All programs start before anything is sampled, so that a bad prompt costs nothing."""
        tokenizer = ContextTokenizer(self.tokenizer, self.chat)
        episodes = [
            RunningEpisode(question, program, number, tokenizer, self.sampler.context, self.answer_room)
            for question, program, number in programs
        ]
        for episode in episodes:
            episode.start()
            if TRANSLATION in episode.offered and self.translator is None:
                raise no_translator(episode)
        return episodes

    def _serving(self) -> Serving:
        search = functools.partial(answer_batch, self.search, retries=self.retries)
        translate = self.translator and functools.partial(answer_translations, self.translator, retries=self.retries)
        return Serving(
            sampler=self.sampler,
            tokenizer=self.tokenizer,
            settings=self._settings,
            searches=HostWorker("retrieval", search),
            translations=HostWorker("translation", translate) if translate else None,
            models={name: HostWorker(name, completer) for name, completer in self.completers.items()},
            wait=self.wait_for_searches,
        )

    def _settings(self, request: Generate | Complete, stream: Stream) -> Generation:
        return Generation(
            stop=request.stop,
            max_tokens=self.max_tokens if request.max_tokens is None else request.max_tokens,
            temperature=self.temperature if request.temperature is None else request.temperature,
            top_p=self.top_p if request.top_p is None else request.top_p,
            seed=stream.seed(self.seed),
            episode=stream.episode,
        )
