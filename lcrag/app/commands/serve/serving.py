"""`lcrag serve`: collections, a policy that searches, and translators over HTTP."""

import pathlib
from collections.abc import Sequence
from typing import Literal

from rich.console import Console

from lcrag.app.commands.serve import USUAL_TOOL_LIMITS, SearchTool, ToolLimits, ToolService
from lcrag.app.commands.serve.tool import serve_over_stdio, tool_extensions
from lcrag.episodes import Translator
from lcrag.errors import UserError
from lcrag.models.translation_service import USUAL_TRANSLATION_LIMITS, TranslationLimits, translation_endpoint
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


def serve(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
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
    window_seconds: float = 0.003,
    batch_queries: int = 512,
    warm_up_queries: Sequence[int] = (1, 16, 64, 256),
) -> None:
    """Answers `/retrieve`, with a tool `/search_tool` and `/mcp`, and with a translator `/translate`, until SIGTERM or
    Ctrl-C; then finishes the requests in flight.

    Args:
      output_dir: Not used.
      words: Not used.
      collections: What `/retrieve` searches; None: the tool's collections, and without a tool none.
      tool: A policy that searches, for others to call.
      translator: Translates for others; it may be all that is served.
      transport: "stdio" serves the tool alone, by MCP to the one agent that started this process.
      host: Address to listen on; the default can be reached from this machine only.
      port: 0 takes any that is free.
      default_language: Searched for requests without languages, such as Search-R1's; None: English if there is such a
        collection, or the only one there is.
      limits: What a request for searches may ask for.
      tool_limits: What a request to the tool may ask for.
      translation_limits: What a request for translations may ask for.
      window_seconds: How long a request waits for others to share its search, its run of the tool or its translation.
      batch_queries: A shared search takes no further request once it has this many queries.
      warm_up_queries: Sizes of the searches done before the first request, so that none waits for a compilation;
        collections that are elsewhere themselves are not warmed up.

    Raises:
      UserError: the address is taken, the default language has no collection, or there is nothing to serve.
    """
    if window_seconds < 0:
        raise UserError(f"serve.window_seconds is {window_seconds}: requests cannot wait a negative time")
    service = ToolService(tool, limits=tool_limits, window_seconds=window_seconds) if tool else None
    if transport == "stdio":
        _serve_stdio(service)
        return
    searched = _searched(collections, tool, translator)
    with listen(host, port) as listener:
        console, address, local_only = Console(), address_of(listener), is_loopback(listener)
        said = [f"serving {', '.join(searched.languages)} at {address}/retrieve"] if searched.languages else []
        extensions: list[Extension] = []
        if service is not None:
            added, lines = tool_extensions(service, address, local_only=local_only)
            extensions, said = [*extensions, *added], [*said, *lines]
        if translator is not None:
            extensions.append(
                translation_endpoint(translator, limits=translation_limits, window_seconds=window_seconds)
            )
            said.append(f"translations at {address}/translate")
        application = make_application(
            searched,
            limits=limits,
            default_language=default_language,
            window_seconds=window_seconds,
            batch_queries=batch_queries,
            extensions=extensions,
        )
        warm_up(searched, warm_up_queries)
        for line in said:
            console.print(line, markup=False, soft_wrap=True)
        if not local_only:
            console.print("whoever can reach this address can use it: there is no authentication", soft_wrap=True)
        longest = max(
            limits.search_seconds,
            tool_limits.answer_seconds if service else 0.0,
            translation_limits.answer_seconds if translator else 0.0,
        )
        run_until_stopped(application, listener, longest)
        console.print("stopped; the requests in flight were finished")


def _searched(
    collections: SearchableCollections | None, tool: SearchTool | None, translator: Translator | None
) -> SearchableCollections:
    if collections is not None:
        return collections
    if tool is None and translator is not None:
        return NoCollections()
    if tool is None:
        raise UserError(
            "serve.collections has no value: bind it in a gin file or with --gin.serve.collections=VALUE, or serve a"
            " policy that searches with --tool"
        )
    return tool.collections


def _serve_stdio(service: ToolService | None) -> None:
    if service is None:
        raise UserError("stdin and stdout can only serve a tool: add --tool")
    serve_over_stdio(service)


def warm_up(collections: SearchableCollections, sizes: Sequence[int]) -> None:
    """Searches of some sizes, where a search compiles; collections elsewhere are left alone, some cost money."""
    if not isinstance(collections, Collections):
        return
    for size in sizes:
        collections.search([f"warm up {number}" for number in range(size)], [collections.languages[0]] * size, 1)
