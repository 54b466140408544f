"""The parts of a question that are translated, how prompts show them, and the questions made of their translations."""

import dataclasses
import json
import re
import string
from collections.abc import Mapping
from typing import Any

from lcrag.data.questions import Question, with_question_mark
from lcrag.data.tiers import ALL_TIERS
from lcrag.methods.translate_r1.pipeline.domains import MULTIPLE_CHOICE, QUESTION, TRANSLATION, Domain, TextKind

Parts = dict[str, str]

LABEL, TEXT = "label", "text"

_TEXT = "question"
_TAGGED = re.compile(r"<output>(.*?)</output>", re.DOTALL | re.IGNORECASE)
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_OPTION = re.compile(r"^[ \t]*(?P<mark>\(?(?P<key>[A-Z])[.):])[ \t]*", re.MULTILINE)


@dataclasses.dataclass(frozen=True)
class Options:
    """A multiple-choice question: its stem, and by letter the options and their marks, such as `A.` or `(A)`."""

    stem: str
    texts: Mapping[str, str]
    marks: Mapping[str, str]


def split_options(text: str) -> Options | None:
    """Splits a question at its last lines that begin with A, B, C, ... in turn; None if there are none."""
    found: list[re.Match[str]] = []
    for match in _OPTION.finditer(text):
        if match["key"] == "A":
            found = [match]
        elif found and match["key"] == string.ascii_uppercase[len(found)]:
            found.append(match)
    if not found:
        return None
    ends = [match.start() for match in found[1:]] + [len(text)]
    return Options(
        stem=text[: found[0].start()].strip(),
        texts={match["key"]: text[match.end() : end].strip() for match, end in zip(found, ends, strict=True)},
        marks={match["key"]: match["mark"] for match in found},
    )


def join_options(stem: str, texts: Mapping[str, str], marks: Mapping[str, str]) -> str:
    """Joins a question and its options, one option a line."""
    return "\n".join([stem, *(f"{marks[key]} {text}" for key, text in texts.items())])


@dataclasses.dataclass(frozen=True)
class Portion:
    """Parts that are translated and checked together; `name` is `LABEL` or `TEXT`, empty if all parts go together."""

    name: str
    kind: TextKind
    parts: Parts


def parts_of(question: Question, domain: Domain) -> Parts:
    """Returns the texts to translate: the question, its options, and answers with letters if answers are texts."""
    options = split_options(question.text) if domain is MULTIPLE_CHOICE else None
    if options is not None:
        return {_TEXT: options.stem, **options.texts}
    answers = enumerate(question.answers, start=1) if domain.answers else ()
    return {_TEXT: question.text} | {_answer(number): text for number, text in answers if any(map(str.isalpha, text))}


def portions_of(parts: Parts, domain: Domain) -> list[Portion]:
    """Returns the portions to translate, in order: in a domain with a label, first the label (appendix J)."""
    text, labels = split_label(parts)
    if domain.label is None or not labels:
        return [Portion("", domain.text, parts)]
    return [Portion(LABEL, domain.label, labels), Portion(TEXT, domain.text, text)]


def split_label(parts: Mapping[str, str]) -> tuple[Parts, Parts]:
    """Splits parts into the question's text and all others."""
    return {_TEXT: parts[_TEXT]}, {key: part for key, part in parts.items() if key != _TEXT}


def joined(parts: Mapping[str, str]) -> str:
    """Joins all parts into one text, on which similarities and lengths are measured."""
    return "\n".join(parts.values())


def written(parts: Mapping[str, str]) -> str:
    """Writes the parts for a prompt: a single one as plain text, several as a JSON object."""
    return joined(parts) if len(parts) == 1 else json.dumps(dict(parts), ensure_ascii=False, indent=1)


def parts_in(answer: str, like: Mapping[str, str]) -> Parts | None:
    """Reads the parts in a model's answer, between its last `<output>` and `</output>`, under the keys of `like`.

    None if there are no tags, or a part is missing, empty or unexpected.
    """
    tagged = _TAGGED.findall(answer)
    if not tagged:
        return None
    parts = {next(iter(like)): tagged[-1]} if len(like) == 1 else _object(tagged[-1])
    if parts.keys() != like.keys() or not all(isinstance(text, str) and text.strip() for text in parts.values()):
        return None
    return {key: parts[key].strip() for key in like}


def versions_of(question: Question, domain: Domain, parts: Mapping[str, str], language: str) -> list[Question]:
    """Builds the questions of a translation: one, or in the domain `translation` one for each direction.

    `parts` has the keys of `parts_of`. `extra["original"]` keeps the original text, `extra["translated_from"]` its
    language.
    """
    if domain is TRANSLATION:
        return _both_directions(question, parts[_TEXT], language)
    answers = (parts.get(_answer(number), text) for number, text in enumerate(question.answers, start=1))
    options = split_options(question.text) if domain is MULTIPLE_CHOICE else None
    text = parts[_TEXT]
    if options is not None:
        text = join_options(text, {key: parts[key] for key in options.texts}, options.marks)
    return [
        dataclasses.replace(
            question,
            language=language,
            text=with_question_mark(text) if domain is QUESTION else text,
            answers=tuple(dict.fromkeys(answers)),
            extra=_extra(question, language) | {"translated_from": question.language, "original": question.text},
        )
    ]


def _both_directions(question: Question, translation: str, language: str) -> list[Question]:
    """From the language and into it; the ids contain both languages."""
    sides = {question.language: question.text, language: translation}
    return [
        dataclasses.replace(
            question,
            id=f"{question.id}/{source}-{target}",
            language=source,
            text=sides[source],
            answers=(sides[target],),
            extra=_extra(question, source) | {"answer_language": target},
        )
        for source, target in ((language, question.language), (question.language, language))
    ]


def _extra(question: Question, language: str) -> dict[str, Any]:
    """The question's `extra` with the tier of another language, if that has one."""
    kept = {key: value for key, value in question.extra.items() if key != "tier"}
    tier = next((tier for tier, languages in ALL_TIERS.items() if language in languages), None)
    return kept if tier is None else kept | {"tier": tier}


def _answer(number: int) -> str:
    return f"answer {number}"


def _object(text: str) -> dict[str, Any]:
    """Returns the JSON object in a text, or {} without one."""
    found = _OBJECT.search(text)
    try:
        value = json.loads(found[0]) if found else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
