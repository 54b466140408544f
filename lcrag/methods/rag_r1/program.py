"""RAG-R1's program: the policy reasons, then searches with up to three queries in parallel."""

from collections.abc import Sequence
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
    """Fills in a question; the prompt names the language of the answer unless it is English."""
    wanted = language_of(answer_language(question))
    english = answer_language(question) == "en"
    return _RAG_R1.format(
        search=search,
        note="" if english else f" Note: The answer must be in {wanted.name}.",
        example="Beijing" if english else wanted.example,
        question=neutralise(question.text),
    )


# The opening prompt for one query a search, that for several, and the style of passages.
_WORDINGS = {
    "full": (single_query_prompt, several_queries_prompt, "rag_r1"),
    "atlas": (atlas, atlas, "atlas"),
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
      question, collections and others: See `lcrag.methods`.
      queries: Queries allowed in one search. With 1, commas do not separate queries and passages are shown as plain
        text; with more, queries and passages are shown in a JSON object.
      budget: Searches allowed, however many queries each has (the paper: 4 in training, 5 in evaluation).
      passages, observation_tokens: Of each query of a search.
    """
    single, several, style_name = lookup(_WORDINGS, wording, "wording")
    turns, style = SearchTurns(budget, invalid_limit), known_style(style_name)
    dropped = empty = 0
    with suppress(ContextFull):
        yield Observe((single if queries == 1 else several)(question))
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
