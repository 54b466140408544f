"""`lcrag curate`: makes training data of one kind, which continues after an interruption.

`demonstrations` (a teacher's episodes as rows for SFT), `selection` (questions for reinforcement learning),
`golden_plans` (GlobalRAG's reference plans) and `translations` (Translate-R1's questions). Each keeps a journal of what
a teacher or model has answered, and writes its results at the end.
"""

import asyncio
import collections as counting
import contextlib
import hashlib
import json
import pathlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import gin
from rich import table as rich_table

from lcrag.curation.playing import ADMITTED, KEPT, VERDICTS, Teacher, right, verdict
from lcrag.data.questions import QUOTAS, Question, records_fingerprint, tier_of
from lcrag.data.rows import question_row
from lcrag.episodes import EpisodeRecord, Program, Translator, episode_json
from lcrag.episodes.tools import SEARCH_TOOL
from lcrag.errors import AbsentError, Seed, UserError, typed
from lcrag.evaluation import Table, to_markdown, to_rich
from lcrag.files import expanded, write_json, write_json_lines, write_text
from lcrag.methods.globalrag import golden
from lcrag.methods.rag_r1 import curation as rag_r1
from lcrag.methods.translate_r1.pipeline import (
    JUDGE,
    TRANSLATOR,
    Model,
    RequestCache,
    Stages,
    Thresholds,
    attempt_rows,
    fill_quotas,
    filter_sources,
    languages_to_translate,
    question_rows,
    quotas_of,
    report_tables,
    translation_report,
)
from lcrag.retrieval import SearchableCollections
from lcrag.runs import Journal, open_run, operative_config, provenance
from lcrag.runs.display import make_console, progress_display
from lcrag.runs.folder import RUN, output_folder, read_provenance
from lcrag.runs.processes import raise_stopped
from lcrag.train.evaluation import OVERLAP, Evaluation

# (question, languages of the collections) -> its episode program
BuildProgram: TypeAlias = Callable[[Question, Sequence[str]], Program]
# (questions with the numbers of their random streams, attempt, its name) -> the episodes as they finish
Play: TypeAlias = Callable[[Sequence[tuple[int, Question]], int, str], Iterator[EpisodeRecord]]

EPISODES, QUESTIONS, REPORT, PAGE = "episodes.jsonl", "questions.jsonl", "report.json", "report.md"
EXACT_AT_A_TIME = 16  # questions, if no model limits the requests in flight
CALL = re.compile(rf'"name":\s*"{SEARCH_TOOL}"')  # of the search, as the policy wrote it

# Bindings that may differ when a run is continued.
_ENDPOINT = ("endpoint_teacher.url", "endpoint_teacher.concurrency", "remote_collections.url")
_MODEL = tuple(f"EndpointModel.{name}" for name in ("url", "in_flight", "attempts", "seconds"))
MAY_CHANGE: Mapping[str, tuple[str, ...]] = {
    "demonstrations": ("demonstrations.batch", "demonstrations.segmented", *_ENDPOINT),
    "selection": ("selection.batch", *_ENDPOINT),
    "golden_plans": ("golden_plans.batch", "golden_plans.trajectories", *_ENDPOINT),
    "translations": tuple(
        f"{scope}{name}" for scope in ("", "translator/", "judge/") for name in (*_MODEL, "CompleterModel.in_flight")
    ),
}


@gin.configurable
@typed
def curated(questions: Sequence[Question], evaluation: Callable[[], Evaluation] | None = None) -> dict[str, str]:
    """Returns what `run.json` says of curated questions that the experiment's evaluation asks too, if it allows that.

    Raises a UserError if there are no questions, one is repeated, or the evaluation asks one and does not allow it.
    """
    if not questions:
        raise UserError("there is no question to curate: choose another split or other languages")
    key, count = counting.Counter(question.key for question in questions).most_common(1)[0]
    if count > 1:
        raise UserError(f"the question {key} is there {count} times: name each data set once")
    try:
        about = {} if evaluation is None else evaluation().after_training(questions)[1]
    except AbsentError as error:
        about = {OVERLAP: f"not compared with held-out questions, as {error}"}
    return {name: text for name, text in about.items() if name == OVERLAP}


