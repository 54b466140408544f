"""Episode programs: the requests that they yield, what several of them share, and their settings.

A program is a generator function of a question and the languages of the collections, with keyword-only settings. It
yields requests, is sent their answers, and returns an outcome. It does not know of batching, slots, devices or masks.
"""

import dataclasses
import functools
import inspect
import typing
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from lcrag.data.questions import Question, language_of
from lcrag.episodes.tags import Answer, Invalid, SearchAction, answer_in, neutralise, parse_action
from lcrag.episodes.tools import Join
from lcrag.errors import UserError, check_type, lookup, typed

# --- Requests and outcomes ---


@runtime_checkable
class TextTokenizer(Protocol):
    """Encodes and decodes text, to fit it into a number of tokens."""

    def encode(self, text: str) -> Sequence[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@runtime_checkable
class FoundPassage(Protocol):
    """A hit of a search, as episodes see it."""

    @property
    def title(self) -> str: ...

    @property
    def text(self) -> str: ...


@runtime_checkable
class FittedText(Protocol):
    """Environment text that adapts to the room in the context."""

    def fit(self, tokenizer: TextTokenizer, room_tokens: int) -> str | None:
        """Returns the text in at most `room_tokens` tokens; None if it does not fit."""


@typed
@dataclasses.dataclass(frozen=True)
class Observe:
    """Appends environment text to this episode's context. Answer: None.

    The first one is the opening prompt: a model with a chat template gets it as the user's turn. If the text does not
    fit the rest of the context, `ContextFull` is raised in the program instead.
    """

    text: str | FittedText
    # The method's instructions, in the first one only: the system message for a model with a chat template, otherwise
    # placed before the text.
    system: str | None = None
    # Tools that the text offers the policy; a runner that lacks one rejects the program before anything is sampled.
    # `Chat.tools` describes "search" to the model if it is named here, or if the text speaks of <search>.
    tools: tuple[str, ...] = ()


@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate:
    """Lets the policy continue this episode's context.

    Answer: `str`, the sampled text up to and including the stop string that ended it, without the rest of that token;
    with `Chat.tools`, a call of the search is written in tags. None stands for the run's default.
    """

    stop: tuple[str, ...]
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    join: Join | None = None  # allows several calls of the search in one turn, and writes their queries as one


@typed
@dataclasses.dataclass(frozen=True)
class Retrieve:
    """Searches every query in every named language's collection.

    Answer: `FoundPassages`, for each query, for each language in the order given, the hits, best first; or
    `RetrievalFailure` in place of the whole list, after the runner has retried.
    """

    queries: tuple[str, ...]
    languages: tuple[str, ...]
    passages: int = 3


class FoundPassages(list[list[list[FoundPassage]]]):
    """The answer to a `Retrieve`: for each of its `queries`, for each language, the hits, best first."""

    def __init__(self, found: Iterable[list[list[FoundPassage]]], queries: tuple[str, ...]):
        super().__init__(found)
        self.queries = queries


@dataclasses.dataclass(frozen=True)
class RetrievalFailure:
    """The answer to a `Retrieve` that failed after every retry; it sets `EpisodeRecord.failure` of the episode."""

    reason: str


def hits_of(found: "Found | RetrievalFailure") -> list[FoundPassage]:
    """Returns all passages of a search, by query, then by language, best first; empty if the search failed."""
    searched = () if isinstance(found, RetrievalFailure) else found
    return [passage for languages in searched for passages in languages for passage in passages]


TRANSLATION = "translation"  # name of the tool that `Translate` uses


@dataclasses.dataclass(frozen=True)
class Translate:
    """Translates a text with the runner's translator. Answer: `str`, or `TranslationFailure`."""

    text: str
    source: str | None  # code of its language; None: the translator detects it
    target: str  # code of the language to translate into


@dataclasses.dataclass(frozen=True)
class TranslationFailure:
    """The answer to a `Translate` that the translator cannot do."""

    reason: str
    unavailable: bool = False  # the translator itself failed, after every retry; in an episode a `GenerationFailure`


Translated: TypeAlias = str | TranslationFailure


@dataclasses.dataclass(frozen=True, kw_only=True)
class Complete:
    """Completes a prompt in a fresh context outside the dialogue. Answer: `Completion`.

    If another model fails after every retry, `GenerationFailed` is raised in the program instead.

    The completion is counted and kept in the record, and never trained on. Several in one tuple run in parallel, each
    with its own random numbers; equal ones are several samples of one prefilled prompt. A model with a chat template
    gets the prompt as the user's turn. The policy's prompt may be a `FittedText`; if it does not fit the policy's
    context, `ContextFull` is raised in the program instead.
    """

    prompt: str | FittedText
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None  # None here: the run's default
    temperature: float | None = None
    top_p: float | None = None
    model: str | None = None  # one of the runner's other models; None: the policy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Completion:
    """The answer to a `Complete`; a model that does not report each token leaves the last two empty."""

    text: str  # up to and including the stop string that ended it
    finish_reason: Literal["stop", "eos", "length"]
    tokens: int  # sampled ones
    pieces: tuple[str, ...] = ()  # the text of each token; joined they begin with `text`
    log_probabilities: tuple[float, ...] = ()  # of each token, in the untruncated distribution at temperature 1


@dataclasses.dataclass(frozen=True)
class GenerationFailure:
    """The answer of another model whose completion or translation failed after every retry."""

    reason: str


class GenerationFailed(Exception):
    """Raised in a program when another model that it asks fails after every retry.

    A program need not catch it: its episode then ends with `EpisodeRecord.failure` and without a reward.
    """


class ContextFull(Exception):
    """Raised in a program whose context has no room for its request.

    A program may catch it to return an `Outcome`; otherwise its episode ends without an answer.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of an episode."""

    answer: str | None  # in the policy's text; None if it gave none
    invalid_actions: int = 0  # generations without a valid action
    counts: dict[str, int] = dataclasses.field(default_factory=dict)  # of the program, logged as `episode/<name>`
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)  # evidence, plan, ...; JSON-serialisable


