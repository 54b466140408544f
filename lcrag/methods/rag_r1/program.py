"""RAG-R1's program: the policy reasons, then searches with up to three queries in parallel."""

import dataclasses
from collections.abc import Callable, Sequence
from contextlib import suppress

import gin

from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.episodes.observation import information, known_style
from lcrag.episodes.prompts import answer_language, atlas
from lcrag.episodes.requests import ContextFull, Observe, Outcome, Program, Retrieve
from lcrag.episodes.routing import Route, native_only
from lcrag.episodes.search_loop import SearchTurns
from lcrag.episodes.tags import neutralise
from lcrag.errors import lookup
from lcrag.methods.rag_r1.parallel_queries import json_information, parallel_queries

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


def several_queries_prompt(question: Question) -> str:
    """The prompt of table 2: up to three queries in a search."""
    return _prompt(question, _SEVERAL_QUERIES)


def single_query_prompt(question: Question) -> str:
    """The prompt of table 1: one query in a search."""
    return _prompt(question, _ONE_QUERY)


def _prompt(question: Question, search: str) -> str:
    """Fills in a question; the prompt names the language of the answer unless it is English.

    Raises:
      UserError: a language that `lcrag.data.languages` does not know.
    """
    wanted = language_of(answer_language(question))
    english = answer_language(question) == "en"
    return _RAG_R1.format(
        search=search,
        note="" if english else f" Note: The answer must be in {wanted.name}.",
        example="Beijing" if english else wanted.example,
        question=neutralise(question.text),
    )


@dataclasses.dataclass(frozen=True)
class _Wording:
    """The opening prompt for one query a search, that for several, and the style of passages."""

    single: Callable[[Question], str]
    several: Callable[[Question], str]
    style: str


_WORDINGS = {
    "full": _Wording(single_query_prompt, several_queries_prompt, "rag_r1"),
    "atlas": _Wording(atlas, atlas, "atlas"),
}


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
) -> Program:
    """RAG-R1's episode (sections 3.1.1 and 4): one query at a time, or several in parallel.

    A search without a query is an invalid action. Empty queries, and those beyond the limit, are dropped and counted.
    Reasoning is not checked: RAG-R1 rewards no format.

    Args:
      question: The question.
      collections: Languages of the collection set.
      queries: Queries allowed in one search. With 1, commas do not separate queries and passages are shown as plain
        text; with more, queries and passages are shown in a JSON object.
      budget: Searches allowed, however many queries each has (the paper: 4 in training, 5 in evaluation).
      passages: Passages of each query in each searched language.
      invalid_limit: Invalid actions allowed; they do not count as searches.
      route: Which collections search number b goes to.
      wording: "full" or "atlas".
      observation_tokens: At most this many tokens for the passages of each query of a search.

    Raises:
      UserError: an unknown wording, or less than one query.
    """
    words = lookup(_WORDINGS, wording, "wording")
    turns, style = SearchTurns(budget, invalid_limit), known_style(words.style)
    dropped = empty = 0
    with suppress(ContextFull):
        yield Observe((words.single if queries == 1 else words.several)(question))
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
                yield Observe(json_information(wanted.asked, found, style, observation_tokens))
    counts = {
        "dropped_queries": dropped,
        "empty_queries": empty,
        "answers_without_search": int(turns.answer is not None and not turns.searches),
    }
    return Outcome(answer=turns.answer, invalid_actions=turns.invalid, counts=counts)
