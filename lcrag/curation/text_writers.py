"""Text writers in the policy's place (a chat model, an oracle, the golden answers), and the teachers that use them.

The episodes of a teacher become demonstrations.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import gin

from lcrag.curation.playing import TextWriter, play
from lcrag.data.questions import Question
from lcrag.episodes import Chat, Complete, EpisodeRecord, Generate, Program, Runner, Search, Turn
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.episodes.running_episode import derived_seed
from lcrag.errors import UserError, typed
from lcrag.files import resolved_folder
from lcrag.models.completers import LOCAL, ChatEndpoint
from lcrag.policy import Policy, load_tokenizer, parameter_fingerprint
from lcrag.sampling import Sampler, SamplerConfig

PLACE = "{answer}"
# (question, its fresh program, number of its random stream)
EpisodeJobs: TypeAlias = Sequence[tuple[Question, Program, int]]
Progress: TypeAlias = Callable[[int, int], None]  # called with (finished, all) episodes


def messages(turns: Sequence[Turn]) -> list[dict[str, str]]:
    """Returns a dialogue as a chat, the policy as the assistant; adjacent turns of one side are one message."""
    chat: list[dict[str, str]] = []
    for turn in turns:
        role = "assistant" if turn.by == "policy" else "user"
        if chat and chat[-1]["role"] == role:
            chat[-1]["content"] += turn.text
        else:
            chat.append({"role": role, "content": turn.text})
    return chat


def with_stop(text: str, stop: Sequence[str]) -> str:
    """Adds the stop string that endpoints leave out: the closing tag of the tag opened last.

    Text without an open tag is returned unchanged; text after a stop string is cut off.
    """
    ends = [place + len(end) for end in stop if (place := text.find(end)) >= 0]
    if ends:
        return text[: min(ends)]
    opened = {end: text.rfind(end.replace("</", "<")) for end in stop if end.startswith("</")}
    last = max(opened, key=opened.__getitem__, default="")
    return text + last if last and opened[last] >= 0 else text


@runtime_checkable
class AtlasOracle(Protocol):
    """A rule-based policy for the atlas's questions, such as those of `lcrag.atlas.oracle`."""

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text, after turns (by, text)."""


def oracle_writer(oracle: AtlasOracle) -> TextWriter:
    """Returns the text writer of an oracle, which writes only dialogues, no completions."""

    def write(question: Question, turns: Sequence[Turn], request: Generate | Complete) -> str:
        _check_dialogue(question, request)
        return oracle.next_text(question, [(turn.by, turn.text) for turn in turns])

    return write


def _check_dialogue(question: Question, request: Generate | Complete) -> None:
    if isinstance(request, Complete):
        raise UserError(
            f"the program of question {question.dataset}/{question.id} ({question.language}) completes prompts outside"
            " its dialogue, which this teacher does not write: demonstrate another program, or set"
            " golden_answers.writer to one that does"
        )


@dataclasses.dataclass(frozen=True)
class GoldenAnswers:
    """Writes the first golden answer for every generation: the SFT rows of LcRL, section 4.1.

    For a program that retrieves by itself this is the SFT baseline; where the policy may search, it answers without.

    Attributes:
      template: The text, with the placeholder `{answer}`.
    """

    template: str = "<answer> {answer}</answer>"

    def __post_init__(self):
        if PLACE not in self.template:
            raise UserError(f"the template {self.template!r} of golden answers has no place {PLACE} for the answer")

    def __call__(self, question: Question, turns: Sequence[Turn], request: Generate | Complete) -> str:
        _check_dialogue(question, request)
        return self.template.replace(PLACE, golden_answer(question))


def golden_answer(question: Question) -> str:
    """Returns the golden answer of a question for a demonstration."""
    if not question.answers:
        raise UserError(
            f"question {question.dataset}/{question.id} ({question.language}) has no golden answer to learn"
        )
    return question.answers[0].strip()


def misread(record: EpisodeRecord) -> str:
    """Returns why the program did not parse the golden answer, empty if it did."""
    golden = golden_answer(record.question)
    if record.finished and record.outcome.answer == golden:
        return ""
    if not record.finished:
        return "its passages leave no room in the context for the answer"
    written = "".join(turn.text for turn in record.turns if turn.by == "policy")
    return f"the program read the answer {record.outcome.answer!r} from {written!r}, not {golden!r}"


@runtime_checkable
class Teacher(Protocol):
    """Runs episode programs to their end."""

    @property
    def hashes(self) -> Mapping[str, str]:
        """Content hashes of the models and files on which the teacher depends, by name."""

    def play(
        self, jobs: EpisodeJobs, search: Search, *, temperature: float, attempt: int, progress: Progress
    ) -> list[EpisodeRecord]:
        """Returns the finished episodes in the order of `jobs`; each `attempt` has its own random streams."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritingTeacher:
    """A teacher that writes texts, which are encoded with the tokenizer of the student policy.

    Attributes:
      writer: Returns the writer of texts for a temperature.
      context: Length of a context, in tokens.
      concurrency: Number of programs that run at the same time.
    """

    writer: Callable[[float], TextWriter]
    tokenizer: ContextTokenizer
    context: int
    concurrency: int = 1
    hashes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def play(
        self, jobs: EpisodeJobs, search: Search, *, temperature: float, attempt: int, progress: Progress
    ) -> list[EpisodeRecord]:
        """Returns the finished episodes; the attempt makes no difference."""
        programs = [(question, program) for question, program, _ in jobs]
        return play(
            programs,
            self.writer(temperature),
            search,
            self.tokenizer,
            context=self.context,
            concurrency=self.concurrency,
            progress=progress,
        )