Found: TypeAlias = Sequence[Sequence[Sequence[FoundPassage]]]  # queries, languages, passages
Request: TypeAlias = Observe | Generate | Retrieve | Translate | Complete
Program: TypeAlias = Generator[Request | tuple[Request, ...], Any, Outcome]


# --- Opening prompts ---

# What follows a turn without a valid action: the sentence of LcRL and Search-R1's papers, and the one in the code of
# Search-R1, R-Search, RAG-R1 and GlobalRAG; in their code, line breaks separate it from the policy's text.
RETHINK = "\nMy action is not correct. Let me rethink.\n"
TRY_AGAIN = (
    "\nMy previous action is invalid. If I want to search, I should put the query between <search> and </search>. If I "
    "want to give the final answer, I should put the answer between <answer> and </answer>. Let me try again.\n"
)

_SEARCH_R1 = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> "
    "query </search>, and it will return the top searched results between <information> and </information>. You can "
    "search as many times as you want. If you find no further external knowledge needed, you can directly provide the "
    "answer inside <answer> and </answer> without detailed illustrations. Note: The answer must be in {wanted}. For "
    "example, <answer> {example} </answer>. Question: {question}\n"
)


# The answer that admits that nothing was found, by language.
UNKNOWN: Mapping[str, str] = {
    "en": "unknown",
    "ar": "غير معروف",
    "fi": "tuntematon",
    "fr": "inconnu",
    "ja": "不明",
    "it": "sconosciuto",
    "ru": "неизвестно",
    "zh": "未知",
    "de": "unbekannt",
    "ko": "알 수 없음",
    "es": "desconocido",
    "pt": "desconhecido",
    "th": "ไม่ทราบ",
}


def answer_language(question: Question) -> str:
    """Returns the required language of the answer: that of the question or, in pivot coupling, the native one.

    The pivot version of a question is in another language; its `extra["answer_language"]` is the language of the
    answer.
    """
    return question.extra.get("answer_language", question.language)


def search_r1(question: Question) -> str:
    """Returns the prompt of Search-R1 (Jin et al., 2025, table 1), with LcRL's sentence on the answer's language."""
    wanted = language_of(answer_language(question))
    return _SEARCH_R1.format(wanted=wanted.name, example=wanted.example, question=neutralise(question.text))


def user_message(question: Question) -> str:
    """Returns the question as a chat message, which names the language of the answer unless it is English."""
    wanted = answer_language(question)
    note = "" if wanted == "en" else f" The answer must be in {language_of(wanted).name}."
    return f"{neutralise(question.text)}{note}\n"


