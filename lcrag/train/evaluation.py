"""The evaluation on held-out questions that train, sft and evaluate share, its files, and the report of a run."""

import dataclasses
import itertools
import json
import math
import pathlib
import shlex
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import gin
import jax
import numpy as np
from jaxtyping import PyTree
from rich.console import Console

from lcrag.collectives import allgather_bytes
from lcrag.data.questions import LCRL_LANGUAGES, Question, limited, overlap, records_fingerprint
from lcrag.episodes import EpisodeRecord, episode_json
from lcrag.episodes.record import record_of
from lcrag.episodes.tags import ANSWER, SEARCH, TOOL_CALL, closing, opening
from lcrag.errors import Count, UserError, typed
from lcrag.evaluation import (
    Answered,
    Row,
    Table,
    compare,
    comparison_table,
    read_training_log,
    replace_rows,
    step_size,
    summary_table,
    to_markdown,
    to_rich,
)
from lcrag.evaluation import evaluate as metric_rows
from lcrag.evaluation.tables import phase_table, wall_time_table
from lcrag.files import Journal, file_name, write_text
from lcrag.policy import check_shape, load_policy, parameter_fingerprint
from lcrag.rewards import Reward
from lcrag.rewards.text import is_visible
from lcrag.runs import is_writer, read_configured, write_json_lines
from lcrag.runs.display import progress_display
from lcrag.runs.folder import CONFIG, RUN, read_provenance, remove_stored, stored
from lcrag.runs.folder import METRICS as LOG
from lcrag.train.method import ProgramOf, check_scored, reward_values
from lcrag.train.rollout import Rollouts
from lcrag.train.steps import CALLS, check_rewarded

# --- The evaluation ---


# Added to the seed once for each inference run: evaluation never repeats the random numbers of a training rollout.
SEED_OFFSET = 1_000_000
OVERLAP = "overlap"  # what run.json says of held-out questions that are trained on


@runtime_checkable
class SampleAnalysis(Protocol):
    """What a method measures on the answers of several inference runs together."""

    def rows(
        self, answered: Sequence[Answered], *, method: str, model: str, split: str, seed: int | str
    ) -> Iterable[Row]:
        """Returns rows of `evaluation.json` for the answers of one policy."""

    def table(self, answered: Mapping[str, Sequence[Answered]]) -> Table | None:
        """Returns a table of the report with a line for each policy; None if it would have none."""


