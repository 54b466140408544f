"""`lcrag serve`: collections, a policy that searches, and a translator over HTTP or stdio."""

import asyncio
import contextlib
import pathlib
from collections.abc import Sequence
from typing import Literal

from rich.console import Console

from lcrag.commands.serve.search_tool import SearchTool
from lcrag.commands.serve.service import USUAL_TOOL_LIMITS, ToolLimits, ToolService, tool_endpoint
from lcrag.composition.components import make_runner, make_sampler
from lcrag.composition.used_bindings import check_used
from lcrag.episodes import Translator
from lcrag.errors import UserError
from lcrag.limits import Count, NonNegative, Port, Positive, Seed
from lcrag.models.translation_service import USUAL_TRANSLATION_LIMITS, TranslationLimits, translation_endpoint
from lcrag.policy import Policy
from lcrag.retrieval import Collections, NoCollections, SearchableCollections
from lcrag.retrieval.service import (
    USUAL_LIMITS,
    Extension,
    ServiceLimits,
    address_of,
    is_loopback,
    listen,
    make_application,
    run_until_stopped,
)
from lcrag.runs.stopping import killed_by_sigterm
from lcrag.train.method import Method


def search_tool(
    *,
    policy: Policy,
    collections: SearchableCollections,
    method: Method,
    default_language: str | None = None,
    temperature: NonNegative = 0.0,
    seed: Seed = 0,
    warm_up: bool = True,
) -> SearchTool:
    """Returns a policy that searches, as a function of questions.

    Args:
      policy: The policy.
      collections: The collections to search.
      method: The policy's program.
      default_language: Language of questions without one; None: English if it has a collection, or the only language.
      temperature: 0 is greedy.
      seed: Seed of sampling; the same question gets the same answer.
      warm_up: Whether to compile everything that a question can need now.

    Raises:
      UserError: The default language has no collection, or the method's prompt does not fit the context.
    """
    sampler = make_sampler(policy)
    runner = make_runner(sampler, policy, collections, seed)
    runner.temperature = temperature
    tool = SearchTool(
        runner=runner,
        program=method.on(collections.languages),
        collections=collections,
        default_language=default_language,
    )
    if warm_up:
        sampler.warm_up()
    return tool


def serve(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    collections: SearchableCollections | None = None,
    tool: SearchTool | None = None,
    translator: Translator | None = None,
    transport: Literal["http", "stdio"] = "http",
    host: str = "127.0.0.1",
    port: Port = 8000,
    default_language: str | None = None,
    limits: ServiceLimits = USUAL_LIMITS,
    tool_limits: ToolLimits = USUAL_TOOL_LIMITS,
    translation_limits: TranslationLimits = USUAL_TRANSLATION_LIMITS,
    arrival_seconds: Positive = 10.0,
    window_seconds: NonNegative = 0.003,
    batch_queries: Count = 512,
    warm_up_queries: Sequence[Count] = (1, 16, 64, 256),
) -> None:
    """Serves until SIGTERM or Ctrl-C, then finishes the requests in flight.

    Serves `/retrieve`, with a tool `/search_tool` and `/mcp`, and with a translator `/translate`.

    Args:
      output_dir: Not used.
      words: Not used.
      collections: The collections of `/retrieve`; None: the tool's, or none without a tool.
      tool: A policy that searches.
      translator: A translator, which may be served alone.
      transport: "stdio" serves only the tool, by MCP, to the agent that started this process.
      host: Address to listen on; the default can be reached from this machine only.
      port: 0 takes any free port.
      default_language: Searched for requests without languages, such as Search-R1's; None: English if it has a
        collection, or the only language.
      limits: Limits of searches.
      tool_limits: Limits of requests to the tool.
      translation_limits: Limits of translations.
      arrival_seconds: Time for a request to arrive.
      window_seconds: How long a request waits for others to share its batch.
      batch_queries: Largest number of queries of a search.
      warm_up_queries: Batch sizes compiled before the first request; remote collections are not warmed up.

    Raises:
      UserError: The address is taken, the default language has no collection, or there is nothing to serve.
    """
    check_used()
    service = ToolService(tool, limits=tool_limits, window_seconds=window_seconds) if tool else None
    if transport == "stdio":
        serve_over_stdio(service)
        return
    searched = _searched(collections, tool, translator)
    with listen(host, port) as listener:
        console, local_only = Console(), is_loopback(listener)
        extensions, lines = (
            tool_extensions(service, address_of(listener), local_only=local_only) if service else ([], [])
        )
        if searched.languages:
            lines.insert(0, f"serving {', '.join(searched.languages)} at {address_of(listener)}/retrieve")
        if translator is not None:
            extensions += [translation_endpoint(translator, limits=translation_limits, window_seconds=window_seconds)]
            lines += [f"translations at {address_of(listener)}/translate"]
        application = make_application(
            searched,
            limits=limits,
            default_language=default_language,
            window_seconds=window_seconds,
            batch_queries=batch_queries,
            extensions=extensions,
        )
        warm_up(searched, warm_up_queries)
        if not local_only:
            lines += ["anyone who can reach this address can use it: there is no authentication"]
        for line in lines:
            console.print(line, markup=False, soft_wrap=True)
        of_tool = tool_limits.answer_seconds if service else 0.0
        of_translations = translation_limits.answer_seconds if translator else 0.0
        longest_seconds = max(limits.search_seconds, of_tool, of_translations)
        run_until_stopped(application, listener, longest_seconds, arrival_seconds)
        console.print("stopped; the requests in flight were finished")


def _searched(
    collections: SearchableCollections | None, tool: SearchTool | None, translator: Translator | None
) -> SearchableCollections:
    """Returns the collections of `/retrieve`."""
    if collections is not None:
        return collections
    if tool is not None:
        return tool.collections
    if translator is not None:
        return NoCollections()
    raise UserError(
        "serve.collections has no value: bind it in a gin file or with --gin.serve.collections=VALUE, or serve a policy"
        " that searches with --tool"
    )


def tool_extensions(service: ToolService, address: str, *, local_only: bool) -> tuple[list[Extension], list[str]]:
    """Returns the tool's endpoints (MCP's only with its SDK installed) and a line to print about each.

    Args:
      service: Answers the questions.
      address: URL of the server.
      local_only: Whether only this machine can reach the server.
    """
    endpoint, line = tool_endpoint(service), f"search as a tool at {address}/search_tool"
    try:
        from lcrag.commands.serve.mcp_server import McpEndpoint
    except UserError as missing:
        return [endpoint], [line, f"no tool for agents: {missing}"]
    agents = McpEndpoint(service, local_only=local_only)
    return [endpoint, agents], [line, f"the same for agents, by MCP, at {address}/mcp"]


def serve_over_stdio(service: ToolService | None) -> None:
    """Serves one agent over stdin and stdout until stdin ends or SIGTERM arrives.

    Raises:
      UserError: There is no tool, or the SDK of MCP is not installed.
    """
    if service is None:
        raise UserError("stdin and stdout can only serve a tool: add --tool")
    from lcrag.commands.serve.mcp_server import run_over_stdio

    with killed_by_sigterm(), contextlib.suppress(KeyboardInterrupt):
        Console(stderr=True).print("serving one agent over stdin and stdout by MCP", soft_wrap=True)
        asyncio.run(run_over_stdio(service))


def warm_up(collections: SearchableCollections, sizes: Sequence[int]) -> None:
    """Compiles searches of the given sizes; remote collections are skipped, since some cost money."""
    if not isinstance(collections, Collections):
        return
    for size in sizes:
        collections.search([f"warm up {number}" for number in range(size)], [collections.languages[0]] * size, 1)