def atlas(question: Question) -> str:
    """Returns the tiny policy's prompt: the question, and the code of the answer's language if it is another one."""
    wanted = answer_language(question)
    mark = "" if wanted == question.language else f" [{wanted}]"
    return f"{neutralise(question.text)}{mark}\n"


PROMPTS: Mapping[str, Callable[[Question], str]] = {"search_r1": search_r1, "atlas": atlas}


def opening_prompt(name: str, question: Question, prompts: Mapping[str, Callable[[Question], str]] = PROMPTS) -> str:
    """Returns the prompt with this name that opens a question's episode."""
    return lookup(prompts, name, "prompt")(question)


# --- The search loop ---


@dataclasses.dataclass
class SearchTurns:
    """The policy's turns in one episode."""

    budget: int  # valid searches allowed; 0 answers without searching
    invalid_limit: int  # invalid actions allowed; they do not count as searches
    stop: tuple[str, ...] = ("</search>", "</answer>")  # strings that end a turn
    read: Callable[[str], Any] = parse_action  # the action in the text of a turn; others than searches are for tools
    correction: str = RETHINK  # what answers an invalid action
    join: Join | None = None  # of `Generate`
    generations: int | None = None  # turns allowed; None: as many as the other limits allow, and the last one
    over: bool = False  # set by a program to allow no further action
    searches: int = 0  # valid ones so far
    invalid: int = 0  # actions so far
    texts: list[str] = dataclasses.field(default_factory=list)  # of each turn
    answer: str | None = None  # None until the policy gives one
    in_final_turn: bool = False  # whether the latest turn is the last one, in which the policy can only answer

    def next_action(self) -> Generator[Generate | Observe, Any, Any]:
        """Generates until the policy searches. Returns the `SearchAction`, or None once the episode is over.

        An invalid action is answered with `correction`. After the last search, or one invalid action too many, the
        policy has one last turn to answer, unless `generations` are used up.
        """
        while self.searches < self.budget and self.invalid < self.invalid_limit and not self.over:
            if len(self.texts) == self.generations:
                return None
            self.texts.append((yield Generate(stop=self.stop, join=self.join)))
            match self.read(self.texts[-1]):
                case Answer(answer):
                    self.answer = answer
                    return None
                case Invalid():
                    self.invalid += 1
                    yield Observe(self.correction)
                case SearchAction() as search:
                    self.searches += 1
                    return search
                case action:
                    return action
        if len(self.texts) == self.generations:
            return None
        self.texts.append((yield Generate(stop=("</answer>",))))
        self.in_final_turn = True
        self.answer = answer_in(self.texts[-1])
        self.invalid += self.answer is None
        return None

    def reject(self, reply: str | None = None) -> Observe:
        """Counts the latest search as an invalid action instead. Returns the observation with the reply."""
        self.searches -= 1
        self.invalid += 1
        return Observe(self.correction if reply is None else reply)


# --- Logs of searches ---

Requests: TypeAlias = Request | tuple[Request, ...]
Asking: TypeAlias = Generator[Requests, Any, Any]  # yields requests, returns an answer


@dataclasses.dataclass(frozen=True)
class LoggedSearch:
    """A search of an episode, and its answer."""

    request: Retrieve
    answer: Found | RetrievalFailure

    @property
    def passages(self) -> list[FoundPassage]:
        return hits_of(self.answer)


def log_searches(program: Program, log: list[LoggedSearch]) -> Program:
    """Wraps a fresh episode program and appends every answered search to `log`, in the order requested."""

    def logged(asked: Requests) -> Asking:
        answer = yield asked
        parts = zip(asked, answer, strict=True) if isinstance(asked, tuple) else [(asked, answer)]
        log.extend(LoggedSearch(request, found) for request, found in parts if isinstance(request, Retrieve))
        return answer

    return intercepted(program, logged)


def intercepted(program: Program, around: Callable[[Requests], Asking]) -> Program:
    """Wraps a fresh episode program: for its requests, `around(requests)` yields requests and returns the answer."""
    resume: Callable[[], Requests] = functools.partial(next, program)
    while True:
        try:
            asked = resume()
        except StopIteration as end:
            return end.value
        try:
            answer = yield from around(asked)
        except (ContextFull, GenerationFailed) as raised:
            resume = functools.partial(program.throw, raised)
        else:
            resume = functools.partial(program.send, answer)


