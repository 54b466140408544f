"""GlobalRAG's rewards: the answer, and for a while the plan, what it asks, what it finds, and the format."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float

from lcrag.errors import UserError
from lcrag.methods.globalrag.plan_scores import STRUCTURES, Planned, Similarity, plan_scores
from lcrag.methods.globalrag.plans import GoldenPlan, golden_plans, plan_of
from lcrag.methods.globalrag.schedules import annealed
from lcrag.rewards.terms import ANSWER_TERMS, Episodes, Reward, Term, TermSum, Values, answer_term

# texts -> a vector of unit length each
Encode: TypeAlias = Callable[[Sequence[str]], Float[np.ndarray, "texts width"]]


def globalrag_reward(
    encoder: Encode,
    answer: str = "squad_exact_match",
    sub_answer: str = "token_f1",
    format_weight: float = 0.1,
    semantic_weight: float = 0.5,
    structural_weight: float = 0.5,
    sub_goal_weight: float = 0.5,
    transition_steps: float | None = 50,
    threshold: float = 0.7,
    structure: str = "graded",
) -> Reward:
    """GlobalRAG's reward (section 3.2.5, equation 7): lambda_t (process rewards, each weighted) + answer.

    Args:
      encoder: Embeds sub-questions, all of a step in one call.
      answer: Compares answers with golds: a key of `ANSWER_TERMS`.
      sub_answer: Compares sub-answers with golden ones, likewise.
      format_weight: Of the format, 0 or 1.
      semantic_weight: Of the similarity of the matched sub-questions.
      structural_weight: Of the plans' structure.
      sub_goal_weight: Of the sub-answers of the matched sub-questions.
      transition_steps: T of lambda_t; None: lambda is 1 throughout.
      threshold: The least cosine of sub-questions that may match.
      structure: "graded" or "binary", as in `plan_scores`.

    Returns:
      A reward that names "total", the answer reward, "format", "semantic", "structural" and "sub_goal" (unweighted),
      "annealing" (lambda_t) and "matches_cut" (the share of matches whose search was cut short).

    Raises:
      UserError: an unknown comparison or structure, a negative weight, or a threshold that is no cosine. When it
        scores: a question without a golden plan, or an episode of another program.
    """
    weights = (format_weight, semantic_weight, structural_weight, sub_goal_weight)
    if min(weights) < 0:
        raise UserError(f"globalrag_reward has a weight of {min(weights):g}: give each a value of 0 or more")
    if not -1 <= threshold <= 1:
        raise UserError(f"globalrag_reward.threshold is {threshold}: it is a cosine, give a value from -1 to 1")
    if structure not in STRUCTURES:
        raise UserError(f"globalrag_reward.structure is {structure!r}: choose one of {', '.join(STRUCTURES)}")
    last, compare, fading = answer_term(answer), answer_term(sub_answer), annealed(1.0, transition_steps)

    def scores(episodes: Episodes) -> dict[str, Values]:
        planned = _planned(episodes)
        similarity = embedded_similarity(encoder, planned)
        return plan_scores(planned, similarity, threshold, structure, ANSWER_TERMS[compare.name])

    scored = _once_a_batch(scores)

    def note(episodes: Episodes, total: Values) -> tuple[Values, dict[str, Values]]:
        share = fading(episodes.step) if callable(fading) else fading
        return total, {"annealing": np.full(len(total), share), "matches_cut": scored(episodes)["cut"]}

    return TermSum(
        terms=(
            last,
            Term("format", _well_formed, annealed(format_weight, transition_steps)),
            Term("semantic", lambda each: scored(each)["semantic"], annealed(semantic_weight, transition_steps)),
            Term("structural", lambda each: scored(each)["structural"], annealed(structural_weight, transition_steps)),
            Term("sub_goal", lambda each: scored(each)["subgoal"], annealed(sub_goal_weight, transition_steps)),
        ),
        adjustments=(note,),
        models={"encoder": encoder},
        checks=(_check,),
    )


def embedded_similarity(encoder: Encode, planned: Sequence[Planned]) -> Similarity:
    """Cosines of the canonical sub-questions of some episodes, which are embedded here in one call, each once."""
    plans = [plan for each in planned if each.plan for plan in (each.plan, *(gold.plan for gold in each.golden))]
    texts = list(dict.fromkeys(text for plan in plans for text in plan.canonical().values()))
    places = {text: place for place, text in enumerate(texts)}
    vectors = encoder(texts) if texts else np.zeros((0, 1))

    def similarity(some: Sequence[str], others: Sequence[str]) -> Float[np.ndarray, "some others"]:
        return vectors[[places[text] for text in some]] @ vectors[[places[text] for text in others]].T

    return similarity


def _planned(episodes: Episodes) -> list[Planned]:
    """The plans of some episodes beside their golden ones."""
    plans, answers = _noted(episodes, "plan"), _noted(episodes, "sub_answers")
    golden = [_golden(repr(name), known) for name, known in zip(episodes.questions, episodes.known, strict=True)]
    return [
        Planned(plan_of(plan) if plan else None, sub_answers, golds)
        for plan, sub_answers, golds in zip(plans, answers, golden, strict=True)
    ]


def _check(name: str, known: Mapping[str, Any]) -> None:
    """Refuses a question without a golden plan."""
    _golden(name, known)


def _golden(name: str, known: Mapping[str, Any]) -> tuple[GoldenPlan, ...]:
    try:
        golden = golden_plans(known)
    except ValueError as error:
        raise UserError(f"the golden plan of the question {name} cannot be used: {error}") from error
    if not golden:
        raise UserError(
            f"globalrag_reward needs a golden plan of every question, and {name} has none: train on what"
            " `lcrag curate golden_plans` made, or let a question of one hop be its own plan (@with_own_plans)"
        )
    return golden


def _well_formed(episodes: Episodes) -> Values:
    return np.array(_noted(episodes, "well_formed"), np.float64)


def _noted(episodes: Episodes, name: str) -> list[Any]:
    """What the program noted of each episode."""
    if not all(name in extra for extra in episodes.extra):
        raise UserError(
            f"globalrag_reward needs to know {name} of each episode, which another program does not say: bind"
            " Method.program = @globalrag()"
        )
    return [extra[name] for extra in episodes.extra]


def _once_a_batch(compute: Callable[[Episodes], dict[str, Values]]) -> Callable[[Episodes], dict[str, Values]]:
    """The function, which does not compute again what it was asked last: several terms share it."""
    last: list[tuple[Episodes, dict[str, Values]]] = []

    def of(episodes: Episodes) -> dict[str, Values]:
        if not last or last[0][0] is not episodes:
            last[:] = [(episodes, compute(episodes))]
        return last[0][1]

    return of
