"""`lcrag serve`: collections, a policy that searches as a tool, and a translator over HTTP or stdio.

`SearchTool` answers questions from Python with `Findings`: R-Search-as-a-Tool (arXiv:2506.04185, section 5.1).
`ToolService` batches the questions of many callers, who ask over HTTP or, as agents, by the Model Context Protocol.
"""

import asyncio
import dataclasses
import importlib.metadata
import pathlib
import signal
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import gin
import pydantic
from fastapi import FastAPI, HTTPException
from rich.console import Console
from starlette.routing import Route

from lcrag.data.questions import LANGUAGES, Question, fault_of
from lcrag.episodes import Program, RetrievalFailure, Runner, Translated, TranslationFailure, Translator
from lcrag.episodes.programs import LoggedSearch, log_searches
from lcrag.errors import Count, Positive, Seed, UserError, typed
from lcrag.models.translators import PATH, TranslateAnswer, Translation
from lcrag.policy import Policy
from lcrag.retrieval import Collections, Hit, NoCollections, SearchableCollections
from lcrag.retrieval.remote import LanguageCode, is_loopback
from lcrag.retrieval.service import (
    USUAL_LIMITS,
    Batcher,
    ServiceLimits,
    add_json_route,
    address_of,
    default_among,
    listen,
    make_application,
    refusing,
    run_until_stopped,
)
from lcrag.runs import check_used
from lcrag.runs.processes import SIGNALS, handled
from lcrag.train.method import Method
from lcrag.train.rollout import Lanes, Rollouts

# --- A policy that searches, as a function of questions ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """The result of a question."""

    question: str
    language: str  # ISO 639-1 code
    answer: str | None  # the policy's answer
    evidence: str | None  # evidence that the policy wrote from the passages, if it is asked for any
    passages: tuple[Hit, ...]  # distinct passages of all searches, in the order found
    searches: tuple[str, ...]  # its queries, in order
    failed_searches: int  # requests to the collections that failed after every retry; the policy was informed
    failure: str | None  # why a search or another model failed; a failed model ends the episode
    finished: bool  # whether the program ran to its end; False: the context was full


class SearchTool:
    """A policy that searches, as a function of questions; not thread-safe.

    Every episode uses the same random numbers, so findings do not depend on the other questions of a call.

    Args:
      runner: Runs the episodes with the policy, at the tool's temperature.
      program: Builds the episode program of a question; `Outcome.extra["evidence"]` is its evidence.
      collections: The collections to search.
      default_language: Language of questions without one; None: English if it has a collection, or the only language.

    Attributes:
      languages: Languages of questions: those of the collections for which prompts have a name.
    """

    def __init__(
        self,
        runner: Runner,
        program: Callable[[Question], Program],
        collections: SearchableCollections,
        default_language: str | None = None,
    ):
        self.runner, self.program, self.collections = runner, program, collections
        self.default_language = default_among(collections.languages, default_language)
        self.languages = [language for language in collections.languages if language in LANGUAGES]
        # A short question fits, so a later one that does not is too long itself.
        short = [Question(id="tool", dataset="tool", language=code, text="?", answers=()) for code in self.languages]
        runner.check([(question, program(question), 0) for question in short])

    def __call__(self, questions: Sequence[str], languages: Sequence[str] | None = None) -> list[Findings]:
        """Answers questions in one run of the engine; without `languages` all are in the default language."""
        named: Sequence[str | None] = languages or [None] * len(questions)
        return self.answer([self.question(text, language) for text, language in zip(questions, named, strict=True)])

    def question(self, text: str, language: str | None = None) -> Question:
        """Returns a valid question, in the default language if none is named; otherwise raises a UserError."""
        text, language = text.strip(), self.default_language if language is None else language
        if fault := fault_of(text):
            raise UserError(f"the question {fault if text else 'is empty'}: ask something")
        if language not in self.languages:
            known = ", ".join(self.languages)
            raise UserError(f"questions cannot be asked in language {language!r}: name one of {known}")
        question = Question(id="tool", dataset="tool", language=language, text=text, answers=())
        try:
            self.runner.check([(question, self.program(question), 0)])
        except UserError as error:
            raise UserError(
                f"the question does not fit the policy's context of {self.runner.sampler.context} tokens, which also"
                " holds its prompt and an answer: ask a shorter one"
            ) from error
        return question

    def answer(self, questions: Sequence[Question]) -> list[Findings]:
        """Runs the episodes of valid questions; a UserError says that no search is possible."""
        logs: list[list[LoggedSearch]] = [[] for _ in questions]
        logged = (log_searches(self.program(question), log) for question, log in zip(questions, logs, strict=True))
        programs = [(question, program, 0) for question, program in zip(questions, logged, strict=True)]
        findings = []
        for record, searches in zip(self.runner.run(programs), logs, strict=True):
            hits: dict[tuple[str, str], Hit] = {}
            for hit in (passage for search in searches for passage in search.passages):
                assert isinstance(hit, Hit)
                hits.setdefault((hit.language, hit.id), hit)
            findings.append(
                Findings(
                    question=record.question.text,
                    language=record.question.language,
                    answer=record.outcome.answer,
                    evidence=record.outcome.extra.get("evidence") or None,
                    passages=tuple(hits.values()),
                    searches=tuple(query for search in searches for query in search.request.queries),
                    failed_searches=sum(isinstance(search.answer, RetrievalFailure) for search in searches),
                    failure=record.failure,
                    finished=record.finished,
                )
            )
        return findings