@gin.register
@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Questions, and how the answers are decoded and scored."""

    questions: Sequence[Question]
    limit: Count | None = None  # questions of each language that are asked, chosen by their ids; None: all
    split: str = "held_out"  # name of the split in the rows
    # Name of a way of decoding -> its temperature; 0 is greedy.
    temperatures: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"sampled": 1.0, "greedy": 0.0})
    max_tokens: Count | None = None  # of a generation; None: as in training
    top_p: float | None = None  # None: as in training
    # Settings in place of those of training, of whichever program the method has, where it has them: {"passages": 5}.
    program_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    before: bool = True  # whether a training also evaluates the policy that it starts from
    runs: Count = 1  # inference runs with different random numbers; greedy decoding has one
    analysis: SampleAnalysis | None = None  # of the answers of several inference runs
    # Name of another policy of the same shape to compare with -> its folder.
    references: Mapping[str, str] = dataclasses.field(default_factory=dict)
    # Languages of the training data, the others are zero-shot; None: those of the questions that are trained on.
    seen_languages: Sequence[str] | None = None
    allow_overlap: bool = False  # whether questions may also be trained on or demonstrated, which the report then says
    languages: Sequence[str] = LCRL_LANGUAGES  # all languages, among which an answer's is identified
    # What the numbers show and do not show, for the report.
    reading: str = "One run on one machine; compare methods only over several seeds."
    reward: Reward | None = None  # scores each answer, excluding tool costs, for the metric `reward`

    def __post_init__(self):
        if self.limit is not None:
            object.__setattr__(self, "questions", limited(self.questions, self.limit, seed=0))
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"Evaluation.top_p is {self.top_p}: set it above 0 and to at most 1, or to None")
        if any(temperature < 0 for temperature in self.temperatures.values()):
            raise UserError(f"Evaluation.temperatures are {dict(self.temperatures)}: none may be below 0")
        if taken := sorted({BEFORE, AFTER} & self.references.keys()):
            raise UserError(
                f"Evaluation.references names {taken[0]!r}, as the trained policy is called: choose another"
            )

    @property
    def decodings(self) -> dict[str, int]:
        """Inference runs of each way of decoding; greedy decoding has one."""
        return {name: self.runs if temperature else 1 for name, temperature in self.temperatures.items()}

    def program(self, rollouts: Rollouts) -> ProgramOf:
        """Returns the method's program with the settings of the evaluation."""
        return rollouts.method.with_settings(self.program_settings).program_for(rollouts.languages)

    def check(self, rollouts: Rollouts) -> None:
        """Checks before anything is sampled that questions fit collections and reward, and references the policy."""
        check_rewarded(self.reward, self.questions)
        rollouts.check(self.questions, self.program(rollouts))
        for reference in self.references.values():
            check_shape(reference, rollouts.policy.config, rollouts.policy.name)

    def after_training(self, trained: Sequence[Question]) -> tuple["Evaluation", dict[str, Any]]:
        """Returns the evaluation of a policy that is trained on some questions, and what `run.json` says of these.

        Raises a UserError if it asks some of them, and that is not allowed.
        """
        languages = self.seen_languages
        if languages is None:
            languages = tuple(dict.fromkeys(question.language for question in trained if question.language)) or None
        known = dataclasses.replace(self, seen_languages=languages)
        about: dict[str, Any] = {"seen_languages": known.languages_seen}
        if both := overlap(trained, self.questions):
            about[OVERLAP] = f"{len(both)} of {len(self.questions)} held-out questions are also trained on"
            if not self.allow_overlap:
                raise UserError(
                    f"{about[OVERLAP]}, so a result would not be of unseen ones: {both[0].coupling} in"
                    f" {both[0].language} ({both[0].text[:60]!r}) is the first; evaluate on others, or keep them with"
                    " Evaluation.allow_overlap = True, and the report says so"
                )
        return known, about

    @property
    def languages_seen(self) -> Sequence[str]:
        """The languages of the training data; if these are unknown, none of the questions' is called zero-shot."""
        asked = dict.fromkeys(question.language for question in self.questions)
        return tuple(asked) if self.seen_languages is None else self.seen_languages

    def is_done(self, folder: pathlib.Path, label: str) -> bool:
        """Whether a folder has all answers of the policy with a label, as the writing process finds it."""
        return _writer_finds(answers_path(folder, label, *run) for run in self.decodings.items())

    def run_before(self, folder: pathlib.Path, rollouts: Rollouts, params: Any, *, seed: int, console: Console) -> None:
        """Evaluates the policy that a training starts from, if that is wanted, and the reference policies."""
        if self.before:
            self.run(folder, BEFORE, rollouts, params, seed=seed, console=console)
        for label, reference in self.references.items():
            policy = rollouts.policy
            other = load_policy(reference, policy.mesh, policy.config).params
            self.run(folder, label, rollouts, other, seed=seed, name=reference, console=console)

    def run(
        self,
        folder: pathlib.Path,
        label: str,
        rollouts: Rollouts,
        params: PyTree,
        *,
        seed: int,
        console: Console,
        name: str | None = None,
    ) -> list[Row]:
        """Evaluates all questions with every decoding, with some parameters.

        Each answer is saved as it comes in `answers/<label>_<decoding>_saved.jsonl`, by other processes with lanes of
        their own in files that end with their number. The same evaluation, in as many processes, continues from there;
        the files are removed at the end.

        Writes `answers/<label>_<decoding>.jsonl` and, in the format of training, `episodes/<label>_<decoding>.jsonl`
        (later inference runs with the suffix `_run_2`, ...), and adds the rows to `evaluation.json`. The seed of a
        later run's rows is the text "<seed>, run 2", that of rows over several runs "<seed>, runs 1 to 5". The policy
        of the rows is called `name`, by default as that of `rollouts`.
        """
        rollouts.set_params(params)
        identity = f"{parameter_fingerprint(params)} {records_fingerprint(self.questions)}"
        when = {BEFORE: "before training", AFTER: "after training"}.get(label, label)
        asked = f"{len(self.questions):,} question{'s' if len(self.questions) > 1 else ''}"
        console.print(f"evaluating {when}: {asked}, {' and '.join(self.temperatures)}", highlight=False, soft_wrap=True)
        rows: list[Row] = []
        saved: list[pathlib.Path] = []
        about = {"model": name or rollouts.policy.name, "split": self.split}
        for decoding, temperature in self.temperatures.items():
            method, samples = f"{label}, {decoding}", []
            for number in range(1, self.decodings[decoding] + 1):
                path = answers_path(folder, label, decoding, number)
                suffix = f"_{process}" if (process := jax.process_index()) else ""
                saved.append(path.with_name(f"{path.stem}_saved{suffix}.jsonl"))
                answered, episodes, seconds = self._ask(
                    rollouts,
                    method,
                    console,
                    saved[-1],
                    identity,
                    temperature=temperature,
                    seed=seed + number * SEED_OFFSET,
                    max_tokens=self.max_tokens or rollouts.runner.max_tokens,
                    top_p=self.top_p or rollouts.runner.top_p,
                )
                if is_writer():
                    write_json_lines(path, map(dataclasses.asdict, answered))
                    write_json_lines(folder / "episodes" / path.name, episodes)
                measured = metric_rows(
                    answered,
                    method=method,
                    seed=seed if number == 1 else f"{seed}, run {number}",
                    seen_languages=self.languages_seen,
                    languages=self.languages,
                    **about,
                )
                rows += measured
                rows += [
                    # Episodes of all data sets run concurrently: each has the time of the whole.
                    dataclasses.replace(
                        row, metric="seconds_per_question", value=seconds / len(answered), standard_error=math.nan
                    )
                    for row in measured
                    if row.language == "all" and row.metric == "answered" and "/" not in row.split
                ]
                samples += answered
            if self.analysis is not None and self.runs > 1 and temperature:
                rows += self.analysis.rows(samples, method=method, seed=f"{seed}, runs 1 to {self.runs}", **about)
        if is_writer():
            add_rows(folder, rows)
        for path in saved:
            path.unlink(missing_ok=True)
            remove_stored(path)
        return rows

    def _ask(
        self,
        rollouts: Rollouts,
        title: str,
        console: Console,
        path: pathlib.Path,
        identity: str,
        **decoding: Any,
    ) -> tuple[list[Answered], Iterable[dict[str, Any]], float]:
        """Returns the answers, the rows of the file of episodes, and the seconds that they took.

        `path` has the answers so far of the evaluation with this identity; those of another one are dropped.
        """
        program, journal = self.program(rollouts), None
        if is_writer() or rollouts.lane_count > 1:  # otherwise all have the same answers
            path.parent.mkdir(parents=True, exist_ok=True)
            header, journal = {"of": f"{identity} {decoding}"}, Journal(path)
            if journal.rows and journal.rows[0] != header:  # answers of another evaluation
                path.unlink()
                journal = Journal(path)
            if not journal.rows:
                journal.append([header])
        earlier = [journal.rows[1:] if journal else []]  # of each process
        if jax.process_count() > 1:
            earlier = list(map(json.loads, allgather_bytes("reading saved answers", json.dumps(earlier[0]).encode())))
        try:
            known = {
                row["number"]: record_of(row["episode"], self.questions[row["number"]])
                for row in itertools.chain(*earlier)
                if not row["episode"].get("failure")  # asked again: what failed may have been repaired
            }
            seconds = max(sum(float(row["seconds"]) for row in rows) for rows in earlier)
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:
            raise UserError(f"{path} has a line that is no saved answer ({error!r}): delete the file") from error
        if known:
            done = f"{len(known)} of {len(self.questions)} answers are saved"
            console.print(f"{title}: {done}, and the others are asked", highlight=False, soft_wrap=True)
        programs = [(q, program(q), n) for n, q in enumerate(self.questions) if n not in known]
        total, tokens, finished = len(self.questions), rollouts.written_tokens, itertools.count(len(known) + 1)
        show = progress_display(
            title, total, first=len(known), unit="question", tokens=tokens, transient=True, console=console
        )
        with show as display:
            before = time.monotonic()

            def keep(record: EpisodeRecord) -> None:
                nonlocal before
                if journal is not None:
                    now = time.monotonic()
                    journal.append(
                        [{"number": record.episode, "seconds": now - before, "episode": episode_json(record)}]
                    )
                    before = now
                display.update(next(finished))

            episodes, taken = rollouts.join(rollouts.answer(programs, keep, **decoding))
        known |= {episode.record.episode: episode.record for episode in episodes}
        records, seconds = [known[n] for n in range(total)], seconds + taken["seconds/rollout"]
        scores: dict[str, np.ndarray] = {}
        if self.reward is not None:
            scores, _ = reward_values(self.reward, records, np.arange(len(records), dtype=np.int32))
        failures = np.array([math.nan if record.failure else 0.0 for record in records])
        check_scored(records, scores.get("total", failures))
        rewards = [{name: float(term[n]) for name, term in scores.items()} for n in range(total)]
        answered = [_answered(*parts) for parts in zip(records, rewards, strict=True)]
        rows = (episode_json(record, rewards=earned) for record, earned in zip(records, rewards, strict=True))
        return answered, rows, seconds


