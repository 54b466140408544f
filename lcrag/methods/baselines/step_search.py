"""StepSearch (Wang et al., 2025): every search is rewarded for new information and penalised for repeated passages.

https://arxiv.org/abs/2505.15107. The program measures each search against the question's golden passages; the reward
has one number for the episode and one for each turn that searched, which PPO's critic credits to that turn's last
token. A question of training needs `extra["golden_passages"]` (texts), and `extra["search_keys"]` (for each
sub-question the wordings of a good query; the paper's are GPT-4o's) or `extra["decomposition"]`, whose sub-questions
are then the keys.

Details from the published code (github.com/Zillwang/StepSearch): an episode without an answer has the reward -1 and
none for its searches, and a query counts for the sub-question that it matches best. There are two differences. Of
several queries the best one counts here, the latest one in the code. The code adds the rewards of searches once with
factor 1 and, by an update in place, once with 0.6; here the factor is `step_weight`.
"""

import collections
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import gin
import numpy as np

from lcrag.data.questions import Question
from lcrag.episodes.programs import (
    ContextFull,
    Found,
    Observe,
    Outcome,
    Program,
    RetrievalFailure,
    Retrieve,
    SearchTurns,
)
from lcrag.episodes.searches import Route, information, native_only
from lcrag.errors import UserError, lookup, typed
from lcrag.methods.baselines.steps import QUESTION, Step
from lcrag.rewards import Episodes, Reward, TermSum, normalise_english
from lcrag.rewards.matching import token_f1
from lcrag.rewards.terms import Term, Values, answer_term

STEPS = "search_steps"
WITHOUT_ANSWER = -1.0
_REFERENCE = re.compile(r"#(\d+)")
_WORD = re.compile(r"\b\w\w+\b")

STEP_SEARCH = {
    "full": Step(
        before="Answer the given question with the help of a search engine. First plan inside <think> and </think> "
        "what to search for, one sub-question after the other. Then call the search engine by <search> keywords "
        "</search>; it returns documents between <information> and </information>, which may not hold the answer. "
        "After every search, say inside <think> and </think> what the documents contribute and what is still missing, "
        "and search again with other keywords if something is. When you know the answer, provide it inside <answer> "
        "and </answer> without detailed illustrations. Note: The answer must be in {wanted}. For example: <answer> "
        "{example} </answer>. " + QUESTION
    ),
    "atlas": Step(before="{question}\n", style="atlas"),
}


@gin.configurable(denylist=["question", "collections"])
def step_search(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 5,
    passages: int = 3,
    invalid_limit: int = 3,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 800,
) -> Program:
    """Runs StepSearch's episode: the policy plans, searches and observes until it answers (section 3.2).

    `extra["search_steps"]` has one entry per search: its `turn` among the policy's turns, from 0, its `query`, and the
    `gain` and `redundancy` of its passages.
    """
    step = lookup(STEP_SEARCH, wording, "wording")
    turns, memory = SearchTurns(budget, invalid_limit), SearchMemory(question.extra.get("golden_passages", ()))
    steps: list[dict[str, Any]] = []
    with suppress(ContextFull):
        yield Observe(step.text(question))
        while search := (yield from turns.next_action()):
            found = yield Retrieve((search.query,), route(turns.searches, question.language, collections), passages)
            steps.append({"turn": len(turns.texts) - 1, "query": search.query, **memory.read(found)})
            yield Observe(information(found, step.style, observation_tokens))
    return Outcome(answer=turns.answer, invalid_actions=turns.invalid, extra={STEPS: steps})


class SearchMemory:
    """The passages that the searches of an episode have found so far.

    Args:
      golden: Texts of the passages that answer the question; without any, the gain is 0.
    """

    def __init__(self, golden: Sequence[str]):
        self._golden = [normalise_english(text) for text in golden]
        self._matched = np.zeros(len(golden))
        self._seen: set[tuple[str, str]] = set()

    def read(self, found: Found | RetrievalFailure) -> dict[str, float]:
        """Returns `gain` and `redundancy` of a search, in [0, 1], and stores its passages.

        The gain is the mean over golden passages of max(c_i - m_i, 0): c_i is the largest TF-IDF cosine of a passage
        found to golden passage i, m_i that of all searches before. The redundancy is the share of the passages that
        were found before (section 3.3).
        """
        searched = () if isinstance(found, RetrievalFailure) else found
        hits = [hit for languages in searched for passages in languages for hit in passages]
        match, repeated = self._matched.copy(), 0
        for hit in hits:
            repeated += (hit.title, hit.text) in self._seen
            self._seen.add((hit.title, hit.text))
            match = np.maximum(match, tf_idf_cosines(normalise_english(hit.text), self._golden))
        gain = float(np.mean(match - self._matched)) if len(match) else 0.0
        self._matched = match
        return {"gain": gain, "redundancy": repeated / len(hits) if hits else 0.0}


