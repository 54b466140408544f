"""Several queries in one search (RAG-R1, section 4): parses them, and formats their passages.

Commas separate queries: the ASCII one and those of Chinese, Japanese and Arabic script. A comma between quotation marks
belongs to its query, and a query that is quoted as a whole loses its marks. A mark that is never closed is an ordinary
character, JSON is text like any other, and the comma in an unquoted 1,000 separates.

Queries and their documents are shown as one JSON object:

    {"query": ["Swiss franc country", "France currency"], "documents": ["Doc 1: ...\\nDoc 2: ...", "Doc 1: ..."]}

Each query's documents are cut before they are written as JSON, so the object is always valid. Characters of any script
are not escaped.
"""

import dataclasses
import itertools
import json
import re
from collections.abc import Sequence

from lcrag.episodes.observation import NOTHING_FOUND, SEARCH_FAILED, Style, section_of, share_out
from lcrag.episodes.passage_cuts import Section, cut_section
from lcrag.episodes.requests import Found, FoundPassage, RetrievalFailure, TextTokenizer
from lcrag.episodes.tags import neutralise

_COMMAS = ",，、،"
_MARKS = {'"': '"', "“": "”", "„": "“”", "«": "»", "「": "」", "『": "』"}  # opening -> what may close it
# A quotation with its marks, a comma, or any other character: also a mark that is never closed.
_QUOTED = "|".join(f"{opens}[^{opens}{closes}]*[{closes}]" for opens, closes in _MARKS.items())
_PIECE = re.compile(rf"(?P<quoted>{_QUOTED})|(?P<comma>[{_COMMAS}])|(?P<other>.)", re.DOTALL)
_WHOLE = re.compile(rf"(?:{_QUOTED})\Z", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelQueries:
    """The queries of one search.

    Attributes:
      asked: The queries to search for, without duplicates, in the order written.
      dropped: Number of queries over the limit.
      empty: Number of empty queries.
    """

    asked: tuple[str, ...]
    dropped: int = 0
    empty: int = 0


def parallel_queries(content: str, most: int) -> ParallelQueries:
    """Splits the content of a search into its queries, of which the first `most` are asked.

    If `most` is 1, commas do not separate: the whole content is the query.
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
    """Writes a query in a form whose commas do not separate."""
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
    """Removes quotation marks around the whole query."""
    return query[1:-1].strip() if _WHOLE.match(query) else query


@dataclasses.dataclass(frozen=True)
class JsonInformation:
    """Queries with their documents, shown as one block; a `FittedText` for `Observe`.

    Attributes:
      queries: The neutralised queries.
      documents: The neutralised passages of each query, in the order of its languages, best first.
      style: How the block is written.
      query_tokens: At most this many tokens for the documents of one query.
    """

    queries: tuple[str, ...]
    documents: tuple[Section, ...]
    style: Style
    query_tokens: int

    def fit(self, tokenizer: TextTokenizer, room_tokens: int) -> str | None:
        """Returns the block in at most `room_tokens`, every document in at most `query_tokens`; None without room.

        The longest documents are cut first.
        """
        needs = [min(self.query_tokens, len(tokenizer.encode(_escaped(each.text)))) for each in self.documents]
        total = sum(needs)
        while total >= len(self.documents):
            block = self._block(tokenizer, share_out(total, needs))
            excess = len(tokenizer.encode(block)) - room_tokens  # parts and whole differ by a few tokens
            if excess <= 0:
                return block
            total -= excess
        return None

    def _block(self, tokenizer: TextTokenizer, shares: Sequence[int]) -> str:
        shared = zip(self.documents, shares, strict=True)
        documents = [_cut_to(each, share, tokenizer, self.style) for each, share in shared]
        content = {"query": list(self.queries), "documents": documents}
        return f"{self.style.before}{json.dumps(content, ensure_ascii=False)}\n{self.style.after}"


def json_information(
    queries: Sequence[str], found: Found | RetrievalFailure, style: Style, query_tokens: int
) -> JsonInformation:
    """Returns the observation of the passages of several queries.

    A failed search, and a query without results, are reported in place of the documents.

    Args:
      queries: The queries.
      found: The answer to their `Retrieve`: for each query, for each language, its hits, best first.
      style: How the block and each passage are written.
      query_tokens: At most this many tokens for the documents of one query (RAG-R1: 1,000).
    """
    if isinstance(found, RetrievalFailure):
        documents = (Section(SEARCH_FAILED.strip()),) * len(queries)
    else:
        documents = tuple(_documents(*each, style) for each in zip(queries, found, strict=True))
    return JsonInformation(tuple(map(neutralise, queries)), documents, style, query_tokens)


def _documents(query: str, languages: Sequence[Sequence[FoundPassage]], style: Style) -> Section:
    section = section_of(list(itertools.chain.from_iterable(languages)), style, query)
    return dataclasses.replace(section, text=section.text.rstrip("\n") or NOTHING_FOUND.strip())


def _cut_to(document: Section, tokens: int, tokenizer: TextTokenizer, style: Style) -> str:
    """Cuts a document to at most `tokens` tokens of JSON text."""
    room = tokens
    while room > 0:
        # A cut may leave the first half of a tag: neutralise again.
        kept = neutralise(cut_section(document, room, tokenizer, style.passage).rstrip("\n"))
        excess = len(tokenizer.encode(_escaped(kept))) - tokens
        if excess <= 0:
            return kept
        room -= excess
    return ""


def _escaped(text: str) -> str:
    """Returns the text as it stands between the quotation marks of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
