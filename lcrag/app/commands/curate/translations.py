"""`lcrag curate translations`: questions in other languages, by five stages with recycling (Translate-R1, 3.2)."""

import asyncio
import pathlib
from collections.abc import Mapping, Sequence

from lcrag.app.commands.curate.teaching import REPORT, check_distinct
from lcrag.app.commands.curate.translation_progress import FillingProgress
from lcrag.app.commands.curate.translation_report import attempt_rows, question_rows, report_tables
from lcrag.app.composition.checking import check_counts
from lcrag.app.composition.configuration import operative_config
from lcrag.app.display import make_console
from lcrag.app.runs import Journal, open_run, provenance
from lcrag.app.runs.atomic import write_json, write_json_lines, write_text
from lcrag.data.fingerprints import records_fingerprint
from lcrag.data.questions import Question
from lcrag.data.tiers import QUOTAS, tier_of
from lcrag.episodes import Translator
from lcrag.errors import UserError
from lcrag.evaluation import to_markdown, to_rich
from lcrag.methods.translate_r1.pipeline import (
    JUDGE,
    TRANSLATOR,
    AskedOnce,
    ExactRendering,
    Judge,
    Model,
    PromptedRendering,
    Sources,
    Stages,
    Thresholds,
    TranslationQuota,
    Tried,
    Versions,
    account,
    fill_lanes,
    lanes_of,
    sift,
    to_translate,
)

REQUESTS, ATTEMPTS, QUESTIONS, PAGE = "requests.jsonl", "attempts.jsonl", "questions.jsonl", "report.md"
PREFERRED = "en"
USUAL_THRESHOLDS = Thresholds()
MAY_CHANGE = tuple(
    f"{scope}{name}"
    for scope in ("", "translator/", "judge/")
    for name in (
        "EndpointModel.url",
        "EndpointModel.in_flight",
        "EndpointModel.attempts",
        "EndpointModel.seconds",
        "CompleterModel.in_flight",
    )
)
_EXACT_AT_A_TIME = 16


def tier_places(languages: Sequence[str], quotas: Mapping[str, float] = QUOTAS) -> dict[str, int]:
    """How many questions of a domain each language gets: its tier's number (Translate-R1, Appendix L).

    Args:
      languages: Their codes.
      quotas: Tier -> number.

    Raises:
      UserError: a language is in no tier, or its tier has no number.
    """
    tiers = {code: tier_of(code) for code in languages}
    if unnamed := next((tier for tier in tiers.values() if tier not in quotas), None):
        raise UserError(f"tier_places.quotas has no number for the tier {unnamed}: give it one")
    return {code: round(quotas[tier]) for code, tier in tiers.items()}


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
    thresholds: Thresholds = USUAL_THRESHOLDS,
    seed: int = 0,
) -> None:
    """Translates questions; the same call continues after an interruption, and pays for no request twice.

    Every answer of a model goes into `requests.jsonl` before it is used. At the end what became of every attempt is
    written into `attempts.jsonl`, the questions into `questions.jsonl`, which `jsonl_questions` reads, and what each
    stage removed into `report.json` and `report.md`.

    Args:
      output_dir: The folder.
      questions: Sources of any domains; versions that are there already are taken as they are.
      languages: Codes of the languages wanted.
      places: Questions of each domain that a language gets: one number, or each language's.
      translator: Who translates, and back.
      judge: Who compares originals with back-translations; None: the translator.
      exact: Language -> a translator without mistakes, which is asked in the translator's place.
      together: Whether a question is kept only if it passes in all languages.
      attempts: Sources tried for a place at most.
      thresholds: The numbers that the stages compare with.
      seed: Of the order in which sources are tried.

    Raises:
      UserError: the folder holds something else, a model is missing, away or unfit, or nothing passes.
    """
    check_counts("translations", attempts=attempts)
    check_distinct(questions)
    sources = sift(questions, thresholds, preferred=PREFERRED, seed=seed)
    lanes = lanes_of(sources, languages, places, together=together)
    exact = exact or {}
    models = _models(translator, judge, [code for code in to_translate(lanes, sources) if code not in exact])
    about = provenance(seed=seed, hashes={"questions": records_fingerprint(questions)})
    config, console = operative_config(), make_console()
    with open_run(output_dir, config=config, about=about, may_change=MAY_CHANGE, same_hashes=("questions",)) as run:
        journal = Journal(run.path / REQUESTS)
        progress = FillingProgress(sum(lane.places for lane in lanes), console)
        tried = asyncio.run(_tried(lanes, sources, models, exact, journal, thresholds, attempts, progress))
        write_json_lines(run.path / ATTEMPTS, attempt_rows(sources, tried))
        rows = question_rows(tried)
        write_json_lines(run.path / QUESTIONS, rows)
        report = account(sources, lanes, tried, [row["role"] for row in journal.rows])
        write_json(run.path / REPORT, report)
        tables = report_tables(report)
        write_text(run.path / PAGE, "# Translations\n\n" + "\n".join(map(to_markdown, tables)))
        for table in tables:
            console.print(to_rich(table))
        if not rows:
            raise UserError(f"no translation passed all stages: {run.path / PAGE} says which stage removed them")


def _models(translator: Model | None, judge: Model | None, prompted: Sequence[str]) -> dict[str, Model]:
    """Role -> who has it.

    Raises:
      UserError: there is no translator, and a language needs one.
    """
    if translator is None and prompted:
        raise UserError(
            f"translations.translator has no value, and {', '.join(prompted)} need one: bind"
            " translations.translator = @translator/EndpointModel()"
        )
    found = {TRANSLATOR: translator, JUDGE: judge or translator}
    return {role: model for role, model in found.items() if model is not None}


async def _tried(
    lanes: Sequence[TranslationQuota],
    sources: Sources,
    models: Mapping[str, Model],
    exact: Mapping[str, Translator],
    journal: Journal,
    thresholds: Thresholds,
    attempts: int,
    progress: FillingProgress,
) -> list[list[Tried[Versions]]]:
    """All attempts of every lane."""
    answered = {row["key"]: row["answer"] for row in journal.rows}
    async with AskedOnce(models, answered, journal.append) as ask:
        prompted = PromptedRendering(ask)
        codes = {code for lane in lanes for code in lane.languages}
        renderings = {code: ExactRendering(exact[code]) if code in exact else prompted for code in codes}
        stages = Stages(renderings=renderings, judge=Judge(ask), thresholds=thresholds)
        width = max((model.in_flight for model in models.values()), default=_EXACT_AT_A_TIME)
        return await fill_lanes(lanes, sources, stages, attempts=attempts, width=width, seen=progress.saw)