@gin.configurable
@typed
def search_tool(
    *,
    policy: Policy,
    collections: SearchableCollections,
    method: Method,
    lanes: Lanes,
    default_language: str | None = None,
    temperature: float = 0.0,
    seed: Seed = 0,
    warm_up: bool = True,
) -> SearchTool:
    """Returns a policy that searches, as a function of questions; the same question gets the same answer.

    Args:
      default_language: Language of questions without one; None: English if it has a collection, or the only language.
      temperature: 0 is greedy.
      warm_up: Whether to compile everything that a question can need now.
    """
    rollouts = Rollouts(lanes.single(), policy, collections, method, seed)
    runner = rollouts.runner
    runner.temperature = temperature
    tool = SearchTool(runner, rollouts.program, collections, default_language)
    if warm_up:
        runner.sampler.warm_up()
    return tool


def open_search_tool(*gin_files: str, bindings: Sequence[str] = ()) -> SearchTool:
    """Returns the search tool that a configuration describes, and sets gin's configuration in this process.

    The arguments are values of `--gin_file=`, and bindings as after `--gin.`: `policy.folder = "exported"`.
    """
    from lcrag import config  # which imports this module

    config.configure(gin_files, bindings)
    with config.missing_as_sentence():
        return search_tool()


# --- Over HTTP, for many callers ---


@gin.register
@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolLimits:
    """Limits of requests to the tool; the policy's context may allow shorter questions only.

    Questions over `waiting_questions` are refused with 503; `answer_seconds` include the wait.
    """

    question_characters: Count = 4000
    waiting_questions: Count = 1024
    answer_seconds: Positive = 120.0


# Limits of requests to a translator: texts of one request and of all requests, and seconds including the wait.
MAX_TEXTS, MAX_CHARACTERS, MAX_WAITING_TEXTS, TRANSLATION_SECONDS = 1024, 20_000, 1 << 14, 300.0


class ToolRequest(pydantic.BaseModel, strict=True, extra="forbid"):
    """A request to the tool, over HTTP or MCP."""

    question: str = pydantic.Field(description="The question, in one sentence that can be understood by itself.")
    language: LanguageCode | None = pydantic.Field(
        default=None, description="ISO 639-1 code of the language that the question is written in."
    )


class TranslateRequest(pydantic.BaseModel, strict=True, extra="forbid"):
    """A request of `POST /translate`."""

    texts: list[str] = pydantic.Field(description="The texts to translate.")
    source: LanguageCode | None = pydantic.Field(
        default=None, description="Code of their language; null: it is detected."
    )
    target: LanguageCode = pydantic.Field(description="Code of the language to translate into.")


USUAL_TOOL_LIMITS = ToolLimits()


