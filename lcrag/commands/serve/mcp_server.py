"""The tool for agents by the Model Context Protocol (MCP), with the official SDK."""

from typing import Annotated

from fastapi import FastAPI, HTTPException
from pydantic import Field
from starlette.routing import Route

from lcrag.commands.serve.routes import ToolRequest, ToolService
from lcrag.commands.serve.search_tool import Findings
from lcrag.errors import UserError

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp_types import ToolAnnotations
except ModuleNotFoundError as error:
    raise UserError("MCP needs its SDK: pip install 'lcrag[mcp]'") from error


def make_server(service: ToolService) -> MCPServer:
    """Returns an MCP server with one tool, `search`; a refused question is a result that is marked as an error."""
    server: MCPServer = MCPServer("lcrag", title="Search by lcrag", log_level="WARNING")
    fields, languages = ToolRequest.model_fields, ", ".join(service.tool.languages)

    async def search(
        question: Annotated[str, Field(description=fields["question"].description)],
        language: Annotated[str | None, Field(description=f"{fields['language'].description} One of {languages}.")] = (
            service.tool.default_language
        ),
    ) -> Findings:
        try:
            return await service.answer(ToolRequest(question=question, language=language))
        except HTTPException as refusal:
            raise ToolError(refusal.detail) from refusal

    server.add_tool(
        search,
        title="Search and answer",
        description="Answers a question about facts by searching collections of passages, several times if needed."
        " Returns the answer, the evidence written for it if any, and the passages found, each with its id, title,"
        f" text, language and score. Questions can be asked in: {languages}.",
        annotations=ToolAnnotations(read_only_hint=True, idempotent_hint=True, open_world_hint=False),
    )
    return server


def add_mcp_route(application: FastAPI, service: ToolService, host: str) -> None:
    """Adds `POST /mcp`: no sessions, and one JSON response a call, so a stopping server waits for calls in flight only.

    A server on a loopback `host` refuses requests that name another host: a web page cannot reach it by DNS rebinding.
    """
    served = make_server(service).streamable_http_app(json_response=True, stateless_http=True, host=host)
    [endpoint] = [route.endpoint for route in served.routes if isinstance(route, Route)]
    application.router.routes.append(Route("/mcp", endpoint, methods=["POST"]))
    application.router.lifespan_context = served.router.lifespan_context
