"""Translate-R1's episodes, prompts included: the policy may call a translator, alone or in addition to searches.

Section 4.4 and appendix A, in our words. No prompt names the question's language; the answer's is named if it is
another one.
"""

import itertools
import json
import re
from collections.abc import Collection, Sequence
from contextlib import suppress

import gin

from lcrag.data.languages import language_of
from lcrag.data.questions import (
    INSTRUCTION_FOLLOWING,
    MATHEMATICS,
    MULTIPLE_CHOICE,
    SUMMARISATION,
    TRANSLATION,
    Question,
)
from lcrag.episodes.observation import information
from lcrag.episodes.prompts import answer_language, atlas
from lcrag.episodes.requests import TRANSLATION as TRANSLATION_TOOL
from lcrag.episodes.requests import ContextFull, Generate, Observe, Outcome, Program, Retrieve
from lcrag.episodes.routing import Route, available_first
from lcrag.episodes.search_loop import SearchTurns
from lcrag.episodes.tags import (
    ANSWER,
    SEARCH,
    THINK,
    TOOL_CALL,
    TOOL_RESPONSE,
    SearchAction,
    answer_in,
    closing,
    neutralise,
    opening,
    parse_action,
)
from lcrag.errors import lookup
from lcrag.methods.translate_r1.translation_tool import ToolUse

_GENERAL = "You answer questions, in any language. Reason step by step, then give the answer."
_DOMAINS = {
    MATHEMATICS: (
        "You solve mathematical problems, in any language. Reason step by step, and put the final answer, a number,"
        " into \\boxed{}."
    ),
    MULTIPLE_CHOICE: (
        "You answer multiple-choice questions, in any language. Reason step by step, and put the letter of the right"
        " option into \\boxed{}."
    ),
    INSTRUCTION_FOLLOWING: (
        "You follow instructions, in any language. Meet every constraint that is given, and answer in the language of"
        " the instructions. Write the answer alone, without remarks."
    ),
    SUMMARISATION: (
        "You summarise texts, in any language, in one or two sentences of the text's own language. Write the summary"
        " alone, without remarks."
    ),
    TRANSLATION: "You translate texts, from any language. Write the translation alone, without remarks.",
}
_EXAMPLE = json.dumps({"name": "translate", "arguments": {"text": "...", "target": "English"}})
_SCHEMA = json.dumps(
    {
        "type": "function",
        "function": {
            "name": "translate",
            "description": "Translates a text into another language.",
            "parameters": {
                "type": "object",
                "properties": {
                    "text": {"type": "string", "description": "The text to translate, in any language."},
                    "target": {"type": "string", "description": "The name of the language to translate into."},
                },
                "required": ["text", "target"],
            },
        },
    }
)
_OFFER = (
    "\n\n# Tool\n\nYou may call a tool {times}, or not at all, at any point of your reasoning:\n<tools>\n{schema}\n"
    "</tools>\n\nTo call it, write its name and arguments as a JSON object between {call} and {called}:\n"
    "{call}\n{example}\n{called}\nThe translation, or what was wrong with the call, comes back between {response} and"
    " {responded}."
)
_SEARCHING = (
    "You answer questions, in any language. Conduct reasoning inside <think> and </think> first every time you get new "
    "information. If you lack some knowledge, call a search engine by <search> query </search>; it returns the top "
    "search results between <information> and </information>. You can search as many times as you want; a query finds "
    "most in the language that the passages are written in. Give the answer inside <answer> and </answer>, in the "
    "language of the question and without detailed illustrations."
)
_STYLES = {"full": "search_r1", "atlas": "atlas"}  # of passages; the atlas's tiny model gets no instructions


def domain_prompt(question: Question) -> str:
    """Returns the instructions of the question's domain, general ones without a domain."""
    wanted = answer_language(question)
    note = "" if wanted == question.language else f" The answer must be in {language_of(wanted).name}."
    return _DOMAINS.get(question.domain, _GENERAL) + note


def tool_prompt(calls: int) -> str:
    """Returns the description of the tool, in the format of Qwen's models."""
    return _OFFER.format(
        times="once" if calls == 1 else "twice" if calls == 2 else f"up to {calls} times",
        schema=_SCHEMA,
        example=_EXAMPLE,
        call=opening(TOOL_CALL),
        called=closing(TOOL_CALL),
        response=opening(TOOL_RESPONSE),
        responded=closing(TOOL_RESPONSE),
    )


