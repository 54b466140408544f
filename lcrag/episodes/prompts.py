"""The opening prompts, by name, and what the environment says to an invalid action."""

from collections.abc import Callable

from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.episodes.tags import neutralise
from lcrag.errors import UserError

RETHINK = "My action is not correct. Let me rethink."

_LCRL = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> "
    "query </search>, and it will return the top searched results between <information> and </information>. "
    "Hierarchical Search Logic: You can search at least 2 times: 1. First search in {native} knowledge base. "
    "2. Second search in English and other languages (e.g., French) to provide comprehensive information and resolve "
    "potential conflicts. If needed, continue searching in English. Output Constraints: If no further external "
    "knowledge is needed, provide the answer inside <answer> and </answer> without detailed illustrations. Note: The "
    "answer must be in {wanted}. For example: <answer> {example} </answer>. Question: {question}\n"
)

_SEARCH_R1 = (
    "Answer the given question. You must conduct reasoning inside <think> and </think> first every time you get new "
    "information. After reasoning, if you find you lack some knowledge, you can call a search engine by <search> "
    "query </search>, and it will return the top searched results between <information> and </information>. You can "
    "search as many times as you want. If you find no further external knowledge needed, you can directly provide the "
    "answer inside <answer> and </answer> without detailed illustrations. Note: The answer must be in {wanted}. For "
    "example, <answer> {example} </answer>. Question: {question}\n"
)

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


def answer_language(question: Question) -> str:
    """The language the answer is wanted in: the question's own, or in pivot coupling the native one.

    A pivot version of a question is asked in another language and names the wanted one in
    `extra["answer_language"]`.
    """
    return question.extra.get("answer_language", question.language)


def lcrl(question: Question) -> str:
    """LcRL, table 7: names of languages in English, an example answer in the wanted language.

    Raises:
      UserError: a language that `lcrag.data.languages` does not know.
    """
    wanted = language_of(answer_language(question))
    return _LCRL.format(
        native=language_of(question.language).name,
        wanted=wanted.name,
        example=wanted.example,
        question=neutralise(question.text),
    )


def search_r1(question: Question) -> str:
    """Search-R1 (Jin et al., 2025), table 1, with the wanted language as LcRL names it.

    Raises:
      UserError: a language that `lcrag.data.languages` does not know.
    """
    wanted = language_of(answer_language(question))
    return _SEARCH_R1.format(wanted=wanted.name, example=wanted.example, question=neutralise(question.text))


def rag_r1(question: Question) -> str:
    """RAG-R1, table 2: up to three queries at once. Where the answer is not wanted in English, it says so.

    Raises:
      UserError: a language that `lcrag.data.languages` does not know.
    """
    return _rag_r1(question, _SEVERAL_QUERIES)


def rag_r1_single(question: Question) -> str:
    """RAG-R1, table 1: one query at a time. Where the answer is not wanted in English, it says so.

    Raises:
      UserError: a language that `lcrag.data.languages` does not know.
    """
    return _rag_r1(question, _ONE_QUERY)


def _rag_r1(question: Question, search: str) -> str:
    wanted = language_of(answer_language(question))
    english = answer_language(question) == "en"
    return _RAG_R1.format(
        search=search,
        note="" if english else f" Note: The answer must be in {wanted.name}.",
        example="Beijing" if english else wanted.example,
        question=neutralise(question.text),
    )


def atlas(question: Question) -> str:
    """The tiny policy's prompt: the question on a line; the wanted language's code behind it where it is another."""
    wanted = answer_language(question)
    mark = "" if wanted == question.language else f" [{wanted}]"
    return f"{neutralise(question.text)}{mark}\n"


PROMPTS: dict[str, Callable[[Question], str]] = {
    "lcrl": lcrl,
    "search_r1": search_r1,
    "rag_r1": rag_r1,
    "rag_r1_single": rag_r1_single,
    "atlas": atlas,
}


def opening_prompt(name: str, question: Question) -> str:
    """The prompt that opens a question's episode.

    Raises:
      UserError: there is no such prompt.
    """
    if name not in PROMPTS:
        raise UserError(f"there is no prompt {name!r}: choose one of {', '.join(PROMPTS)}")
    return PROMPTS[name](question)
