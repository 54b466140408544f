"""RAG-R1's program: the policy reasons, then searches with up to three queries in parallel (sections 3.1.1 and 4).

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
from contextlib import suppress
from typing import Any

import gin

from lcrag.data.questions import Question, language_of
from lcrag.episodes.programs import (
    RETHINK,
    TRY_AGAIN,
    ContextFull,
    Found,
    Observe,
    Outcome,
    Program,
    RetrievalFailure,
    Retrieve,
    SearchTurns,
    TextTokenizer,
    answer_language,
    atlas,
)
from lcrag.episodes.searches import (
    NOTHING_FOUND,
    SEARCH_FAILED,
    STYLES,
    Route,
    Section,
    Style,
    cut_section,
    fitted,
    information,
    native_only,
    section_of,
    share_out,
)
from lcrag.episodes.tags import QUOTES, neutralise, quoted
from lcrag.errors import UserError, lookup
from lcrag.rewards.text import COMMAS, is_visible

_RAG_R1 = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by {search}. If "
    "you find no further external knowledge needed, you can directly provide the answer inside <answer> and </answer>, "
    "without detailed illustrations.{note} For example, <answer> {example} </answer>. Question: {question}\n"
)
_ONE_QUERY = (
    "<search> query </search> and it will return the top searched results between <information> and </information>. "
    "You can search as many times as your want"
)
_SEVERAL_QUERIES = (
    "<search> query_1,query_2 </search> and it will return the top searched results for each query between "
    "<information> and </information>. You can search as many times as you want, using up to three queries each time"
)


def rag_r1_prompt(question: Question, queries: int) -> str:
    """Returns the prompt of table 1, for one query in a search, or of table 2, for up to three.

    It names the language of the answer unless that is English.
    """
    wanted, english = language_of(answer_language(question)), answer_language(question) == "en"
    return _RAG_R1.format(
        search=_ONE_QUERY if queries == 1 else _SEVERAL_QUERIES,
        note="" if english else f" Note: The answer must be in {wanted.name}.",
        example="Beijing" if english else wanted.example,
        question=neutralise(question.text),
    )


_STYLES = {"full": STYLES["rag_r1"], "atlas": STYLES["atlas"]}
# How the object is written: on one line in any script, or indented in ASCII as in the authors' code.
LAYOUTS: dict[str, dict[str, Any]] = {"line": {"ensure_ascii": False}, "authors": {"indent": 2}}


@gin.configurable(denylist=["question", "collections"])
def rag_r1(
    question: Question,
    collections: Sequence[str],
    *,
    queries: int = 3,
    budget: int = 4,
    passages: int = 3,
    invalid_limit: int = 3,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 1000,
    generations: int | None = None,
    layout: str = "line",
) -> Program:
    """RAG-R1's episode: one query at a time, or several in parallel.

    A search without a query is an invalid action. Empty queries, and those beyond the limit, are dropped and counted.
    Reasoning is not checked: RAG-R1 rewards no format.

    Args:
      queries: Queries allowed in one search. With 1, commas do not separate queries and passages are shown as plain
        text; with more, queries and passages are shown in a JSON object.
      budget: Searches allowed, however many queries each has (the paper: 4 in training, 5 in evaluation).
      passages, observation_tokens: Of each query of a search.
      generations: Turns of the policy; None: one more than the budget allows. The authors' code evaluates five turns
        instead of the paper's five searches, so that nothing is read after the fifth.
      layout: "line", or "authors" for the JSON of the authors' code: indented, other scripts escaped.
    """
    style, correction = lookup(_STYLES, wording, "wording"), RETHINK if wording == "atlas" else TRY_AGAIN
    lookup(LAYOUTS, layout, "layout of rag_r1")
    if generations is not None and generations < 1:
        raise UserError(f"rag_r1.generations is {generations}: give the policy one turn or more, or None")
    join = joined if queries > 1 else None
    turns = SearchTurns(budget, invalid_limit, correction=correction, generations=generations, join=join)
    dropped = empty = 0
    with suppress(ContextFull):
        yield Observe(atlas(question) if wording == "atlas" else rag_r1_prompt(question, queries))
        while search := (yield from turns.next_action()):
            wanted = parallel_queries(search.query, queries)
            dropped += wanted.dropped
            empty += wanted.empty
            if not wanted.asked:
                yield turns.reject()
                continue
            found = yield Retrieve(wanted.asked, route(turns.searches, question.language, collections), passages)
            if queries == 1:
                yield Observe(information(found, style, observation_tokens))
            else:
                yield Observe(json_information(wanted.asked, found, style, observation_tokens, layout))
    counts = {
        "dropped_queries": dropped,
        "empty_queries": empty,
        "answers_without_search": int(turns.answer is not None and not turns.searches),
    }
    return Outcome(answer=turns.answer, invalid_actions=turns.invalid, counts=counts)


# A quotation with its marks, a comma, or any other character: also a mark that is never closed.
_QUOTED = "|".join(f"{opens}[^{opens}{closes}]*[{closes}]" for opens, closes in QUOTES.items())
_PIECE = re.compile(rf"(?P<quoted>{_QUOTED})|(?P<comma>[{COMMAS}])|(?P<other>.)", re.DOTALL)
_WHOLE = re.compile(rf"(?:{_QUOTED})\Z", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelQueries:
    """The queries of one search: those to search for, without duplicates, and the numbers of the others."""

    asked: tuple[str, ...]  # in the order written
    dropped: int = 0  # over the limit
    empty: int = 0


def parallel_queries(content: str, limit: int) -> ParallelQueries:
    """Splits the content of a search into its queries, of which the first `limit` are asked.

    With a limit of 1, commas do not separate: the whole content is the query.
    """
    if limit == 1:
        whole = content.strip()
        return ParallelQueries(asked=(whole,) * is_visible(whole), empty=int(not is_visible(whole)))
    parts = [""]
    for piece in _PIECE.finditer(content):
        if piece["comma"]:
            parts.append("")
        else:
            parts[-1] += piece[0]
    written = [part.strip() for part in parts]
    written = [query[1:-1].strip() if _WHOLE.match(query) else query for query in written]
    visible = [query for query in written if is_visible(query)]
    distinct = list(dict.fromkeys(visible))
    return ParallelQueries(
        asked=tuple(distinct[:limit]), dropped=len(distinct[limit:]), empty=len(written) - len(visible)
    )


def joined(queries: Sequence[str]) -> str:
    """Writes the queries of parallel tool calls as the content of one search."""
    return ", ".join(map(quoted, queries))


@dataclasses.dataclass(frozen=True)
class JsonInformation:
    """Neutralised queries with their documents, shown as one block; a `FittedText` for `Observe`."""

    queries: tuple[str, ...]
    documents: tuple[Section, ...]  # the passages of each query, in the order of its languages, best first
    style: Style
    query_tokens: int  # maximum number for the documents of one query
    layout: str = "line"  # a key of `LAYOUTS`

    def fit(self, tokenizer: TextTokenizer, room_tokens: int) -> str | None:
        """Returns the block in at most `room_tokens`, every document in at most `query_tokens`; None without room.

        The longest documents are cut first.
        """

        def cut_to(document: Section, tokens: int) -> str:
            """Cuts a document to at most `tokens` tokens of JSON text."""
            room = tokens
            while room > 0:
                # A cut may leave the first half of a tag: neutralise again.
                kept = neutralise(cut_section(document, room, tokenizer, self.style.passage).rstrip("\n"))
                excess = len(tokenizer.encode(_escaped(kept))) - tokens
                if excess <= 0:
                    return kept
                room -= excess
            return ""

        needs = [min(self.query_tokens, len(tokenizer.encode(_escaped(section.text)))) for section in self.documents]

        def build(total: int) -> str | None:
            if total < len(self.documents):
                return None
            shares = zip(self.documents, share_out(total, needs), strict=True)
            documents = [cut_to(section, share) for section, share in shares]
            content = json.dumps({"query": list(self.queries), "documents": documents}, **LAYOUTS[self.layout])
            return f"{self.style.before}{content}\n{self.style.after}"

        return fitted(build, sum(needs), tokenizer, room_tokens)


def _escaped(text: str) -> str:
    """Returns the text as it stands between the quotation marks of JSON."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def json_information(
    queries: Sequence[str], found: Found | RetrievalFailure, style: Style, query_tokens: int, layout: str = "line"
) -> JsonInformation:
    """Returns the observation of the passages of several queries.

    A failed search, and a query without results, are reported in place of the documents, of which each query gets
    `query_tokens` (RAG-R1: 1,000).
    """
    if isinstance(found, RetrievalFailure):
        documents = [Section(SEARCH_FAILED.strip())] * len(queries)
    else:
        documents = []
        for query, languages in zip(queries, found, strict=True):
            section = section_of(list(itertools.chain.from_iterable(languages)), style, query)
            text = section.text.rstrip("\n") or NOTHING_FOUND.strip()
            documents.append(dataclasses.replace(section, text=text))
    return JsonInformation(tuple(map(neutralise, queries)), tuple(documents), style, query_tokens, layout)