def _opening(question: Question, wording: str, calls: int, instructions: str) -> Observe:
    tools = (TRANSLATION_TOOL,) if calls else ()
    if wording == "atlas":
        return Observe(atlas(question), tools=tools)
    system = instructions + (tool_prompt(calls) if calls else "")
    return Observe(f"{neutralise(question.text)}\n", system=system, tools=tools)


@gin.configurable(denylist=["question", "collections"])
def translate_r1(
    question: Question,
    collections: Sequence[str] = (),
    *,
    calls: int = 2,
    wording: str = "full",
    targets: Collection[str] | None = None,
    text_characters: int = 8000,
    response_tokens: int = 2048,
) -> Program:
    """Runs Translate-R1's episode (section 4.4): the policy may call the translator, and answers when it likes.

    A malformed call gets an error as its response and counts as a call. So does a call beyond the limit, after which
    the policy has one last turn. The outcome's answer is the policy's last text (`final_text`); its `extra` holds the
    number of `tool_calls`.

    Args:
      question: The question; its domain determines the form of the answer.
      collections: Unused.
      calls: Calls that are carried out (the paper: 2); 0: there is no tool.
      wording: See `lcrag.methods`.
      targets: Codes of the allowed target languages; None: all known ones.
      text_characters: Maximum length of a text to translate.
      response_tokens: Maximum tokens of a response, tags included.
    """
    lookup(_STYLES, wording, "wording of translate_r1")
    use = ToolUse(calls=calls, targets=targets, text_characters=text_characters, response_tokens=response_tokens)
    texts: list[str] = []  # the policy's text of each turn
    answer = None
    with suppress(ContextFull):
        yield _opening(question, wording, calls, domain_prompt(question))
        while calls and not use.over:
            texts.append((yield Generate(stop=(closing(TOOL_CALL), closing(ANSWER)))))
            if (call := use.call_in(texts[-1])) is None:
                answer = final_text(texts)
                break
            yield Observe((yield from use.respond(call)))
        else:  # one last turn, without the tool
            texts.append((yield Generate(stop=(closing(ANSWER),))))
            if use.call_in(texts[-1]) is None:
                answer = final_text(texts)
            else:
                use.unanswered()
                answer = answer_in(texts[-1])
    return Outcome(
        answer=answer, invalid_actions=use.mistakes, counts=use.counts(texts), extra={"tool_calls": use.made}
    )


def final_text(texts: Sequence[str]) -> str | None:
    """Returns the answer in the policy's last text, without its reasoning; None if there is none.

    That is the content of the last answer tags or, without them, the text after the last closed thought. Where a
    thought of any turn was never finished, text without answer tags may be part of it, and is no answer.

    Args:
      texts: The policy's text of each turn, at least one.
    """
    if (answer := answer_in(texts[-1])) is not None:
        return answer
    tags = re.findall(f"{opening(THINK)}|{closing(THINK)}", "\n".join(texts))
    unfinished = any(pair == (opening(THINK),) * 2 for pair in itertools.pairwise([*tags, opening(THINK)]))
    return None if unfinished else texts[-1].rpartition(closing(THINK))[2].strip() or None


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
    """Runs LcRL's episode with Translate-R1's tool (not in the paper): every turn is a call, a search or the answer.

    A question in a language without a collection can so be translated, then searched. Calls and searches have separate
    budgets. After the last search, or one invalid action or call too many, the policy has one last turn with neither.

    Args:
      question, collections and others: See `lcrag.methods`; failed calls do not count as invalid actions.
      calls, targets, text_characters, response_tokens: As in `translate_r1`.
      shown: At most this many passages of one search, the best over all its languages; None: all.
    """
    style = lookup(_STYLES, wording, "wording of translate_and_search")
    use = ToolUse(calls=calls, targets=targets, text_characters=text_characters, response_tokens=response_tokens)
    stops = (closing(SEARCH), closing(ANSWER), *((closing(TOOL_CALL),) if calls else ()))
    turns = SearchTurns(budget, invalid_limit, stops, read=lambda text: use.call_in(text) or parse_action(text))
    with suppress(ContextFull):
        yield _opening(question, wording, calls, _SEARCHING)
        while action := (yield from turns.next_action()):
            if isinstance(action, SearchAction):
                languages = route(turns.searches, question.language, collections)
                found = yield Retrieve((action.query,), languages, passages)
                yield Observe(information(found, style, observation_tokens, shown=shown))
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
