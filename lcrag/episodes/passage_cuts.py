"""Cuts passages to a number of tokens: at the end, or to the sentences that match the query best.

The match of a sentence is the sum over the character n-grams of its words that it shares with the query, each weighted
by its rarity among the sentences. This needs neither a model nor the language of either text. In passages of other
languages it finds names, numbers and cognates; if nothing matches, the first sentences are kept.
"""

import collections
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Sequence

from lcrag.episodes.requests import TextTokenizer

MATCHING, END = CUTS = ("matching", "end")  # values of `Runner.cut_passages`
ELLIPSIS = "…"
# Characters kept of a passage before anything is tokenized: more than the largest observation of the papers'
# configurations (1,800 tokens) shows.
PASSAGE_CHARACTERS = 2**13
_LEAST_TOKENS = 12  # no part of a sentence is shown in fewer
_SENTENCE_END = re.compile(r"(?<=[.!?…])[\"')\]»”’]*\s+|(?<=[。！？｡।؟۔])\s*")
_WORD = re.compile(r"[^\W_]+")
_UNSPACED = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff]")
_BROKEN_END = re.compile(r"(?:\s\S{0,20}|\d+)$")


@dataclasses.dataclass(frozen=True)
class Section:
    """The results of one query in one language, or another text in their place; neutralised."""

    text: str
    query: str = ""  # empty if unknown, and then the text is cut at its end
    passages: tuple[tuple[int, str, str], ...] = ()  # (number, title, text) of each in `text`


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

    The tokenizer's attribute `cut_passages`, if present, is one of `CUTS`; `write` is that of `Style.passage`.
    """
    if not section.query or not section.passages or getattr(tokenizer, "cut_passages", MATCHING) == END:
        return cut(section.text, tokens, tokenizer)
    if len(tokenizer.encode(section.text)) <= tokens:
        return section.text
    kept = _kept_sentences(section, tokens, tokenizer, write)
    shown = (
        write(number, title, _with_ellipses(kept[place], len(sentences_of(text))))
        for place, (number, title, text) in enumerate(section.passages)
        if place in kept
    )
    return "".join(shown) or cut(section.text, tokens, tokenizer)


def cut(text: str, tokens: int, tokenizer: TextTokenizer) -> str:
    """Returns the beginning of `text` in about `tokens` tokens, or the whole text if it fits.

    A possibly broken last word or number is dropped (half a year is a wrong year), unless nothing would remain.
    """
    ids = tokenizer.encode(text)
    if len(ids) <= tokens:
        return text
    beginning = tokenizer.decode(ids[: max(tokens - 1, 1)]).rstrip("\ufffd")
    return (_BROKEN_END.sub("", beginning.rstrip()) or beginning.rstrip()) + "\n"


def _kept_sentences(
    section: Section, tokens: int, tokenizer: TextTokenizer, write: Callable[[int, str, str], str]
) -> dict[int, dict[int, str]]:
    """Returns index of a passage -> index of a sentence -> the kept text; only the last sentence taken is cut."""
    places = [
        (place, number, sentence)
        for place, (_, _, text) in enumerate(section.passages)
        for number, sentence in enumerate(sentences_of(text))
    ]
    kept: dict[int, dict[int, str]] = {}
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
    return kept


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
    holders = collections.Counter(gram for own in grams for gram in own)
    weights = {gram: math.log1p(len(grams) / holders[gram]) for gram in _grams(query) if gram in holders}
    scores = [sum(weight for gram, weight in weights.items() if gram in own) for own in grams]
    return sorted(range(len(scores)), key=lambda place: -scores[place])


@functools.lru_cache(2**12)
def _grams(text: str) -> frozenset[str]:
    """Returns the trigrams of a text's words with their boundaries; bigrams of words in scripts without spaces."""
    grams: set[str] = set()
    for word in _WORD.findall(text.casefold()):
        size, padded = (2, word) if _UNSPACED.search(word) else (3, f" {word} ")
        grams.update(padded[start : start + size] for start in range(max(1, len(padded) - size + 1)))
    return frozenset(grams)
