"""Plays episode programs with a text writer in the policy's place, judges the trajectories, and holds the teachers.

The records have the same form as episodes of the policy. Writers are a chat model, an oracle and the golden answers;
`players` has more.
"""

import dataclasses
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import gin
import numpy as np

from lcrag.data.questions import Question
from lcrag.episodes import (
    Chat,
    Complete,
    Completion,
    EpisodeRecord,
    Generate,
    GenerationFailure,
    Program,
    RetrievalFailure,
    Retrieve,
    Runner,
    Search,
    Translate,
    TranslationFailure,
    Translator,
    Turn,
)
from lcrag.episodes.chat import ContextTokenizer
from lcrag.episodes.programs import UNKNOWN, Found, answer_language
from lcrag.episodes.runner import answer_batch, answer_translations
from lcrag.episodes.running_episode import PendingRequest, RunningEpisode, derived_seed
from lcrag.errors import Count, Seed, UserError, lookup, typed
from lcrag.files import resolved_folder
from lcrag.models.completers import LOCAL, ChatEndpoint
from lcrag.policy import Policy, load_tokenizer, parameter_fingerprint
from lcrag.retries import Patience
from lcrag.rewards import ANSWER_TERMS, mathematics, multiple_choice
from lcrag.rewards.text import folded
from lcrag.sampling import Sampled, Sampler, SlotSampler

# (question, the turns so far beginning with the prompt, the request) -> the policy's next text, with its stop string;
# the only turn of a completion is its prompt
TextWriter: TypeAlias = Callable[[Question, Sequence[Turn], Generate | Complete], str]
# (index of the program, the results of its search) -> the results that it sees
Edit: TypeAlias = Callable[[int, Found], Found]
Item = TypeVar("Item")
USUAL_RETRIES = Patience(attempts=3)
ANSWER_ROOM = 16  # tokens kept free after every observation
_ACTIVITY = logging.getLogger("lcrag.activity")


def played(
    programs: Sequence[tuple[Question, Program]],
    writer: TextWriter,
    search: Search,
    tokenizer: ContextTokenizer,
    *,
    context: int,
    edit: Edit = lambda number, found: found,
    retries: Patience = USUAL_RETRIES,
    concurrency: int = 1,
    translator: Translator | None = None,
) -> Iterator[EpisodeRecord]:
    """Runs programs to their end in lockstep and yields their records as they finish; log-probabilities are 0.

    The searches and translations that the programs wait for at the same time are batched. The writer also writes the
    completions that a program requests of its policy; `EpisodeRecord.completions` holds them.

    Args:
      edit: Changes the results of a search before its program sees them.
      concurrency: Number of concurrent calls of the writer; above 1 for writers that wait for a remote model.
      translator: Makes translations; None: a program that requests one is rejected.

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
        while (request := episode.take_generation()) is not None:
            transcript = episode.transcript
            # The chat template around the prompt is the policy's, not the writer's.
            prompt = "\n\n".join(filter(None, (transcript.system, "".join(transcript.opening))))
            turns = [
                dataclasses.replace(turn, text=tokenizer.read(turn.text, request)) if turn.by == "policy" else turn
                for turn in transcript.turns
            ]
            text, end = tokenizer.demonstrated(writer(episode.question, [Turn("environment", prompt), *turns], request))
            tokens = np.asarray([*tokenizer.encode(text), *end], np.int32)
            scores = np.zeros(len(tokens), np.float32)
            episode.sampled(Sampled(tokens, scores, text, "eos" if end else "stop"))

    def complete(asked: tuple[PendingRequest, Complete]) -> Completion:
        pending, request = asked
        if request.model is not None:
            raise UserError(
                f"the program of {pending.episode.name} asks the model {request.model!r} for a completion, but a"
                " teacher writes the policy's texts only: demonstrate the program without another model"
            )
        text = writer(pending.episode.question, [Turn("environment", pending.opening.written)], request)
        return Completion(text=text, finish_reason="stop", tokens=len(tokenizer.encode(text)))

    def shown(what: str, items: Sequence[Item]) -> Iterator[Item]:
        for number, item in enumerate(items, 1):
            if number % 50 == 0:
                _ACTIVITY.info(f"playing {len(episodes):,} episodes: {what} {number:,} of {len(items):,}")
            yield item

    playing = episodes
    with futures.ThreadPoolExecutor(concurrency) as workers:
        map_each = map if concurrency == 1 else workers.map
        while playing:
            list(map_each(write_turns, shown("turn", playing)))
            waiting = [pending for episode in playing for pending in episode.take_pending()]
            completions = [(pending, pending.request) for pending in waiting if isinstance(pending.request, Complete)]
            written = list(map_each(complete, completions))
            for (pending, _), completion in zip(shown("completion", completions), written, strict=True):
                pending.answer(completion)

            searches = [(pending, pending.request) for pending in waiting if isinstance(pending.request, Retrieve)]
            answers = answer_batch(search, [request for _, request in searches], retries)
            for (pending, retrieval), found in zip(shown("search", searches), answers, strict=True):
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
                    " translator: set oracle_demonstrations.translator, or player_teacher.translator, to one"
                )
            texts = answer_translations(translator, [r for _, r in translations], retries) if translator else []
            for (pending, translation), text in zip(translations, texts, strict=True):
                if isinstance(text, TranslationFailure | GenerationFailure):
                    raise UserError(
                        f"the translation of {translation.text!r} for {pending.episode.name} failed ({text.reason}): a"
                        " demonstration needs it, so fix the translator and start again"
                    )
                pending.answer(text)
            yield from (episode.record() for episode in playing if episode.outcome is not None)
            playing = [episode for episode in playing if episode.outcome is None]


def play(
    programs: Sequence[tuple[Question, Program]],
    writer: TextWriter,
    search: Search,
    tokenizer: ContextTokenizer,
    **options: Any,
) -> list[EpisodeRecord]:
    """Returns the records of `played` in the order of the programs; the arguments are the same."""
    return sorted(played(programs, writer, search, tokenizer, **options), key=lambda record: record.episode)


KEPT = "kept"
CONTEXT_FULL, NO_ANSWER, WRONG = "the context was full", "no answer", "a wrong answer"
ADMITTED = "an admitted unknown"  # the answer is the word for unknown
INVALID, TOO_MANY, EMPTY = "an invalid action", "a query too many", "an empty query"
VERDICTS = (KEPT, WRONG, ADMITTED, NO_ANSWER, CONTEXT_FULL, INVALID, TOO_MANY, EMPTY)


def right(records: Sequence[EpisodeRecord], answer: str, min_reward: float = 1.0) -> list[bool]:
    """Returns whether each episode's answer is a golden one to a reader: whether its answer reward is high enough."""
    terms = {**ANSWER_TERMS, "mathematics": mathematics, "multiple_choice": multiple_choice}
    reward = lookup(terms, answer, "answer reward")
    read = folded if answer in ANSWER_TERMS else str  # the domains' rewards read case, powers and fractions
    answers = [read(record.outcome.answer or "") for record in records]
    scores = reward(answers, [[*map(read, record.question.answers)] for record in records])
    return [score >= min_reward for score in scores.tolist()]


