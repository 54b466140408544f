"""`lcrag serve`: collections, a policy that searches, and a translator over HTTP or stdio."""

import asyncio
import contextlib
import pathlib
import signal
from collections.abc import Sequence
from typing import Literal

import gin
from rich.console import Console

from lcrag.commands.serve.routes import (
    USUAL_TOOL_LIMITS,
    USUAL_TRANSLATION_LIMITS,
    ToolLimits,
    ToolService,
    TranslationLimits,
    add_tool_route,
    add_translate_route,
)
from lcrag.commands.serve.search_tool import SearchTool
from lcrag.episodes import Translator
from lcrag.errors import UserError, typed
from lcrag.policy import Policy
from lcrag.retrieval import Collections, NoCollections, SearchableCollections
from lcrag.retrieval.service import (
    USUAL_LIMITS,
    ServiceLimits,
    address_of,
    is_loopback,
    listen,
    make_application,
    run_until_stopped,
)
from lcrag.runs import check_used
from lcrag.runs.processes import handled
from lcrag.train.method import Method
from lcrag.train.rollout import Lanes, Rollouts


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
    seed: int = 0,
    warm_up: bool = True,
) -> SearchTool:
    """Returns a policy that searches, as a function of questions; the same question gets the same answer.

    Args:
      default_language: Language of questions without one; None: English if it has a collection, or the only language.
      temperature: 0 is greedy.
      warm_up: Whether to compile everything that a question can need now.
    """
    rollouts = Rollouts(lanes, policy, collections, method, seed)
    runner = rollouts.runner
    runner.temperature = temperature
    tool = SearchTool(
        runner=runner, program=rollouts.program, collections=collections, default_language=default_language
    )
    if warm_up:
        runner.sampler.warm_up()
    return tool


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
    translation_limits: TranslationLimits = USUAL_TRANSLATION_LIMITS,
    window_seconds: float = 0.005,
    batch_queries: int = 512,
    warm_up_queries: Sequence[int] = (1, 16, 64, 256),
) -> None:
    """Serves until SIGTERM or Ctrl-C, then finishes the requests in flight.

    Serves `/retrieve`, with a tool `/search_tool` and `/mcp`, and with a translator `/translate`.

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
        from lcrag.commands.serve.mcp_server import make_server

        # SIGTERM ends the process at once: Python's shutdown would wait for the thread that reads standard input.
        with handled(signal.SIG_DFL, signal.SIGTERM), contextlib.suppress(KeyboardInterrupt):
            Console(stderr=True).print("serving one agent over stdin and stdout by MCP", soft_wrap=True)
            asyncio.run(make_server(service).run_stdio_async())
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
                from lcrag.commands.serve.mcp_server import add_mcp_route

                add_mcp_route(application, service, "127.0.0.1" if is_loopback(listener) else host)
                lines += [f"the same for agents, by MCP, at {address}/mcp"]
            except UserError as missing:
                lines += [f"no tool for agents: {missing}"]
        if translator is not None:
            add_translate_route(application, translator, limits=translation_limits, window_seconds=window_seconds)
            lines += [f"translations at {address}/translate"]
            longest_seconds = max(longest_seconds, translation_limits.answer_seconds)
        if not is_loopback(listener):
            lines += ["anyone who can reach this address can use it: there is no authentication"]
        if isinstance(searched, Collections):  # searches of remote ones may cost money
            for size in warm_up_queries:
                searched.search([f"warm up {number}" for number in range(size)], [searched.languages[0]] * size, 1)
        console = Console()
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)
        run_until_stopped(application, listener, longest_seconds)
        console.print("stopped; the requests in flight were finished")


def open_search_tool(*gin_files: str, bindings: Sequence[str] = ()) -> SearchTool:
    """Returns the search tool that a configuration describes, and sets gin's configuration in this process.

    Args:
      gin_files: Values of `--gin_file=`.
      bindings: Bindings as after `--gin.`, such as `policy.folder = "exported"`.
    """
    from lcrag import config  # which imports this module

    config.configure(gin_files, bindings)
    with config.missing_as_sentence():
        return search_tool()
