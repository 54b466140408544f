"""Translate-R1's rollout: the policy reasons, may call a translator, and answers."""

import itertools
import re
from collections.abc import Collection, Sequence

import gin

from lcrag.data.questions import Question
from lcrag.episodes.prompts import atlas
from lcrag.episodes.requests import TRANSLATION, ContextFull, Generate, Observe, Outcome, Program
from lcrag.episodes.tags import ANSWER, THINK, TOOL_CALL, answer_in, closing, neutralise, opening
from lcrag.errors import UserError
from lcrag.methods.translate_r1.prompts import domain_prompt, tool_prompt
from lcrag.methods.translate_r1.translation_tool import ToolUse

WORDINGS = ("full", "atlas")
_THOUGHT = re.compile(f"{opening(THINK)}|{closing(THINK)}")


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
    check_tool("translate_r1", wording)
    use = ToolUse(calls=calls, targets=targets, text_characters=text_characters, response_tokens=response_tokens)
    written: list[str] = []
    try:
        yield opened(question, wording, calls)
        while calls and not use.over:
            written.append((yield Generate(stop=(closing(TOOL_CALL), closing(ANSWER)))))
            if (call := use.call_in(written[-1])) is None:
                return _outcome(use, written, final_text(written))
            yield Observe((yield from use.respond(call)))
        written.append((yield Generate(stop=(closing(ANSWER),))))  # last turn, without the tool
    except ContextFull:
        return _outcome(use, written, None)
    if use.call_in(written[-1]) is None:
        return _outcome(use, written, final_text(written))
    use.unanswered()
    return _outcome(use, written, answer_in(written[-1]))


def check_tool(program: str, wording: str) -> None:
    """Raises a UserError if a program with the translation tool has no such wording."""
    if wording not in WORDINGS:
        raise UserError(f"there is no wording {wording!r} of {program}: choose one of {', '.join(WORDINGS)}")


def opened(question: Question, wording: str, calls: int) -> Observe:
    """Returns the opening of an episode: the question, with the instructions and the tool in the system message."""
    tools = (TRANSLATION,) if calls else ()
    if wording == "atlas":
        return Observe(atlas(question), tools=tools)
    system = domain_prompt(question) + (tool_prompt(calls) if calls else "")
    return Observe(f"{neutralise(question.text)}\n", system=system, tools=tools)


def final_text(texts: Sequence[str]) -> str | None:
    """Returns the answer in the policy's last text, without its reasoning; None if there is none.

    That is the content of the last answer tags or, without them, the text after the last closed thought. Where a
    thought of any turn was never finished, text without answer tags may be part of it, and is no answer.

    Args:
      texts: The policy's text of each turn, at least one.
    """
    if (answer := answer_in(texts[-1])) is not None:
        return answer
    return None if has_unfinished_thought(texts) else texts[-1].rpartition(closing(THINK))[2].strip() or None


def has_unfinished_thought(texts: Sequence[str]) -> bool:
    """Returns whether a thought that the policy opened in one of its turns was not closed, in that turn or later."""
    tags = _THOUGHT.findall("\n".join(texts))
    return any(pair == (opening(THINK),) * 2 for pair in itertools.pairwise(tags)) or tags[-1:] == [opening(THINK)]


def _outcome(use: ToolUse, written: Sequence[str], answer: str | None) -> Outcome:
    return Outcome(
        answer=answer,
        invalid_actions=use.mistakes,
        counts=use.counts(written),
        extra={"tool_calls": use.made},
    )