@contextlib.contextmanager
def _taught_run(
    folder: pathlib.Path,
    kind: str,
    questions: Sequence[Question],
    program: BuildProgram,
    collections: SearchableCollections,
    teacher: Teacher,
    *,
    hashes: Mapping[str, str],
    seed: Seed = 0,
    temperature: float,
    batch: int,
) -> Iterator[tuple[pathlib.Path, Play]]:
    """Opens the output folder of a curation with a teacher; `hashes` are those of further data that it depends on."""
    overlapping = curated(questions)
    if batch < 1:
        raise UserError(f"a batch of {batch} questions plays nothing: give 1 or more")
    data = {"questions": records_fingerprint(questions), **hashes}
    about = provenance(seed=seed, hashes={**data, **collections.content_hashes(), **teacher.hashes}) | overlapping
    next(iter(program(questions[0], collections.languages)))  # rejects impossible settings
    config = operative_config()

    def play(numbered: Sequence[tuple[int, Question]], attempt: int, name: str) -> Iterator[EpisodeRecord]:
        """Runs questions with the numbers of their random streams; yields the episodes as they finish."""
        tokens, finished, started = 0, 0, time.monotonic()
        with progress_display(name, len(numbered), unit="question", transient=True) as display:
            for start in range(0, len(numbered), batch):
                jobs = [
                    (question, program(question, collections.languages), number)
                    for number, question in numbered[start : start + batch]
                ]
                for record in teacher.play(jobs, collections.search, temperature=temperature, attempt=attempt):
                    raise_stopped()
                    if record.failure:
                        raise UserError(
                            f"the episode of {record.question.key} failed ({record.failure}): mend the cause,"
                            " then run the same command again"
                        )
                    tokens, finished = tokens + int(record.by_policy.sum()), finished + 1
                    rate = tokens / (time.monotonic() - started)
                    display.update(finished, note=f"{rate:,.0f} tokens/s")
                    yield record

    with open_run(folder, config=config, about=about, may_change=MAY_CHANGE[kind]) as run:
        yield run.path, play


def _write_report(path: pathlib.Path, title: str, report: Mapping[str, Any]) -> None:
    """Writes numbers, some of them in groups, and prints them as a table."""
    overlap = read_provenance(path.parent / RUN).get(OVERLAP)
    write_json(path, {**report, OVERLAP: overlap} if overlap else report)
    table = rich_table.Table("", rich_table.Column("number", justify="right"), title=title)
    for name, value in report.items():
        for part, count in value.items() if isinstance(value, Mapping) else [("", value)]:
            if count or not part:  # what did not happen is in the file only
                text = "" if count is None else f"{count:,.2f}" if isinstance(count, float) else f"{count:,}"
                table.add_row(f"{name} {part}".replace("_", " "), text)
    make_console().print(table)


def _write_tables(path: pathlib.Path, title: str, tables: Sequence[Table]) -> None:
    """Writes tables as a page of Markdown, and prints them."""
    overlap = read_provenance(path.parent / RUN).get(OVERLAP, "")
    write_text(path, "\n".join([f"# {title}\n", *map(to_markdown, tables), *filter(None, [overlap])]))
    console = make_console()
    for table in tables:
        console.print(to_rich(table))