def _answered(record: EpisodeRecord, rewards: Mapping[str, float]) -> Answered:
    """Returns the answer of an episode, with its rewards by term, if it has any."""
    question, counts, plan = record.question, record.counts, record.outcome.extra.get("plan")
    total, extra = rewards.get("total"), question.extra
    # The parts of its data set that a question belongs to: where its fact is, kind, domain and tier.
    subsets = ["native_holds" if extra["native_holds"] else "native_missing"] if "native_holds" in extra else []
    if "copyable" in extra:
        subsets.append("copyable" if extra["copyable"] else "translated")
    if isinstance(hops := extra.get("hops"), int) and hops > 1:
        subsets.append({2: "two_hops", 3: "three_hops", 4: "four_hops"}.get(hops, f"{hops}_hops"))
    if extra.get("type"):  # comparison, bridge, 3hop1, a relation, ...
        subsets.append(extra["type"])
    subsets += filter(None, (question.domain, question.tier))
    if question.domain and question.tier:
        subsets.append(f"{question.domain}/{question.tier}")
    return Answered(
        question_id=question.id,
        dataset=question.dataset,
        language=question.language,
        answer=record.outcome.answer,
        unanswered=unanswered(record),
        golds=question.answers,
        searches=counts["searches"],
        retrieval_rounds=counts["retrieval_rounds"],
        subsets=tuple(subsets),
        sampled_tokens=counts["policy_tokens"] + counts["completion_tokens"],
        total_tokens=len(record.tokens) + sum(side.prompt_tokens + side.tokens for side in record.completions),
        **{name: bool(counts[name]) for name in ("answer_retrieved", "answer_shown") if name in counts},
        plan=None if plan is None else json.dumps(plan, ensure_ascii=False),
        domain=question.domain,
        tier=question.tier,
        reward=None if total is None or math.isnan(total) else total,
        tool_calls=counts.get(CALLS),
        failed=record.failure is not None,
        unscored=record.failure is None and total is not None and math.isnan(total),
    )


