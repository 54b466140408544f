"""Baselines that search while they reason: Search-R1, Search-o1, IRCoT, FLARE, StepSearch, Adaptive-RAG."""

import collections
import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import gin
import numpy as np
import regex

from lcrag.data.questions import Question
from lcrag.episodes.programs import (
    RETHINK,
    TRY_AGAIN,
    Complete,
    Completion,
    ConfiguredProgram,
    ContextFull,
    FittedText,
    Found,
    FoundPassage,
    Observe,
    Outcome,
    Program,
    RetrievalFailure,
    Retrieve,
    SearchTurns,
    hits_of,
    opening_prompt,
)
from lcrag.episodes.searches import Route, information, native_only, statements
from lcrag.episodes.tags import Answer, SearchAction, parse_action
from lcrag.errors import UserError, lookup, typed
from lcrag.methods.baselines.rag import (
    QUESTION,
    RAG,
    SEARCHES_OR_ANSWERS,
    SHORT,
    Step,
    answer_from,
    direct_inference,
    rag,
    titles_of,
)
from lcrag.rewards import Episodes, Reward, TermSum, normalise_english
from lcrag.rewards.matching import token_f1
from lcrag.rewards.terms import Term, Values, answer_term
from lcrag.rewards.text import SENTENCE_MARK, is_visible

REPEATED = "\nI have searched for this already. Let me use what was found.\n"
LATEST_STEPS = 4

SEARCH_O1 = {
    "full": Step(
        before="Answer the given question by reasoning step by step. Whenever you lack some knowledge, you can call a "
        "search engine by <search> query </search>; the documents it finds are analysed for you, and what helps is "
        "given between <information> and </information>. Then go on reasoning. You can search at most {budget} times. "
        "When you know the answer, provide it inside <answer> and </answer> without detailed illustrations. Note: The "
        "answer must be in {wanted}. For example: <answer> {example} </answer>. " + QUESTION
    ),
    "atlas": Step(before="{question}\n", style="atlas"),
}

SEARCH_O1_DOCUMENTS = {
    "full": Step(
        before="You help somebody who answers a question step by step and has just searched. Read the documents "
        "between <information> and </information>, and find what helps with the current query.",
        after=QUESTION
        + "Reasoning so far: {reasoning}\nCurrent query: {query}\nCheck each document for facts that bear on the query "
        "and carry the reasoning on. Then write down only these facts, briefly, inside <information> and "
        "</information>; if there are none, write <information> No helpful information found. </information>\n",
        tag="information",
        stop=("</information>",),
    ),
    "atlas": SHORT,
}


@gin.configurable(denylist=["question", "collections"])
def search_r1(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 3,
    passages: int = 3,
    invalid_limit: int = 3,
    prompt: str = "search_r1",
    style: str = "search_r1",
    observation_tokens: int = 600,
) -> Program:
    """Search-R1 (Jin et al., 2025, algorithm 1) as LcRL compares with it: all searches go to the English collection."""
    turns = SearchTurns(budget, invalid_limit, correction=RETHINK if prompt == "atlas" else TRY_AGAIN)
    with suppress(ContextFull):
        yield Observe(opening_prompt(prompt, question))
        while search := (yield from turns.next_action()):
            found = yield Retrieve((search.query,), ("en",), passages)
            yield Observe(information(found, style, observation_tokens))
    return Outcome(answer=turns.answer, invalid_actions=turns.invalid)


