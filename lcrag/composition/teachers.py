"""Teachers, whose episodes become demonstrations: the atlas's oracles, a local policy, or a model at an endpoint."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, runtime_checkable

import gin

from lcrag.atlas import World
from lcrag.atlas.world import atlas_world
from lcrag.composition.components import configured_chat, configured_runner, make_sampler, resolved_folder
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
    """Runs episode programs to their end."""

    @property
    def hashes(self) -> Mapping[str, str]:
        """Content hashes of the models and files on which the teacher depends, by name."""

    def play(
        self, jobs: EpisodeJobs, search: Search, *, temperature: float, attempt: int, progress: Progress
    ) -> list[EpisodeRecord]:
        """Returns the finished episodes in the order of `jobs`; each `attempt` has its own random streams.

        `progress` is called with (finished, total) whenever episodes have finished.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritingTeacher:
    """A teacher that writes texts, which are encoded with the tokenizer of the student policy.

    Attributes:
      writer: Returns the writer of texts for a temperature.
      tokenizer: Tokenizer of the student policy.
      context: Length of a context, in tokens.
      concurrency: Number of programs that run at the same time.
      hashes: Content hashes of the models and files on which the teacher depends, by name.
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
    """A local checkpoint as the teacher, sampled with the settings of `Sampler` and `Runner`.

    Args:
      policy: The teacher.
      seed: Seed of sampling.
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
        """Returns the finished episodes in the order of `jobs`; the same attempt gives the same episodes."""
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
    hurried: Share = 0.0,
    seed: Seed = 0,
    world: Callable[[], World] = atlas_world,
) -> WritingTeacher:
    """Returns the rule-based oracle of the atlas as the teacher.

    Args:
      tokenizer: Folder of the student policy.
      context: Length of a context, in tokens.
      queries: Maximum number of queries in one search, as in the program.
      budget: Maximum number of searches, as in the program.
      remembered: Share of the training facts that the oracle knows; it uses them in searches before it has read them.
      mistaken: Share of the remembered facts that it remembers wrongly, which costs it another search.
      hurried: Share of the questions that it answers after one search, whatever that has found.
      seed: Seed that selects these facts and questions.
      world: Builds the atlas.
    """
    atlas = world()
    memory = training_memory(atlas, remembered, mistaken, seed)
    oracle = ParallelOracle(queries=queries, budget=budget, memory=memory, hurried=hurried, seed=seed)
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
    """Returns the rule-based teacher of golden plans for questions of the atlas.

    Args:
      tokenizer: Folder of the policy whose tokenizer counts tokens.
      context: Length of a context, in tokens.
      budget: Searches for a sub-question before the teacher gives up.
      careless: Share of the questions for which it writes a cyclic plan.
      seed: Seed that selects these questions.
      world: Builds the atlas.
    """
    return _rule_based(PlanTeacher(budget=budget, careless=careless, seed=seed), tokenizer, context, world())


def _rule_based(oracle: AtlasOracle, tokenizer: str, context: int, world: World) -> WritingTeacher:
    """Returns a teacher that follows rules, and therefore gives the same text for the same question."""

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
    """Returns a model at an OpenAI-compatible endpoint; its key is the environment variable OPENAI_API_KEY.

    Args:
      tokenizer: Folder of the student policy.
      context: Length of a context, in tokens.
      model: Name of the model at the endpoint.
      url: Address of the endpoint, up to `/v1`.
      concurrency: Number of concurrent requests.
      max_tokens: Maximum length of a turn, in tokens.
      attempts: Maximum number of requests for one turn if requests fail.
      seconds: Timeout of a request, in seconds.
    """

    endpoint = ChatEndpoint(model, url, concurrency=concurrency, attempts=attempts, seconds=seconds)

    def writer(temperature: float) -> TextWriter:
        return EndpointTeacher(endpoint, temperature=temperature, max_tokens=max_tokens)

    written = _context_tokenizer(tokenizer)
    return WritingTeacher(writer=writer, tokenizer=written, context=context, concurrency=concurrency)


def _context_tokenizer(folder: str) -> ContextTokenizer:
    """Returns the tokenizer of the policy in a folder, for its contexts."""
    tokenizer, chat = load_tokenizer(resolved_folder(folder)), configured_chat()
    chat.check(tokenizer)
    return ContextTokenizer(tokenizer, chat)
