"""Translation and search in one episode: a question in a language without a collection is translated, then searched."""

from collections.abc import Collection, Sequence
from contextlib import suppress

import gin

from lcrag.data.questions import Question
from lcrag.episodes.observation import information
from lcrag.episodes.prompts import atlas
from lcrag.episodes.requests import TRANSLATION, ContextFull, Observe, Outcome, Program, Retrieve
from lcrag.episodes.routing import Route, available_first
from lcrag.episodes.search_loop import SearchTurns
from lcrag.episodes.tags import ANSWER, SEARCH, TOOL_CALL, SearchAction, closing, neutralise, parse_action
from lcrag.methods.translate_r1.program import check_tool
from lcrag.methods.translate_r1.prompts import tool_prompt
from lcrag.methods.translate_r1.translation_tool import ToolUse

_SEARCHING = (
    "You answer questions, in any language. Conduct reasoning inside <think> and </think> first every time you get new "
    "information. If you lack some knowledge, call a search engine by <search> query </search>; it returns the top "
    "search results between <information> and </information>. You can search as many times as you want; a query finds "
    "most in the language that the passages are written in. Give the answer inside <answer> and </answer>, in the "
    "language of the question and without detailed illustrations."
)
_STYLES = {"full": "search_r1", "atlas": "atlas"}


@gin.configurable(denylist=["question", "collections"])
def translate_and_search(
    question: Question,
    collections: Sequence[str],
    *,
    calls: int = 2,
    budget: int = 3,
    passages: int = 3,
    invalid_limit: int = 3,
    route: Route = available_first,
    wording: str = "full",
    targets: Collection[str] | None = None,
    text_characters: int = 8000,
    response_tokens: int = 2048,
    observation_tokens: int = 600,
    shown: int | None = None,
) -> Program:
    """Runs LcRL's episode with Translate-R1's tool: every turn is a call, a search or the answer.

    Calls and searches have separate budgets. After the last search, or one invalid action or call too many, the policy
    has one last turn with neither.

    Args:
      question, collections and others: See `lcrag.methods`; failed calls do not count as invalid actions.
      calls: Calls of the translation tool that are carried out; 0: there is no tool.
      targets: Codes of the allowed target languages; None: all known ones.
      text_characters: Maximum length of a text to translate.
      response_tokens: Maximum tokens of a translation, tags included.
      shown: At most this many passages of one search, the best over all its languages; None: all.
    """
    check_tool("translate_and_search", wording)
    use = ToolUse(calls=calls, targets=targets, text_characters=text_characters, response_tokens=response_tokens)
    stops = (closing(SEARCH), closing(ANSWER), *((closing(TOOL_CALL),) if calls else ()))
    turns = SearchTurns(budget, invalid_limit, stops, read=lambda text: use.call_in(text) or parse_action(text))
    with suppress(ContextFull):
        yield _opened(question, wording, calls)
        while action := (yield from turns.next_action()):
            if isinstance(action, SearchAction):
                languages = route(turns.searches, question.language, collections)
                found = yield Retrieve((action.query,), languages, passages)
                yield Observe(information(found, _STYLES[wording], observation_tokens, shown=shown))
            else:
                yield Observe((yield from use.respond(action)))
                turns.over = use.over
    if turns.in_final_turn and use.call_in(turns.texts[-1]) is not None:
        use.unanswered()
    return Outcome(
        answer=turns.answer,
        invalid_actions=turns.invalid + use.mistakes,
        counts=use.counts(turns.texts),
        extra={"tool_calls": use.made},
    )


def _opened(question: Question, wording: str, calls: int) -> Observe:
    tools = (TRANSLATION,) if calls else ()
    if wording == "atlas":
        return Observe(atlas(question), tools=tools)
    system = _SEARCHING + (tool_prompt(calls) if calls else "")
    return Observe(f"{neutralise(question.text)}\n", system=system, tools=tools)
