"""The queries that one search asks at once, read from what the policy wrote between the search tags.

Commas separate queries: the ASCII one and those of Chinese, Japanese and Arabic script. A comma between quotation
marks belongs to its query, and a query that is quoted as a whole loses its marks; a mark that is never closed is an
ordinary character. JSON is text like any other. Every comma outside quotation marks separates, one inside a number too:
who means "1,000" quotes it. White space around a query is taken off.
"""

import dataclasses
import re

_COMMAS = ",，、،"
_MARKS = {'"': '"', "“": "”", "„": "“”", "«": "»", "「": "」", "『": "』"}  # opening -> what may close it
# A quotation with its marks, or a single character: what is left of a mark that is never closed.
_QUOTED = "|".join(f"{opens}[^{opens}{closes}]*[{closes}]" for opens, closes in _MARKS.items())
_PIECE = re.compile(rf"(?P<quoted>{_QUOTED})|(?P<comma>[{_COMMAS}])|(?P<other>.)", re.DOTALL)
_WHOLE = re.compile(rf"(?:{_QUOTED})\Z", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelQueries:
    """What one search asks.

    Attributes:
      asked: The queries to search for, each once, in the order written.
      dropped: Queries beyond the most that are allowed.
      empty: Queries with nothing in them.
    """

    asked: tuple[str, ...]
    dropped: int = 0
    empty: int = 0


def parallel_queries(content: str, most: int) -> ParallelQueries:
    """The queries in the content of a search, of which the first `most` are asked.

    With `most` 1 nothing separates: the content as a whole is the query, as in methods that search for one thing.
    """
    if most == 1:
        whole = content.strip()
        return ParallelQueries(asked=(whole,) if whole else (), empty=int(not whole))
    written = [_unquoted(part.strip()) for part in _separated(content)]
    distinct = list(dict.fromkeys(query for query in written if query))
    return ParallelQueries(
        asked=tuple(distinct[:most]), dropped=len(distinct[most:]), empty=sum(not query for query in written)
    )


def quoted(query: str) -> str:
    """The query as it has to be written so that its commas do not separate."""
    return f'"{query}"' if any(comma in query for comma in _COMMAS) and '"' not in query else query


def _separated(content: str) -> list[str]:
    parts = [""]
    for piece in _PIECE.finditer(content):
        if piece["comma"]:
            parts.append("")
        else:
            parts[-1] += piece[0]
    return parts


def _unquoted(query: str) -> str:
    """The query without the quotation marks around the whole of it."""
    return query[1:-1].strip() if _WHOLE.match(query) else query
