"""Searches passages for gold answers: one pass over a collection looks for the golds of all questions at once.

A passage holds a gold if it contains it after the normalisation of the metrics (`lcrag.rewards.text.normalise`): as
whole words in scripts with spaces between words, and anywhere in other scripts and in Korean, whose particles are
attached to words. Another meaning of the same words counts too: the result is an upper bound of what can be answered.
"""

import dataclasses
import functools
import itertools
import json
import pathlib
import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import ahocorasick

from lcrag.data.questions import Question
from lcrag.errors import UserError
from lcrag.evaluation.answered import Answered
from lcrag.retrieval.passages import Passage, passage_text
from lcrag.rewards.code_points import normalised
from lcrag.rewards.shared_units import GRAM_LENGTH
from lcrag.rewards.text import normalise

EXACT, NORMALISED, ALIAS, VERSION = LEVELS = ("exact", "normalised", "alias", "version")
SHORT, YES_NO, NO_GOLD = KINDS = ("short_gold", "yes_no", "no_gold")
NATIVELY, ELSEWHERE, NOT_ANSWERABLE = "answerable_natively", "answerable_elsewhere", "not_answerable"
STRATA = (NATIVELY, ELSEWHERE, NOT_ANSWERABLE, *KINDS)
ROWS = "audit.jsonl"
_AT_ONCE = 1024  # passages that are normalised in one batch
_WORDS = "\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"  # scripts in which two characters are often a word
_UNSPACED = f"{_WORDS}\u3040-\u30ff\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_ANY_UNSPACED = re.compile(f"[{_UNSPACED}]")
_EDGE = re.compile(f"(?<=[{_UNSPACED}])(?=[^\\s{_UNSPACED}])|(?<=[^\\s{_UNSPACED}])(?=[{_UNSPACED}])")
_WORD_SIGN = re.compile(f"[{_WORDS}]")
_OUTER_SPACE = re.compile(f"^ (?=[{_UNSPACED}])|(?<=[{_UNSPACED}]) $")


def searchable(texts: Iterable[str]) -> list[str]:
    """Returns normalised texts with a space at both ends and at every edge of a word.

    Spaces replace punctuation and symbols of any script, some of which the metrics' normalisation keeps, and separate
    scripts without spaces from others.
    """
    signs = _signs()
    return [f" {_spaced(signs.sub(' ', text))} " for text in normalised(texts)]


def _spaced(text: str) -> str:
    return " ".join((_EDGE.sub(" ", text) if _ANY_UNSPACED.search(text) else text).split())


@functools.cache
def _signs() -> re.Pattern[str]:
    """Returns a pattern of all punctuation and symbols of the basic plane; compiling it takes a while."""
    signs = (chr(code) for code in range(0x10000) if unicodedata.category(chr(code))[0] in "PS")
    return re.compile(f"[{re.escape(''.join(signs))}]")


def patterns(golds: Sequence[str]) -> list[str]:
    """Returns the pattern of each gold in a searchable text; empty for a gold that normalisation leaves empty."""
    return [_OUTER_SPACE.sub("", text) if text.strip() else "" for text in searchable(golds)]


def holds(texts: Iterable[str], golds: Sequence[str]) -> bool:
    """Whether a text holds a gold."""
    wanted = list(filter(None, patterns(golds)))
    return any(pattern in text for text in searchable(texts) for pattern in wanted)


def held_golds(
    passages: Iterable[Passage], golds: Collection[str], progress: Callable[[int], None] | None = None
) -> dict[str, bool]:
    """Returns every gold that some passage (title included) holds -> whether a passage holds it exactly as written.

    It needs memory for the golds' automaton, about a hundred bytes per character, and for 1,024 passages.

    Args:
      passages: Passages of one collection, read once.
      golds: Gold answers.
      progress: Called with the number of passages read so far.
    """
    distinct = list(dict.fromkeys(golds))
    wanted: dict[str, list[str]] = {}
    for gold, pattern in zip(distinct, patterns(distinct), strict=True):
        if pattern:
            wanted.setdefault(pattern, []).append(gold)
    held: dict[str, bool] = {}
    built, automaton = 0, None
    read, stream = 0, iter(passages)
    while batch := list(itertools.islice(stream, _AT_ONCE)):
        if not wanted:
            break
        if automaton is None or 2 * len(wanted) < built:  # frequent golds are found soon, and then left out
            built, automaton = len(wanted), _automaton(wanted)
        written = [passage_text(passage) for passage in batch]
        for text, form in zip(written, searchable(written), strict=True):
            for pattern in {found for _, found in automaton.iter(form)} & wanted.keys():
                for gold in wanted[pattern]:
                    held[gold] = held.get(gold, False) or gold in text
                if all(held[gold] for gold in wanted[pattern]):
                    del wanted[pattern]
        read += len(batch)
        if progress is not None:
            progress(read)
    return held