def unanswered(record: EpisodeRecord) -> str:
    """Returns why an episode gave no answer, a key of `UNANSWERED`; empty if it gave one, or failed."""
    if record.failure is not None or is_visible(record.outcome.answer or ""):
        return ""
    texts = [turn.text for turn in record.turns if turn.by == "policy"] or [""]
    if record.counts["context_full"]:
        return "context_full"
    if not any(map(is_visible, texts)):
        return "nothing_written"
    _, opened, last = texts[-1].rpartition(opening(ANSWER))
    if opened:
        content, closed, _ = last.partition(closing(ANSWER))
        return "not_closed" if not closed else "not_accepted" if is_visible(content) else "empty"
    return "searched" if closing(SEARCH) in last or closing(TOOL_CALL) in last else "no_tag"


# --- Its files ---


EVALUATION = "evaluation.json"
BEFORE, AFTER = "before", "after"  # labels of a training run's policy


def answers_path(folder: pathlib.Path, label: str, decoding: str, number: int = 1) -> pathlib.Path:
    """Returns the path of the answers with one decoding (such as "greedy") in inference run `number`."""
    run = f"_run_{number}" if number > 1 else ""
    return folder / "answers" / file_name(f"{label}_{decoding}{run}.jsonl")


def inference_runs(folder: pathlib.Path, label: str, decoding: str) -> list[pathlib.Path]:
    """Returns the existing files of answers with one decoding, one per inference run."""
    paths = (answers_path(folder, label, decoding, number) for number in itertools.count(1))
    return list(itertools.takewhile(pathlib.Path.is_file, paths))


