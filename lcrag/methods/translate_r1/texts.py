"""The texts of a question that are translated: rules of each domain, parts, prompts, and the questions made of them."""

import dataclasses
import json
import re
import string
from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from lcrag.data import questions as names
from lcrag.data.questions import ALL_TIERS, Question, language_of, with_question_mark
from lcrag.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Domain:
    """A domain of questions, and how the translator's prompt describes its texts."""

    name: str  # one of `lcrag.data.questions.DOMAINS`, or "question" for questions without a domain
    called: str  # the text that is translated, the question with everything in the same request
    keep: str  # what the translator must not change
    max_tokens: int = 2048  # of a model's translation
    compared: str = ""  # what the judge decides
    answers: bool = False  # whether golden answers are texts in the question's language, which are translated too
    label: "Domain | None" = None  # of the answers if they are translated and checked separately, before the text


_SAME_ANSWER = "whether the two have the same correct answer"
_SAME_MEANING = "whether the two mean the same"
_NUMBERS_AND_NAMES = "Keep numbers and dates right, and use the usual form of a name in the other language."

MATHEMATICS = Domain(
    name=names.MATHEMATICS,
    called="a mathematical problem",
    keep="Keep all mathematical notation (LaTeX, equations, numbers, variable names) exactly as it is. Translate only"
    " the natural language.",
    compared=_SAME_ANSWER,
)
MULTIPLE_CHOICE = Domain(
    name=names.MULTIPLE_CHOICE,
    called="a multiple-choice question",
    keep="Keep all mathematical notation, numbers, units and formulas exactly as they are, and every option under its"
    " own key.",
    compared=_SAME_ANSWER,
)
INSTRUCTION_FOLLOWING = Domain(
    name=names.INSTRUCTION_FOLLOWING,
    called="an instruction to a writer",
    keep="Keep every word between quotation marks, every number and every mark of format exactly as it is: the result"
    " of the instruction is checked against them.",
    compared="whether the two ask for the same text under the same constraints",
)
SUMMARISATION = Domain(
    name=names.SUMMARISATION,
    called="an article",
    keep=_NUMBERS_AND_NAMES,
    compared=_SAME_MEANING,
    answers=True,
    label=Domain(name="summary", called="a summary of an article", keep=_NUMBERS_AND_NAMES, max_tokens=512),
)
TRANSLATION = Domain(
    name=names.TRANSLATION, called="a text", keep=_NUMBERS_AND_NAMES, max_tokens=512, compared=_SAME_MEANING
)
QUESTION = Domain(
    name="question",
    called="a question of a quiz with its answers",
    keep=_NUMBERS_AND_NAMES,
    compared=_SAME_ANSWER,
    answers=True,
)

DOMAINS = {
    domain.name: domain
    for domain in (MATHEMATICS, MULTIPLE_CHOICE, INSTRUCTION_FOLLOWING, SUMMARISATION, TRANSLATION, QUESTION)
}


def domain_of(question: Question) -> Domain:
    """Returns the domain of a question, `QUESTION` (short answers in its language) if it names none."""
    name = question.domain or QUESTION.name
    if name not in DOMAINS:
        raise UserError(
            f"the question {question.id} of {question.dataset} is of the domain {name!r}: give it one of"
            f" {', '.join(DOMAINS)}"
        )
    return DOMAINS[name]


Parts: TypeAlias = dict[str, str]

LABEL, TEXT = "label", "text"
_TEXT = "question"  # the part that all questions have


class Options(NamedTuple):
    """A multiple-choice question: its stem, and by letter the options and their marks, such as `A.` or `(A)`."""

    stem: str
    texts: Mapping[str, str]
    marks: Mapping[str, str]


_OPTION = re.compile(r"^[ \t]*(?P<mark>\(?(?P<key>[A-Z])[.):])[ \t]*", re.MULTILINE)


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


def parts_of(question: Question, domain: Domain) -> Parts:
    """Returns the texts to translate: the question, its options, and answers with letters if answers are texts."""
    options = split_options(question.text) if domain is MULTIPLE_CHOICE else None
    if options is not None:
        return {_TEXT: options.stem, **options.texts}
    answers = enumerate(question.answers, start=1) if domain.answers else ()
    return {_TEXT: question.text} | {f"answer {n}": text for n, text in answers if any(map(str.isalpha, text))}


def portions_of(parts: Parts, domain: Domain) -> list[tuple[str, Domain, Parts]]:
    """Returns (name, domain, parts) of the portions that are translated and checked one after the other.

    In a domain with a label that comes first (appendix J), as `LABEL`, and then the rest as `TEXT`. In the others all
    parts go together, and the name is empty.
    """
    text, labels = split_label(parts)
    if domain.label is None or not labels:
        return [("", domain, parts)]
    return [(LABEL, domain.label, labels), (TEXT, domain, text)]


def split_label(parts: Mapping[str, str]) -> tuple[Parts, Parts]:
    """Splits parts into the question's text and all others."""
    return {_TEXT: parts[_TEXT]}, {key: part for key, part in parts.items() if key != _TEXT}