class ToolService:
    """Answers the questions of many callers, each of which waits `window_seconds` for others.

    The tool is called on one thread, with at most as many questions as the sampler has slots.
    """

    def __init__(self, tool: SearchTool, *, limits: ToolLimits = USUAL_TOOL_LIMITS, window_seconds: float = 0.02):
        self.tool, self._limits = tool, limits
        self.batcher = Batcher(
            lambda questions, _: tool.answer(questions),
            called="questions",
            window_seconds=window_seconds,
            batch_items=tool.runner.sampler.slots,
            waiting_items=limits.waiting_questions,
        )

    async def answer(self, asked: ToolRequest) -> Findings:
        """Returns the findings of a question; an HTTPException says in one sentence why it is rejected."""
        characters, allowed = len(asked.question), self._limits.question_characters
        if characters > allowed:
            raise HTTPException(413, f"the question has {characters} characters: ask at most {allowed}")
        try:
            question = await asyncio.to_thread(self.tool.question, asked.question, asked.language)
        except UserError as error:
            raise HTTPException(422, str(error)) from error
        async with refusing("the question could not be answered", self._limits.answer_seconds):
            [findings] = await self.batcher.ask([question])
        return findings


def add_tool_route(application: FastAPI, service: ToolService) -> None:
    """Adds `POST /search_tool`."""

    async def answer(asked: ToolRequest) -> dict[str, Any]:
        return dataclasses.asdict(await service.answer(asked))

    application.state.batchers.append(service.batcher)
    add_json_route(application, "/search_tool", ToolRequest, answer, answer_model=Findings)


def add_translate_route(application: FastAPI, translator: Translator, *, window_seconds: float = 0.005) -> None:
    """Adds `POST /translate`; the translator is called on one thread, for all waiting texts of a direction."""
    batcher = Batcher(
        lambda texts, direction: translator(texts, *direction),
        called="texts",
        window_seconds=window_seconds,
        batch_items=256,
        waiting_items=MAX_WAITING_TEXTS,
    )

    async def answer(asked: TranslateRequest) -> dict[str, Any]:
        if len(asked.texts) > MAX_TEXTS:
            raise HTTPException(413, f"{len(asked.texts)} texts in one request: ask at most {MAX_TEXTS}")
        if (longest := max(map(len, asked.texts), default=0)) > MAX_CHARACTERS:
            raise HTTPException(413, f"a text has {longest} characters: ask at most {MAX_CHARACTERS}")
        translated: Sequence[Translated] = ()
        async with refusing("the translation failed", TRANSLATION_SECONDS):
            try:
                translated = await batcher.ask(asked.texts, (asked.source, asked.target))
            except UserError as error:  # the translator itself is unreachable, and a retry does not help
                raise HTTPException(503, str(error)) from error
        translations = [
            Translation(failure=text.reason, unavailable=text.unavailable or None)
            if isinstance(text, TranslationFailure)
            else Translation(text=text)
            for text in translated
        ]
        return TranslateAnswer(translations=translations).model_dump(exclude_none=True)

    application.state.batchers.append(batcher)
    add_json_route(application, PATH, TranslateRequest, answer, answer_model=TranslateAnswer)


# --- For agents, by the Model Context Protocol ---


def make_mcp_server(service: ToolService) -> Any:
    """Returns an `MCPServer` with one tool, `search`; a refused question is a result that is marked as an error."""
    try:
        from mcp.server import MCPServer
        from mcp.server.mcpserver.exceptions import ToolError
        from mcp.server.mcpserver.tools import Tool
        from mcp_types import ToolAnnotations
    except ModuleNotFoundError as error:
        raise UserError("MCP needs its SDK: pip install 'lcrag[mcp]'") from error

    fields, languages = ToolRequest.model_fields, ", ".join(service.tool.languages)

    async def search(
        question: Annotated[str, pydantic.Field(description=fields["question"].description)],
        language: Annotated[
            str | None, pydantic.Field(description=f"{fields['language'].description} One of {languages}.")
        ] = (service.tool.default_language),
    ) -> Findings:
        try:
            return await service.answer(ToolRequest(question=question, language=language))
        except HTTPException as refusal:
            raise ToolError(refusal.detail) from refusal

    tool = Tool.from_function(
        search,
        title="Search and answer",
        description="Answers a question about facts by searching collections of passages, several times if needed."
        " Returns the answer, the evidence written for it if any, and the passages found, each with its id, title,"
        f" text, language and score. Questions can be asked in: {languages}.",
        annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    )
    # As over HTTP, a misspelt argument is refused: the SDK would drop it, and the question be answered in English.
    tool.fn_metadata.arg_model = type("search", (tool.fn_metadata.arg_model,), {"model_config": {"extra": "forbid"}})
    tool.parameters["additionalProperties"] = False
    version = importlib.metadata.version("lcrag")
    return MCPServer("lcrag", title="Search by lcrag", version=version, tools=[tool], log_level="WARNING")


