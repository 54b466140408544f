"""LcRL's rollout (section 3.1): hierarchical search over collections in many languages, and pivot coupling."""

import dataclasses
from collections.abc import Iterable, Sequence
from contextlib import suppress

import gin

from lcrag.data.questions import LANGUAGES, Coupled, Question, coupled, language_of
from lcrag.episodes.programs import PROMPTS as SHARED_PROMPTS
from lcrag.episodes.programs import (
    ContextFull,
    Observe,
    Outcome,
    Program,
    Retrieve,
    SearchTurns,
    answer_language,
    opening_prompt,
)
from lcrag.episodes.searches import Route, information, local_first
from lcrag.episodes.tags import neutralise

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


def lcrl_prompt(question: Question) -> str:
    """Returns the prompt of table 7, with English names of languages and an example answer in the answer's language."""
    wanted = language_of(answer_language(question))
    return _LCRL.format(
        native=language_of(question.language).name,
        wanted=wanted.name,
        example=wanted.example,
        question=neutralise(question.text),
    )


PROMPTS = {"lcrl": lcrl_prompt, **SHARED_PROMPTS}


@gin.configurable(denylist=["question", "collections"])
def hierarchical_search(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 3,
    passages: int = 3,
    invalid_limit: int = 3,
    route: Route = local_first,
    prompt: str = "lcrl",
    style: str = "search_r1",
    observation_tokens: int = 600,
    shown: int | None = None,
) -> Program:
    """Runs algorithm 1 of LcRL (section 3.1): native collection first, then others, until the policy answers.

    Args:
      budget: The paper's B.
      prompt, style: Names of the opening prompt and of the passage style.
      shown: Maximum number of passages shown of one search, the best over all its languages; None: all.
    """
    turns = SearchTurns(budget, invalid_limit)
    with suppress(ContextFull):
        yield Observe(opening_prompt(prompt, question, PROMPTS))
        while search := (yield from turns.next_action()):
            languages = route(turns.searches, question.language, collections)
            found = yield Retrieve((search.query,), languages, passages)
            yield Observe(information(found, style, observation_tokens, shown=shown))
    return Outcome(answer=turns.answer, invalid_actions=turns.invalid)


def pivot(questions: Iterable[Question], languages: Sequence[str], size: int = 3) -> list[Coupled]:
    """Groups each question of each language with its versions in pivot languages, all answered in the native language.

    This is a mode of the authors' code; the paper couples the versions of `lcrag.data.questions.coupled`. The versions
    are the native one, English and the related language (`Language.relative`). If these coincide or the question is not
    asked in one of them, other languages fill the group, so all groups have the same size. Every version keeps the
    native golden answers and names their language in `extra["answer_language"]`.
    """
    groups = []
    for versions in coupled(questions):
        by_language = {question.language: question for question in versions}
        for native in (by_language[code] for code in languages if code in by_language):
            wanted = dict.fromkeys((native.language, "en", LANGUAGES[native.language].relative, *languages))
            chosen = [by_language[code] for code in wanted if code in by_language][:size]
            identity, answer_language = f"{native.id}@{native.language}", {"answer_language": native.language}
            groups.append(
                tuple(
                    dataclasses.replace(
                        version, id=identity, answers=native.answers, extra=version.extra | answer_language
                    )
                    for version in chosen
                )
            )
    return groups
