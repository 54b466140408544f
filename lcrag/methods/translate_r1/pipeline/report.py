"""The results of the pipeline: a row for each attempt and question, and what each stage removed, as JSON and tables."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lcrag.data.questions import language_of
from lcrag.data.rows import question_row
from lcrag.evaluation.tables import Cell, Table
from lcrag.methods.translate_r1.pipeline.stages import STAGES, Attempt, Quota, Sources, all_passed
from lcrag.methods.translate_r1.pipeline.texts import LABEL


def attempt_rows(sources: Sources, quotas: Iterable[Quota]) -> Iterator[dict[str, Any]]:
    """Yields a row for every attempt: those of the source filter, then each quota's in the order of its rounds."""

    def row(attempt: Attempt) -> dict[str, Any]:
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
            "translation": attempt.translation or None,
            "back_translation": attempt.back or None,
        }

    yield from map(row, sources.removed)
    for quota in quotas:
        for place, number, attempts in quota.tried:
            for attempt in attempts:
                yield row(attempt) | {"place": place, "attempt": number}


def question_rows(quotas: Iterable[Quota]) -> list[dict[str, Any]]:
    """Returns the questions of all filled places as rows that `lcrag.data.rows` reads.

    Versions of one question share their id, which begins with the data set's name if there are several data sets.
    """
    filled = [attempts for quota in quotas for *_, attempts in quota.tried if all_passed(attempts)]
    questions = [question for attempts in filled for attempt in attempts for question in attempt.questions]
    several = len({question.dataset for question in questions}) > 1
    return [question_row(question, identity=question.coupling if several else None) for question in questions]


def translation_report(sources: Sources, quotas: Sequence[Quota], roles: Iterable[str]) -> dict[str, Any]:
    """Counts what each stage removed per domain and language, and the requests by their `roles`: `report.json`."""
    unfit = Counter((attempt.domain.name, attempt.cause) for attempt in sources.removed)
    read = Counter({domain: len(pool) for domain, pool in sources.pools.items()})
    read.update(attempt.domain.name for attempt in sources.removed)
    languages = []
    for quota in quotas:
        for place, language in enumerate(quota.languages):
            attempts = [attempts[place] for *_, attempts in quota.tried]
            similarities = [each.similarity for each in attempts if each.passed and each.similarity is not None]
            # A cause names the portion if that was removed alone.
            causes = Counter(
                (each.stage, f"{each.portion}: {each.cause}" if each.portion else each.cause)
                for each in attempts
                if not each.passed
            )
            languages.append(
                {
                    "domain": quota.domain.name,
                    "language": language,
                    "places": quota.places,
                    "filled": sum(all_passed(attempts) for *_, attempts in quota.tried),
                    "attempts": len(attempts),
                    "passed": sum(each.passed for each in attempts),
                    "removed": {stage: _causes(causes, stage) for stage in STAGES[1:]},
                    "texts_spared": sum(each.portion == LABEL for each in attempts),
                    "chrf": sum(similarities) / len(similarities) if similarities else None,
                }
            )
    return {
        "sources": {domain: {"read": read[domain], "removed": _causes(unfit, domain)} for domain in sorted(read)},
        "languages": languages,
        "requests": dict(sorted(Counter(roles).items())),
    }


def _causes(counts: Counter[tuple[str, str]], group: str) -> dict[str, int]:
    return {cause: count for (of, cause), count in counts.most_common() if of == group}


def report_tables(report: Mapping[str, Any]) -> list[Table]:
    """Returns two tables of a report: what the source filter removed, and the other stages in each language."""
    sources, languages = report["sources"], report["languages"]
    causes = list(dict.fromkeys(cause for domain in sources.values() for cause in domain["removed"]))
    filtered = tuple(
        _cells(name.replace("_", " "), domain["read"], *(domain["removed"].get(cause, 0) for cause in causes))
        for name, domain in sources.items()
    )
    lines: dict[str, list[tuple[Cell, ...]]] = {}
    for row in languages:
        removed = (sum(counts.values()) for counts in row["removed"].values())
        chrf = "–" if row["chrf"] is None else f"{row['chrf']:.3f}"
        numbers = _cells(language_of(row["language"]).name, row["places"], row["filled"], row["attempts"], *removed)
        lines.setdefault(row["domain"], []).append((*numbers, Cell(chrf)))
    spared = sum(row["texts_spared"] for row in languages)
    requests = ", ".join(f"{count:,} of the {role}" for role, count in report["requests"].items()) or "none"
    return [
        Table(
            title="Source filter: questions read, and removed because of",
            header=("domain", "read", *causes),
            sections=(filtered,),
        ),
        Table(
            title="Places filled, sources tried for them, and what each stage removed",
            header=("", "places", "filled", "tried", *STAGES[1:], "chrF"),
            sections=tuple(map(tuple, lines.values())),
            section_titles=tuple(domain.replace("_", " ") for domain in lines),
            note=f"chrF: mean of the back-translations that passed. Requests: {requests}."
            + (f" Texts never translated, since their label failed: {spared:,}." if spared else ""),
        ),
    ]


def _cells(name: str, *numbers: int) -> tuple[Cell, ...]:
    return (Cell(name), *(Cell(f"{number:,}") for number in numbers))