def _automaton(wanted: Iterable[str]) -> ahocorasick.Automaton:
    automaton = ahocorasick.Automaton()
    for pattern in wanted:
        automaton.add_word(pattern, pattern)
    automaton.make_automaton()
    return automaton


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audited:
    """The result of an audit for one question; a row of `audit.jsonl`.

    Attributes:
      split, dataset, question_id, language: The question.
      kind: "short_gold" if no gold has three characters, of which Han and Hangul count twice; "yes_no" for a verdict;
        both match nearly everywhere. "no_gold" without a gold. Else empty.
      held: Language of a collection that holds a gold -> how: "exact", the first gold as written; "normalised", the
        first gold; "alias", another one; "version", a gold of the question's version in the collection's language.
      ranks: Language of a collection -> rank of the first passage that holds a gold, with the question as the query;
        languages without one are left out; None: not searched for.
      observed: Number of a search of the program -> whether it found a gold, and whether its observation shows one.
      stratum: The part of the data to which it belongs, one of `STRATA`.
    """

    split: str
    dataset: str
    question_id: str
    language: str
    kind: str = ""
    held: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ranks: Mapping[str, int] | None = None
    observed: Mapping[str, Sequence[bool]] = dataclasses.field(default_factory=dict)
    stratum: str = ""

    @property
    def key(self) -> str:
        """`Question.key` of the question."""
        return f"{self.dataset}/{self.question_id}/{self.language}"

    def stratified(self, within: int | None = None) -> "Audited":
        """Returns the row with its stratum, by all passages or by the first `within` passages of its search."""
        held = self.held if within is None else [code for code, rank in (self.ranks or {}).items() if rank <= within]
        place = NATIVELY if self.language in held else ELSEWHERE if held else NOT_ANSWERABLE
        return dataclasses.replace(self, stratum=self.kind or place)


class Golds:
    """The golds to look for, of each question in each collection; short aliases of a longer gold are left out.

    Args:
      questions: All questions, with their known versions in other languages.
    """

    def __init__(self, questions: Iterable[Question]):
        self._versions: dict[str, dict[str, Question]] = {}
        for question in questions:
            self._versions.setdefault(question.coupling, {})[question.language] = question

    def of(self, question: Question, collection: str) -> tuple[str, ...]:
        """Returns the golds of a question, and those of its version in a collection's language."""
        version = self._versions[question.coupling].get(collection, question)
        return tuple(dict.fromkeys(_telling(question.answers) + _telling(version.answers)))

    def all_of(self, collection: str) -> set[str]:
        """Returns the golds of all questions that a collection may hold."""
        asked = (each for versions in self._versions.values() for each in versions.values())
        return {gold for question in asked for gold in self.of(question, collection)}

    def level(self, question: Question, collection: str, held: Mapping[str, bool]) -> str:
        """Returns how a collection holds a question's gold, one of `LEVELS`; empty: not at all."""
        own = _telling(question.answers)
        if own and own[0] in held:
            return EXACT if held[own[0]] else NORMALISED
        if any(gold in held for gold in own):
            return ALIAS
        return VERSION if any(gold in held for gold in self.of(question, collection)) else ""

    def kind(self, question: Question) -> str:
        """Returns one of `KINDS`, or ""; a verdict in one language is one in all."""
        if not any(map(normalise, question.answers)):
            return NO_GOLD
        versions = self._versions[question.coupling].values()
        if any(all(map(_is_verdict, version.answers)) for version in versions if version.answers):
            return YES_NO
        return SHORT if _is_short(_telling(question.answers)[0]) else ""


@functools.lru_cache(1 << 16)
def _telling(golds: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the golds that are not short, or all if all are."""
    return tuple(gold for gold in golds if not _is_short(gold)) or tuple(golds)


def _is_short(gold: str) -> bool:
    return len(_WORD_SIGN.sub("xx", normalise(gold))) < GRAM_LENGTH


def _is_verdict(gold: str) -> bool:
    return normalise(gold) in ("yes", "no") and not gold.isupper()  # NO is Norway


def read_audit(folder: str | pathlib.Path) -> dict[str, Audited]:
    """Reads the rows that `lcrag audit` wrote into a folder, by `Question.key`.

    Raises:
      UserError: there is no audit, or a row is damaged.
    """
    path = pathlib.Path(folder) / ROWS
    if not path.is_file():
        raise UserError(f"no audit in {folder}: write one with `lcrag audit --output_dir={folder}` first")
    rows = {}
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = Audited(**json.loads(line))
        except (ValueError, TypeError) as error:
            raise UserError(f"{path}, line {number}, is no row of an audit ({error}): audit again") from error
        rows[row.key] = row
    return rows


def strata(audit: str | pathlib.Path, keys: Collection[str]) -> dict[str, str]:
    """Returns the stratum of each question, given as `Question.key`, by the audit in a folder.

    Raises:
      UserError: the audit cannot be read, or lacks a question.
    """
    rows = read_audit(audit)
    if missing := [key for key in keys if key not in rows]:
        raise UserError(
            f"the audit in {audit} lacks {len(missing):,} of the {len(keys):,} questions, such as {missing[0]}: audit"
            " the experiment whose answers are to be stratified"
        )
    return {key: rows[key].stratum for key in keys}


def stratified(answered: Sequence[Answered], audit: str | pathlib.Path) -> list[Answered]:
    """Returns answers with their strata by the audit in a folder among their subsets, in place of earlier ones.

    Raises:
      UserError: the audit cannot be read, or lacks a question.
    """
    keys = [f"{each.cluster}/{each.language}" for each in answered]
    found = strata(audit, keys)
    return [
        dataclasses.replace(each, subsets=(*(name for name in each.subsets if name not in STRATA), found[key]))
        for key, each in zip(keys, answered, strict=True)
    ]
