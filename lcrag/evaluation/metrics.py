"""Answered questions, the metrics of every question, and their means as rows of `evaluation.json`."""

import collections
import dataclasses
import functools
import json
import math
import pathlib
import statistics
import unicodedata
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import numpy as np
import py3langid.langid
import pydantic
from jaxtyping import Bool, Float, Int

from lcrag import rewards
from lcrag.data.questions import main_code, script_of, scripts_of
from lcrag.errors import UserError, first_problem
from lcrag.evaluation.significance import Estimate, clustered_standard_error, paired_difference
from lcrag.files import locked, write_text
from lcrag.rewards.text import is_visible

# NaN, null in JSON, if unknown.
Nullable = Annotated[float, pydantic.BeforeValidator(lambda number: math.nan if number is None else number)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answered:
    """One question with the answer of one episode."""

    question_id: str  # the same in every language version of the question
    dataset: str
    language: str  # ISO 639-1 code of the language the answer should be in
    answer: str | None  # None if the episode gave none
    golds: tuple[str, ...]  # gold answers and their aliases in `language`
    searches: int = 0  # number of queries the episode searched for
    retrieval_rounds: int = 0  # number of times it waited for search results
    subsets: tuple[str, ...] = ()  # reported parts of the data set with the question: "native_missing", "two_hops", ...
    sampled_tokens: int | None = None  # including completions outside the dialogue; None if unknown
    total_tokens: int | None = None  # of all contexts: sampled, prompts and observations; None if unknown
    answer_retrieved: bool | None = None  # whether a retrieved passage contains a gold answer; None if unknown
    answer_shown: bool | None = None  # whether a gold is in what the policy was shown of these passages
    unanswered: str = ""  # why there is no answer, a key of `UNANSWERED`; empty with an answer or if unknown
    plan: str | None = None  # canonical text of the policy's plan; None without a plan
    domain: str = ""  # empty for data sets with one way of answering
    tier: str = ""  # tier of its language; empty for data sets without tiers
    reward: float | None = None  # in [0, 1], excluding tool costs; None if not scored
    tool_calls: int | None = None  # calls of the translation tool; None if the program has no tool
    failed: bool = False  # whether a search, translator or another model of the episode failed; no mean counts it
    unscored: bool = False  # whether the reward's judge failed; the mean reward does not count it

    @property
    def cluster(self) -> str:
        """Identifies the question across languages: its versions are not independent observations."""
        return f"{self.dataset}/{self.question_id}"


Place = tuple[str, str]  # (split, language) as in a row


def slices(
    answered: Sequence[Answered], split: str, seen_languages: Collection[str]
) -> Iterator[tuple[Place, Bool[np.ndarray, " questions"]]]:
    """Yields (place, questions): groups of languages, languages, then subsets."""
    codes = np.array([question.language for question in answered])
    seen = np.isin(codes, list(seen_languages))
    groups = {"all": np.ones(len(codes), bool), "seen": seen, "zero_shot": ~seen}
    yield from (((split, name), chosen) for name, chosen in groups.items() if chosen.any())
    yield from (((split, code), codes == code) for code in dict.fromkeys(codes.tolist()))
    for subset in sorted({subset for question in answered for subset in question.subsets}):
        members = np.array([subset in question.subsets for question in answered])
        for name, chosen in groups.items():
            if (both := chosen & members).any():
                yield (f"{split}/{subset}", name), both


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One value of a metric and its labels."""

    method: str  # e.g. "LcRL"
    model: str
    dataset: str
    split: str  # its split; a subset of one is "held_out/native_missing"
    language: str  # an ISO 639-1 code, "all", "seen" or "zero_shot"
    metric: str
    value: Nullable  # NaN if no question was scored
    count: int  # number of questions that were averaged
    seed: int | str  # of the inference run, or those that were averaged, "0,1,2"
    standard_error: Nullable = math.nan


class _File(pydantic.BaseModel, strict=True):
    rows: list[Row]


def write_rows(path: str | pathlib.Path, rows: Sequence[Row]) -> None:
    """Replaces a file atomically by `{"rows": [...]}`, with one row per line."""
    lines = []
    for row in rows:
        numbers = {"value": row.value, "standard_error": row.standard_error}
        known = {name: None if math.isnan(number) else number for name, number in numbers.items()}
        lines.append(json.dumps(dataclasses.asdict(row) | known, ensure_ascii=False))
    write_text(pathlib.Path(path), '{"rows": [\n' + ",\n".join(lines) + "\n]}\n")


def read_rows(path: str | pathlib.Path) -> list[Row]:
    """Reads a file of `write_rows`."""
    path = pathlib.Path(path)
    if not path.is_file():
        raise UserError(f"no evaluation in {path}: run `lcrag evaluate` with this output folder first")
    try:
        return _File.model_validate_json(path.read_bytes()).rows
    except pydantic.ValidationError as error:
        problem = first_problem(error)
        raise UserError(f"{path}: {problem}; delete the file and run `lcrag evaluate` again") from error


def replace_rows(path: pathlib.Path, rows: Sequence[Row], key: Callable[[Row], Hashable]) -> None:
    """Adds rows to a file of `write_rows` in place of those with the same key; several processes may do it at once."""
    with locked(path.parent):
        replaced, known = set(map(key, rows)), read_rows(path) if path.exists() else []
        write_rows(path, [*(row for row in known if key(row) not in replaced), *rows])


def mean_over_seeds(rows: Iterable[Row]) -> list[Row]:
    """Averages rows that differ only in their seed; rows without a value are ignored.

    The standard error of an average is set to the mean of the seeds' standard errors. This is an upper bound, because
    all seeds answer the same questions.
    """
    groups = collections.defaultdict(list)
    for row in rows:
        groups[(row.method, row.model, row.dataset, row.split, row.language, row.metric)].append(row)
    averages = []
    for same in groups.values():
        values = [row.value for row in same if not math.isnan(row.value)]
        errors = [row.standard_error for row in same if not math.isnan(row.standard_error)]
        average = dataclasses.replace(
            same[0],
            value=statistics.fmean(values) if values else math.nan,
            standard_error=statistics.fmean(errors) if errors else math.nan,
            count=sum(row.count for row in same),
            seed=",".join(str(row.seed) for row in same),
        )
        averages.append(average if len(same) > 1 else same[0])
    return averages


# --- METRICS ---

METRIC_NAMES = {
    "c3_recall": "c3 recall",
    "c3_recall_bergen": "c3 recall (BERGEN)",
    "c3_f": "c3 F",
    "flexible_exact_match": "fEM",
    "exact_match": "EM",
    "squad_exact_match": "EM (SQuAD)",
    "squad_f1": "F1 (SQuAD)",
    "token_f1": "F1 (words)",
    "mixed_f1": "F1 (any script)",
    "squad_accuracy": "accuracy (SQuAD)",
    "correct_language": "correct language",
    "searches": "searches",
    "retrieval_rounds": "retrieval rounds",
    "seconds_per_question": "seconds a question",
    "sampled_tokens": "sampled tokens",
    "total_tokens": "tokens in all",
    "score_per_log_token": "score per log token",
    "answer_retrieved": "gold retrieved",
    "answer_shown": "gold shown",
    "failures_without_passage": "failures without a passage",
    "plan_diversity": "distinct plans",
    "reward": "reward",
    "tool_rate": "tool rate",
    "two_call_rate": "two calls",
    "tool_calls": "tool calls",
    "answered": "answered",
    "answer_length": "answer length",
    "failed": "failed episodes",
    "unscored": "not judged",
}
# Why an episode gave no answer, as tables say it; a metric's name is "unanswered/<key>".
UNANSWERED = {
    "no_tag": "no `<answer>` tag",
    "not_closed": "`<answer>` not closed",
    "empty": "`<answer>` empty",
    "not_accepted": "an answer that the method does not accept",
    "searched": "a search after the last one allowed",
    "nothing_written": "nothing written",
    "context_full": "context full",
}
EFFICIENCY = "score_per_log_token"
EFFICIENCY_INPUTS = ("squad_exact_match", "squad_f1", "total_tokens")
RARE = ("failed", "unscored")  # shown where they occur
# Neither percentages nor better when higher.
NOT_SHARES = (
    *("searches", "retrieval_rounds", "seconds_per_question", "sampled_tokens", "total_tokens", "tool_calls"),
    "answer_length",
)
UNRANKED = (*NOT_SHARES, "failures_without_passage", "tool_rate", "two_call_rate", *RARE)
# Metrics that score only some answers: rows and tables give the number, and the value is missing if it is 0.
COUNTED = ("correct_language",)


def question_metrics(
    answered: Sequence[Answered], languages: Collection[str] = ()
) -> dict[str, Float[np.ndarray, " questions"]]:
    """Scores each question by every metric; NaN where a metric does not score it.

    Args:
      languages: The languages of the run, from which the language of an answer is identified.

    Returns:
      `c3_recall`, `c3_recall_bergen` (the c3 recall of LcRL's tables, section 4.1), `c3_f`, `flexible_exact_match` and
      `exact_match` (0 without an answer), and `answer_length` in characters. The metrics of the English benchmarks,
      with SQuAD's normalisation:
      `squad_exact_match`, `squad_f1` ("yes" and "no" count as a whole only, as in HotpotQA's script),
      `token_f1` (without that rule, as R-Search's) and `squad_accuracy` (the answer contains a gold). `mixed_f1`, in
      which each character of a script without spaces is a word, and articles are those of the language (MLQA):
      `squad_f1` is 0 for 天气很好 against 天气好. `correct_language` (see there), `searches`,
      `retrieval_rounds`, `sampled_tokens`, `total_tokens` (prompts and observations too), `reward`, `tool_calls`,
      `tool_rate` (1 if the tool was called), `two_call_rate` (1 if it was called twice or more) and `answered` (1 if
      there is an answer). `unanswered/<reason>`, `failed` and `unscored` are over all episodes, 1 for one that gave no
      answer for this reason, failed, or was not judged; all others are NaN for a failed one. `answer_retrieved` is 1 if
      a retrieved passage contains a gold, `answer_shown` if the policy also saw a gold within its budgets of tokens.
      `failures_without_passage` (GlobalRAG, appendix B): 1 for a wrong answer (exact match below 1) without any
      retrieved passage that contains a gold, else 0; NaN for right answers, and for all if none searched.
    """
    answers, golds = [question.answer for question in answered], [question.golds for question in answered]

    def field(name: str) -> Float[np.ndarray, " questions"]:
        return np.array([getattr(question, name) for question in answered], float)  # None becomes NaN

    right, calls, failed = rewards.squad_exact_match(answers, golds), field("tool_calls"), field("failed") > 0
    searched = any(question.searches for question in answered)
    metrics = {
        "c3_recall": rewards.c3_recall(answers, golds),
        "c3_recall_bergen": rewards.c3_recall_bergen(answers, golds),
        "c3_f": rewards.c3_f(answers, golds),
        "flexible_exact_match": rewards.flexible_exact_match(answers, golds),
        "exact_match": rewards.exact_match(answers, golds),
        "squad_exact_match": right,
        "squad_f1": rewards.token_f1(answers, golds, rewards.VERDICTS),
        "token_f1": rewards.token_f1(answers, golds),
        "mixed_f1": rewards.mixed_f1(answers, golds, [question.language for question in answered]),
        "squad_accuracy": rewards.squad_accuracy(answers, golds),
        "correct_language": correct_language(answered, languages),
        **{name: field(name) for name in ("searches", "retrieval_rounds", "sampled_tokens", "total_tokens")},
        **{name: field(name) for name in ("answer_retrieved", "answer_shown")},
        "failures_without_passage": np.where((right < 1) & searched, 1.0 - field("answer_retrieved"), np.nan),
        "reward": field("reward"),
        "tool_rate": np.where(np.isnan(calls), np.nan, calls > 0),
        "two_call_rate": np.where(np.isnan(calls), np.nan, calls > 1),
        "tool_calls": calls,
        "answered": np.array([is_visible(answer or "") for answer in answers], float),
        "answer_length": np.array([len(answer or "") for answer in answers], float),
    }
    metrics = {name: np.where(failed, np.nan, values) for name, values in metrics.items()}
    occurring = {name: field(name) for name in RARE}
    for reason in UNANSWERED:
        occurring[f"unanswered/{reason}"] = np.array([question.unanswered == reason for question in answered], float)
    return metrics | occurring


def score_per_log_token(exact_match: float, f1: float, tokens: float) -> float:
    """Returns ((EM + F1) / 2) / ln(tokens), GlobalRAG's equation 16; its published code uses the natural logarithm.

    Args:
      exact_match, f1: Means in [0, 1].
      tokens: Mean number of tokens per question, sampled and not ("total token usage per query"); the result is NaN for
        1 or fewer.
    """
    return (exact_match + f1) / 2 / math.log(tokens) if tokens > 1 else math.nan


def evaluate(
    answered: Sequence[Answered],
    *,
    method: str,
    model: str,
    split: str,
    seed: int | str,
    seen_languages: Collection[str],
    languages: Collection[str] = (),
) -> list[Row]:
    """Returns the mean of every metric by language, over all, seen and zero-shot languages, and by subset.

    A metric that scores no question has no row, except for the metrics `COUNTED`, whose row has the value NaN and the
    count 0. Standard errors treat questions as a random sample and the language versions of a question as one cluster.

    Args:
      method, model, split, seed: Labels of the rows; a subset's rows have the split "held_out/native_missing".
      seen_languages: Languages of the training data; the others are zero-shot.
      languages: As in `question_metrics`.
    """
    rows: list[Row] = []
    efficiencies: list[Row] = []
    for dataset in dict.fromkeys(question.dataset for question in answered):
        asked = [question for question in answered if question.dataset == dataset]
        values, clusters = question_metrics(asked, languages), np.array([question.cluster for question in asked])
        for (part, language), chosen in slices(asked, split, seen_languages):
            means: dict[str, Row] = {}
            for metric, scores in values.items():
                scored = chosen & ~np.isnan(scores)
                if scored.any() or metric in COUNTED:
                    mean, error = clustered_standard_error(scores[scored], clusters[scored])
                    means[metric] = Row(
                        method=method,
                        model=model,
                        dataset=dataset,
                        split=part,
                        language=language,
                        metric=metric,
                        value=mean,
                        count=int(scored.sum()),
                        seed=seed,
                        standard_error=error,
                    )
            rows += means.values()
            if set(EFFICIENCY_INPUTS) <= means.keys():  # a function of three means, without a standard error
                value = score_per_log_token(*(means[metric].value for metric in EFFICIENCY_INPUTS))
                if not math.isnan(value):
                    row = means[EFFICIENCY_INPUTS[0]]
                    efficiencies.append(
                        dataclasses.replace(row, metric=EFFICIENCY, value=value, standard_error=math.nan)
                    )
    return rows + efficiencies


def compare(
    before: Sequence[Answered],
    after: Sequence[Answered],
    *,
    split: str,
    seen_languages: Collection[str],
    languages: Collection[str] = (),
) -> dict[tuple[Place, str], Estimate]:
    """Returns after minus before for every (place, metric) with at least two questions scored on both sides.

    Intervals are over questions. The answers may be in any order; see `evaluate` for the other arguments.

    Raises:
      ValueError: the two systems did not answer the same questions.
    """

    def key(question: Answered) -> tuple[str, str]:
        return question.cluster, question.language

    before, after = sorted(before, key=key), sorted(after, key=key)
    if list(map(key, before)) != list(map(key, after)):
        raise ValueError("before and after answer different questions: evaluate both on the same split and sample")
    old_scores, new_scores = question_metrics(before, languages), question_metrics(after, languages)
    clusters = np.array([question.cluster for question in before])
    differences = {}
    for place, chosen in slices(before, split, seen_languages):
        for metric, new in new_scores.items():
            old = old_scores[metric]
            both = chosen & ~np.isnan(new) & ~np.isnan(old)
            if len(np.unique(clusters[both])) > 1:
                differences[place, metric] = paired_difference(new[both], old[both], clusters[both])
    return differences


# --- Correct language ---

SHORTEST_IDENTIFIED_LETTERS = 12
LONGEST_CODE = 5

_KANA = ("Hira", "Kana")
_LABELS = {"fil": "tl", "gn": "gug"}  # language -> py3langid's code of it


def correct_language(answered: Sequence[Answered], languages: Collection[str]) -> Float[np.ndarray, " questions"]:
    """Scores whether each answer is in the language of its question: 1 for right, 0 for wrong, NaN for not scored.

    Published numbers differ by their rule more than by their models, so this is the complete rule.

    1. Not scored: no answer; an answer without letters (years, numbers); a code of at most five ASCII capitals, digits
       and signs (EUR, ISO 4217); a question in a language that CLDR does not know, such as the constructed ones.
    2. Right: after normalisation ("unicode") it is one of the question's golds. Wrong: it is not, but it is a gold of
       another language's version of the same question. The data decide about names, not a classifier.
    3. An answer's script is that of most of its letters, by Unicode; any kana make it Japanese. Wrong: by CLDR, no
       country writes the question's language in this script. Right: of the run's languages, it is the main script of
       the question's language only.
    4. Not scored: a script that CLDR has no language for, or fewer than 12 letters, where identifiers are unreliable;
       a language that py3langid does not know, or knows in another script (Serbian in Latin letters).
    5. Otherwise py3langid decides among the languages of the run written in that script.

    The rate is right / (right + wrong); its `count` is the number of scored answers.

    Args:
      languages: All languages of the run; those of `answered` are added.
    """
    languages = sorted({*languages, *(question.language for question in answered)})
    versions: dict[str, set[str]] = collections.defaultdict(set)
    for question in answered:
        versions[question.cluster].update(rewards.normalise(gold, "unicode") for gold in question.golds)
    return np.array([_judge(question, versions[question.cluster], languages) for question in answered], float)


def _judge(question: Answered, golds_of_all_versions: set[str], languages: Iterable[str]) -> float:
    answer = question.answer or ""
    letters = [character for character in unicodedata.normalize("NFKC", answer) if character.isalpha()]
    text = answer.strip()
    is_code = len(text) <= LONGEST_CODE and text.isascii() and text == text.upper()
    if not letters or is_code or not scripts_of(question.language):
        return np.nan
    text = rewards.normalise(answer, "unicode")
    if text in (rewards.normalise(gold, "unicode") for gold in question.golds):
        return 1.0
    scripts = collections.Counter(map(script_of, letters))
    script = next((kana for kana in _KANA if kana in scripts), scripts.most_common(1)[0][0])
    if not script:
        return np.nan
    if text in golds_of_all_versions or script not in scripts_of(question.language, everywhere=True):
        return 0.0
    candidates = [language for language in languages if script in scripts_of(language)]
    if candidates == [question.language]:
        return 1.0
    main, identifier = main_code(question.language), _identifier(tuple(sorted({*map(main_code, candidates)})))
    label = _LABELS.get(main, main)
    if len(letters) < SHORTEST_IDENTIFIED_LETTERS or script not in scripts_of(main) or label not in identifier.labels:
        return np.nan
    return float(identifier.classify(answer)[0] == label)


@functools.cache
def _identifier(languages: tuple[str, ...]) -> py3langid.langid.LanguageIdentifier:
    identifier = py3langid.langid.LanguageIdentifier.from_model_file(py3langid.langid.MODEL_FILE)
    labels = [_LABELS.get(language, language) for language in languages]
    identifier.set_languages([label for label in labels if label in identifier.labels])
    return identifier


# --- Retrieval ---
# trec_eval's definitions, by which MIRACL (nDCG@10, recall@100) and Mr. TyDi (MRR@100, recall@100) report.


def retrieval_rows(
    retrieved: Sequence[Sequence[str]],
    judged: Sequence[Mapping[str, int]],
    languages: Sequence[str],
    *,
    method: str,
    model: str,
    dataset: str,
    split: str,
    cuts: Sequence[int] = (1, 3, 10, 100),
) -> list[Row]:
    """Returns the means of all metrics by language and over all queries.

    Queries without relevant passages are left out.

    Args:
      retrieved: Retrieved passage ids of each query, best first, at least as many as the largest cut; a repeated id
        counts at its first rank.
      judged: Passage id -> grade (0: not relevant), for each query.
      method, model, dataset, split: Labels of the rows; the model is the encoder.
      cuts: Depths of recall and reciprocal rank; nDCG is at 10.
    """
    asked = [row for row, known in enumerate(judged) if any(grade > 0 for grade in known.values())]
    if not asked:
        raise UserError(f"no query of {dataset}, {split} has a passage that was judged relevant: name other judgements")
    known_grades, depth = [judged[row] for row in asked], max(*cuts, 10)

    def grades(rankings: Sequence[Sequence[str]]) -> Int[np.ndarray, "queries depth"]:
        """Returns the grade of every passage of some rankings; 0 for unjudged ones and after the last."""
        table = np.zeros((len(rankings), depth), np.int64)
        for row, (ids, known) in enumerate(zip(rankings, known_grades, strict=True)):
            for rank, passage in enumerate(tuple(dict.fromkeys(ids))[:depth]):
                table[row, rank] = max(0, known.get(passage, 0))
        return table

    relevance = grades([retrieved[row] for row in asked])
    hits, relevant = relevance > 0, np.array([sum(grade > 0 for grade in known.values()) for known in known_grades])
    values = {f"recall@{k}": hits[:, :k].sum(axis=1) / relevant for k in cuts}
    for k in (k for k in cuts if k > 1):  # one over the rank of the first relevant passage; 0 without one
        values[f"mrr@{k}"] = np.where(hits[:, :k].any(axis=1), 1.0 / (1 + hits[:, :k].argmax(axis=1)), 0.0)
    # nDCG with gain = grade and discount log2(rank + 1) (Järvelin and Kekäläinen 2002, as in trec_eval).
    ideal = grades([sorted(known, key=known.__getitem__, reverse=True) for known in known_grades])
    discounts = 1.0 / np.log2(np.arange(2, 12))
    values["ndcg@10"] = (relevance[:, :10] @ discounts) / (ideal[:, :10] @ discounts)
    codes = np.array([languages[row] for row in asked])
    groups = {language: codes == language for language in dict.fromkeys(codes.tolist())}
    if len(groups) > 1:
        groups["all"] = np.ones(len(asked), bool)
    return [
        Row(
            method=method,
            model=model,
            dataset=dataset,
            split=split,
            seed=0,
            language=language,
            metric=metric,
            value=float((chosen := per_query[members]).mean()),
            count=len(chosen),
            standard_error=float(chosen.std(ddof=1)) / math.sqrt(len(chosen)) if len(chosen) > 1 else math.nan,
        )
        for language, members in groups.items()
        for metric, per_query in values.items()
    ]
