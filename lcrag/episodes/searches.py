"""Searches: which collections one goes to, and how the policy sees the passages that it finds.

A search's passages become one `<information>` block within a token budget, tags included, which are never cut. The rest
is divided fairly over the searched languages, so every language that found something is visible. If the passages of a
language exceed its share, the sentences that match the query best are kept, or the first passages. At most
`READ_CHARACTERS` of a passage are read, which bounds the work on hostile text.
"""

import collections
import dataclasses
import functools
import itertools
import math
import random
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

import gin
import regex

from lcrag.data.questions import LCRL_TRAINING, Question
from lcrag.episodes.programs import Found, FoundPassage, RetrievalFailure, TextTokenizer
from lcrag.episodes.tags import neutralise
from lcrag.errors import Count, lookup, typed
from lcrag.rewards.text import SENTENCE_MARK, UNSPACED, folded

# --- Routes and choices of collections ---

Route: TypeAlias = Callable[[int, str, Sequence[str]], tuple[str, ...]]
CollectionChoice: TypeAlias = Callable[[Question, Sequence[str]], Sequence[str]]

# The languages of MKQA and XOR-TyDi QA by the articles of their Wikipedia editions (2024), largest first.
BY_SIZE = ("en", "de", "fr", "ru", "es", "it", "zh", "ja", "ar", "pt", "ko", "fi", "th", "bn", "te")
HIGH_RESOURCE = BY_SIZE[1:8]


