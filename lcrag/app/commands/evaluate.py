"""`lcrag evaluate`: a policy on held-out questions, by language, sampled and greedy."""

import dataclasses
import itertools
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from lcrag.app.composition.checking import check_counts, check_questions, check_rewarded
from lcrag.app.composition.components import check_shape, content_hashes, make_runner, make_sampler, policy_parameters
from lcrag.app.composition.configuration import operative_config
from lcrag.app.composition.method import Method, ProgramOf, episodes_of
from lcrag.app.display import make_console
from lcrag.app.runs import is_writer, provenance, writer_does
from lcrag.app.runs.files import write_json, write_json_lines, write_text
from lcrag.app.runs.configuration import first_difference
from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Runner
from lcrag.episodes.search_log import LoggedSearch, log_searches
from lcrag.errors import UserError
from lcrag.evaluation import Answered, Row, place_tables, read_rows, to_rich, write_rows
from lcrag.evaluation import evaluate as evaluate_answers
from lcrag.evaluation.metrics import METRIC_NAMES
from lcrag.methods.globalrag.analysis import diversity_rows
from lcrag.methods.translate_r1.tool_rates import CALLS
from lcrag.policy import Policy
from lcrag.retrieval import SearchableCollections
from lcrag.rewards import Reward
from lcrag.rewards.matching import holds_answer
from lcrag.sampling import Sampler

