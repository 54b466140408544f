"""What `lcrag curate translations` writes: a line an attempt, a line a question, and the tables of its report."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.evaluation.tables import Cell, Table
from lcrag.methods.translate_r1.pipeline import STAGES, Attempt, Sources, Tried, Versions, is_whole


def attempt_rows(sources: Sources, tried: Iterable[Iterable[Tried[Versions]]]) -> Iterator[dict[str, Any]]:
    """Every attempt: those of the source filter, then lane by lane in the order in which places were dealt sources."""
    for attempt in sources.removed:
        yield _attempt_row(attempt)
    for lane in tried:
        for each in lane:
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
    """The questions of all filled places as `lcrag.data.jsonl_questions` reads them.

    Versions of one question share their id; where there are several data sets it begins with the data set's name.
    """
    questions = [
        question
        for lane in tried
        for each in lane
        if is_whole(each.result)
        for version in each.result
        for question in version.questions
    ]
    several = len({question.dataset for question in questions}) > 1
    return [_question_row(question, question.coupling if several else question.id) for question in questions]


def _question_row(question: Question, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "language": question.language,
        "question": question.text,
        "answers": list(question.answers),
        "extra": question.extra,
    }


def report_tables(report: Mapping[str, Any]) -> list[Table]:
    """The tables of a report: what the source filter removed, and what the other stages did in each language."""
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