def unknown_in(language: str) -> str:
    """Returns the answer that admits that nothing was found, in English for a language without the word."""
    return UNKNOWN.get(language, UNKNOWN["en"])


def verdict(record: EpisodeRecord, correct: bool) -> str:
    """Returns `KEPT`, or the first reason why an episode is not imitated.

    A demonstration has a right answer and also follows the program's format.
    """
    if not record.finished:
        return CONTEXT_FULL
    if record.outcome.answer is None:
        return NO_ANSWER
    if not correct:
        return ADMITTED if record.outcome.answer == unknown_in(answer_language(record.question)) else WRONG
    if record.outcome.invalid_actions:
        return INVALID
    if record.outcome.counts.get("dropped_queries"):
        return TOO_MANY
    return EMPTY if record.outcome.counts.get("empty_queries") else KEPT


# --- Text writers ---

PLACE = "{answer}"
# (question, its fresh program, number of its random stream)
EpisodeJobs: TypeAlias = Sequence[tuple[Question, Program, int]]


def messages(turns: Sequence[Turn]) -> list[dict[str, str]]:
    """Returns a dialogue as a chat, the policy as the assistant; adjacent turns of one side are one message."""
    sides = itertools.groupby(turns, key=lambda turn: "assistant" if turn.by == "policy" else "user")
    return [{"role": role, "content": "".join(turn.text for turn in same)} for role, same in sides]


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
        check_dialogue(question, request)
        return oracle.next_text(question, [(turn.by, turn.text) for turn in turns])

    return write