def joined(parts: Mapping[str, str]) -> str:
    """Joins all parts into one text, on which similarities and lengths are measured."""
    return "\n".join(parts.values())


def written(parts: Mapping[str, str]) -> str:
    """Writes the parts for a prompt: a single one as plain text, several as a JSON object."""
    return joined(parts) if len(parts) == 1 else json.dumps(dict(parts), ensure_ascii=False, indent=1)


_TAGGED = re.compile(r"<output>(.*?)</output>", re.DOTALL | re.IGNORECASE)


def parts_in(answer: str, like: Mapping[str, str]) -> Parts | None:
    """Reads the parts in a model's answer, between its last `<output>` and `</output>`, under the keys of `like`.

    None if there are no tags, or a part is missing, empty or unexpected.
    """
    tagged = _TAGGED.findall(answer)
    if not tagged:
        return None
    parts: Any = {next(iter(like)): tagged[-1]}
    if len(like) > 1:
        try:
            parts = json.loads(re.search(r"\{.*\}", tagged[-1], re.DOTALL)[0])  # type: ignore[index]
        except (TypeError, ValueError):  # no object, or no JSON
            return None
    if parts.keys() != like.keys() or not all(isinstance(text, str) and text.strip() for text in parts.values()):
        return None
    return {key: parts[key].strip() for key in like}


def versions_of(question: Question, domain: Domain, parts: Mapping[str, str], language: str) -> list[Question]:
    """Builds the questions of a translation: one, or in the domain `translation` one for each direction.

    `parts` has the keys of `parts_of`. `extra["original"]` keeps the original text, `extra["translated_from"]` its
    language. In the domain `translation` the ids contain both languages.
    """

    def extra_in(code: str) -> dict[str, Any]:
        kept = {key: value for key, value in question.extra.items() if key != "tier"}
        tier = next((tier for tier, languages in ALL_TIERS.items() if code in languages), None)
        return kept if tier is None else kept | {"tier": tier}

    text = parts[_TEXT]
    if domain is TRANSLATION:
        sides = {question.language: question.text, language: text}
        return [
            dataclasses.replace(
                question,
                id=f"{question.id}/{source}-{target}",
                language=source,
                text=sides[source],
                answers=(sides[target],),
                extra=extra_in(source) | {"answer_language": target},
            )
            for source, target in ((language, question.language), (question.language, language))
        ]
    if domain is MULTIPLE_CHOICE and (options := split_options(question.text)):
        text = "\n".join([text, *(f"{options.marks[key]} {parts[key]}" for key in options.texts)])
    answers = (parts.get(f"answer {number}", answer) for number, answer in enumerate(question.answers, start=1))
    return [
        dataclasses.replace(
            question,
            language=language,
            text=with_question_mark(text) if domain is QUESTION else text,
            answers=tuple(dict.fromkeys(answers)),
            extra=extra_in(language) | {"translated_from": question.language, "original": question.text},
        )
    ]


# The prompts of the translator and the judge (Translate-R1, appendix L).
_TRANSLATE = """\
Translate {called} from {source} to {target}. {keep}{form}
Add nothing, leave nothing out, and do not solve or answer it.
Write only the translation, between <output> and </output>.

<input>
{text}
</input>"""

_FORM = " The input is a JSON object: keep its keys and translate its values."

_JUDGE = """\
An original text was translated into another language and back. Decide {compared}.

Ignore other names of persons and places, another story around the same facts, rephrasing, formatting and word order.
It is DIFFERENT if a number, an operation, a definition, a constraint or the question itself changed, if information is
missing, or if one of them gives the answer away and the other does not.

<original>
{original}
</original>

<back_translation>
{back}
</back_translation>

Write SAME or DIFFERENT between <verdict> and </verdict>, and nothing else."""

_COHERENCE = """\
A text and a summary of it were translated into another language and back, each for itself. Decide whether the two still
say the same: whether the summary still summarises the text.

Ignore style, rephrasing, formatting, and names of persons and places that are written in two ways.
It is DIFFERENT if the summary says what the text does not, contradicts it, or is about something else.

<text>
{text}
</text>

<summary>
{summary}
</summary>

Write SAME or DIFFERENT between <verdict> and </verdict>, and nothing else."""


def translation_prompt(parts: Mapping[str, str], domain: Domain, source: str, target: str) -> str:
    """Builds the prompt that asks for the translation of parts, from one language (by its code) to another."""
    return _TRANSLATE.format(
        called=domain.called,
        source=language_of(source).name,
        target=language_of(target).name,
        keep=domain.keep,
        form=_FORM if len(parts) > 1 else "",
        text=written(parts),
    )


def judge_prompt(original: Mapping[str, str], back: Mapping[str, str], domain: Domain) -> str:
    """Builds the prompt that asks whether a back-translation keeps what matters of the original.

    A label and a text that were translated separately have each passed the round trip already; the prompt then asks
    whether the two back-translations belong together (appendix J's cross-coherence).
    """
    text, labels = split_label(back)
    if domain.label is not None and labels:
        return _COHERENCE.format(text=written(text), summary=written(labels))
    return _JUDGE.format(compared=domain.compared, original=written(original), back=written(back))