def add_mcp_route(application: FastAPI, service: ToolService) -> None:
    """Adds `POST /mcp`: no sessions, one JSON response a call, so a stopping server waits for calls in flight only."""
    # with this host the SDK does not check the hosts of requests: `make_server` does, for every route
    served = make_mcp_server(service).streamable_http_app(json_response=True, stateless_http=True, host="0.0.0.0")
    [endpoint] = [route.endpoint for route in served.routes if isinstance(route, Route)]
    application.router.routes.append(Route("/mcp", endpoint, methods=["POST"]))
    application.router.lifespan_context = served.router.lifespan_context


# --- The command ---


@gin.configurable
@typed
def serve(
    output_dir: pathlib.Path | None,
    *,
    collections: SearchableCollections | None = None,
    tool: SearchTool | None = None,
    translator: Translator | None = None,
    transport: Literal["http", "stdio"] = "http",
    host: str = "127.0.0.1",
    port: int = 8000,
    default_language: str | None = None,
    limits: ServiceLimits = USUAL_LIMITS,
    tool_limits: ToolLimits = USUAL_TOOL_LIMITS,
    window_seconds: float = 0.005,
    batch_queries: int = 512,
    warm_up_queries: Sequence[int] = (1, 16, 64, 256),
) -> None:
    """Serves `/retrieve`, `/search_tool` and `/mcp` with a tool, and `/translate` with a translator.

    On SIGTERM or Ctrl-C it finishes the requests in flight.

    Args:
      collections: The collections of `/retrieve`; None: the tool's, or none without a tool.
      translator: A translator, which may be served alone.
      transport: "stdio" serves only the tool, by MCP, to the agent that started this process.
      host: Address to listen on; the default can be reached from this machine only.
      port: 0 takes any free port.
      default_language: Searched for requests without languages, such as Search-R1's; None: English if it has a
        collection, or the only language.
      window_seconds: How long a request waits for others to share its batch.
      batch_queries: Largest number of queries of a search.
      warm_up_queries: Batch sizes compiled before the first request; remote collections are not warmed up.
    """
    check_used()
    service = ToolService(tool, limits=tool_limits, window_seconds=window_seconds) if tool else None
    if transport == "stdio":
        if service is None:
            raise UserError("stdin and stdout can only serve a tool: add --tool")
        # A signal ends the process at once: Python's shutdown would wait for the thread that reads standard input.
        server = make_mcp_server(service)
        with handled(signal.SIG_DFL, *SIGNALS):
            Console(stderr=True).print("serving one agent over stdin and stdout by MCP", soft_wrap=True)
            asyncio.run(server.run_stdio_async())
        return
    if collections is None and tool is None and translator is None:
        raise UserError(
            "serve.collections has no value: bind it in a gin file or with --gin.serve.collections=VALUE, or serve a"
            " policy that searches with --tool"
        )
    searched = collections or (tool.collections if tool else NoCollections())
    longest_seconds = limits.search_seconds
    with listen(host, port) as listener:
        address, lines = address_of(listener), []
        application = make_application(
            searched,
            limits=limits,
            default_language=default_language,
            window_seconds=window_seconds,
            batch_queries=batch_queries,
        )
        if searched.languages:
            lines += [f"serving {', '.join(searched.languages)} at {address}/retrieve"]
        if service is not None:
            add_tool_route(application, service)
            lines += [f"search as a tool at {address}/search_tool"]
            longest_seconds = max(longest_seconds, tool_limits.answer_seconds)
            try:
                add_mcp_route(application, service)
                lines += [f"the same for agents, by MCP, at {address}/mcp"]
            except UserError as missing:
                lines += [f"no tool for agents: {missing}"]
        if translator is not None:
            add_translate_route(application, translator, window_seconds=window_seconds)
            lines += [f"translations at {address}/translate"]
            longest_seconds = max(longest_seconds, TRANSLATION_SECONDS)
        if not is_loopback(listener.getsockname()[0]):
            lines += ["anyone who can reach this address can use it: there is no authentication"]
        if isinstance(searched, Collections):  # searches of remote ones may cost money
            for size in warm_up_queries:
                searched.search([f"warm up {number}" for number in range(size)], [searched.languages[0]] * size, 1)
        console = Console()
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)
        run_until_stopped(application, listener, longest_seconds)
        console.print("stopped; the requests in flight were finished")