def read_answers(path: pathlib.Path) -> list[Answered]:
    """Reads a file of answers; a UserError names a damaged line."""
    answers = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
            answers.append(Answered(**row | {"golds": tuple(row["golds"]), "subsets": tuple(row["subsets"])}))
        except (ValueError, TypeError, KeyError) as error:
            raise UserError(f"{path}, line {number}, is not an answer ({error}): evaluate again") from error
    return answers


def add_rows(folder: pathlib.Path, rows: Sequence[Row]) -> None:
    """Adds rows to `evaluation.json`; they replace rows with the same method, split and seed."""
    replace_rows(folder / EVALUATION, rows, lambda row: (row.method, row.split, row.seed))


# --- The report of a run ---


METRICS = ("c3_recall", "flexible_exact_match", "correct_language", "searches")
REWARDED = ("reward", "tool_rate", "tool_calls")  # instead of METRICS, if answers are rewarded by their domains
# What a run prints at its end, first LcRL's tables' c3 recall; before and after are compared by the rewarded one.
SUMMARY = (
    *(
        "c3_recall_bergen",
        "c3_recall",
        "flexible_exact_match",
        "squad_exact_match",
        "correct_language",
        "searches",
        "answered",
    ),
    *("failed", "unscored"),
)
COSTS = (
    *("squad_f1", "mixed_f1", "retrieval_rounds"),
    *("sampled_tokens", "total_tokens", "score_per_log_token"),
    *("answer_retrieved", "answer_shown", "failures_without_passage"),
)
SUBSETS = ("native_holds", "native_missing", "copyable", "translated")


REPORT = "report.md"


def is_evaluated(folder: pathlib.Path, evaluation: Evaluation) -> bool:
    """Whether a folder has the answers of every policy that the evaluation of a training run asks."""
    return all(evaluation.is_done(folder, label) for label in ((BEFORE, AFTER) if evaluation.before else (AFTER,)))


def was_finished(folder: pathlib.Path, first: int, is_over: bool) -> bool:
    """Whether a run that has nothing left to train has its report, which is written last.

    A run that goes on after step `first` keeps an earlier report under another name.
    """
    report = folder / REPORT
    is_written = _writer_finds([report])
    if is_written and not is_over and is_writer():
        report.rename(folder / f"report_after_step_{first}.md")
        remove_stored(report)
    return is_written and is_over


def _writer_finds(paths: Iterable[pathlib.Path]) -> bool:
    """Whether the writing process, whose copy of a folder counts, finds all files; all processes call it together."""
    found = b"found" if all(path.is_file() for path in paths) else b""
    return bool(allgather_bytes("reading the run's folder", found)[0])


def report_run(folder: pathlib.Path, evaluation: Evaluation | None, console: Console) -> None:
    """Writes `report.md` of a finished run with training curves and prints its summary, in the writing process only."""
    if not is_writer():
        return
    about = read_provenance(folder / RUN, "command", "started", "commit", "devices", "packages")
    title = str(read_configured(folder / CONFIG).get("Method.name", "Training run"))
    curves = read_training_log(folder / LOG)
    if evaluation is not None:
        seen = about.get("seen_languages", evaluation.seen_languages)
        evaluation = dataclasses.replace(evaluation, seen_languages=seen)
    summary, results = tables(folder, evaluation, about["seed"], title) if evaluation is not None else (None, [])
    times = (phase_table({title: [curves]}), wall_time_table(curves))
    results += [table for table in times if table is not None]
    size = step_size(curves)
    commit, devices = about["commit"] or "not in a repository", ", ".join(about["devices"])
    versions = {"commit": commit, **about["packages"], "devices": devices}
    parts = [
        f"# {title}",
        f"Started {about['started']}, seed {about['seed']}{f', {size}' if size else ''}.",
        "## Result",
        *map(to_markdown, results),
    ]
    if curves:
        from lcrag.evaluation.plots import draw_training_curves  # here, since Matplotlib takes a second

        shown = draw_training_curves(curves, folder / "training.png", title)
        parts += [
            f"![{shown}](training.png)",
            "Thin lines are single steps, thick ones a centred moving average over about a tenth of the run, for ten"
            " points or more.",
        ]
    parts += [
        "## How to read this",
        evaluation.reading if evaluation else "Nothing was evaluated.",
        *([f"**{about[OVERLAP]}.**"] if OVERLAP in about else []),
        "## What was run",
        f"```\n{shlex.join(about['command'])}\n```",
        "\n".join(f"- {name}: {value}" for name, value in versions.items()),
    ]
    path = folder / REPORT
    write_text(path, "\n\n".join(part.strip("\n") for part in parts) + "\n")
    print_end(console, summary, folder)


