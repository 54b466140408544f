"""`lcrag curate translations`: questions in other languages, by five stages with recycling (Translate-R1, 3.2)."""

import asyncio
import pathlib
from collections.abc import Mapping, Sequence

from lcrag.commands.curate.teaching import REPORT, check_distinct
from lcrag.composition.configuration import operative_config
from lcrag.data.files import records_fingerprint
from lcrag.data.questions import Question
from lcrag.data.tiers import QUOTAS, tier_of
from lcrag.episodes import Translator
from lcrag.errors import UserError
from lcrag.evaluation import to_markdown, to_rich
from lcrag.limits import Count, NonNegative, Seed
from lcrag.methods.translate_r1.pipeline.checks import Thresholds
from lcrag.methods.translate_r1.pipeline.models import JUDGE, TRANSLATOR, Model, RequestCache
from lcrag.methods.translate_r1.pipeline.report import attempt_rows, question_rows, report_tables, translation_report
from lcrag.methods.translate_r1.pipeline.stages import (
    AttemptResult,
    Attempts,
    Sources,
    Stages,
    TranslationQuota,
    exact_rendering,
    fill_quotas,
    filter_sources,
    languages_to_translate,
    prompted_judge,
    prompted_rendering,
    quotas_of,
)
from lcrag.runs import Journal, open_run, provenance
from lcrag.runs.display import ProgressDisplay, make_console, progress_display
from lcrag.runs.files import write_json, write_json_lines, write_text

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


def tier_places(languages: Sequence[str], quotas: Mapping[str, NonNegative] = QUOTAS) -> dict[str, int]:
    """Returns each language's number of questions per domain, that of its tier (Translate-R1, appendix L).

    Args:
      languages: Language codes.
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
    places: Count | Mapping[str, Count],
    translator: Model | None = None,
    judge: Model | None = None,
    exact: Mapping[str, Translator] | None = None,
    together: bool = False,
    attempts: Count = 10,
    thresholds: Thresholds = USUAL_THRESHOLDS,
    seed: Seed = 0,
) -> None:
    """Translates questions; the same call continues after an interruption and repeats no request.

    Stores every model answer in `requests.jsonl` before using it. At the end writes all attempts to `attempts.jsonl`,
    the questions to `questions.jsonl`, which `jsonl_questions` reads, and counts to `report.json` and `report.md`.

    Args:
      output_dir: Output folder.
      questions: Sources of any domains; existing versions in other languages are taken as they are.
      languages: Codes of the target languages.
      places: Questions per domain and language: one number, or a number for each language.
      translator: Translates in both directions.
      judge: Compares originals with back-translations; None: the translator.
      exact: Language -> an exact translator, which replaces the model.
      together: Whether a question is kept only if it passes in all languages.
      attempts: Maximum sources tried per place.
      thresholds: Thresholds of the stages.
      seed: Seed of the order of sources.

    Raises:
      UserError: the folder holds another run, a model is missing, unavailable or unsuitable, or nothing passes.
    """
    check_distinct(questions)
    sources = filter_sources(questions, thresholds, preferred=PREFERRED, seed=seed)
    quotas = quotas_of(sources, languages, places, together=together)
    exact = exact or {}
    models = _models(translator, judge, [code for code in languages_to_translate(quotas, sources) if code not in exact])
    about = provenance(seed=seed, hashes={"questions": records_fingerprint(questions)})
    config, console = operative_config(), make_console()
    with open_run(output_dir, config=config, about=about, may_change=MAY_CHANGE, same_hashes=("questions",)) as run:
        journal = Journal(run.path / REQUESTS)
        places = sum(quota.places for quota in quotas)
        with progress_display("translations", places, unit="place", transient=True, console=console) as display:
            counted = Counted(display)
            tried = asyncio.run(_tried(quotas, sources, models, exact, journal, thresholds, attempts, counted))
        write_json_lines(run.path / ATTEMPTS, attempt_rows(sources, tried))
        rows = question_rows(tried)
        write_json_lines(run.path / QUESTIONS, rows)
        report = translation_report(sources, quotas, tried, [row["role"] for row in journal.rows])
        write_json(run.path / REPORT, report)
        tables = report_tables(report)
        write_text(run.path / PAGE, "# Translations\n\n" + "\n".join(map(to_markdown, tables)))
        for table in tables:
            console.print(to_rich(table))
        if not rows:
            raise UserError(f"no translation passed all stages: {run.path / PAGE} says which stage removed them")


def _models(translator: Model | None, judge: Model | None, prompted: Sequence[str]) -> dict[str, Model]:
    """Returns the model of each role; raises a `UserError` if a needed translator is missing."""
    if translator is None and prompted:
        raise UserError(
            f"translations.translator has no value, and {', '.join(prompted)} need one: bind"
            " translations.translator = @translator/EndpointModel()"
        )
    found = {TRANSLATOR: translator, JUDGE: judge or translator}
    return {role: model for role, model in found.items() if model is not None}


async def _tried(
    quotas: Sequence[TranslationQuota],
    sources: Sources,
    models: Mapping[str, Model],
    exact: Mapping[str, Translator],
    journal: Journal,
    thresholds: Thresholds,
    attempts: int,
    counted: "Counted",
) -> list[list[AttemptResult[Attempts]]]:
    """Returns all attempts of every quota."""
    answered = {row["key"]: row["answer"] for row in journal.rows}
    async with RequestCache(models, answered, journal.append) as ask:
        prompted = prompted_rendering(ask)
        codes = {code for quota in quotas for code in quota.languages}
        renderings = {code: exact_rendering(exact[code]) if code in exact else prompted for code in codes}
        stages = Stages(renderings=renderings, judge=prompted_judge(ask), thresholds=thresholds)
        width = max((model.in_flight for model in models.values()), default=_EXACT_AT_A_TIME)
        return await fill_quotas(quotas, sources, stages, attempts=attempts, width=width, seen=counted.count)


class Counted:
    """Counts and displays the filled places and the sources tried for them."""

    def __init__(self, display: ProgressDisplay):
        self._display, self._filled, self._tried = display, 0, 0

    def count(self, filled: bool) -> None:
        """Counts an attempt that filled its place or did not."""
        self._filled += filled
        self._tried += 1
        self._display.update(self._filled, note=f"{self._tried:,} sources tried")
