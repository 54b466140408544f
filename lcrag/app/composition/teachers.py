"""Who plays a program so that others learn from it: the atlas's oracle, a policy on this machine, or an endpoint."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import gin

from lcrag.app.composition.atlas import atlas_world
from lcrag.app.composition.components import configured_chat, configured_runner, make_sampler, resolved_folder
from lcrag.atlas import World
from lcrag.curation.playing import TextWriter, play
from lcrag.curation.text_writers import AtlasOracle, EndpointTeacher, oracle_writer
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Program
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.episodes.host_services import Search
from lcrag.episodes.runner import Progress
from lcrag.episodes.running_episode import derived_seed
from lcrag.errors import UserError
from lcrag.limits import Amount, Count, Positive, Seed, Share
from lcrag.methods.globalrag.oracle import PlanTeacher
from lcrag.methods.rag_r1.oracle import ParallelOracle, training_memory
from lcrag.models.completers import LOCAL, ChatEndpoint
from lcrag.policy import Policy, load_tokenizer, parameter_fingerprint

EpisodeJobs: TypeAlias = Sequence[
    tuple[Question, Program, int]
]  # question, its fresh program, number of its random stream


@runtime_checkable
class Teacher(Protocol):
    """Plays programs to their end."""

    @property
    def hashes(self) -> Mapping[str, str]:
        """The hash of everything it depends on that gin does not name."""

    def play(
        self, jobs: EpisodeJobs, search: Search, *, temperature: float, attempt: int, progress: Progress
    ) -> list[EpisodeRecord]:
        """The finished episodes, in order; another attempt has other random numbers.

        `progress` is called with (finished, total) whenever some have finished.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritingTeacher:
    """A teacher that writes texts, whose tokens are those of the policy that will learn from it.

    Attributes:
      writer: temperature -> the teacher.
      tokenizer: Writes texts into contexts.
      context: Tokens that a context holds.
      concurrency: Programs that it writes for at a time.
    """

    writer: Callable[[float], TextWriter]
    tokenizer: ContextTokenizer
    context: int
    concurrency: int = 1
    hashes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def play(
        self, jobs: EpisodeJobs, search: Search, *, temperature: float, attempt: int, progress: Progress
    ) -> list[EpisodeRecord]:
        """The finished episodes, in order."""
        programs = [(question, program) for question, program, _ in jobs]
        writer = self.writer(temperature)
        return play(
            programs,
            writer,
            search,
            self.tokenizer,
            context=self.context,
            concurrency=self.concurrency,
            progress=progress,
        )


class SamplingTeacher:
    """A policy on this machine: a local checkpoint, sampled as `Sampler` and `Runner` say.

    Args:
      policy: Who plays.
      seed: Of sampling.
    """

    def __init__(self, policy: Policy, seed: Seed = 0):
        self._policy, self._seed, self._sampler = policy, seed, make_sampler(policy)

    @property
    def hashes(self) -> Mapping[str, str]:
        """Fingerprints of its parameters and its tokenizer."""
        tokenizer = self._policy.tokenizer.fingerprint()
        return {"teacher": parameter_fingerprint(self._policy.params), "tokenizer": tokenizer}

    def play(
        self, jobs: EpisodeJobs, search: Search, *, temperature: float, attempt: int, progress: Progress
    ) -> list[EpisodeRecord]:
        """The finished episodes, in order; the same attempt samples the same."""
        parts = {"sampler": self._sampler, "tokenizer": self._policy.tokenizer, "search": search}
        seed = derived_seed(self._seed, attempt)
        runner = configured_runner(**parts, chat=configured_chat(), temperature=temperature, seed=seed)
        return runner.run(jobs, progress=progress)


gin.external_configurable(SamplingTeacher, "policy_teacher", module=__name__)


@gin.configurable
def oracle_teacher(
    tokenizer: str,
    context: Count,
    queries: Count = 3,
    budget: Amount = 4,
    remembered: Share = 0.4,
    mistaken: Share = 0.3,
    seed: Seed = 0,
    world: Callable[[], World] = atlas_world,
) -> WritingTeacher:
    """The atlas's rule-based oracle.

    Args:
      tokenizer: Folder of the policy that will learn from it.
      context: Tokens that a context holds.
      queries: Queries of one search at most: the program's.
      budget: Searches that it makes at most: the program's.
      remembered: Share of the training facts that it knows: it searches for what follows from them without waiting.
      mistaken: Share of them that it remembers wrongly, and so has to search once more.
      seed: Of which facts these are.
      world: Builds the atlas.
    """
    atlas = world()
    oracle = ParallelOracle(queries=queries, budget=budget, memory=training_memory(atlas, remembered, mistaken, seed))
    return _rule_based(oracle, tokenizer, context, atlas)


@gin.configurable
def plan_teacher(
    tokenizer: str,
    context: Count,
    budget: Amount = 2,
    careless: Share = 0.0,
    seed: Seed = 0,
    world: Callable[[], World] = atlas_world,
) -> WritingTeacher:
    """The atlas's rule-based teacher of golden plans.

    Args:
      tokenizer: Folder of the policy whose tokens are counted.
      context: Tokens that a context holds.
      budget: Searches that it makes for a sub-question before it gives up.
      careless: Share of the questions that it plans in a circle.
      seed: Of which questions these are.
      world: Builds the atlas.
    """
    return _rule_based(PlanTeacher(budget=budget, careless=careless, seed=seed), tokenizer, context, world())


def _rule_based(oracle: AtlasOracle, tokenizer: str, context: int, world: World) -> WritingTeacher:
    """A teacher that follows rules, and so always writes the same."""

    def writer(temperature: float) -> TextWriter:
        if temperature:
            raise UserError(f"the atlas's oracle does not sample at a temperature of {temperature:g}: set it to 0")
        return oracle_writer(oracle)

    written = _context_tokenizer(tokenizer)
    return WritingTeacher(writer=writer, tokenizer=written, context=context, hashes={"world": world.fingerprint()})


@gin.configurable
def endpoint_teacher(
    tokenizer: str,
    context: Count,
    model: str,
    url: str = LOCAL,
    concurrency: Count = 32,
    max_tokens: Count = 1024,
    attempts: Count = 6,
    seconds: Positive = 120.0,
) -> WritingTeacher:
    """A model behind an OpenAI-compatible endpoint; its key is OPENAI_API_KEY of the environment.

    Args:
      tokenizer: Folder of the policy that will learn from it.
      context: Tokens that a context holds.
      model: Name of the model, as the endpoint knows it.
      url: The endpoint, up to `/v1`.
      concurrency: Requests in flight.
      max_tokens: Longest turn.
      attempts: Requests for one turn, where the endpoint is away.
      seconds: That one request may take.
    """

    endpoint = ChatEndpoint(model, url, concurrency=concurrency, attempts=attempts, seconds=seconds)

    def writer(temperature: float) -> TextWriter:
        return EndpointTeacher(endpoint, temperature=temperature, max_tokens=max_tokens)

    written = _context_tokenizer(tokenizer)
    return WritingTeacher(writer=writer, tokenizer=written, context=context, concurrency=concurrency)


def _context_tokenizer(folder: str) -> ContextTokenizer:
    """What writes texts into contexts of the policy in a folder."""
    tokenizer, chat = load_tokenizer(resolved_folder(folder)), configured_chat()
    chat.check(tokenizer)
    return ContextTokenizer(tokenizer, chat)
