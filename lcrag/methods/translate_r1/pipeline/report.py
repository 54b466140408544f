"""The results of the pipeline: a row for each attempt and question, and what each stage removed, as JSON and tables."""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lcrag.data.jsonl_questions import question_row
from lcrag.data.languages import language_of
from lcrag.evaluation.tables import Cell, Table
from lcrag.methods.translate_r1.pipeline.stages import (
    STAGES,
    Attempt,
    AttemptResult,
    Attempts,
    Sources,
    TranslationQuota,
    all_passed,
)
from lcrag.methods.translate_r1.pipeline.texts import LABEL


def attempt_rows(sources: Sources, tried: Iterable[Iterable[AttemptResult[Attempts]]]) -> Iterator[dict[str, Any]]:
    """Yields a row for every attempt: those of the source filter, then each quota's in the order of its rounds."""
    for attempt in sources.removed:
        yield _attempt_row(attempt)
    for quota in tried:
        for each in quota:
            for attempt in each.result:
                yield _attempt_row(attempt) | {"place": each.place, "attempt": each.attempt}


def _attempt_row(attempt: Attempt) -> dict[str, Any]:
    return {
        "id": attempt.question.id,
        "dataset": attempt.question.dataset,
        "domain": attempt.domain.name,
        "source": attempt.question.language,
        "language": attempt.language,
        "removed_by": attempt.stage or None,
        "cause": attempt.cause or None,
        "portion": attempt.portion or None,
        "chrf": attempt.similarity,
        "translation": attempt.translation,
        "back_translation": attempt.back,
    }


def question_rows(tried: Iterable[Iterable[AttemptResult[Attempts]]]) -> list[dict[str, Any]]:
    """Returns the questions of all filled places as rows that `lcrag.data.jsonl_questions` reads.

    Versions of one question share their id, which begins with the data set's name if there are several data sets.
    """
    questions = [
        question
        for quota in tried
        for each in quota
        if all_passed(each.result)
        for attempt in each.result
        for question in attempt.questions
    ]
    several = len({question.dataset for question in questions}) > 1
    return [question_row(question, identity=question.coupling if several else None) for question in questions]


def translation_report(
    sources: Sources,
    quotas: Sequence[TranslationQuota],
    tried: Sequence[Sequence[AttemptResult[Attempts]]],
    roles: Iterable[str],
) -> dict[str, Any]:
    """Counts what each stage removed per domain and language: the content of `report.json`.

    Args:
      sources: The result of the source filter.
      quotas: The quotas.
      tried: All attempts of each.
      roles: The role of every request that was ever sent.
    """
    read = collections.Counter({domain: len(pool) for domain, pool in sources.pools.items()})
    unfit = collections.Counter((attempt.domain.name, attempt.cause) for attempt in sources.removed)
    read.update(attempt.domain.name for attempt in sources.removed)
    return {
        "sources": {
            domain: {
                "read": read[domain],
                "removed": {cause: count for (name, cause), count in unfit.most_common() if name == domain},
            }
            for domain in sorted(read)
        },
        "languages": [
            _language(quota, number, attempts)
            for quota, attempts in zip(quotas, tried, strict=True)
            for number in range(len(quota.languages))
        ],
        "requests": dict(sorted(collections.Counter(roles).items())),
    }


def _language(quota: TranslationQuota, number: int, tried: Sequence[AttemptResult[Attempts]]) -> dict[str, Any]:
    attempts = [each.result[number] for each in tried]
    similarities = [each.similarity for each in attempts if each.passed and each.similarity is not None]
    removed = collections.Counter(  # a cause names the portion if that was removed alone
        (each.stage, f"{each.portion}: {each.cause}" if each.portion else each.cause)
        for each in attempts
        if not each.passed
    )
    return {
        "domain": quota.domain.name,
        "language": quota.languages[number],
        "places": quota.places,
        "filled": sum(all_passed(each.result) for each in tried),
        "attempts": len(attempts),
        "passed": sum(each.passed for each in attempts),
        "removed": {
            stage: {cause: count for (at, cause), count in removed.most_common() if at == stage} for stage in STAGES[1:]
        },
        "texts_spared": sum(each.portion == LABEL for each in attempts),
        "chrf": sum(similarities) / len(similarities) if similarities else None,
    }


def report_tables(report: Mapping[str, Any]) -> list[Table]:
    """Returns two tables of a report: what the source filter removed, and the other stages in each language."""
    sources, languages = report["sources"], report["languages"]
    causes = list(dict.fromkeys(cause for each in sources.values() for cause in each["removed"]))
    filtered = tuple(
        _cells(domain.replace("_", " "), each["read"], *(each["removed"].get(cause, 0) for cause in causes))
        for domain, each in sources.items()
    )
    domains = list(dict.fromkeys(each["domain"] for each in languages))
    spared = sum(each["texts_spared"] for each in languages)
    asked = ", ".join(f"{count:,} of the {role}" for role, count in report["requests"].items()) or "none"
    return [
        Table(
            title="Source filter: questions read, and removed because of",
            header=("domain", "read", *causes),
            sections=(filtered,),
        ),
        Table(
            title="Places filled, sources tried for them, and what each stage removed",
            header=("", "places", "filled", "tried", *STAGES[1:], "chrF"),
            sections=tuple(
                tuple(_language_line(each) for each in languages if each["domain"] == domain) for domain in domains
            ),
            section_titles=tuple(domain.replace("_", " ") for domain in domains),
            note=f"chrF: mean of the back-translations that passed. Requests: {asked}."
            + (f" Texts never translated, since their label failed: {spared:,}." if spared else ""),
        ),
    ]


def _language_line(each: Mapping[str, Any]) -> tuple[Cell, ...]:
    removed = (sum(causes.values()) for causes in each["removed"].values())
    chrf = "–" if each["chrf"] is None else f"{each['chrf']:.3f}"
    numbers = (each["places"], each["filled"], each["attempts"], *removed)
    return (*_cells(language_of(each["language"]).name, *numbers), Cell(chrf))


def _cells(name: str, *numbers: int) -> tuple[Cell, ...]:
    return (Cell(name), *(Cell(f"{number:,}") for number in numbers))