def print_end(console: Console, summary: Table | None, folder: pathlib.Path) -> None:
    """Prints what a command ends with: its summary in 80 columns, where the report is, and what to look at next."""
    if summary is not None:
        width = min(80, console.width)  # of title and note too, which a table wraps to its own
        parts = summary.title, to_rich(dataclasses.replace(summary, title="", note="")), summary.note
        console.print(*parts, sep="\n", width=width, highlight=False)
    console.print(f"The report is in {stored(folder / REPORT)}", highlight=False, soft_wrap=True)
    if any((folder / "episodes").glob("*.jsonl")):
        place = shlex.quote(str(stored(folder)))
        console.print(f"next: lcrag view {place}", highlight=False, soft_wrap=True)


def tables(folder: pathlib.Path, evaluation: Evaluation, seed: int, name: str) -> tuple[Table, list[Table]]:
    """Returns the summary of a run with a name, and the tables of its report.

    These are the results and costs of every policy, then before and after training by data set and decoding, and the
    method's analysis. Without an evaluation before training there is nothing to compare.
    """
    split = evaluation.split
    settings: dict[str, Any] = {"seen_languages": evaluation.languages_seen, "languages": evaluation.languages}
    policies = (*((BEFORE,) if evaluation.before else ()), AFTER, *evaluation.references)
    runs = {
        (label, decoding): [read_answers(path) for path in inference_runs(folder, label, decoding)]
        for decoding in evaluation.temperatures
        for label in policies
    }
    answers = {key: list(itertools.chain.from_iterable(answered)) for key, answered in runs.items()}
    names = {key: ", ".join(key) for key in runs}
    rows = [
        row
        for key, name in names.items()
        for row in metric_rows(answers[key], method=name, model="", split=split, seed=seed, **settings)
    ]
    by_dataset: dict[str, list[Question]] = {}
    for question in evaluation.questions:
        by_dataset.setdefault(question.dataset, []).append(question)
    compared, differences = [], {}
    for dataset, questions in by_dataset.items():
        parts = [*(question.domain for question in questions), *(question.tier for question in questions)]
        parts += [f"{question.domain}/{question.tier}" for question in questions if question.domain and question.tier]
        sections = [
            [(split, name) for name in ("all", "seen", "zero_shot")],
            [(split, code) for code in evaluation.languages],
            [(f"{split}/{subset}", "all") for subset in SUBSETS],
            [(f"{split}/{subset}", "all") for subset in dict.fromkeys(parts) if subset],
        ]
        for decoding in evaluation.temperatures if evaluation.before else ():
            sides = [[row for row in answers[key, decoding] if row.dataset == dataset] for key in (BEFORE, AFTER)]
            differences[dataset, decoding] = compare(*sides, split=split, **settings)
            compared.append(
                comparison_table(
                    [row for row in rows if row.dataset == dataset],
                    f"{f'{dataset}: ' if len(by_dataset) > 1 else ''}Held-out questions, {decoding}",
                    sections,
                    METRICS if evaluation.reward is None else REWARDED,
                    before=names[BEFORE, decoding],
                    after=names[AFTER, decoding],
                    references=[names[label, decoding] for label in evaluation.references],
                    differences=differences[dataset, decoding],
                )
            )
    title = f"{name}: held-out questions of {', '.join(by_dataset)}, all languages"
    metrics = SUMMARY if evaluation.reward is None else ("answered", *REWARDED)
    summary = summary_table(rows, title, metrics, differences=differences, brief=True)
    whole = summary_table(rows, "Every policy", [*metrics, *COSTS], differences=differences)
    several = {names[key]: answers[key] for key, answered in runs.items() if len(answered) > 1}
    analysed = evaluation.analysis.table(several) if evaluation.analysis is not None else None
    return summary, [whole, *compared, *([] if analysed is None else [analysed])]