def tf_idf_cosines(text: str, others: Sequence[str]) -> np.ndarray:
    """Returns the cosine of a text's TF-IDF vector to each other's; 0 where one of the two has no words.

    Words have two characters or more. The inverse document frequency ln((1 + n) / (1 + df)) + 1 is over the n texts
    given here, as in scikit-learn's default, which the published code uses.
    """
    counts = [collections.Counter(_WORD.findall(document.lower())) for document in (text, *others)]
    frequency = collections.Counter(word for words in counts for word in words)
    weight = {word: math.log((1 + len(counts)) / (1 + documents)) + 1 for word, documents in frequency.items()}
    first, *rest = [{word: count * weight[word] for word, count in words.items()} for words in counts]
    norms = [math.sqrt(sum(value**2 for value in vector.values())) for vector in (first, *rest)]
    products = [sum(value * vector.get(word, 0.0) for word, value in first.items()) for vector in rest]
    return np.array([p / (norms[0] * norm) if p else 0.0 for p, norm in zip(products, norms[1:], strict=True)])


@gin.configurable
@typed
def step_search_reward(
    answer: str = "token_f1",
    key_weight: float = 0.618,
    step_weight: float = 1.0,
    information_gain: bool = True,
    redundancy_penalty: bool = True,
) -> Reward:
    """StepSearch's rewards: word F1 of the answer plus the search keys, and each search's gain less its redundancy.

    Args:
      answer: Name of the answer reward, a key of `ANSWER_TERMS`.
      key_weight: gamma, weight of the search keys in the episode's reward.
      step_weight: Weight of a search's reward; 0 leaves the episode's alone.
      information_gain, redundancy_penalty: Whether a search's reward has them (ablations, section 4.4).

    Returns:
      A reward that names "total" (without the searches'), the answer reward, "search_keys" and "search_steps" (the sum
      of the searches' rewards of an episode).
    """

    def check_annotations(name: str, known: Mapping[str, Any]) -> None:
        if not known.get("golden_passages") or not search_keys(known):
            raise UserError(
                f"step_search_reward cannot score {name}: it needs golden_passages and search_keys or a decomposition"
                " in the question's extra (musique has them with english_questions.golden_passages = True)"
            )

    def turn_rewards(episodes: Episodes) -> list[dict[int, float]]:
        rewards: list[dict[int, float]] = []
        for answer, steps in zip(episodes.answers, episodes.reported(STEPS, "step_search"), strict=True):
            rewards.append({})
            for step in steps if answer is not None else ():
                score = information_gain * step["gain"] - redundancy_penalty * step["redundancy"]
                rewards[-1][step["turn"]] = step_weight * score
        return rewards

    def unanswered(episodes: Episodes, total: Values) -> tuple[Values, dict[str, Values]]:
        missing = np.array([answer is None for answer in episodes.answers])
        sums = np.array([sum(rewards.values()) for rewards in turn_rewards(episodes)])
        return np.where(missing, WITHOUT_ANSWER, total), {STEPS: sums}

    return TermSum(
        terms=(answer_term(answer), Term("search_keys", key_scores, key_weight)),
        adjustments=(unanswered,),
        checks=(check_annotations,),
        turn_rewards=turn_rewards,
    )


def search_keys(known: Mapping[str, Any]) -> list[list[str]]:
    """Returns the wordings of a good query for each sub-question of a question, with its references filled in."""
    if known.get("search_keys"):
        return [list(wordings) for wordings in known["search_keys"]]
    steps = known.get("decomposition", ())
    answers = [step["answer"] for step in steps]

    def filled(match: re.Match[str]) -> str:
        number = int(match[1])
        return answers[number - 1] if 0 < number <= len(answers) else match[0]

    return [[_REFERENCE.sub(filled, step["question"])] for step in steps]


def key_scores(episodes: Episodes) -> Values:
    """Returns the mean over sub-questions of the best word F1 of a query that matches none better (section 3.3)."""
    scores = []
    for steps, known in zip(episodes.reported(STEPS, "step_search"), episodes.known, strict=True):
        keys = search_keys(known)
        best = np.zeros(len(keys))
        for step in steps if keys else ():
            f1 = token_f1([step["query"]] * len(keys), keys)
            place = int(np.argmax(f1))
            best[place] = max(best[place], f1[place])
        scores.append(float(best.mean()) if keys else 0.0)
    return np.array(scores)