@gin.configurable
@typed
def demonstrations(
    output_dir: pathlib.Path,
    *,
    questions: Sequence[Question],
    program: BuildProgram,
    collections: SearchableCollections,
    teacher: Teacher,
    answer: str = "exact_match",
    segmented: bool = True,
    keep_unknown: bool = False,
    min_reward: float = 1.0,
    samples: int = 1,
    temperature: float = 0.0,
    batch: int = 256,
) -> None:
    """A teacher runs a program as the policy; its correct episodes become rows for SFT.

    Writes every episode with its verdict to `episodes.jsonl`, the training rows of the kept ones to `rows.jsonl`, and
    counts to `report.json`.

    Args:
      answer: Name of the answer reward that decides whether an answer is correct.
      min_reward: From which answer reward on it is. With a policy that is sampled as the teacher, this is rejection
        sampling (STaR, Zelikman et al., 2022).
      samples: Maximum number of episodes of a question, which is played until one is kept.
      segmented: Whether an episode is cut into pairs of history and next step (RAG-R1); otherwise it is one row.
      keep_unknown: Whether episodes that end with the admission that nothing was found are kept too.
      batch: Questions that are run concurrently; each is written as it finishes.
    """
    parts = questions, program, collections, teacher
    taught = _taught_run(output_dir, "demonstrations", *parts, hashes={}, temperature=temperature, batch=batch)
    with taught as (folder, play):
        journal, good = Journal(folder / EPISODES), (KEPT, ADMITTED) if keep_unknown else (KEPT,)
        for attempt in range(samples):
            finished = {row["key"] for row in journal.rows if row["verdict"] in good or row["attempt"] >= attempt}
            left = [(number, question) for number, question in enumerate(questions) if question.key not in finished]
            for record in play(left, attempt, f"sample {attempt + 1} of {samples}"):
                [correct] = right([record], answer, min_reward)
                row = {"key": record.question.key, "attempt": attempt, "correct": correct}
                row |= {"verdict": verdict(record, correct)}
                called = (CALL.search(turn.text) for turn in record.turns if turn.by == "policy")
                if segmented and row["verdict"] in good and any(called):
                    raise UserError(
                        "episodes with tool calls cannot be cut at their searches: set demonstrations.segmented to"
                        " False, and the same command continues"
                    )
                journal.append([row | episode_json(record, times=False)])
        places = {question.key: place for place, question in enumerate(questions)}
        episodes = sorted(journal.rows, key=lambda row: (places[row["key"]], row["attempt"]))
        kept = [episode for episode in episodes if episode["verdict"] in good]
        rows = [row for episode in kept for row in rag_r1.segments(episode, whole=not segmented)]
        write_json_lines(folder / "rows.jsonl", rows)
        verdicts = counting.Counter(episode["verdict"] for episode in episodes)
        kinds = counting.Counter(row["kind"] for row in rows)
        rounds = [episode["outcome"]["counts"]["retrieval_rounds"] for episode in kept]
        report: dict[str, Any] = {
            "questions": len(places),
            "episodes": len(episodes),
            "right": sum(episode["correct"] for episode in episodes),
            "verdicts": {name: verdicts[name] for name in VERDICTS},
            "rows": len(rows),
            "kinds": {name: kinds[name] for name in rag_r1.KINDS},
            "retrieval_rounds_of_kept": sum(rounds) / len(rounds) if rounds else None,
        }
        _write_report(folder / REPORT, f"demonstrations of {len(places):,} questions", report)


@gin.configurable
@typed
def selection(
    output_dir: pathlib.Path,
    *,
    demonstrated: str,
    questions: Sequence[Question],
    program: BuildProgram,
    collections: SearchableCollections,
    teacher: Teacher,
    answer: str = "exact_match",
    rollouts: int = 10,
    temperature: float = 1.2,
    easy_share: float = 0.25,
    validation_share: float = 0.05,
    seed: Seed = 0,
    batch: int = 256,
) -> None:
    """Selects hard but answerable questions by stochastic rollouts (RAG-R1, section 3.2.1).

    Samples each question whose demonstration was wrong until a rollout is correct, at most `rollouts` times. Writes
    every rollout to `rollouts.jsonl`, the selected questions to `train.jsonl` and `validation.jsonl`, and the training
    questions without filtering by rollouts to `unfiltered.jsonl`; `jsonl_questions` reads the last three.

    Args:
      demonstrated: Folder of the demonstrations, which say which questions were answered correctly at first.
      questions: The demonstrated questions; others are left out.
      program: Builds the episode program; RAG-R1 allows it 10 searches here.
      teacher: The policy that is sampled.
      rollouts: Maximum rollouts of a question.
      easy_share: Share of the questions correct at first that is kept too.
      validation_share: Share of the selected questions that is kept for validation.
      seed: Seed of the draw of easy questions and of the split.

    The other arguments are those of `demonstrations`.
    """
    journal_of_demonstrations = expanded(demonstrated) / EPISODES
    if not journal_of_demonstrations.is_file():
        raise UserError(f"{demonstrated} holds no demonstrations: run `lcrag curate demonstrations` into it first")
    first_right = {row["key"]: row["correct"] for row in Journal(journal_of_demonstrations).rows}
    asked = [question for question in questions if question.key in first_right]
    hashes = {"demonstrations": hashlib.sha256(json.dumps(first_right, sort_keys=True).encode()).hexdigest()[:16]}
    parts = questions, program, collections, teacher
    taught = _taught_run(
        output_dir, "selection", *parts, hashes=hashes, seed=seed, temperature=temperature, batch=batch
    )
    with taught as (folder, play):
        journal = Journal(folder / "rollouts.jsonl")
        for attempt in range(1, rollouts + 1):
            # Those that were never correct so far, and not tried in this attempt yet.
            finished = {row["key"] for row in journal.rows if row["correct"] or row["attempt"] >= attempt}
            left = [
                (number, question)
                for number, question in enumerate(asked)
                if not first_right[question.key] and question.key not in finished
            ]
            for record in play(left, attempt, f"rollout {attempt}"):
                [correct] = right([record], answer)
                row = {"key": record.question.key, "attempt": attempt, "correct": correct}
                journal.append([row | {"answer": record.outcome.answer, "context_full": not record.finished}])
            make_console().print(f"rollout {attempt}: {len(left)} questions", highlight=False)
        solved = {row["key"]: row["attempt"] for row in journal.rows if row["correct"]}
        selected = rag_r1.select(asked, first_right, solved, easy_share=easy_share, seed=seed)
        train, validation = rag_r1.split(selected, validation_share, seed)
        sides = {
            "train.jsonl": train,
            "validation.jsonl": validation,
            "unfiltered.jsonl": rag_r1.unfiltered(
                asked, first_right, solved, validation, easy_share=easy_share, seed=seed
            ),
        }
        for name, side in sides.items():
            write_json_lines(folder / name, map(question_row, side))
        reasons = counting.Counter(question.extra["selected_because"] for question in (*train, *validation))
        wrong = sum(not correct for correct in first_right.values())
        report: dict[str, Any] = {
            "right_at_first": len(first_right) - wrong,
            "wrong_at_first": wrong,
            "never_right": wrong - len(solved),
            # Rollouts without an answer because the context had no room: if many, raise the teacher's context.
            "context_full": sum(row.get("context_full", False) for row in journal.rows),
            "right_in_rollout": dict(sorted(counting.Counter(solved.values()).items())),
            "selected": {reason: reasons[reason] for reason in (rag_r1.WRONG_AT_FIRST, rag_r1.RIGHT_AT_FIRST)},
            "written": {name: len(side) for name, side in sides.items()},
        }
        _write_report(folder / REPORT, "selection for reinforcement learning", report)