def check_dialogue(question: Question, request: Generate | Complete) -> None:
    """Raises a UserError for a completion outside the dialogue."""
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
    """

    template: str = "<answer> {answer}</answer>"  # the text, with the placeholder `{answer}`

    def __post_init__(self):
        if PLACE not in self.template:
            raise UserError(f"the template {self.template!r} of golden answers has no place {PLACE} for the answer")

    def __call__(self, question: Question, turns: Sequence[Turn], request: Generate | Complete) -> str:
        check_dialogue(question, request)
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

    def play(self, jobs: EpisodeJobs, search: Search, *, temperature: float, attempt: int) -> Iterator[EpisodeRecord]:
        """Yields the episodes as they finish; each `attempt` has its own random streams."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WritingTeacher:
    """A teacher that writes texts, which are encoded with the tokenizer of the student policy."""

    writer: Callable[[float], TextWriter]  # of texts for a temperature
    tokenizer: ContextTokenizer
    context: int  # length of a context, in tokens
    concurrency: int = 1  # number of programs that run at the same time
    translator: Translator | None = None  # for programs that translate
    hashes: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def play(self, jobs: EpisodeJobs, search: Search, *, temperature: float, attempt: int) -> Iterator[EpisodeRecord]:
        """Yields the episodes as they finish; the attempt makes no difference."""
        programs = [(question, program) for question, program, _ in jobs]
        records = played(
            programs,
            self.writer(temperature),
            search,
            self.tokenizer,
            context=self.context,
            concurrency=self.concurrency,
            translator=self.translator,
        )
        for record in records:
            yield dataclasses.replace(record, episode=jobs[record.episode][2])


@gin.configurable
class SamplingTeacher:
    """A local checkpoint as the teacher; `runner` makes the runner of its episodes: `@Runner` in gin files."""

    @typed
    def __init__(self, policy: Policy, sampler: Sampler, runner: Callable[..., Runner], seed: Seed = 0):
        self._policy, self._runner, self._seed = policy, runner, seed
        self._sampler = SlotSampler(policy.config, policy.params, policy.tokenizer, sampler, policy.mesh)

    @property
    def hashes(self) -> Mapping[str, str]:
        tokenizer = self._policy.tokenizer.fingerprint()
        return {"teacher": parameter_fingerprint(self._policy.params), "tokenizer": tokenizer}

    def play(self, jobs: EpisodeJobs, search: Search, *, temperature: float, attempt: int) -> Iterator[EpisodeRecord]:
        """Yields the episodes as they finish; the same attempt gives the same episodes."""
        parts: dict[str, Any] = {"sampler": self._sampler, "tokenizer": self._policy.tokenizer, "search": search}
        runner = self._runner(**parts, temperature=temperature, seed=derived_seed(self._seed, attempt))
        yield from runner.stream(jobs)


def rule_based_teacher(
    writer: TextWriter,
    tokenizer: str,
    chat: Chat,
    context: int,
    hashes: Mapping[str, str],
    translator: Translator | None = None,
) -> WritingTeacher:
    """Returns a teacher that follows rules, so it has the same text for the same question, and no temperature."""

    def at(temperature: float) -> TextWriter:
        if temperature:
            raise UserError(f"the teacher follows rules, without a temperature of {temperature:g}: set it to 0")
        return writer

    encoder = context_tokenizer(tokenizer, chat)
    return WritingTeacher(writer=at, tokenizer=encoder, context=context, translator=translator, hashes=hashes)


@gin.configurable
@typed
def endpoint_teacher(
    tokenizer: str,
    chat: Chat,
    context: int,
    model: str,
    url: str = LOCAL,
    concurrency: Count = 32,
    max_tokens: int = 1024,
    attempts: int = 6,
    seconds: float = 120.0,
) -> WritingTeacher:
    """Returns a model at an OpenAI-compatible endpoint; its key is the environment variable OPENAI_API_KEY.

    Args:
      tokenizer: Folder of the student policy.
      chat: How its openings are given to a model with a chat template.
      url: Address of the endpoint, up to `/v1`.
      max_tokens: Maximum length of a turn, in tokens, for programs that set none.
    """
    endpoint = ChatEndpoint(model, url, attempts=attempts, seconds=seconds)

    def writer(temperature: float) -> TextWriter:
        def write(question: Question, turns: Sequence[Turn], request: Generate | Complete) -> str:
            reply = endpoint.say(
                messages(turns),
                temperature=temperature if request.temperature is None else request.temperature,
                max_tokens=max_tokens if request.max_tokens is None else request.max_tokens,
                stop=list(request.stop),
            )
            return reply.text if reply.finish_reason == "length" else with_stop(reply.text, request.stop)

        return write

    encoder = context_tokenizer(tokenizer, chat)
    return WritingTeacher(writer=writer, tokenizer=encoder, context=context, concurrency=concurrency)


def context_tokenizer(folder: str, chat: Chat) -> ContextTokenizer:
    """Returns the tokenizer of the policy in a folder, for its contexts.

    Demonstrations are written in tags: whoever reads them makes calls of them (`Chat.tools`).
    """
    tokenizer, chat = load_tokenizer(resolved_folder(folder)), dataclasses.replace(chat, tools=False)
    chat.check(tokenizer)
    return ContextTokenizer(tokenizer, chat)