@gin.register
def local_first(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """LcRL, section 3.1: the native collection, then all others, then English as the anchor.

    Without other collections the second search stays native; without English the later ones do.
    """
    others = tuple(language for language in collections if language != native)
    if search == 2 and others:
        return others
    return ("en",) if search > 2 and "en" in collections else (native,)


@gin.register
def local_then_eight(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """`local_first` among the native collection and LcRL's eight training languages, as in its authors' code."""
    return local_first(search, native, [code for code in collections if code == native or code in LCRL_TRAINING])


@gin.register
def available_first(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """`local_first`, but languages without a collection start in English, or in the first collection of the set."""
    home = native if native in collections else "en" if "en" in collections else next(iter(collections), native)
    return local_first(search, home, collections)


@gin.register
def native_only(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """The ablation without multi-language rollout: every search goes to the native collection (LcRL, table 2)."""
    return (native,)


@gin.register
def english_only(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """Search-R1: every search goes to the English collection."""
    return ("en",)


@gin.register
def all_at_once(search: int, native: str, collections: Sequence[str]) -> tuple[str, ...]:
    """Every search goes to every collection, the native one first: the "unitive" process that LcRL argues against."""
    return tuple(sorted(collections, key=lambda language: language != native))


@gin.register
def every_collection(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """All languages of the set."""
    return languages


@gin.register
def native_collection(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """Ul: the language of the question."""
    return (question.language,)


@gin.register
def english_collection(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """En: English for every question. Programs that search the native collection also need the route `english_only`."""
    return ("en",)


@gin.register
def native_and_english(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """Ul + En."""
    return _available((question.language, "en"), languages)


@gin.register
def native_english_and_high(question: Question, languages: Sequence[str]) -> Sequence[str]:
    """Ul + En + High: also one other high-resource language, drawn with the question as the seed."""
    others = [code for code in HIGH_RESOURCE if code in languages and code != question.language]
    drawn = random.Random(f"{question.coupling}/{question.language}").choice(others) if others else question.language
    return _available((question.language, "en", drawn), languages)


@gin.configurable(denylist=["question", "languages"])
@typed
def largest_collections(question: Question, languages: Sequence[str], *, count: Count) -> Sequence[str]:
    """`count` languages: the question's, and the largest others."""
    order = sorted(languages, key=lambda code: BY_SIZE.index(code) if code in BY_SIZE else len(BY_SIZE))
    return _available((question.language, *(code for code in order if code != question.language)), languages)[:count]


@gin.configurable(denylist=["question", "languages"])
@typed
def chosen_collections(question: Question, languages: Sequence[str], *, chosen: Sequence[str]) -> Sequence[str]:
    """The question's language, then those of `chosen` in their order."""
    return _available((question.language, *chosen), languages)


def _available(wanted: Sequence[str], languages: Sequence[str]) -> tuple[str, ...]:
    """Returns the wanted languages of the set, each once, and always the first, native one."""
    first, *others = wanted
    return tuple(dict.fromkeys((first, *(code for code in others if code in languages))))


# --- Blocks of passages ---

SEARCH_FAILED = " The search failed. No passages could be retrieved.\n"
NOTHING_FOUND = " No passages were found.\n"
# Characters read of a passage, its title or a model's text: over four times as many as the largest observation in the
# papers' configurations (1,800 tokens) shows. The rest is never read.
READ_CHARACTERS = 2**15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Style:
    """How passages are formatted."""

    before: str  # with the opening tag
    after: str  # with the closing tag
    passage: Callable[[int, str, str], str]  # (number from 1, title, text) -> one passage


STYLES = {
    "atlas": Style(
        before="<information>\n",
        after="</information>\n",
        passage=lambda number, title, text: f" {title}: {text}\n",
    ),
    "search_r1": Style(
        before="\n\n<information>",
        after="</information>\n\n",
        passage=lambda number, title, text: f"Doc {number}(Title: {title}) {text}\n",
    ),
    "rag_r1": Style(
        before="\n\n<information>\n",
        after="</information>\n\n",
        passage=lambda number, title, text: f"Doc {number}: {title} {text}\n",
    ),
}


@dataclasses.dataclass(frozen=True)
class Section:
    """The results of one query in one language, or another text in their place; neutralised."""

    text: str
    query: str = ""  # empty if unknown, and then the text is cut at its end
    passages: tuple[tuple[int, str, str], ...] = ()  # (number, title, text) of each in `text`
    label: str = ""  # a first line of `text`, which no cut loses


def fitted(
    build: Callable[[int], str | None], target_tokens: int, tokenizer: TextTokenizer, room_tokens: int
) -> str | None:
    """Lowers the target of `build` until its text fits: a text may have more tokens than its parts together."""
    while (text := build(target_tokens)) is not None:
        excess = len(tokenizer.encode(text)) - room_tokens
        if excess <= 0:
            return text
        target_tokens -= excess
    return None


@dataclasses.dataclass(frozen=True)
class Information:
    """Passages by language, to be written as one block; a `FittedText` for `Observe`."""

    sections: tuple[Section, ...]  # the results of each query in each searched language, best first; neutralised
    style: Style
    budget_tokens: int  # maximum of the block, tags included

    def fit(self, tokenizer: TextTokenizer, room_tokens: int) -> str | None:
        """Returns the block in at most `room_tokens` and `budget_tokens`; None if a language has no room."""
        budget, style = min(self.budget_tokens, room_tokens), self.style
        needs = [len(tokenizer.encode(section.text)) for section in self.sections]

        def build(body_budget: int) -> str | None:
            if body_budget < len(self.sections):
                return None
            shares = zip(self.sections, share_out(body_budget, needs), strict=True)
            body = "".join(cut_section(section, share, tokenizer, style.passage) for section, share in shares)
            return style.before + neutralise(body) + style.after  # a cut may join two halves of a tag

        return fitted(build, budget - len(tokenizer.encode(style.before + style.after)), tokenizer, budget)


@dataclasses.dataclass(frozen=True)
class Framed:
    """A block of passages inside a longer text; a `FittedText` of which only the block is cut."""

    before: str
    block: Information
    after: str

    def fit(self, tokenizer: TextTokenizer, room_tokens: int) -> str | None:
        """Returns the text in at most `room_tokens`; None if a language has no room for a token."""

        def build(block_room: int) -> str | None:
            block = self.block.fit(tokenizer, block_room)
            return None if block is None else self.before + block + self.after

        frame_tokens = len(tokenizer.encode(self.before)) + len(tokenizer.encode(self.after))
        return fitted(build, room_tokens - frame_tokens, tokenizer, room_tokens)


def statements(texts: Sequence[str], style: str | Style = "atlas", budget_tokens: int = 600) -> Information:
    """Returns texts of models as a block in the style of passages, one section for each; tags are neutralised."""
    sections = tuple(Section(neutralise(text[:READ_CHARACTERS])) for text in texts)
    return Information(sections or (Section(NOTHING_FOUND),), known_style(style), budget_tokens)


def information(
    found: Found | RetrievalFailure,
    style: str | Style = "atlas",
    budget_tokens: int = 600,
    query: str = "",
    shown: int | None = None,
    labels: bool = False,
) -> Information:
    """Returns the observation of a search's results.

    Args:
      found: The answer to a `Retrieve`: for each query, for each language, its hits, best first. A failure is shown
        as a sentence.
      style: Name in `STYLES`, or a style.
      budget_tokens: Maximum number of tokens of the block, tags included (LcRL's code: 600).
      query: The query of passages that a program has gathered from several searches.
      shown: Maximum number of passages of each query: the best over all its languages by their scores; None: all.
      labels: Whether a line `[lang=fr]` precedes the passages of a language, as in LcRL's code.
    """
    chosen = known_style(style)
    if isinstance(found, RetrievalFailure):
        return Information((Section(SEARCH_FAILED),), chosen, budget_tokens)
    queries: Sequence[str] = getattr(found, "queries", None) or (query,) * len(found)
    sections: list[Section] = []
    number = 1  # continues across sections
    for own_query, languages in zip(queries, found, strict=True):
        if shown is not None:
            languages = _best(languages, shown)
        for passages in filter(None, languages):
            language = getattr(passages[0], "language", "") if labels else ""
            label = f"[lang={language}]\n" if language else ""
            sections.append(section_of(passages, chosen, own_query, number, label))
            number += len(passages)
    return Information(tuple(sections) or (Section(NOTHING_FOUND),), chosen, budget_tokens)


def _best(languages: Sequence[Sequence[FoundPassage]], count: int) -> list[list[FoundPassage]]:
    """Returns the `count` passages with the highest scores; earlier languages and passages go first among equals."""
    scores = [getattr(passage, "score", 0.0) for passages in languages for passage in passages]
    kept = sorted(range(len(scores)), key=lambda place: -scores[place])[:count]
    places = itertools.count()
    return [[passage for passage in passages if next(places) in kept] for passages in languages]


def known_style(style: str | Style) -> Style:
    """Returns the style with this name, or the given style; raises a UserError for an unknown name."""
    return style if isinstance(style, Style) else lookup(STYLES, style, "passage style")


def section_of(passages: Sequence[FoundPassage], style: Style, query: str, first: int = 1, label: str = "") -> Section:
    """Returns passages as a neutralised section, numbered from `first`."""

    def on_one_line(text: str) -> str:  # so that one passage cannot look like two; the rest is never read
        return neutralise(" ".join(text[:READ_CHARACTERS].split()))

    ranks = enumerate(passages, start=first)
    numbered = tuple((rank, on_one_line(passage.title), on_one_line(passage.text)) for rank, passage in ranks)
    text = neutralise("".join(style.passage(*passage) for passage in numbered))
    return Section(label + text, query, numbered, label)


def share_out(total: int, needs: Sequence[int]) -> list[int]:
    """Returns max-min fair shares: at most each need, with unneeded parts divided equally among the others.

    An indivisible remainder goes to the first ones, one token each.
    """
    shares = [0] * len(needs)
    left = min(total, sum(needs))
    while left:
        hungry = [index for index, need in enumerate(needs) if shares[index] < need]
        equal = max(left // len(hungry), 1)
        for index in hungry:
            portion = min(equal, needs[index] - shares[index], left)
            shares[index] += portion
            left -= portion
    return shares


# --- Cuts of passages ---

MATCHING, END = "matching", "end"  # values of `Runner.cut_passages`
ELLIPSIS = "…"
# Characters kept of a passage before anything is tokenized: more than the largest observation of the papers'
# configurations (1,800 tokens) shows.
PASSAGE_CHARACTERS = 2**13
_LEAST_TOKENS = 12  # no part of a sentence is shown in fewer
_SENTENCE_END = regex.compile(
    rf"(?V1)(?<=[.．!?…])[\"')\]»”’]*\s+|(?<={SENTENCE_MARK})[」』”’]*+\s*+(?!{SENTENCE_MARK})"
)
_WORD = regex.compile(r"[\p{L}\p{N}\p{M}]+")
_BROKEN_END = re.compile(r"(?:\s\S{0,20}|\d+)$")


def shortened(text: str, query: str, cut_passages: str = MATCHING, characters: int = PASSAGE_CHARACTERS) -> str:
    """Returns at most `characters` of a passage that a query found, without tokenizing it; searching threads call it.

    `MATCHING` keeps the sentences that match the query best, in their order; `END` the first ones.
    """
    if len(text) <= characters:
        return text
    if cut_passages == END:
        return text[:characters]
    sentences, kept, left = sentences_of(text), {}, characters
    for place in ranked(query, sentences):
        room = left - 2 * len(f" {ELLIPSIS} ")
        if room <= 0:
            break
        kept[place] = sentences[place] if len(sentences[place]) <= room else f"{sentences[place][:room]} {ELLIPSIS}"
        left -= len(kept[place]) + len(f" {ELLIPSIS} ")
    return _with_ellipses(kept, len(sentences))[:characters]


def cut_section(section: Section, tokens: int, tokenizer: TextTokenizer, write: Callable[[int, str, str], str]) -> str:
    """Returns a section in about `tokens` tokens, or the whole section if it fits.

    The tokenizer's attribute `cut_passages`, if present, is `MATCHING` or `END`; `write` is that of `Style.passage`.
    """
    if not section.query or not section.passages or getattr(tokenizer, "cut_passages", MATCHING) == END:
        return cut(section.text, tokens, tokenizer)
    if len(tokenizer.encode(section.text)) <= tokens:
        return section.text
    tokens -= len(tokenizer.encode(section.label)) if section.label else 0
    # passage -> sentence -> the kept text; only the last sentence taken is cut
    kept: dict[int, dict[int, str]] = {}
    places = [
        (place, number, sentence)
        for place, (_, _, text) in enumerate(section.passages)
        for number, sentence in enumerate(sentences_of(text))
    ]
    left = tokens
    for index in ranked(section.query, tuple(sentence for _, _, sentence in places)):
        place, number, sentence = places[index]
        shown_number, title, _ = section.passages[place]
        room = left - 2 - (0 if place in kept else len(tokenizer.encode(write(shown_number, title, ""))))
        needed = len(tokenizer.encode(sentence))
        if needed > room >= _LEAST_TOKENS:
            sentence = f"{cut(sentence, room, tokenizer).rstrip()} {ELLIPSIS}"
        elif needed > room:
            continue
        kept.setdefault(place, {})[number] = sentence
        if needed >= room:
            break
        left = room + 2 - needed
    shown = (
        write(number, title, _with_ellipses(kept[place], len(sentences_of(text))))
        for place, (number, title, text) in enumerate(section.passages)
        if place in kept
    )
    body = "".join(shown)
    return section.label + body if body else cut(section.text, tokens, tokenizer)


def cut(text: str, tokens: int, tokenizer: TextTokenizer) -> str:
    """Returns the beginning of `text` in about `tokens` tokens, or the whole text if it fits.

    A possibly broken last word or number is dropped (half a year is a wrong year), unless nothing would remain.
    """
    ids = tokenizer.encode(text)
    if len(ids) <= tokens:
        return text
    beginning = tokenizer.decode(ids[: max(tokens - 1, 1)]).rstrip("\ufffd")
    return (_BROKEN_END.sub("", beginning.rstrip()) or beginning.rstrip()) + "\n"


def _with_ellipses(kept: dict[int, str], sentences: int) -> str:
    """Joins kept sentences of a passage in their order, with a mark wherever something is left out."""
    text, previous = "", -1
    for number, sentence in sorted(kept.items()):
        gap = number > previous + 1 and not text.endswith(ELLIPSIS)
        text += f"{' ' * bool(text)}{ELLIPSIS * gap}{' ' * gap}{sentence.strip()}"
        previous = number
    return text if previous == sentences - 1 or text.endswith(ELLIPSIS) else f"{text} {ELLIPSIS}"


def sentences_of(text: str) -> list[str]:
    """Splits a text into sentences, each with the white space after it; a text without full stops is one sentence."""
    ends = [match.end() for match in _SENTENCE_END.finditer(text)]
    return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True) if text[start:end]]


def ranked(query: str, sentences: Sequence[str]) -> list[int]:
    """Returns the indices of sentences, best match to the query first, ties in order."""
    grams = [_grams(sentence) for sentence in sentences]
    holders = collections.Counter(gram for of_sentence in grams for gram in of_sentence)
    weights = {gram: math.log1p(len(grams) / holders[gram]) for gram in _grams(query) if gram in holders}
    scores = [sum(weight for gram, weight in weights.items() if gram in of_sentence) for of_sentence in grams]
    return sorted(range(len(scores)), key=lambda place: -scores[place])


@functools.lru_cache(2**12)
def _grams(text: str) -> frozenset[str]:
    """Returns the trigrams of a text's words with their boundaries; bigrams of words in scripts without spaces."""
    grams: set[str] = set()
    for word in _WORD.findall(folded(text)):
        size, padded = (2, word) if UNSPACED.search(word) else (3, f" {word} ")
        grams.update(padded[start : start + size] for start in range(max(1, len(padded) - size + 1)))
    return frozenset(grams)
