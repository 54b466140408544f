"""`lcrag serve`: a policy that searches as a tool, collections and a translator over HTTP.

`SearchTool` answers questions from Python with `Findings`. `ToolService` batches the questions of many callers;
`tool_endpoint` serves it over HTTP, `mcp_server` to agents by the Model Context Protocol. `serving` is the command.
"""

from lcrag.commands.serve.search_tool import Findings, SearchTool
from lcrag.commands.serve.service import USUAL_TOOL_LIMITS, ToolLimits, ToolService, tool_endpoint
