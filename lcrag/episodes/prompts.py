"""Opening prompts that several methods use, and the reply to an invalid action."""

from collections.abc import Callable, Mapping

from lcrag.data.questions import Question, language_of
from lcrag.episodes.tags import neutralise
from lcrag.errors import lookup

RETHINK = "My action is not correct. Let me rethink."

_SEARCH_R1 = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> "
    "query </search>, and it will return the top searched results between <information> and </information>. You can "
    "search as many times as you want. If you find no further external knowledge needed, you can directly provide the "
    "answer inside <answer> and </answer> without detailed illustrations. Note: The answer must be in {wanted}. For "
    "example, <answer> {example} </answer>. Question: {question}\n"
)


def answer_language(question: Question) -> str:
    """Returns the required language of the answer: that of the question or, in pivot coupling, the native one.

    The pivot version of a question is in another language; its `extra["answer_language"]` is the language of the
    answer.
    """
    return question.extra.get("answer_language", question.language)


def search_r1(question: Question) -> str:
    """Returns the prompt of Search-R1 (Jin et al., 2025, table 1), with LcRL's sentence on the answer's language."""
    wanted = language_of(answer_language(question))
    return _SEARCH_R1.format(wanted=wanted.name, example=wanted.example, question=neutralise(question.text))


def user_message(question: Question) -> str:
    """Returns the question as a chat message, which names the language of the answer unless it is English."""
    wanted = answer_language(question)
    note = "" if wanted == "en" else f" The answer must be in {language_of(wanted).name}."
    return f"{neutralise(question.text)}{note}\n"


def atlas(question: Question) -> str:
    """Returns the tiny policy's prompt: the question, and the code of the answer's language if it is another one."""
    wanted = answer_language(question)
    mark = "" if wanted == question.language else f" [{wanted}]"
    return f"{neutralise(question.text)}{mark}\n"


PROMPTS: Mapping[str, Callable[[Question], str]] = {"search_r1": search_r1, "atlas": atlas}


def opening_prompt(name: str, question: Question, prompts: Mapping[str, Callable[[Question], str]] = PROMPTS) -> str:
    """Returns the prompt with this name that opens a question's episode."""
    return lookup(prompts, name, "prompt")(question)
