"""`lcrag serve`: a policy that searches as a tool, collections and a translator over HTTP.

`SearchTool` answers questions from Python with `Findings`. `routes` serves it over HTTP to many callers, `mcp_server`
to agents by the Model Context Protocol. `serving` is the command.
"""

from lcrag.commands.serve.routes import ToolLimits, ToolService, TranslationLimits
from lcrag.commands.serve.search_tool import Findings, SearchTool