EVALUATION = "evaluation.json"
ANSWERS = "answers"
BEFORE, AFTER = "before", "after"  # what a training run calls its policy
MAY_CHANGE = ("evaluate.metrics",)
# Added to the run's seed once for each inference run, so that evaluation never draws a training rollout's numbers.
SEED_OFFSET = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What is asked, and how the answers are decoded.

    Attributes:
      questions: Held-out questions.
      split: What to call them in the rows.
      temperatures: Name of a way of decoding -> its temperature; 0 is greedy.
      max_tokens: Of a generation in an evaluation; None: as in training.
      runs: Inference runs of each way that samples, each with random numbers of its own; greedy decoding needs one.
      references: Name of another policy of the same shape, shown beside the trained one -> its folder.
      seen_languages: Languages of the training data; the others are zero-shot.
      languages: All languages, among which an answer's language is identified.
      reading: What the numbers show and do not show, in plain words; for the report.
      reward: Scores each answer for the metric `reward`, the cost of tools left out; None: only the other metrics.
    """

    questions: Sequence[Question]
    split: str = "held_out"
    temperatures: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"sampled": 1.0, "greedy": 0.0})
    max_tokens: int | None = None
    runs: int = 1
    references: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seen_languages: Sequence[str] = LCRL_TRAINING
    languages: Sequence[str] = LCRL_LANGUAGES
    reading: str = "One run on one machine; compare methods only over several seeds."
    reward: Reward | None = None

    def __post_init__(self):
        check_counts("Evaluation", runs=self.runs, max_tokens=1 if self.max_tokens is None else self.max_tokens)

    def run(
        self,
        folder: pathlib.Path,
        label: str,
        runner: Runner,
        program: ProgramOf,
        policy: Policy,
        *,
        seed: int,
        console: Console | None = None,
    ) -> list[Row]:
        """Asks every question in every way of decoding, with the parameters that the runner's sampler has.

        Writes `answers/<label>_<decoding>.jsonl` (a later inference run's with `_run_2`, ... behind it) and adds the
        rows to `evaluation.json`; the seed of a later run's rows is the text "<seed>, run 2", ..., that of what several
        runs say together "<seed>, runs 1 to 5".
        """
        rows: list[Row] = []
        for decoding, temperature in self.temperatures.items():
            samples: list[Answered] = []
            for number in range(1, (self.runs if temperature else 1) + 1):
                decoder = self._decoder(runner, temperature, seed + number * SEED_OFFSET)
                answered = self._ask(decoder, program, f"{label}, {decoding}", console or Console())
                if is_writer():
                    path = answers_path(folder, label, decoding, number)
                    path.parent.mkdir(parents=True, exist_ok=True)
                    write_json_lines(path, map(dataclasses.asdict, answered))
                measured = evaluate_answers(
                    answered,
                    method=f"{label}, {decoding}",
                    model=policy.name,
                    split=self.split,
                    seed=seed if number == 1 else f"{seed}, run {number}",
                    seen_languages=self.seen_languages,
                    languages=self.languages,
                )
                rows += [*measured, *_inference_times(measured, decoder.statistics.seconds / len(answered))]
                samples += answered
            if self.runs > 1 and temperature:
                together = {"method": f"{label}, {decoding}", "seed": f"{seed}, runs 1 to {self.runs}"}
                rows += diversity_rows(samples, model=policy.name, split=self.split, **together)
        if is_writer():
            _add_rows(folder / EVALUATION, rows)
        return rows

    def _decoder(self, runner: Runner, temperature: float, seed: int) -> Runner:
        limit = runner.max_tokens if self.max_tokens is None else self.max_tokens
        return dataclasses.replace(runner, temperature=temperature, seed=seed, max_tokens=limit)

    def check_references(self, policy: Policy) -> None:
        """Finds a reference that cannot be asked before anything is written.

        Raises:
          UserError: one has another shape than the policy, or cannot be read.
        """
        for reference in self.references.values():
            check_shape(reference, policy)

    def run_references(
        self,
        folder: pathlib.Path,
        sampler: Sampler,
        runner: Runner,
        program: ProgramOf,
        policy: Policy,
        **options,
    ) -> None:
        """The same questions to every reference policy; the sampler's parameters must be set again afterwards."""
        for label, reference in self.references.items():
            sampler.set_params(policy_parameters(reference, policy))
            self.run(folder, label, runner, program, dataclasses.replace(policy, name=reference), **options)

    def _ask(self, runner: Runner, program: ProgramOf, title: str, console: Console) -> list[Answered]:
        noted: list[list[LoggedSearch]] = [[] for _ in self.questions]
        programs = [(q, log_searches(program(q), noted[n]), n) for n, q in enumerate(self.questions)]
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(title, total=len(programs))
            records = runner.run(programs, progress=lambda done, _: progress.update(task, completed=done))
        found = zip(records, noted, self._rewards(records), strict=True)
        return [_answered(record, searches, reward) for record, searches, reward in found]

    def _rewards(self, records: Sequence[EpisodeRecord]) -> Sequence[float | None]:
        if self.reward is None:
            return [None] * len(records)
        return self.reward(episodes_of(records, np.arange(len(records), dtype=np.int32)))["total"].tolist()


def _inference_times(rows: Sequence[Row], seconds: float) -> list[Row]:
    """The wall time of an inference run by question, once for each data set in it: episodes run side by side."""
    whole = [row for row in rows if row.language == "all" and row.metric == "answered" and "/" not in row.split]
    metric = "seconds_per_question"
    return [dataclasses.replace(row, metric=metric, value=seconds, standard_error=math.nan) for row in whole]


def _answered(record: EpisodeRecord, searches: Sequence[LoggedSearch], reward: float | None) -> Answered:
    question, extra = record.question, record.question.extra
    subsets = ["native_holds" if extra["native_holds"] else "native_missing"] if "native_holds" in extra else []
    if "copyable" in extra:
        subsets.append("copyable" if extra["copyable"] else "translated")
    if extra.get("hops") == 2:
        subsets.append("two_hops")
    if "type" in extra:  # comparison, bridge, 3hop1, a relation, ...
        subsets.append(extra["type"])
    subsets += filter(None, (question.domain, question.tier))
    if question.domain and question.tier:
        subsets.append(f"{question.domain}/{question.tier}")
    return Answered(
        question_id=question.id,
        dataset=question.dataset,
        language=question.language,
        answer=record.outcome.answer,
        golds=question.answers,
        searches=record.counts["searches"],
        retrieval_rounds=record.counts["retrieval_rounds"],
        subsets=tuple(subsets),
        sampled_tokens=record.counts["policy_tokens"] + record.counts["completion_tokens"],
        answer_retrieved=holds_answer(_passages(searches), question.answers),
        plan=_plan(record),
        domain=question.domain,
        tier=question.tier,
        reward=reward,
        tool_calls=record.counts.get(CALLS),
    )


def _passages(searches: Sequence[LoggedSearch]) -> Iterator[str]:
    return (f"{passage.title} {passage.text}" for search in searches for passage in search.passages)


def _plan(record: EpisodeRecord) -> str | None:
    """The plan of an episode as one text, however it was spaced; None if it made none."""
    plan = record.outcome.extra.get("plan")
    return None if plan is None else json.dumps(plan, ensure_ascii=False)


def answers_path(folder: pathlib.Path, label: str, decoding: str, number: int = 1) -> pathlib.Path:
    """Where the answers of one way of decoding are kept, those of inference run `number`."""
    run = f"_run_{number}" if number > 1 else ""
    return folder / ANSWERS / f"{label.replace(' ', '_')}_{decoding}{run}.jsonl"


def inference_runs(folder: pathlib.Path, label: str, decoding: str) -> list[pathlib.Path]:
    """The answers of every inference run of one way of decoding that there is."""
    paths = (answers_path(folder, label, decoding, number) for number in itertools.count(1))
    return list(itertools.takewhile(pathlib.Path.is_file, paths))


def read_answers(path: pathlib.Path) -> list[Answered]:
    """Reads what `Evaluation.run` wrote.

    Raises:
      UserError: a line is damaged.
    """
    answers = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
            answers.append(Answered(**row | {"golds": tuple(row["golds"]), "subsets": tuple(row["subsets"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}, line {number}, is no answer ({error}): evaluate into that folder anew") from error
    return answers


def _add_rows(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """New rows replace those of the same method and seed; all others are kept."""
    replaced = {(row.method, row.split, row.seed) for row in rows}
    kept = (
        [row for row in read_rows(path) if (row.method, row.split, row.seed) not in replaced] if path.exists() else []
    )
    write_rows(path, [*kept, *rows])


def _claim_label(folder: pathlib.Path, label: str, config: str, about: Mapping[str, Any]) -> None:
    """Writes down what a label's answers come from; refuses a label whose answers come from something else."""
    path = answers_path(folder, label, "config").with_suffix(".gin")
    if path.exists() and (difference := first_difference(path.read_text(encoding="utf-8"), config, MAY_CHANGE)):
        raise UserError(
            f"{folder} holds another evaluation called {label!r}: {difference};"
            " choose another evaluate.label or --output_dir"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(answers_path(folder, label, "run").with_suffix(".json"), about)
    write_text(path, config)


def evaluate(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    seed: int,
    policy: Policy,
    collections: SearchableCollections,
    method: Method,
    evaluation: Evaluation,
    label: str = "policy",
    metrics: Sequence[str] = (
        "c3_recall",
        "flexible_exact_match",
        "exact_match",
        "correct_language",
        "searches",
        "retrieval_rounds",
    ),
) -> None:
    """Evaluates a policy without training it; writes `evaluation.json` and the answers, and prints a table by language.

    Args:
      output_dir: Where to write.
      words: Not used.
      seed: Of sampling.
      policy: Whom to ask.
      collections: To search in.
      method: Its program.
      evaluation: What to ask.
      label: What to call the policy in the rows.
      metrics: Of the printed table; all are written.

    Raises:
      UserError: no output folder, one where the label means something else, an unknown metric, or questions without
        collections or that the evaluation's reward cannot score.
    """
    if output_dir is None:
        raise UserError("lcrag evaluate needs a folder for its results: --output_dir=FOLDER")
    if unknown := [metric for metric in metrics if metric not in METRIC_NAMES]:
        raise UserError(f"there is no metric {unknown[0]!r} for evaluate.metrics: use {', '.join(METRIC_NAMES)}")
    check_rewarded(evaluation.reward, evaluation.questions)
    runner = make_runner(make_sampler(policy), policy, collections, seed)
    program = method.evaluated_on(collections.languages)
    check_questions(evaluation.questions, collections, runner, program, native_collections=method.native_collections)
    about = provenance(seed=seed, hashes=content_hashes(policy, collections, evaluation.questions, runner.completers))
    config = operative_config()
    writer_does(lambda: _claim_label(output_dir, label, config, about))
    console = make_console()
    rows = evaluation.run(output_dir, label, runner, program, policy, seed=seed, console=console)
    for table in place_tables(rows, metrics):
        console.print(to_rich(table))
