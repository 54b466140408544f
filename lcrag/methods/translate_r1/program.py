"""Translate-R1's episodes, prompts included: the policy may call a translator, alone or in addition to searches.

Section 4.4 and appendix A, in our words. No prompt names the question's language; the answer's is named if it is
another one.
"""

import collections
import dataclasses
import json
from collections.abc import Collection, Generator, Sequence
from contextlib import suppress
from typing import NamedTuple

import gin

from lcrag.data import questions as domains
from lcrag.data.questions import LANGUAGES, Question, language_of
from lcrag.episodes.programs import (
    TRANSLATION,
    ContextFull,
    Generate,
    Observe,
    Outcome,
    Program,
    Retrieve,
    SearchTurns,
    Translate,
    Translated,
    TranslationFailure,
    answer_language,
    atlas,
)
from lcrag.episodes.searches import Information, Route, Style, available_first, information, statements
from lcrag.episodes.tags import SearchAction, answer_in, neutralise, parse_action, without_surrogates
from lcrag.errors import lookup
from lcrag.rewards.text import folded, is_visible

_GENERAL = "You answer questions, in any language. Reason step by step, then give the answer."
_DOMAINS = {
    domains.MATHEMATICS: (
        "You solve mathematical problems, in any language. Reason step by step, and put the final answer, a number,"
        " into \\boxed{}."
    ),
    domains.MULTIPLE_CHOICE: (
        "You answer multiple-choice questions, in any language. Reason step by step, and put the letter of the right"
        " option into \\boxed{}."
    ),
    domains.INSTRUCTION_FOLLOWING: (
        "You follow instructions, in any language. Meet every constraint that is given, and answer in the language of"
        " the instructions. Write the answer alone, without remarks."
    ),
    domains.SUMMARISATION: (
        "You summarise texts, in any language, in one or two sentences of the text's own language. Write the summary"
        " alone, without remarks."
    ),
    domains.TRANSLATION: "You translate texts, from any language. Write the translation alone, without remarks.",
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
    "</tools>\n\nTo call it, write its name and arguments as a JSON object between <tool_call> and </tool_call>:\n"
    "<tool_call>\n{example}\n</tool_call>\nThe translation, or what was wrong with the call, comes back between"
    " <tool_response> and </tool_response>."
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
    times = "once" if calls == 1 else "twice" if calls == 2 else f"up to {calls} times"
    return _OFFER.format(times=times, schema=_SCHEMA, example=_EXAMPLE)


def _opening(question: Question, wording: str, calls: int, instructions: str) -> Observe:
    tools = (TRANSLATION,) if calls else ()
    if wording == "atlas":
        return Observe(atlas(question), tools=tools)
    system = instructions + (tool_prompt(calls) if calls else "")
    return Observe(f"{neutralise(question.text)}\n", system=system, tools=tools)


TOOL = "translate"
ARGUMENTS = ("text", "target")


class TranslateCall(NamedTuple):
    """A valid call: translate `text` into the language with code `target`."""

    text: str
    target: str


class ToolError(NamedTuple):
    """The error that the policy is shown instead of a translation; `cause` is one of `CAUSES`, for counting."""

    cause: str
    message: str


MALFORMED = ToolError("malformed_call", "A call stands between <tool_call> and </tool_call>.")
INVALID_JSON = ToolError("invalid_json", 'A call is a JSON object with a "name" and "arguments".')
OVER_LIMIT = ToolError("over_limit", "No call is left. Give the answer.")
FAILED = ToolError("failed", "The text could not be translated.")
CAUSES = (
    *("malformed_call", "invalid_json", "unknown_tool", "missing_argument", "extra_argument", "wrong_type"),
    *("empty_text", "long_text", "unknown_target", "over_limit", "failed"),
)
# Code, English name or endonym of a language, folded -> its code.
_CODES = {
    folded(name): code for code, language in LANGUAGES.items() for name in (language.endonym, language.name, code)
}
RESPONSE = Style(
    before="<tool_response>\n",
    after="</tool_response>\n",
    passage=lambda number, title, text: f"{text}\n",
)


@dataclasses.dataclass(kw_only=True)
class ToolUse:
    """The limits of the tool, see `translate_r1`, and its calls in one episode."""

    calls: int = 2  # 0: calls are ordinary text
    targets: Collection[str] | None = None
    text_characters: int = 8000
    response_tokens: int = 2048
    made: int = 0  # calls so far, including malformed and refused ones
    errors: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)  # by cause

    def __post_init__(self):
        for code in self.targets or ():
            language_of(code)

    @property
    def over(self) -> bool:
        """Whether a call was refused because none was left."""
        return self.made > self.calls

    def call_in(self, text: str) -> TranslateCall | ToolError | None:
        """Returns the call that ends the policy's text of one generation, or its error; None without a call or a tool.

        A call stands between the last opening tag and the closing tag that ends the text. An opening tag without a
        closing one, and the reverse, are malformed calls.
        """
        if not self.calls:
            return None
        before, closed, after = text.rpartition("</tool_call>")
        if not closed:
            return MALFORMED if "<tool_call>" in text else None
        _, opened, content = before.rpartition("<tool_call>")
        if not opened or after.strip():
            return MALFORMED
        try:
            call = json.loads(content)
        except (ValueError, RecursionError):
            return INVALID_JSON
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return INVALID_JSON
        if call["name"] != TOOL:
            return ToolError("unknown_tool", f'There is no tool of this name. The tool is called "{TOOL}".')
        arguments = call.get("arguments")
        if not isinstance(arguments, dict):
            return INVALID_JSON
        if len(call) > 2:
            return ToolError("extra_argument", 'A call has a "name" and "arguments", and nothing else.')
        if missing := [name for name in ARGUMENTS if name not in arguments]:
            return ToolError("missing_argument", f'The argument "{missing[0]}" is missing.')
        if len(arguments) > len(ARGUMENTS):
            return ToolError("extra_argument", 'The arguments are "text" and "target", and no others.')
        if wrong := [name for name in ARGUMENTS if not isinstance(arguments[name], str)]:
            return ToolError("wrong_type", f'The argument "{wrong[0]}" must be a text.')
        said, target = (without_surrogates(arguments[name]).strip() for name in ARGUMENTS)
        if not is_visible(said):
            return ToolError("empty_text", 'The "text" is empty.')
        if len(said) > self.text_characters:
            return ToolError("long_text", f"The text has {len(said)} characters. The most is {self.text_characters}.")
        code = _CODES.get(folded(target))
        if code is None or (self.targets is not None and code not in self.targets):
            return ToolError("unknown_target", "The target is not a known language. Name one such as English.")
        return TranslateCall(said, code)

    def respond(self, call: TranslateCall | ToolError) -> Generator[Translate, Translated, Information]:
        """Carries out a call; returns the observation."""
        self.made += 1
        response: Translated | ToolError | TranslateCall = OVER_LIMIT if self.over else call
        if isinstance(response, TranslateCall):
            response = yield Translate(response.text, None, response.target)
        if isinstance(response, TranslationFailure):
            response = FAILED
        if isinstance(response, ToolError):
            self.errors[response.cause] += 1
            response = f"Error: {response.message}"
        return statements([f"{response}\n"], RESPONSE, self.response_tokens)

    def unanswered(self) -> None:
        """Counts a call in the last turn, which gets no response."""
        self.made += 1
        self.errors[OVER_LIMIT.cause] += 1

    def counts(self, written: Sequence[str]) -> dict[str, int]:
        """Returns the counts of an episode, logged as `episode/<name>`, given the policy's text of each turn."""
        return {
            "tool_calls": self.made,
            "tool_errors": self.errors.total(),
            **{f"tool_error_{cause}": self.errors[cause] for cause in CAUSES},
            "forged_tool_response": sum(text.count("<tool_response>") for text in written),
        }

    @property
    def mistakes(self) -> int:
        """Number of calls with an error of the policy's."""
        return self.errors.total() - self.errors[FAILED.cause]


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
      question: Its domain determines the form of the answer.
      calls: Calls that are carried out (the paper: 2); 0: there is no tool.
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
            texts.append((yield Generate(stop=("</tool_call>", "</answer>"))))
            if (call := use.call_in(texts[-1])) is None:
                answer = final_text(texts)
                break
            yield Observe((yield from use.respond(call)))
        else:  # one last turn, without the tool
            texts.append((yield Generate(stop=("</answer>",))))
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

    That is the content of the last answer tags or, without them, the text after the last closed thought. Where the
    latest thought, of this or an earlier turn, is still open, text without answer tags may be part of it, and is no
    answer.
    """
    if (answer := answer_in(texts[-1])) is not None:
        return answer
    _, tag, after = "\n".join(texts).rpartition("<think>")
    unfinished = tag and "</think>" not in after
    return None if unfinished else texts[-1].rpartition("</think>")[2].strip() or None


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
      invalid_limit: Failed calls do not count as invalid actions.
      calls, targets, text_characters, response_tokens: As in `translate_r1`.
      shown: At most this many passages of one search, the best over all its languages; None: all.
    """
    style = lookup(_STYLES, wording, "wording of translate_and_search")
    use = ToolUse(calls=calls, targets=targets, text_characters=text_characters, response_tokens=response_tokens)
    stops = ("</search>", "</answer>", *(("</tool_call>",) if calls else ()))
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
