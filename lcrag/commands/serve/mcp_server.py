"""The tool for agents by the Model Context Protocol (MCP), over streamable HTTP or stdio, with the official SDK.

HTTP has no sessions and answers each call with one JSON response, so a stopping server waits only for calls in flight.
"""

import json
from typing import Any

import pydantic
from fastapi import FastAPI, HTTPException
from starlette.routing import Route

from lcrag.commands.serve.search_tool import SearchTool, findings_json, findings_schema
from lcrag.commands.serve.service import ToolRequest, ToolService
from lcrag.errors import UserError
from lcrag.retrieval import wire

try:
    import mcp.types as types
    from mcp.server import Server, ServerRequestContext
    from mcp.server.stdio import stdio_server
    from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
    from mcp.server.transport_security import TransportSecuritySettings
except ModuleNotFoundError as error:
    raise UserError("MCP needs its SDK: pip install 'lcrag[mcp]'") from error

PATH = "/mcp"
TOOL = "search"
_LOCAL = [f"{host}{port}" for host in ("127.0.0.1", "localhost", "[::1]") for port in ("", ":*")]
# Protects against DNS rebinding: a web page cannot reach a local server under another host name.
_LOCAL_ONLY = TransportSecuritySettings(allowed_hosts=_LOCAL, allowed_origins=[f"http://{host}" for host in _LOCAL])
_EVERYWHERE = TransportSecuritySettings(enable_dns_rebinding_protection=False)


def make_server(service: ToolService) -> Server[Any]:
    """Returns an MCP server with one tool, `search`, which works while the service runs.

    Invalid arguments and unanswered questions give results that are marked as errors, with the reason in one sentence
    that the agent can read.
    """
    tool = describe(service.tool)

    async def list_tools(
        context: ServerRequestContext[Any], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[tool])

    async def call_tool(
        context: ServerRequestContext[Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        if params.name != TOOL:
            return _refused(f"there is no tool {wire.one_line(params.name)!r}: call {TOOL!r}")
        try:
            findings = await service.answer(ToolRequest.model_validate(params.arguments or {}))
        except pydantic.ValidationError as error:
            return _refused(wire.first_problem(error))
        except HTTPException as refusal:
            return _refused(refusal.detail)
        content = findings_json(findings)
        text = types.TextContent(type="text", text=json.dumps(content, ensure_ascii=False))
        return types.CallToolResult(content=[text], structured_content=content)

    return Server("lcrag", title="Search by lcrag", on_list_tools=list_tools, on_call_tool=call_tool)


def describe(tool: SearchTool) -> types.Tool:
    """Returns the description of the tool for agents."""
    return types.Tool(
        name=TOOL,
        title="Search and answer",
        description=(
            "Answers a question about facts by searching collections of passages, several times if needed. Returns"
            " the answer, the evidence written for it if any, and the passages found, each"
            f" with its id, title, text, language and score. Questions can be asked in: {', '.join(tool.languages)}."
        ),
        input_schema=_input_schema(tool),
        output_schema=findings_schema(),
        annotations=types.ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    )


def _input_schema(tool: SearchTool) -> dict[str, Any]:
    """Returns the schema of a request with the languages of this tool."""
    schema = ToolRequest.model_json_schema()
    language = {
        "type": "string",
        "enum": tool.languages,
        "description": schema["properties"]["language"]["description"],
    }
    if tool.default_language is None:
        schema["required"] = [*schema["required"], "language"]
    else:
        language["default"] = tool.default_language
    schema["properties"]["language"] = language
    return schema


def _refused(sentence: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=sentence)], is_error=True)


async def run_over_stdio(service: ToolService) -> None:
    """Serves one agent over stdin and stdout of this process until stdin ends."""
    server = make_server(service)
    async with service, stdio_server() as (reader, writer):
        await server.run(reader, writer, server.create_initialization_options())


class McpEndpoint:
    """`POST /mcp` as an extension of the retrieval service's application.

    Args:
      service: Answers the calls; started and ended elsewhere.
      local_only: Whether to refuse requests that name another host.
    """

    def __init__(self, service: ToolService, *, local_only: bool):
        self._service = service
        self._manager = StreamableHTTPSessionManager(
            make_server(service),
            json_response=True,
            stateless=True,
            security_settings=_LOCAL_ONLY if local_only else _EVERYWHERE,
            max_request_body_size=self.body_bytes,
        )
        self._running = self._manager.run()

    @property
    def running(self) -> bool:
        """Whether agents are answered."""
        return self._service.running

    @property
    def unanswered(self) -> int:
        """Zero: the endpoint of `/search_tool`, which is always there too, counts the questions."""
        return 0

    @property
    def body_bytes(self) -> int:
        """Longest body of a call."""
        return self._service.limits.body_bytes

    async def __aenter__(self) -> "McpEndpoint":
        await self._running.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._running.__aexit__(*failure)

    def add_to(self, application: FastAPI) -> None:
        """Adds `POST /mcp`; other methods, which only sessions need, are refused."""
        application.router.routes.append(Route(PATH, StreamableHTTPASGIApp(self._manager), methods=["POST"]))
