"""GlobalRAG's rewards: the answer, plus annealed rewards for the plan, its sub-questions, sub-answers and format."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import gin
import numpy as np
from jaxtyping import Float
from scipy.special import expit

from lcrag.errors import UserError, typed
from lcrag.methods.globalrag.matching import STRUCTURES, PlanPair, plan_scores
from lcrag.methods.globalrag.plans import GoldenPlan, golden_plans, plan_of
from lcrag.rewards.terms import ANSWER_TERMS, Episodes, Reward, Schedule, Term, TermSum, Values, answer_term

# texts -> unit vectors
Encode: TypeAlias = Callable[[Sequence[str]], Float[np.ndarray, "texts width"]]


def annealed(weight: float, transition_steps: float | None, width_steps: float = 10.0) -> float | Schedule:
    """Returns the schedule weight / (1 + exp((t - 0.9 T) / w)) of step t (GlobalRAG, section 3.2.5, equation 6).

    Args:
      weight: Initial weight; half of it is left at 0.9 T.
      transition_steps: T; None keeps the weight constant.
      width_steps: w, 10 in the paper; the weight falls from .88 to .12 of `weight` within 4 w steps.
    """
    if transition_steps is None:
        return weight
    turn = 0.9 * transition_steps
    return lambda step: weight * float(expit((turn - step) / width_steps))


@gin.configurable
@typed
def globalrag_reward(
    encoder: Encode,
    answer: str = "squad_exact_match",
    sub_answer: str = "token_f1",
    format_weight: float = 0.1,
    semantic_weight: float = 0.5,
    structural_weight: float = 0.5,
    sub_goal_weight: float = 0.5,
    transition_steps: float | None = 50,
    transition_width: float = 10.0,
    threshold: float = 0.7,
    structure: str = "graded",
) -> Reward:
    """Builds GlobalRAG's reward (section 3.2.5, equation 7): lambda_t (weighted process rewards) + answer.

    Args:
      encoder: Embeds sub-questions, all of a step in one call.
      answer: Compares answers with golds: a key of `ANSWER_TERMS`.
      sub_answer: Compares sub-answers with golden ones: a key of `ANSWER_TERMS`.
      format_weight, semantic_weight, structural_weight, sub_goal_weight: Weights of the process rewards at lambda 1.
      transition_steps: T of lambda_t; None: lambda is 1 throughout.
      transition_width: Steps in which lambda_t falls by a factor e once it is small. Scale it with T in a shorter run
        (the paper: T / 5), because lambda_t begins at 1 / (1 + exp(-0.9 T / width)).
      threshold: Minimum cosine similarity of sub-questions that may match.
      structure: "graded" or "binary", as in `plan_scores`.

    Returns:
      A reward with the values "total", the answer reward, "format", "semantic", "structural" and "sub_goal"
      (unweighted), "annealing" (lambda_t) and "matches_cut" (share of matches whose search was cut short).
    """
    if structure not in STRUCTURES:
        raise UserError(f"globalrag_reward.structure is {structure!r}: choose one of {', '.join(STRUCTURES)}")
    if min(format_weight, semantic_weight, structural_weight, sub_goal_weight) < 0:
        raise UserError("globalrag_reward's weights must be 0 or more")
    if transition_width <= 0 or (transition_steps is not None and transition_steps <= 0):
        raise UserError("globalrag_reward.transition_steps and transition_width must be above 0")
    if not -1 <= threshold <= 1:
        raise UserError(f"globalrag_reward.threshold is {threshold:g}: set it to a cosine, -1 to 1")
    final, compare = answer_term(answer), answer_term(sub_answer)
    last: list[tuple[Episodes, dict[str, Values]]] = []  # several terms share the scores of a batch

    def scored(episodes: Episodes) -> dict[str, Values]:
        if last and last[0][0] is episodes:
            return last[0][1]
        pairs = [
            PlanPair(plan_of(plan) if plan else None, sub_answers, _golden(repr(name), known))
            for plan, sub_answers, name, known in zip(
                episodes.reported("plan", "globalrag"),
                episodes.reported("sub_answers", "globalrag"),
                episodes.questions,
                episodes.known,
                strict=True,
            )
        ]
        # Each canonical sub-question is embedded once, all in one call.
        plans = [plan for pair in pairs if pair.plan for plan in (pair.plan, *(gold.plan for gold in pair.golden))]
        texts = list(dict.fromkeys(text for plan in plans for text in plan.canonical().values()))
        places = {text: place for place, text in enumerate(texts)}
        vectors = encoder(texts) if texts else np.zeros((0, 1))

        def similarity(some: Sequence[str], others: Sequence[str]) -> Float[np.ndarray, "some others"]:
            return vectors[[places[text] for text in some]] @ vectors[[places[text] for text in others]].T

        scores = plan_scores(pairs, similarity, threshold, structure, ANSWER_TERMS[compare.name])
        last[:] = [(episodes, scores)]
        return scores

    def process_term(name: str, score: Callable[[Episodes], Values], weight: float) -> Term:
        return Term(name, score, annealed(weight, transition_steps, transition_width))

    def add_measurements(episodes: Episodes, total: Values) -> tuple[Values, dict[str, Values]]:
        share = annealed(1.0, transition_steps, transition_width)
        share = share(episodes.step) if callable(share) else share
        return total, {"annealing": np.full(len(total), share), "matches_cut": scored(episodes)["cut"]}

    def check(name: str, known: Mapping[str, Any]) -> None:
        _golden(name, known)

    return TermSum(
        terms=(
            final,
            process_term(
                "format", lambda e: np.array(e.reported("well_formed", "globalrag"), np.float64), format_weight
            ),
            process_term("semantic", lambda episodes: scored(episodes)["semantic"], semantic_weight),
            process_term("structural", lambda episodes: scored(episodes)["structural"], structural_weight),
            process_term("sub_goal", lambda episodes: scored(episodes)["subgoal"], sub_goal_weight),
        ),
        adjustments=(add_measurements,),
        models={"encoder": encoder},
        checks=(check,),
    )


def _golden(name: str, known: Mapping[str, Any]) -> tuple[GoldenPlan, ...]:
    try:
        golden = golden_plans(known)
    except ValueError as error:
        raise UserError(f"the golden plan of the question {name} cannot be used: {error}") from error
    if not golden:
        raise UserError(
            f"globalrag_reward needs a golden plan of every question, and {name} has none: train on the output of"
            " `lcrag curate golden_plans`, or let one-hop questions be their own plans (@with_own_plans)"
        )
    return golden
