"""What several queries found, shown as one JSON object (RAG-R1, section 4): queries and documents side by side.

{"query": ["Swiss franc country", "France currency"], "documents": ["Doc 1: ...\\nDoc 2: ...", "Doc 1: ..."]}

Each query's documents are cut by themselves, before they are written as JSON, so that the object is whole whatever is
cut. Characters of any script stand as they are.
"""

import dataclasses
import json
from collections.abc import Sequence

from lcrag.episodes.observation import NOTHING_FOUND, SEARCH_FAILED, Style, cut, passages_of, share_out
from lcrag.episodes.requests import Found, RetrievalFailure, TextTokenizer
from lcrag.episodes.tags import neutralise


@dataclasses.dataclass(frozen=True)
class JsonInformation:
    """Queries with their documents, to be written as one block; a `FittedText` for `Observe`.

    Attributes:
      queries: What was asked, neutralised.
      documents: The neutralised text found for each query, best passage first.
      style: How the block is written.
      query_tokens: At most this many tokens for the documents of one query.
    """

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    style: Style
    query_tokens: int

    def fit(self, tokenizer: TextTokenizer, room_tokens: int) -> str | None:
        """The block in at most `room_tokens`, every document in at most `query_tokens`; None if there is no room.

        What the room does not hold is taken from the longest documents.
        """
        needs = [min(self.query_tokens, len(tokenizer.encode(_escaped(each)))) for each in self.documents]
        total = sum(needs)
        while total >= len(self.documents):
            block = self._block(tokenizer, share_out(total, needs))
            excess = (
                len(tokenizer.encode(block)) - room_tokens
            )  # tokens of the whole are not quite the sum of the parts
            if excess <= 0:
                return block
            total -= excess
        return None

    def _block(self, tokenizer: TextTokenizer, shares: Sequence[int]) -> str:
        documents = [
            _cut_to(document, share, tokenizer) for document, share in zip(self.documents, shares, strict=True)
        ]
        content = {"query": list(self.queries), "documents": documents}
        return f"{self.style.before}{json.dumps(content, ensure_ascii=False)}\n{self.style.after}"


def json_information(
    queries: Sequence[str], found: Found | RetrievalFailure, style: Style, query_tokens: int
) -> JsonInformation:
    """What some queries found, as the environment shows it.

    Args:
      queries: What was asked.
      found: The answer to their `Retrieve`: for each query, for each language, its hits, best first. The policy is told
        of a search that failed, and of a query that found nothing.
      style: How the block and each passage are written.
      query_tokens: At most this many tokens for the documents of one query (RAG-R1: 1,000).
    """
    if isinstance(found, RetrievalFailure):
        documents = (SEARCH_FAILED.strip(),) * len(queries)
    else:
        documents = tuple(passages_of(languages, style).rstrip("\n") or NOTHING_FOUND.strip() for languages in found)
    return JsonInformation(tuple(map(neutralise, queries)), documents, style, query_tokens)


def _cut_to(document: str, tokens: int, tokenizer: TextTokenizer) -> str:
    """The beginning of a document that takes at most `tokens` tokens where it stands in JSON."""
    room = tokens
    while room > 0:
        beginning = neutralise(
            cut(document, room, tokenizer).rstrip("\n")
        )  # the first half of a tag may be left at a cut
        excess = len(tokenizer.encode(_escaped(beginning))) - tokens
        if excess <= 0:
            return beginning
        room -= excess
    return ""


def _escaped(text: str) -> str:
    """The text as it stands between the quotation marks of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]
