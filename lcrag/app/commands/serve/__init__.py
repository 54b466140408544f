"""Search as a tool: a policy with its episode program takes a question and returns answer, evidence and passages.

`SearchTool` is the Python call, batched over the engine's slots. `ToolService` answers many callers with few runs of
it; `endpoint` serves that over HTTP, `mcp_server` to agents that speak the Model Context Protocol.
"""

from lcrag.app.commands.serve.endpoint import ToolEndpoint
from lcrag.app.commands.serve.findings import Findings
from lcrag.app.commands.serve.limits import USUAL_TOOL_LIMITS, ToolLimits
from lcrag.app.commands.serve.search_tool import SearchTool
from lcrag.app.commands.serve.service import Refusal, ToolService

__all__ = [
    "USUAL_TOOL_LIMITS",
    "Findings",
    "Refusal",
    "SearchTool",
    "ToolEndpoint",
    "ToolLimits",
    "ToolService",
]