@gin.configurable(denylist=["question", "collections"])
def search_o1(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 5,
    passages: int = 3,
    invalid_limit: int = 3,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Agentic search with Reason-in-Documents (Li et al., 2025, section 3).

    The documents of a search never enter the chain of reasoning. They are read in a separate context together with the
    query and the chain so far, and only the information extracted there is shown. Repeating a query in the same
    collections is an invalid action. `observation_tokens` limits both the documents and the extracted information.
    """
    reason, refine = (lookup(step, wording, "wording") for step in (SEARCH_O1, SEARCH_O1_DOCUMENTS))
    turns = SearchTurns(budget, invalid_limit)
    chain: list[str] = []
    asked: set[tuple[str, tuple[str, ...]]] = set()
    yield Observe(reason.text(question, budget=budget))
    while search := (yield from turns.next_action()):
        query, languages = search.query, route(turns.searches, question.language, collections)
        if (query, languages) in asked:
            yield turns.reject(REPEATED)
            continue
        asked.add((query, languages))
        found = yield Retrieve((query,), languages, passages)
        documents = information(found, refine.style, observation_tokens)
        chain.append(turns.texts[-1])
        # A long chain of reasoning keeps its first and its latest steps.
        kept = chain if len(chain) <= LATEST_STEPS + 1 else [chain[0], "...", *chain[-LATEST_STEPS:]]
        reasoning = "\n".join(text.strip() for text in kept)
        prompt = refine.around(documents, question, query=query, reasoning=reasoning)
        completion = yield Complete(prompt=prompt, stop=refine.stop)
        chain.append(refine.show(completion.text, titles=titles_of(found)))
        yield Observe(statements(chain[-1:], reason.style, observation_tokens))
    return Outcome(answer=turns.answer, invalid_actions=turns.invalid)


# --- IRCoT: each sentence of a chain of thought is the next search. FLARE: only one with an improbable token ---

_NEXT_SENTENCE = (
    QUESTION
    + "Reasoning so far: {thoughts}\nWrite the next sentence of the reasoning, and nothing else. When you know the "
    "answer, write instead: So the answer is <answer> {example} </answer>. The answer must be in {wanted}.\n"
)

IRCOT_THOUGHT = {
    "full": Step(
        before="Answer the given question by reasoning one sentence at a time. The passages found so far stand between "
        "<information> and </information>; more are searched for with each sentence you write.",
        after=_NEXT_SENTENCE,
    ),
    "atlas": SEARCHES_OR_ANSWERS,
}

FLARE_SENTENCE = {
    "full": Step(
        before="Answer the given question by reasoning one sentence at a time. If passages stand between <information> "
        "and </information>, they were found for the sentence you are about to write. ",
        after=_NEXT_SENTENCE,
    ),
    "atlas": SEARCHES_OR_ANSWERS,
}

FLARE_ANSWER = {
    "full": Step(
        before="Answer the given question by the reasoning below, and by passages if some stand between <information> "
        "and </information>. ",
        after=QUESTION
        + "Reasoning: {thoughts}\nProvide the answer inside <answer> and </answer> without detailed illustrations. "
        "Note: The answer must be in {wanted}. For example: <answer> {example} </answer>.\n",
    ),
    "atlas": SHORT,
}

_SENTENCE = regex.compile(rf"(?V1).+?(?:[.!?](?=\s|$)|{SENTENCE_MARK}|\n|$)", regex.DOTALL)


@gin.configurable(denylist=["question", "collections"])
def ircot(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 8,
    passages: int = 3,
    max_passages: int = 15,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Interleaves retrieval with a chain of thought (Trivedi et al., 2023, section 3).

    The question is the first query, each new sentence of the chain the next one. Every sentence is written in a fresh
    context that begins with all passages found so far. The answer is written after the same passages, in the episode's
    own context.

    Args:
      budget: Maximum number of searches (the paper: 8).
      max_passages: Maximum number of passages kept (the paper: 15).
    """
    think, read = (lookup(step, wording, "wording") for step in (IRCOT_THOUGHT, RAG))
    seen: list[list[list[FoundPassage]]] = []
    thoughts: list[str] = []
    query, concluded = question.text, False
    for search in range(1, budget + 1):
        found = yield Retrieve((query,), route(search, question.language, collections), passages)
        seen = gathered(seen, found, max_passages)
        block = information(seen, think.style, search * observation_tokens, question.text)
        prompt = think.around(block, question, thoughts=" ".join(thoughts))
        completion = yield Complete(prompt=prompt, stop=think.stop)
        query, concluded = next_query(completion.text)
        thoughts.append(query)
        if concluded:
            break
    block = information(seen, read.style, max(len(thoughts), 1) * observation_tokens, question.text)
    prompt = read.around(block, question)
    return (yield from answer_from(read, prompt))


def gathered(
    seen: Sequence[Sequence[Sequence[FoundPassage]]], found: Found | RetrievalFailure, limit: int
) -> list[list[list[FoundPassage]]]:
    """Returns all passages so far without duplicates; of more than `limit`, those found first."""
    searches = [*seen, *([] if isinstance(found, RetrievalFailure) else found)]
    known: set[tuple[str, str]] = set()
    kept: list[list[list[FoundPassage]]] = []
    for languages in searches:
        kept.append([])
        for hits in languages:
            kept[-1].append([])
            for hit in hits:
                if (hit.title, hit.text) not in known and len(known) < limit:
                    known.add((hit.title, hit.text))
                    kept[-1][-1].append(hit)
    return kept


def next_query(text: str) -> tuple[str, bool]:
    """Returns the query of a thought, and whether the thought concludes the chain.

    The query is the first sentence of the text, or that of a search which the policy writes. A sentence that opens an
    answer, and an empty one, conclude the chain.
    """
    action = parse_action(text)
    if isinstance(action, SearchAction):
        return action.query, False
    sentence = _SENTENCE.match(text.strip())
    thought = sentence[0].strip() if sentence else ""
    return thought, not is_visible(thought) or "<answer>" in thought


@gin.configurable(denylist=["question", "collections"])
def flare(
    question: Question,
    collections: Sequence[str],
    *,
    min_probability: float = 0.8,
    masked_below: float = 0.4,
    sentences: int = 8,
    passages: int = 2,
    route: Route = native_only,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Forward-looking active retrieval, the direct kind with masked queries (Jiang et al., 2023, section 3.2).

    Each sentence is first written without passages. If one of its tokens is less probable than `min_probability`, the
    sentence without its tokens below `masked_below` becomes a query, and it is written again after the passages found;
    those of earlier sentences are dropped. Sentences are written in fresh contexts until one gives the answer, which
    the policy then repeats in the episode's own context. Probabilities are those at temperature 1, at any sampling
    temperature.

    Args:
      min_probability: The paper's theta: 0 never searches, 1 for nearly every sentence.
      masked_below: The paper's beta: 0 masks nothing.
      sentences: Maximum number of sentences.
    """
    write, conclude = (lookup(step, wording, "wording") for step in (FLARE_SENTENCE, FLARE_ANSWER))
    written: list[str] = []
    found: Found | RetrievalFailure | None = None
    searches, concluded = 0, False
    while len(written) < sentences and not concluded:
        thoughts = " ".join(written)
        ahead = yield Complete(prompt=write.text(question, thoughts=thoughts), stop=write.stop)
        sentence, concluded = next_query(ahead.text)
        if (query := uncertain_query(ahead, min_probability, masked_below)) is not None:
            searches += 1
            languages = route(searches, question.language, collections)
            found = yield Retrieve((query if is_visible(query) else question.text,), languages, passages)
            block = information(found, write.style, observation_tokens)
            again = yield Complete(prompt=write.around(block, question, thoughts=thoughts), stop=write.stop)
            sentence, concluded = next_query(again.text)
        written.append(sentence)
    thoughts = " ".join(written)
    prompt: str | FittedText = conclude.text(question, thoughts=thoughts)
    if found is not None:
        block = information(found, conclude.style, observation_tokens)
        prompt = conclude.around(block, question, thoughts=thoughts)
    return (yield from answer_from(conclude, prompt))


def uncertain_query(ahead: Completion, min_probability: float, masked_below: float) -> str | None:
    """Returns the query of a sentence written ahead; None if all its tokens are probable.

    If the policy asks for a search, its own query is used. An empty sentence is uncertain.
    """
    action = parse_action(ahead.text)
    if isinstance(action, SearchAction):
        return action.query
    # (text, probability) of the tokens of the first sentence, without surrounding white space.
    sentence, _ = next_query(ahead.text)
    start, place = ahead.text.find(sentence), 0
    tokens: list[tuple[str, float]] = []
    for piece, log_probability in zip(ahead.pieces, ahead.log_probabilities, strict=True):
        before, place = place, place + len(piece)
        if piece and before < start + len(sentence) and place > start:
            tokens.append((piece, math.exp(log_probability)))
    if tokens and all(probability >= min_probability for _, probability in tokens):
        return None
    return "".join(piece for piece, probability in tokens if probability >= masked_below).strip()


# --- StepSearch (https://arxiv.org/abs/2505.15107) ---
# The program measures each search against the question's golden passages; the reward has one number for the episode and
# one for each turn that searched, which PPO's critic credits to that turn's last token. A question of training needs
# `extra["golden_passages"]` (texts), and `extra["search_keys"]` (for each sub-question the wordings of a good query;
# the paper's are GPT-4o's) or `extra["decomposition"]`, whose sub-questions are then the keys.

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
        hits, match, repeated = hits_of(found), self._matched.copy(), 0
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

    As in the published code (github.com/Zillwang/StepSearch), an episode without an answer has the reward -1 and none
    for its searches, and a query counts for the sub-question that it matches best. There are two differences. Of
    several queries the best one counts here, the latest one in the code. The code adds the rewards of searches once
    with factor 1 and, by an update in place, once with 0.6; here the factor is `step_weight`.

    Args:
      answer: Name of the answer reward, a key of `ANSWER_TERMS`.
      key_weight: gamma, weight of the search keys in the episode's reward.
      step_weight: Weight of a search's reward; 0 leaves the episode's alone.
      information_gain, redundancy_penalty: Whether a search's reward has them (ablations, section 4.4).

    Returns:
      A reward whose "total" lacks the searches' rewards; "search_steps" is their sum in an episode.
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


# --- Adaptive-RAG: direct inference, RAG or IRCoT ---

_LABELS = {"A": "none", "B": "single", "C": "multiple"}
_LABEL = re.compile(r"\b[ABC]\b")

COMPLEXITY = {
    "full": Step(
        before="Decide how a question should be answered. A: you know the answer without looking anything up. B: one "
        "search in an encyclopaedia finds it. C: several facts must be found one after the other, or compared. "
        + QUESTION
        + "Write only the letter A, B or C inside <answer> and </answer>.\n",
    ),
    "atlas": SEARCHES_OR_ANSWERS,
}


PROGRAMS: Mapping[str, ConfiguredProgram] = {"none": direct_inference, "single": rag, "multiple": ircot}


@gin.configurable(denylist=["question", "collections"])
def adaptive_rag(
    question: Question,
    collections: Sequence[str],
    *,
    programs: Mapping[str, ConfiguredProgram] = PROGRAMS,
    classifier: str | None = None,
    wording: str = "full",
) -> Program:
    """Chooses among direct inference, RAG and IRCoT by the question's complexity (Jeong et al., 2024, section 3).

    The paper trains a small classifier; here a model is asked, greedily and in a fresh context: the policy, or another
    model that was trained for it. Its choice is `extra["complexity"]`. If it names no class, that is an invalid action
    and the question counts as complex.

    Args:
      classifier: Name of the model that classifies, one of `Runner.completers`; None: the policy.
    """
    step = lookup(COMPLEXITY, wording, "wording")
    completion = yield Complete(prompt=step.text(question), stop=step.stop, temperature=0.0, model=classifier)
    text = step.opened + completion.text
    complexity: str | None
    match parse_action(text):
        case SearchAction():  # a policy that does not classify reveals it: one that searches at once needs one search
            complexity = "single"
        case Answer(answer):  # and one that answers none
            label = _LABEL.search(answer)
            complexity = _LABELS[label[0]] if label else "none"
        case _:
            complexity = _LABELS.get(text.strip().rstrip("."))
    outcome = yield from lookup(programs, complexity or "multiple", "program of adaptive_rag")(question, collections)
    return dataclasses.replace(
        outcome,
        invalid_actions=outcome.invalid_actions + (complexity is None),
        extra=outcome.extra | {"complexity": complexity},
    )
