"""What of a question is translated: its named parts, how a prompt shows them, and the question made of them again."""

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

from lcrag.data.questions import Question, with_question_mark
from lcrag.data.tiers import ALL_TIERS
from lcrag.methods.translate_r1.pipeline.domains import MULTIPLE_CHOICE, QUESTION, TRANSLATION, Domain, TextKind
from lcrag.methods.translate_r1.pipeline.options import join_options, split_options

Parts = dict[str, str]

LABEL, TEXT = "label", "text"

_TEXT = "question"
_TAGGED = re.compile(r"<output>(.*?)</output>", re.DOTALL | re.IGNORECASE)
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Portion:
    """Parts that are translated and checked together.

    Attributes:
      name: `LABEL` or `TEXT`; empty where all parts go together.
      kind: What they are.
      parts: The parts.
    """

    name: str
    kind: TextKind
    parts: Parts


def parts_of(question: Question, domain: Domain) -> Parts:
    """The texts that a translator is given: the question, its options, and answers with letters if they are texts."""
    options = split_options(question.text) if domain is MULTIPLE_CHOICE else None
    if options is not None:
        return {_TEXT: options.stem, **options.texts}
    answers = enumerate(question.answers, start=1) if domain.answers else ()
    return {_TEXT: question.text} | {_answer(number): text for number, text in answers if _has_letters(text)}


def portions_of(parts: Parts, domain: Domain) -> list[Portion]:
    """What is translated one after the other: in a domain with a label that, and then the text (Appendix J)."""
    text, labels = split_label(parts)
    if domain.label is None or not labels:
        return [Portion("", domain.text, parts)]
    return [Portion(LABEL, domain.label, labels), Portion(TEXT, domain.text, text)]


def split_label(parts: Mapping[str, str]) -> tuple[Parts, Parts]:
    """The text of a question, and what stands beside it."""
    return {_TEXT: parts[_TEXT]}, {key: part for key, part in parts.items() if key != _TEXT}


def joined(parts: Mapping[str, str]) -> str:
    """All parts as one text, as similarities and lengths are measured on."""
    return "\n".join(parts.values())


def written(parts: Mapping[str, str]) -> str:
    """The parts as a prompt shows them: one is plain text, several are a JSON object."""
    return joined(parts) if len(parts) == 1 else json.dumps(dict(parts), ensure_ascii=False, indent=1)


def parts_in(said: str, like: Mapping[str, str]) -> Parts | None:
    """The parts in a model's answer, between its last `<output>` and `</output>`.

    Returns:
      The parts, under the keys of `like`; None where there are no tags, a part is missing or empty, or one too many.
    """
    tagged = _TAGGED.findall(said)
    if not tagged:
        return None
    parts = {next(iter(like)): tagged[-1]} if len(like) == 1 else _object(tagged[-1])
    if parts.keys() != like.keys() or not all(isinstance(text, str) and text.strip() for text in parts.values()):
        return None
    return {key: parts[key].strip() for key in like}


def versions_of(question: Question, domain: Domain, parts: Mapping[str, str], language: str) -> list[Question]:
    """The questions that a translation makes: one, or in the domain `translation` one for each direction.

    The original text stays in `extra["original"]`, its language in `extra["translated_from"]`.

    Args:
      question: The source.
      domain: Its domain.
      parts: The translation, with the keys of `parts_of`.
      language: What it is in.
    """
    if domain is TRANSLATION:
        return _both_directions(question, parts[_TEXT], language)
    answers = (parts.get(_answer(number), text) for number, text in enumerate(question.answers, start=1))
    text = _text(question, domain, parts)
    return [
        dataclasses.replace(
            question,
            language=language,
            text=with_question_mark(text) if domain is QUESTION else text,
            answers=tuple(dict.fromkeys(answers)),
            extra=_extra(question, language) | {"translated_from": question.language, "original": question.text},
        )
    ]


def _text(question: Question, domain: Domain, parts: Mapping[str, str]) -> str:
    options = split_options(question.text) if domain is MULTIPLE_CHOICE else None
    if options is None:
        return parts[_TEXT]
    return join_options(parts[_TEXT], {key: parts[key] for key in options.texts}, options.marks)


def _both_directions(question: Question, translation: str, language: str) -> list[Question]:
    """From the language and into it; their ids tell them from those of other languages."""
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
    """What belongs to the question whatever its language, and the tier of the language if it is in one."""
    kept = {key: value for key, value in question.extra.items() if key != "tier"}
    tier = next((tier for tier, languages in ALL_TIERS.items() if language in languages), None)
    return kept if tier is None else kept | {"tier": tier}


def _answer(number: int) -> str:
    return f"answer {number}"


def _object(text: str) -> dict[str, Any]:
    """The JSON object in a text, {} if there is none."""
    found = _OBJECT.search(text)
    try:
        value = json.loads(found[0]) if found else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _has_letters(text: str) -> bool:
    return any(character.isalpha() for character in text)
