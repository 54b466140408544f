"""The results of the pipeline: a row for each attempt and question, and what each stage removed, as JSON and tables."""

import collections
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lcrag.data.jsonl_questions import question_row
from lcrag.data.languages import language_of
from lcrag.evaluation.tables import Cell, Table
from lcrag.methods.translate_r1.pipeline.parts import LABEL
from lcrag.methods.translate_r1.pipeline.quotas import Sources, TranslationQuota, Tried, Versions, all_passed
from lcrag.methods.translate_r1.pipeline.stages import STAGES, Attempt


def attempt_rows(sources: Sources, tried: Iterable[Iterable[Tried[Versions]]]) -> Iterator[dict[str, Any]]:
    """Yields a row for every attempt: those of the source filter, then each quota's in the order of its rounds."""
    for attempt in sources.removed:
        yield _attempt_row(attempt)
    for quota in tried:
        for each in quota:
            for version in each.result:
                yield _attempt_row(version.attempt) | {"place": each.place, "attempt": each.attempt}


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


def question_rows(tried: Iterable[Iterable[Tried[Versions]]]) -> list[dict[str, Any]]:
    """Returns the questions of all filled places as rows that `lcrag.data.jsonl_questions` reads.

    Versions of one question share their id, which begins with the data set's name if there are several data sets.
    """
    questions = [
        question
        for quota in tried
        for each in quota
        if all_passed(each.result)
        for version in each.result
        for question in version.questions
    ]
    several = len({question.dataset for question in questions}) > 1
    return [question_row(question, identity=question.coupling if several else None) for question in questions]


def translation_report(
    sources: Sources,
    quotas: Sequence[TranslationQuota],
    tried: Sequence[Sequence[Tried[Versions]]],
    roles: Iterable[str],
) -> dict[str, Any]:
    """Counts what each stage removed per domain and language: the content of `report.json`.

    Args:
      sources: The result of the source filter.
      quotas: The quotas.
      tried: All attempts of each.
      roles: The role of every request that was ever sent.
    """
    languages = [
        _language(quota, number, attempts)
        for quota, attempts in zip(quotas, tried, strict=True)
        for number in range(len(quota.languages))
    ]
    return {
        "sources": _sources(sources),
        "languages": languages,
        "requests": dict(sorted(collections.Counter(roles).items())),
    }


def _sources(sources: Sources) -> dict[str, Any]:
    removed: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for attempt in sources.removed:
        removed[attempt.domain.name][attempt.cause] += 1
    return {
        domain: {
            "read": len(sources.pools.get(domain, ())) + removed[domain].total(),
            "removed": dict(removed[domain].most_common()),
        }
        for domain in sorted({*sources.pools, *removed})
    }


def _language(quota: TranslationQuota, number: int, tried: Sequence[Tried[Versions]]) -> dict[str, Any]:
    attempts = [each.result[number].attempt for each in tried]
    similarities = [each.similarity for each in attempts if each.passed and each.similarity is not None]
    return {
        "domain": quota.domain.name,
        "language": quota.languages[number],
        "places": quota.places,
        "filled": sum(all_passed(each.result) for each in tried),
        "attempts": len(attempts),
        "passed": sum(each.passed for each in attempts),
        "removed": _removed(attempts),
        "texts_spared": sum(each.portion == LABEL for each in attempts),
        "chrf": sum(similarities) / len(similarities) if similarities else None,
    }


def _removed(attempts: Iterable[Attempt]) -> Mapping[str, Mapping[str, int]]:
    """Stage 2 to 5 -> cause -> count; a cause names the portion if that was removed alone."""
    causes: dict[str, collections.Counter[str]] = {stage: collections.Counter() for stage in STAGES[1:]}
    for attempt in attempts:
        if not attempt.passed:
            named = f"{attempt.portion}: {attempt.cause}" if attempt.portion else attempt.cause
            causes[attempt.stage][named] += 1
    return {stage: dict(counts.most_common()) for stage, counts in causes.items()}


def report_tables(report: Mapping[str, Any]) -> list[Table]:
    """Returns two tables of a report: what the source filter removed, and the other stages in each language."""
    return [_source_table(report["sources"]), _language_table(report["languages"], report["requests"])]


def _source_table(sources: Mapping[str, Mapping[str, Any]]) -> Table:
    causes = list(dict.fromkeys(cause for each in sources.values() for cause in each["removed"]))
    lines = [
        _cells(domain.replace("_", " "), each["read"], *(each["removed"].get(cause, 0) for cause in causes))
        for domain, each in sources.items()
    ]
    return Table(
        title="Source filter: questions read, and removed because of",
        header=("domain", "read", *causes),
        sections=(tuple(lines),),
    )


def _language_table(languages: Sequence[Mapping[str, Any]], requests: Mapping[str, int]) -> Table:
    domains = list(dict.fromkeys(each["domain"] for each in languages))
    sections = tuple(
        tuple(_language_line(each) for each in languages if each["domain"] == domain) for domain in domains
    )
    spared = sum(each["texts_spared"] for each in languages)
    asked = ", ".join(f"{count:,} of the {role}" for role, count in requests.items()) or "none"
    return Table(
        title="Places filled, sources tried for them, and what each stage removed",
        header=("", "places", "filled", "tried", *STAGES[1:], "chrF"),
        sections=sections,
        section_titles=tuple(domain.replace("_", " ") for domain in domains),
        note=f"chrF: mean of the back-translations that passed. Requests: {asked}."
        + (f" Texts never translated, since their label failed: {spared:,}." if spared else ""),
    )


def _language_line(each: Mapping[str, Any]) -> tuple[Cell, ...]:
    removed = (sum(causes.values()) for causes in each["removed"].values())
    chrf = "–" if each["chrf"] is None else f"{each['chrf']:.3f}"
    numbers = (each["places"], each["filled"], each["attempts"], *removed)
    return (*_cells(language_of(each["language"]).name, *numbers), Cell(chrf))


def _cells(name: str, *numbers: int) -> tuple[Cell, ...]:
    return (Cell(name), *(Cell(f"{number:,}") for number in numbers))