@gin.configurable
@typed
def golden_plans(
    output_dir: pathlib.Path,
    *,
    questions: Sequence[Question],
    program: BuildProgram,
    collections: SearchableCollections,
    teacher: Teacher,
    held_out: Sequence[Question] = (),
    answer: str = "squad_exact_match",
    trajectories: int = 1,
    temperature: float = 0.0,
    batch: int = 256,
) -> None:
    """Makes golden plans from a teacher's correct trajectories (GlobalRAG, appendix D).

    Writes every trajectory with its verdict to `trajectories.jsonl`, the questions with kept trajectories and their
    golden graphs to `questions.jsonl`, which `jsonl_questions` reads, and counts to `report.json` and `report.md`.

    Args:
      program: Builds the teacher's program, `golden_trajectory`.
      held_out: Questions of evaluations; questions with the same words are not planned.
      trajectories: Trajectories per question; the distinct plans of the kept ones are all golden.

    The other arguments are those of `demonstrations`.
    """
    parts = questions, program, collections, teacher
    left, hashes = golden.without_held_out(questions, held_out), {"held_out": records_fingerprint(held_out)}
    taught = _taught_run(output_dir, "golden_plans", *parts, hashes=hashes, temperature=temperature, batch=batch)
    with taught as (folder, play):
        journal = Journal(folder / "trajectories.jsonl")
        done = {(row["key"], row["attempt"]) for row in journal.rows}
        for attempt in range(1, trajectories + 1):
            missing = [
                (number, question) for number, question in enumerate(left) if (question.key, attempt) not in done
            ]
            for record in play(missing, attempt, f"trajectory {attempt}"):
                [correct] = right([record], answer)
                row = {"key": record.question.key, "attempt": attempt}
                row |= {"verdict": golden.golden_verdict(record, correct)}
                if row["verdict"] == KEPT:
                    row["graph"] = golden.graph_of(record)
                journal.append([row | episode_json(record, times=False)])
        planned = golden.golden_questions(left, journal.rows)
        write_json_lines(folder / QUESTIONS, (question_row(asked, identity=asked.coupling) for asked in planned))
        report = golden.curation_report(questions, left, journal.rows, planned)
        write_json(folder / REPORT, report)
        _write_tables(folder / PAGE, "Golden plans", golden.curation_tables(report))


@gin.configurable
@typed
def tier_places(languages: Sequence[str], quotas: Mapping[str, float] = QUOTAS) -> dict[str, int]:
    """Returns each language's number of questions per domain, that of its tier (Translate-R1, appendix L).

    Raises a UserError if a language is in no tier, or its tier has no number in `quotas`.
    """
    tiers = {code: tier_of(code) for code in languages}
    if unnamed := next((tier for tier in tiers.values() if tier not in quotas), None):
        raise UserError(f"tier_places.quotas has no number for the tier {unnamed}: give it one")
    return {code: round(quotas[tier]) for code, tier in tiers.items()}


