"""Search as a tool: a policy with its episode program takes a question and returns answer, evidence and passages.

`SearchTool` is the Python call, batched over the engine's slots. `ToolService` answers many callers with few runs of
it; `tool_endpoint` serves it over HTTP, `mcp_server` to agents that speak the Model Context Protocol.
"""

from lcrag.app.commands.serve.findings import Findings
from lcrag.app.commands.serve.search_tool import SearchTool
from lcrag.app.commands.serve.service import USUAL_TOOL_LIMITS, ToolLimits, ToolService, tool_endpoint

__all__ = [
    "USUAL_TOOL_LIMITS",
    "Findings",
    "SearchTool",
    "ToolLimits",
    "ToolService",
    "tool_endpoint",
]