@gin.configurable("policy_teacher")
class SamplingTeacher:
    """A local checkpoint as the teacher; `runner` makes the runner of its episodes: `@Runner` in gin files."""

    @typed
    def __init__(self, policy: Policy, sampler: SamplerConfig, runner: Callable[..., Runner], seed: int = 0):
        self._policy, self._runner, self._seed = policy, runner, seed
        self._sampler = Sampler(policy.config, policy.params, policy.tokenizer, sampler, policy.mesh)

    @property
    def hashes(self) -> Mapping[str, str]:
        """Fingerprints of its parameters and its tokenizer."""
        tokenizer = self._policy.tokenizer.fingerprint()
        return {"teacher": parameter_fingerprint(self._policy.params), "tokenizer": tokenizer}

    def play(
        self, jobs: EpisodeJobs, search: Search, *, temperature: float, attempt: int, progress: Progress
    ) -> list[EpisodeRecord]:
        """Returns the finished episodes in the order of `jobs`; the same attempt gives the same episodes."""
        parts: dict[str, Any] = {"sampler": self._sampler, "tokenizer": self._policy.tokenizer, "search": search}
        runner = self._runner(**parts, temperature=temperature, seed=derived_seed(self._seed, attempt))
        records: dict[int, EpisodeRecord] = {}
        for record in runner.stream(jobs):
            records[record.episode] = record
            progress(len(records), len(jobs))
        return [records[number] for _, _, number in jobs]


def rule_based_teacher(
    oracle: AtlasOracle, tokenizer: str, chat: Chat, context: int, world_fingerprint: str
) -> WritingTeacher:
    """Returns a teacher that follows rules, and therefore gives the same text for the same question."""

    def writer(temperature: float) -> TextWriter:
        if temperature:
            raise UserError(f"the atlas's oracle does not sample at a temperature of {temperature:g}: set it to 0")
        return oracle_writer(oracle)

    encoder = context_tokenizer(tokenizer, chat)
    return WritingTeacher(writer=writer, tokenizer=encoder, context=context, hashes={"world": world_fingerprint})


@gin.configurable
@typed
def endpoint_teacher(
    tokenizer: str,
    chat: Chat,
    context: int,
    model: str,
    url: str = LOCAL,
    concurrency: int = 32,
    max_tokens: int = 1024,
    attempts: int = 6,
    seconds: float = 120.0,
) -> WritingTeacher:
    """Returns a model at an OpenAI-compatible endpoint; its key is the environment variable OPENAI_API_KEY.

    Args:
      tokenizer: Folder of the student policy.
      chat: How its openings are given to a model with a chat template.
      context: Length of a context, in tokens.
      url: Address of the endpoint, up to `/v1`.
      concurrency: Number of concurrent requests.
      max_tokens: Maximum length of a turn, in tokens, for programs that set none.
      attempts: Maximum number of requests for one turn if requests fail.
      seconds: Timeout of a request, in seconds.
    """
    if concurrency < 1:
        raise UserError(f"endpoint_teacher.concurrency is {concurrency}: give the number of requests at a time")
    endpoint = ChatEndpoint(model, url, attempts=attempts, seconds=seconds)

    def writer(temperature: float) -> TextWriter:
        def write(question: Question, turns: Sequence[Turn], request: Generate | Complete) -> str:
            reply = endpoint.say(
                messages(turns),
                temperature=temperature if request.temperature is None else request.temperature,
                max_tokens=max_tokens if request.max_tokens is None else request.max_tokens,
                stop=list(request.stop),
            )
            return with_stop(reply.text, request.stop)

        return write

    encoder = context_tokenizer(tokenizer, chat)
    return WritingTeacher(writer=writer, tokenizer=encoder, context=context, concurrency=concurrency)


def context_tokenizer(folder: str, chat: Chat) -> ContextTokenizer:
    """Returns the tokenizer of the policy in a folder, for its contexts."""
    tokenizer = load_tokenizer(resolved_folder(folder))
    chat.check(tokenizer)
    return ContextTokenizer(tokenizer, chat)
