"""LcRL: hierarchical search over collections in many languages and pivot coupling (section 3.1), the reward (3.3).

Wrong answers of a coupled group are penalised if they resemble each other.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Literal

import gin
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

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
from lcrag.errors import NotNegative, Share, typed
from lcrag.rewards.matching import Answers, ratio
from lcrag.rewards.terms import Episodes, Reward, TermSum, Values, answer_term
from lcrag.rewards.text import Units, gram_units, normalised_codes, repeats

# --- The rollout ---


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
    labels: bool = False,
) -> Program:
    """Runs algorithm 1 of LcRL (section 3.1): native collection first, then others, until the policy answers.

    Args:
      budget: The paper's B.
      shown: Maximum number of passages shown of one search, the best over all its languages; None: all.
      labels: Whether the passages of each language are labelled `[lang=fr]`.
    """
    turns = SearchTurns(budget, invalid_limit)
    with suppress(ContextFull):
        yield Observe(opening_prompt(prompt, question, PROMPTS))
        while search := (yield from turns.next_action()):
            languages = route(turns.searches, question.language, collections)
            found = yield Retrieve((search.query,), languages, passages)
            yield Observe(information(found, style, observation_tokens, shown=shown, labels=labels))
    return Outcome(answer=turns.answer, invalid_actions=turns.invalid)


@gin.register
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


# --- The reward ---


FULL_WEIGHT_SIZE = 5
LARGEST_PENALTY = 0.5


def anti_consistency(
    answers: Answers,
    answer_rewards: ArrayLike,
    group_ids: ArrayLike,
    threshold: float = 0.4,
    margin: float = 0.5,
    short_gold: str = "whole",
    normalisation: str = "lcrl",
) -> Float[np.ndarray, " answers"]:
    """Computes the anti-consistency reward of each answer, in [-0.5, 0].

    In a group, B = {i: answer_reward_i < threshold}. For i in B, if |B| > 1: m_i is the largest similarity of answer i
    to another answer of B, and the reward is -max(0, m_i - margin) · min(1, |B| / 5), clipped to [-0.5, 0]. All other
    answers get 0. The similarity of two answers is the mean of their c3 recalls in both directions, 0 if either has no
    grams; None counts as the empty string.

    Args:
      group_ids: Any integers in any order.
      threshold, margin: The paper's tau_bad and gamma.
      short_gold, normalisation: As in `c3_recall`; "contained" counts like "whole".
    """
    rewards = np.zeros(len(answers))
    bad = np.flatnonzero(np.asarray(answer_rewards) < threshold)
    _, groups, sizes = np.unique(np.asarray(group_ids)[bad], return_inverse=True, return_counts=True)
    order = np.argsort(groups, kind="stable")
    codes = normalised_codes((answers[i] for i in bad[order].tolist()), normalisation)
    largest = np.empty(len(bad))
    largest[order] = largest_similarities(gram_units(codes, sizes, short=short_gold != "zero"))
    penalties = np.maximum(0.0, largest - margin) * np.minimum(1.0, sizes[groups] / FULL_WEIGHT_SIZE)
    rewards[bad] = np.where(sizes[groups] > 1, np.clip(-penalties, -LARGEST_PENALTY, 0.0), 0.0)
    return rewards


def largest_similarities(units: Units) -> Float[np.ndarray, " texts"]:
    """Returns the largest similarity of each text to another text of its group, 0 for a group of one.

    The similarity of two texts is the mean of their recalls of each other's units, as sets; 0 if either has none. It is
    computed from a matrix of zeros and ones with one row for each text, whose columns are the units that occur in
    several texts of the group. Its products are sums of fewer than 2**24 ones, which are exact in float32.
    """
    largest, counts, firsts = np.zeros(len(units.counts)), units.counts.copy(), units.firsts
    for block in repeats(units):
        counts -= np.bincount(block.texts[block.equal], minlength=len(counts))
        column = np.cumsum(block.begins) - 1
        runs = np.bincount(block.rows[block.begins], minlength=len(block.groups))
        column -= (np.cumsum(runs) - runs)[block.rows]
        first, sizes = firsts[block.groups], units.sizes[block.groups]
        incidence = np.zeros((len(sizes), sizes.max(), runs.max(initial=0)), np.float32)
        for texts in (block.texts_before, block.texts):
            incidence[block.rows, texts - first[block.rows], column] = 1
        common = (incidence @ incidence.swapaxes(1, 2)).astype(np.int64)
        members = np.minimum(first[:, None] + np.arange(sizes.max()), len(counts) - 1)
        recalls = ratio(common, np.broadcast_to(counts[members][:, None, :], common.shape))
        similarity = (recalls + recalls.swapaxes(1, 2)) / 2
        others = np.arange(sizes.max()) < sizes[:, None]
        similarity *= others[:, None, :] & ~np.eye(sizes.max(), dtype=bool)
        largest[members[others]] = similarity.max(axis=2)[others]
    return largest


def language_coupled_reward(
    answer_rewards: ArrayLike, penalties: ArrayLike, weight: float = 0.02, floor: float | None = 0.0
) -> Float[np.ndarray, " answers"]:
    """Computes LcRL's total reward max(floor, answer reward + weight · penalty) (section 3.3, last equation).

    The weight is the paper's lambda. The paper's floor 0 cancels the penalty of a fully wrong answer; None: no floor.
    """
    total = np.asarray(answer_rewards, np.float64) + weight * np.asarray(penalties, np.float64)
    return total if floor is None else np.maximum(floor, total)


@gin.configurable
@typed
def language_coupled(
    answer: str = "c3_recall",
    weight: NotNegative = 0.02,
    threshold: Share = 0.4,
    margin: NotNegative = 0.5,
    floor: float | None = 0.0,
    short_gold: Literal["whole", "zero", "contained"] = "whole",
    normalisation: Literal["lcrl", "unicode"] = "lcrl",
) -> Reward:
    """Returns LcRL's reward: an answer reward and the anti-consistency penalty of its coupled group.

    Ablations of table 2: `weight = 0` is "w/o Lc reward" (the penalty is still logged), `answer = "exact_match"` is
    "w/o c3Recall".

    Args:
      answer: Name of the answer reward, a key of `ANSWER_TERMS`.
      weight, floor, threshold, margin: As in `language_coupled_reward` and `anti_consistency`.
      short_gold, normalisation: As in `c3_recall`, also in the similarity. Answer rewards of English benchmarks keep
        SQuAD's normalisation.
    """
    options = {"short_gold": short_gold, "normalisation": normalisation}

    def couple(episodes: Episodes, total: Values) -> tuple[Values, dict[str, Values]]:
        penalties = anti_consistency(episodes.answers, total, episodes.group_ids, threshold, margin, **options)
        adjusted = language_coupled_reward(total, penalties, weight, floor)
        return adjusted, {"anti_consistency": penalties}

    return TermSum(terms=(answer_term(answer, **options),), adjustments=(couple,), couples_languages=True)
