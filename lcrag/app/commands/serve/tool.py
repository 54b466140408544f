"""Search as a tool: the policy and the program of a configuration, for Python and for `lcrag serve --tool`."""

import asyncio
import contextlib

from rich.console import Console

from lcrag.app.commands.serve import SearchTool, ToolService, tool_endpoint
from lcrag.app.composition.components import make_runner, make_sampler
from lcrag.app.composition.method import Method
from lcrag.app.runs.stopping import killed_by_sigterm
from lcrag.errors import UserError
from lcrag.policy import Policy
from lcrag.retrieval import SearchableCollections
from lcrag.retrieval.service import Extension


def search_tool(
    *,
    policy: Policy,
    collections: SearchableCollections,
    method: Method,
    default_language: str | None = None,
    temperature: float = 0.0,
    seed: int = 0,
    warm_up: bool = True,
) -> SearchTool:
    """A policy that searches, as a function of questions.

    Args:
      policy: Who searches.
      collections: To search in.
      method: Its program.
      default_language: Of questions that name none; None: English if there is such a collection, or the only one.
      temperature: 0 is greedy.
      seed: Of sampling; a question asked again is answered alike.
      warm_up: Compile now whatever a question can need.

    Raises:
      UserError: the default language has no collection, or the method's prompt does not fit the context.
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


def tool_extensions(service: ToolService, address: str, *, local_only: bool) -> tuple[list[Extension], list[str]]:
    """What the tool adds to the application of a server, its endpoint and MCP's where the SDK is there, and a line
    about each.

    Args:
      service: What answers.
      address: Of the server.
      local_only: Whether only this machine can reach the server.
    """
    endpoint, line = tool_endpoint(service), f"search as a tool at {address}/search_tool"
    try:
        from lcrag.app.commands.serve.mcp_server import McpEndpoint
    except UserError as missing:
        return [endpoint], [line, f"no tool for agents: {missing}"]
    agents = McpEndpoint(service, local_only=local_only)
    return [endpoint, agents], [line, f"the same for agents, by MCP, at {address}/mcp"]


def serve_over_stdio(service: ToolService) -> None:
    """Serves one agent over this process's stdin and stdout until stdin ends, or SIGTERM ends the process.

    Raises:
      UserError: MCP's SDK is not installed.
    """
    from lcrag.app.commands.serve.mcp_server import run_over_stdio

    with killed_by_sigterm(), contextlib.suppress(KeyboardInterrupt):
        Console(stderr=True).print("serving one agent over stdin and stdout by MCP", soft_wrap=True)
        asyncio.run(run_over_stdio(service))
