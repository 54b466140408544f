"""MGSM: 250 word problems of GSM8K's test set, translated by people into ten languages (Shi et al., 2023).

https://arxiv.org/abs/2210.03057; the official files are `mgsm_<language>.tsv`, a problem and its answer a line, and
line n is the same problem in every language.
"""

import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence

from lcrag.data.files import data_file
from lcrag.data.questions import MATHEMATICS, Question
from lcrag.data.rows import BadRows, read_text
from lcrag.data.tiers import tier_of
from lcrag.errors import UserError

DATASET = "mgsm"
LANGUAGES = ("en", "bn", "de", "es", "fr", "ja", "ru", "sw", "te", "th", "zh")
SOURCE = "https://github.com/google-research/url-nlp/raw/main/mgsm/"
# As Translate-R1 reports them (section 6.7).
TIERS: Mapping[str, tuple[str, ...]] = {
    "high": ("en", "bn", "de", "es", "fr", "ja", "ru", "th", "zh"),
    "low": ("sw", "te"),
}
_ANSWER = re.compile(r"-?\d{1,3}(?:,\d{3})+(?:\.\d+)?|-?\d+(?:\.\d+)?")


def mgsm_questions(
    folder: pathlib.Path,
    languages: Sequence[str] = LANGUAGES,
    *,
    tiers: Mapping[str, Sequence[str]] = TIERS,
    bad_rows: BadRows,
) -> list[Question]:
    """The problems, every language version of one together; an id is the number of its line, from 1.

    A thousands separator of an answer is left out; the answer as it is written is an alias. A problem that some
    language lacks is dropped for all.

    Args:
      folder: Where the official files are.
      languages: Languages to ask in.
      tiers: Tier -> its languages.
      bad_rows: What becomes of rows that cannot be used.

    Raises:
      UserError: an unknown language, one in no tier, a missing file, or a bad row.
    """
    if unknown := [code for code in languages if code not in LANGUAGES]:
        raise UserError(f"mgsm has no problems in {unknown[0]!r}: use some of {' '.join(LANGUAGES)}")
    versions = [dict(_read(folder, language, tier_of(language, tiers), bad_rows)) for language in languages]
    shared = [line for line in versions[0] if all(line in version for version in versions)] if versions else []
    return [version[line] for line in shared for version in versions]


def _read(folder: pathlib.Path, language: str, tier: str, bad_rows: BadRows) -> Iterator[tuple[int, Question]]:
    name = f"mgsm_{language}.tsv"
    path = data_file(folder, (name,), SOURCE + name)
    good, before = 0, len(bad_rows.problems)
    for number, line in enumerate(read_text(path).removeprefix("\ufeff").split("\n"), start=1):
        if not line.strip():
            continue
        text, _, answer = (part.strip() for part in line.rpartition("\t"))
        if not text or "\t" in text:
            bad_rows.add(path, number, "", "expected a problem, a tab and its answer")
        elif not _ANSWER.fullmatch(answer):
            bad_rows.add(path, number, "answer", f"expected a number, not {answer!r}")
        else:
            good += 1
            yield number, _question(number, language, tier, text, answer)
    if not good:
        problems = bad_rows.problems[before:]
        raise UserError(f"no row of {path} can be used: {problems[0] if problems else 'the file is empty'}")


def _question(number: int, language: str, tier: str, text: str, answer: str) -> Question:
    return Question(
        id=str(number),
        dataset=DATASET,
        language=language,
        text=text,
        answers=tuple(dict.fromkeys((answer.replace(",", ""), answer))),
        extra={"domain": MATHEMATICS, "tier": tier},
    )