@gin.configurable
@typed
def translations(
    output_dir: pathlib.Path,
    *,
    questions: Sequence[Question],
    languages: Sequence[str],
    places: int | Mapping[str, int],
    translator: Model | None = None,
    judge: Model | None = None,
    exact: Mapping[str, Translator] | None = None,
    together: bool = False,
    attempts: int = 10,
    thresholds: Thresholds = Thresholds(),  # noqa: B008  frozen
    seed: Seed = 0,
) -> None:
    """Translates questions by five stages with recycling (Translate-R1, section 3.2), and repeats no request.

    Stores every model answer in `requests.jsonl` before using it. At the end writes all attempts to `attempts.jsonl`,
    the questions to `questions.jsonl`, which `jsonl_questions` reads, and counts to `report.json` and `report.md`.

    Args:
      questions: Sources of any domains; existing versions in other languages are taken as they are.
      places: Questions per domain and language: one number, or a number for each language.
      translator: Translates in both directions.
      judge: Compares originals with back-translations; None: the translator.
      exact: Language -> an exact translator, which replaces the model.
      together: Whether a question is kept only if it passes in all languages.
      attempts: Maximum sources tried per place.
    """
    if attempts < 1:
        raise UserError(f"translations.attempts is {attempts}: give 1 or more sources per place")
    overlapping = curated(questions)
    sources = filter_sources(questions, thresholds, preferred="en", seed=seed)
    quotas, exact = quotas_of(sources, languages, places, together=together), exact or {}
    prompted = [code for code in languages_to_translate(quotas, sources) if code not in exact]
    if translator is None and prompted:
        raise UserError(
            f"translations.translator has no value, and {', '.join(prompted)} need one: bind"
            " translations.translator = @translator/EndpointModel()"
        )
    roles = {TRANSLATOR: translator, JUDGE: judge or translator}
    models = {role: model for role, model in roles.items() if model is not None}
    about = provenance(seed=seed, hashes={"questions": records_fingerprint(questions)}) | overlapping
    with open_run(output_dir, config=operative_config(), about=about, may_change=MAY_CHANGE["translations"]) as run:
        journal = Journal(run.path / "requests.jsonl")
        total, outcomes = sum(quota.places for quota in quotas), counting.Counter[bool]()
        with progress_display("translations", total, unit="place", transient=True) as display:

            def seen(filled: bool) -> None:
                try:
                    raise_stopped()
                except KeyboardInterrupt as stopped:  # which would end the event loop, and leave its tasks undone
                    raise InterruptedError from stopped
                outcomes[filled] += 1
                display.update(outcomes[True], note=f"{outcomes.total():,} sources tried")

            async def fill() -> None:
                answered = {row["key"]: row["answer"] for row in journal.rows}
                width = max((model.in_flight for model in models.values()), default=EXACT_AT_A_TIME)
                async with RequestCache(models, answered, journal.append) as ask:
                    stages = Stages(ask, thresholds, exact)
                    await fill_quotas(quotas, sources, stages, attempts=attempts, width=width, seen=seen)

            try:
                asyncio.run(fill())
            except InterruptedError as error:
                raise error.__cause__ or error from None
        write_json_lines(run.path / "attempts.jsonl", attempt_rows(sources, quotas))
        rows = question_rows(quotas)
        write_json_lines(run.path / QUESTIONS, rows)
        report = translation_report(sources, quotas, [row["role"] for row in journal.rows])
        write_json(run.path / REPORT, report)
        _write_tables(run.path / PAGE, "Translations", report_tables(report))
        if not rows:
            raise UserError(f"no translation passed all stages: {run.path / PAGE} says which stage removed them")


KINDS: Mapping[str, Callable[..., None]] = {
    made.__name__: made for made in (demonstrations, selection, translations, golden_plans)
}


@gin.configurable
def curate(output_dir: pathlib.Path | None, words: Sequence[str] = ()) -> None:
    """Makes the kind of training data that the word names; the same call continues it."""
    if len(words) != 1 or words[0] not in KINDS:
        given = " ".join(words) or "nothing"
        raise UserError(f"lcrag curate was given {given!r}: name one kind of data, {' or '.join(KINDS)}")
    [kind] = words
    with output_folder(f"curate {kind}", output_dir, MAY_CHANGE[kind], configurable=kind) as folder:
        KINDS[kind](folder)