# --- Settings ---

ConfiguredProgram: TypeAlias = Callable[[Question, Sequence[str]], Program]

# What all programs of an experiment share, and a program may lack.
SHARED = ("budget", "passages", "observation_tokens", "invalid_limit", "wording")
_EXAMPLE = Question(id="example", dataset="example", language="en", text="Where is this city?", answers=("?",))


def program_name(program: Callable[..., Any]) -> str:
    """Returns the name of a program's function."""
    return getattr(_function(program), "__name__", type(program).__name__)


def comes_with_lcrag(program: Callable[..., Any]) -> bool:
    """Returns whether a program is one of lcrag's methods, not one's own."""
    return f"{getattr(_function(program), '__module__', '')}.".startswith("lcrag.")


def program_settings(program: Callable[..., Any]) -> dict[str, Any]:
    """Returns the settings with which a program runs: those that gin binds, and its defaults.

    Only a generator function has them; any other callable may have effects, and is not called.
    """
    if not is_program(program):
        return {}
    held = inspect.getgeneratorlocals(program(_EXAMPLE, ("en",)))
    held |= held.get("kwargs", {})  # the generator of a decorator, such as beartype's, holds them there
    parameters = inspect.signature(_function(program)).parameters.items()
    return {name: held.get(name, known.default) for name, known in parameters if known.kind is known.KEYWORD_ONLY}


def check_settings(program: Callable[..., Any]) -> None:
    """Raises a UserError if a setting of a program, or of those that it runs, has a wrong type or is negative."""
    for inner in _with_inner(program):
        hints = typing.get_type_hints(_function(inner))
        for name, value in program_settings(inner).items():
            place = f"{program_name(inner)}.{name}"
            check_type(place, value, hints.get(name, Any))
            if isinstance(value, int | float) and value < 0:
                raise UserError(f"{place} is {value}: set it to 0 or more")


def with_settings(program: ConfiguredProgram, settings: Mapping[str, Any]) -> ConfiguredProgram:
    """Returns a program with changed settings, applied also to the programs that it runs.

    Settings are given by name, such as {"passages": 5}; of those in `SHARED`, a program ignores what it lacks. All
    others ignore those of one program, such as {"r_search.budget": 10}.
    """
    inner = {program_name(part): program_settings(part) for part in _with_inner(program)}
    known = {name for names in inner.values() for name in names}.union(SHARED)
    known |= {f"{part}.{name}" for part, names in inner.items() for name in names}
    if unknown := [name for name in settings if name not in known and name.partition(".")[0] in {name, *inner}]:
        raise UserError(
            f"Evaluation.program_settings sets {unknown[0]}, which {program_name(program)} does not have; it has"
            f" {', '.join(sorted(known))}"
        )

    def changed(value: Any) -> Any:
        """Returns a program, or programs by name, with changed settings; any other value as it is."""
        if isinstance(value, Mapping) and any(map(is_program, value.values())):
            return {name: changed(setting) for name, setting in value.items()}
        if not is_program(value):
            return value
        settings_here = program_settings(value)
        inner = {name: new for name, old in settings_here.items() if (new := changed(old)) is not old}
        given = {name.removeprefix(f"{program_name(value)}."): new for name, new in settings.items()}
        return functools.partial(value, **inner | {name: new for name, new in given.items() if name in settings_here})

    return changed(program)


def _with_inner(program: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Yields a program and the programs that its settings name, at any depth."""
    yield program
    for value in program_settings(program).values():
        for setting in value.values() if isinstance(value, Mapping) else (value,):
            if is_program(setting):
                yield from _with_inner(setting)


def is_program(value: Any) -> bool:
    """Whether a value is a program, with or without settings."""
    return callable(value) and inspect.isgeneratorfunction(_function(value))


def _function(program: Any) -> Any:
    """Returns the function that a program, wrapped by gin or with changed settings, finally calls."""
    while isinstance(program, functools.partial) or hasattr(program, "__wrapped__"):
        program = program.func if isinstance(program, functools.partial) else program.__wrapped__
    return program
