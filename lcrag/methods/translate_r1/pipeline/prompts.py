"""The prompts of the translator and the judge (Translate-R1, appendix L)."""

from collections.abc import Mapping

from lcrag.data.languages import language_of
from lcrag.methods.translate_r1.pipeline.domains import Domain, TextKind
from lcrag.methods.translate_r1.pipeline.parts import split_label, written

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


def translation_prompt(parts: Mapping[str, str], kind: TextKind, source: str, target: str) -> str:
    """Builds the prompt that asks for the translation of parts, from one language (by its code) to another."""
    return _TRANSLATE.format(
        called=kind.called,
        source=language_of(source).name,
        target=language_of(target).name,
        keep=kind.keep,
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
