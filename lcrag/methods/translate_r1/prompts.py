"""Translate-R1's prompts: the instructions of each domain, and the tool (appendix A, in our words).

No prompt names the question's language; the answer's is named if it is another one.
"""

import json

from lcrag.data.languages import language_of
from lcrag.data.questions import (
    INSTRUCTION_FOLLOWING,
    MATHEMATICS,
    MULTIPLE_CHOICE,
    SUMMARISATION,
    TRANSLATION,
    Question,
)
from lcrag.episodes.prompts import answer_language
from lcrag.episodes.tags import TOOL_CALL, TOOL_RESPONSE, closing, opening

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
