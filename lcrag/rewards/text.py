"""Texts as rewards compare them: normalised, singly or in batches, and counted in shared units.

A whole batch is normalised by look-up tables over code points, about ten times as fast as text by text. All its texts
are joined by line feeds and mapped at once. Most characters are mapped independently of their neighbours. A text is
normalised by `normalise`, which defines the result, if a mapping depends on neighbours (combining marks out of order or
composing with the character before), changes the length, or lies beyond the basic plane.

The units (character 3-grams or words) that texts share with the first text of their group are counted by sorting. Every
unit gets a number without collisions, with the number of its text in the group as the lowest bits. The numbers of a
group are sorted as one row, in which equal units are adjacent, those of the first text first. Rows of up to 256 numbers
are sorted by NumPy's vectorised networks, several times as fast as one long array.
"""

import functools
import itertools
import re
import string
import sys
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import regex
from jaxtyping import Bool, Int, UInt, UInt32
from numpy.lib.stride_tricks import sliding_window_view
from zhconv import zhconv

from lcrag.errors import UserError

# --- One text ---

CJK_PUNCTUATION = "！？。，、；：（）【】《》〈〉「」『』"
CURLY_QUOTES = "‘’‚‛“”„‟"
# Short vowels, nunation, shadda, sukun, dagger alif; tatweel. CAMeL Tools' dediacritisation deletes the same.
ARABIC_MARKS = "\u064b\u064c\u064d\u064e\u064f\u0650\u0651\u0652\u0670\u0640"

NORMALISATIONS = ("lcrl", "unicode")

_SPACES: dict[int, str | None] = dict.fromkeys(map(ord, string.punctuation + CJK_PUNCTUATION + CURLY_QUOTES), " ")
_DELETED = str.maketrans("", "", string.punctuation)
_HAN = re.compile("[\u4e00-\u9fff]")
_CJK = "[\u4e00-\u9fff\u3040-\u30ff\uac00-\ud7af]"
_CJK_SCRIPTS = "Hani Hira Kana Bopo Hang".split()
# Between characters of Han, kana, bopomofo and Hangul; LcRL's code names the blocks above.
_SPACE_BETWEEN_CJK = {
    "lcrl": re.compile(f"(?<={_CJK}) (?={_CJK})"),
    "unicode": regex.compile(
        r"(?<=[{scripts}]) (?=[{scripts}])".format(scripts="".join(map(r"\p{{scx={}}}".format, _CJK_SCRIPTS)))
    ),
}
# Characters of scripts without spaces between words: Han, kana, Tibetan, Yi, and those with Unicode's line break class
# of dictionaries (Thai, Lao, Burmese, Khmer and their neighbours). Korean separates words by spaces.
UNSPACED = regex.compile(
    r"(?V1)([[\p{L}\p{M}\p{N}]&&[\p{scx=Hani}\p{scx=Hira}\p{scx=Kana}\p{sc=Tibt}\p{sc=Yiii}\p{lb=SA}"
    r"\p{sc=Thai}\p{sc=Laoo}\p{sc=Mymr}\p{sc=Khmr}]])"
)
# Unicode's ends of sentences, except those that are also written within numbers and words; for patterns of (?V1).
SENTENCE_MARK = r"[\p{Sentence_Terminal}--[.!?．․]]"
COMMAS = "".join(chr(code) for code in range(0x10000) if unicodedata.name(chr(code), "").endswith(" COMMA")) + ","
# What no reader sees: marks of direction, joiners, soft hyphens, variation selectors, fillers.
INVISIBLE = regex.compile(r"[\p{Cf}\p{Default_Ignorable_Code_Point}]")
# Marks that take space are seen alone (an answer of XOR-TyDi is the Telugu anusvara); a blank Braille cell is not.
_VISIBLE = regex.compile(r"(?V1)[[\p{L}\p{Mc}\p{N}\p{P}\p{S}]--[\p{Default_Ignorable_Code_Point}\u2800]]")
_DASHES = regex.compile(r"[\p{Dash}\u02d7\u2796]")  # the last two are minus signs
# MLQA's script: the articles of its languages (Arabic's is a prefix), and some Vietnamese words.
_ARTICLES: Mapping[str, re.Pattern[str]] = {
    "ar": re.compile(r"ال"),
    "de": re.compile(r"\b(ein|eine|einen|einem|eines|einer|der|die|das|den|dem|des)\b"),
    "en": re.compile(r"\b(a|an|the)\b"),
    "es": re.compile(r"\b(un|una|unos|unas|el|la|los|las)\b"),
    "vi": re.compile(r"\b(của|là|cái|chiếc|những)\b"),
}
_REGEX_ARTICLES = regex.compile(r"\b(a|an|the)\b")


@functools.lru_cache(maxsize=1 << 16)
def normalise(text: str, normalisation: str = "lcrl") -> str:
    """Normalises a text for comparisons in any language; `normalised` does the same for whole batches.

    "lcrl" is LcRL's normalisation (code published with the paper; section 3.3). In order: lower-case, NFKC, Chinese
    characters to simplified (mainland) ones, ASCII and CJK punctuation and curly quotes (our addition) to a space,
    white space collapsed, spaces between CJK characters (Han, kana, Hangul syllables) removed.

    "unicode" begins with `folded` instead of lower-case and NFKC, so texts that a reader cannot tell apart are equal.
    All of Unicode's punctuation becomes a space (guillemets, the middle dot, inverted and Arabic marks), Arabic
    diacritics and tatweel are deleted, and CJK characters are those of the scripts, not of three blocks.

    Cached, because golds repeat over a run.
    """
    text = folded(text) if normalisation == "unicode" else unicodedata.normalize("NFKC", text.lower())
    if _HAN.search(text):
        text = zhconv.convert(text, "zh-cn")
    text = " ".join(text.translate(replacements(normalisation)).split())
    return _SPACE_BETWEEN_CJK[normalisation].sub("", text)


def folded(text: str) -> str:
    """Returns one spelling of all texts that look alike to a reader.

    Invisible characters are deleted, texts are compared by Unicode's compatibility caseless match (definition D146:
    "20 ℃" equals "20 °c"), decimal digits of every script become ASCII ones, dashes and minus signs "-", and
    letters that look like apostrophes "'".
    """
    if text.isascii():
        return text.lower()
    text = unicodedata.normalize("NFD", INVISIBLE.sub("", text))
    for _ in range(2):
        text = unicodedata.normalize("NFKC", text.casefold())
    return text.translate(_plain_signs())


@functools.cache
def _plain_signs() -> Mapping[int, str]:
    codes = range(128, sys.maxunicode + 1)
    digits = {code: str(value) for code in codes if (value := unicodedata.decimal(chr(code), None)) is not None}
    # Letters that look like apostrophes (OʼBrien, Hawaiʻi); slashes of fractions (1⁄8); a blank Braille cell.
    others = dict.fromkeys(map(ord, "ʹʻʼʽ"), "'") | {0x2044: "/", 0x2215: "/", 0x2800: " "}
    return digits | others | {code: "-" for code in codes if _DASHES.match(chr(code))}


def is_visible(text: str) -> bool:
    """Whether a reader sees anything of a text: a letter, spacing mark, number, punctuation or symbol."""
    return _VISIBLE.search(text) is not None


@functools.cache
def replacements(normalisation: str) -> Mapping[int, str | None]:
    """Returns the translation table of punctuation, to a space, and of deleted characters, to None."""
    if normalisation == "lcrl":
        return _SPACES
    if normalisation == "unicode":
        punctuation = (code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] == "P")
        return _SPACES | dict.fromkeys(punctuation, " ") | dict.fromkeys(map(ord, ARABIC_MARKS), None)
    raise UserError(f"no normalisation is called {normalisation!r}: choose one of {', '.join(NORMALISATIONS)}")


@functools.lru_cache(maxsize=1 << 16)
def normalise_english(text: str, language: str = "en") -> str:
    """Applies SQuAD's normalisation: lower-case, no ASCII punctuation, no English articles, white space collapsed.

    The English multi-hop benchmarks use it. MLQA takes away the articles of another `language`, if it knows any.
    """
    text = text.lower().translate(_DELETED)
    return " ".join((_ARTICLES[language].sub(" ", text) if language in _ARTICLES else text).split())


@functools.lru_cache(maxsize=1 << 16)
def normalise_bergen(text: str) -> str:
    """Applies `normalise_english` with word boundaries as BERGEN's `regex`, to which combining marks are letters."""
    return " ".join(_REGEX_ARTICLES.sub(" ", text.lower().translate(_DELETED)).split())


def normalised_english(texts: Iterable[str | None]) -> list[str]:
    """Applies `normalise_english` to every text; None becomes the empty string."""
    return [normalise_english(text) if text else "" for text in texts]


def segmented(text: str) -> str:
    """Separates the characters of scripts without spaces between words, and deletes non-ASCII punctuation.

    Texts with other than ASCII characters are `folded`.
    """
    if text.isascii():
        return text
    kept = [char for char in folded(text) if char.isascii() or not unicodedata.category(char).startswith("P")]
    return UNSPACED.sub(r" \1 ", "".join(kept))


# --- Batches of texts ---

SEPARATOR = ord("\n")
SPACE = ord(" ")
_GONE = 0x10FFFF
_LIMIT = 0x10000  # tables cover the basic plane
# The lower case of the first depends on its place in the word; the case folding of the second is no mark, as it is.
_FINAL_SIGMA, _IOTA_BELOW = 0x3A3, 0x345
# Flags of a folded character, above its 16 bits: mapping depends on neighbours; may compose with the next character or
# with the one before; first or second character of a Chinese phrase. The highest byte is the canonical combining class.
_HARD, _LEADS, _FOLLOWS, _HEAD, _TAIL = (np.uint32(1 << 16 + place) for place in range(5))
_CLASS_SHIFT = 24
_IN_CONTEXT = _HARD | _FOLLOWS | _TAIL | np.uint32(0xFF << _CLASS_SHIFT)


class _Tables(NamedTuple):
    folded: UInt32[np.ndarray, " codes"]  # lower-cased NFKC form and flags of each code point; one more for all beyond
    final: UInt32[np.ndarray, " codes"]  # what each code point becomes if no phrase covers it
    phrases: Mapping[str, str]  # phrases of several Chinese characters -> their conversions
    longest: int  # characters of the longest phrase
    pairs: UInt32[np.ndarray, " pairs"]  # the first two characters of each phrase, as one number, sorted
    invisible: Bool[np.ndarray, " codes"]  # whether a code point is deleted before anything else
    cjk: Bool[np.ndarray, " codes"]  # whether spaces between two code points of these are removed


def normalised(texts: Iterable[str | None], normalisation: str = "lcrl") -> list[str]:
    """Applies `text.normalise` to every text; None (an episode without an answer) becomes the empty string."""
    return lines_of(normalised_codes(texts, normalisation))


def normalised_codes(texts: Iterable[str | None], normalisation: str = "lcrl") -> UInt32[np.ndarray, " codes"]:
    """Returns the code points of the normalised texts, `SEPARATOR` after each."""
    tables, lines = _tables(normalisation), [text or "" for text in texts]
    codes = encoded(lines)
    if np.count_nonzero(codes == SEPARATOR) > len(lines):
        codes = encoded(line.replace("\n", " ") for line in lines)
    index = np.minimum(codes, _LIMIT).astype(np.intp)
    if (invisible := tables.invisible.take(index)).any():
        codes, index = codes[~invisible], index[~invisible]
    flagged, final = tables.folded.take(index), tables.final.take(index)

    # The characters whose mapping depends on neighbours, and the places where a phrase may begin.
    places = np.flatnonzero((flagged & _IN_CONTEXT) > 0)
    this, before = flagged[places], np.where(places > 0, flagged[places - 1], np.uint32(0))
    order, order_before = this >> _CLASS_SHIFT, before >> _CLASS_SHIFT
    reordered = (order > 0) & (order_before > order)
    composed = (this & _FOLLOWS > 0) & ((before & _LEADS > 0) | (order_before > 0))
    hard = places[(this & _HARD > 0) | reordered | composed].tolist()
    begins = (this & _TAIL > 0) & (before & _HEAD > 0)
    pairs = before[begins] << 16 | this[begins] & 0xFFFF
    begins[begins] = tables.pairs.take(np.searchsorted(tables.pairs, pairs), mode="clip") == pairs

    # Phrases are converted, the longest match first from left to right as zhconv does.
    starts, longest, end, following = places[begins] - 1, tables.longest, 0, ""
    if len(starts):
        padded = np.append(flagged, np.zeros(longest, np.uint32))
        rows = padded[starts[:, None] + np.arange(longest)] & 0xFFFF
        following = rows.tobytes().decode("utf-32-le", "surrogatepass")
    for row, place in enumerate(starts.tolist()):
        if place < end:
            continue
        ahead = following[row * longest : (row + 1) * longest]
        prefixes = (ahead[:length] for length in range(len(ahead), 1, -1))
        phrase = next((prefix for prefix in prefixes if prefix in tables.phrases), None)
        if phrase is None:
            continue
        new, end = tables.phrases[phrase], place + len(phrase)
        if len(new) == len(phrase):
            final[place:end] = [_replaced(character, replacements(normalisation)) for character in new]
        else:
            hard.append(place)

    # Drops deleted characters, repeated spaces, spaces at the ends of texts and those between CJK characters.
    if (deleted := final == _GONE).any():
        final = final[~deleted]
    spaces = np.flatnonzero(final == SPACE)
    runs = np.diff(spaces, prepend=-2) > 1  # where a run of spaces begins, which keeps its last
    preceding = np.maximum.accumulate(np.where(runs, spaces, 0)) - 1
    left, right = np.where(preceding < 0, SEPARATOR, final[preceding]).astype(np.uint32), final[spaces + 1]
    between = tables.cjk.take(np.minimum(left, _LIMIT)) & tables.cjk.take(np.minimum(right, _LIMIT))
    kept = np.ones(len(final), bool)
    kept[spaces] = (right != SPACE) & (right != SEPARATOR) & (left != SEPARATOR) & ~between
    result = final[kept]

    if not hard:
        return result
    ends, found = np.flatnonzero(codes == SEPARATOR), lines_of(result)
    for which in np.unique(np.searchsorted(ends, hard)).tolist():
        found[which] = normalise(lines[which], normalisation)
    return encoded(found)


def encoded(texts: Iterable[str]) -> UInt32[np.ndarray, " codes"]:
    """Returns the code points of texts without line feeds, `SEPARATOR` after each."""
    return np.frombuffer("\n".join([*texts, ""]).encode("utf-32-le", "surrogatepass"), "<u4")


def lines_of(codes: UInt32[np.ndarray, " codes"]) -> list[str]:
    """Returns the texts of code points, `SEPARATOR` after each."""
    return codes.tobytes().decode("utf-32-le", "surrogatepass").split("\n")[:-1]


@functools.cache
def _tables(normalisation: str) -> _Tables:
    replaced, dictionary, unicode = replacements(normalisation), zhconv.getdict("zh-cn"), normalisation == "unicode"
    signs: Mapping[int, str] = _plain_signs() if unicode else {}
    characters = [chr(code) for code in range(_LIMIT)]
    invisible = [unicode and INVISIBLE.match(character) is not None for character in characters]
    spaceless = _SPACE_BETWEEN_CJK[normalisation]
    phrases = {old: new for old, new in dictionary.items() if len(old) > 1}
    single = {ord(old): new for old, new in dictionary.items() if len(old) == 1 and ord(old) < _LIMIT}

    # The flags of every folded character; see the constants above.
    flags = [unicodedata.combining(chr(code)) << _CLASS_SHIFT for code in range(_LIMIT)]
    parts = {code: unicodedata.decomposition(chr(code)).split() for code in range(_LIMIT)}
    # forms such as <compat> never compose
    composites = {code: part for code, part in parts.items() if len(part) == 2 and part[0][0] != "<"}
    first, second = ({int(part[place], 16) for part in composites.values()} for place in (0, 1))
    marked: dict[np.uint32, Iterable[int]] = {
        _HARD: [old for old, new in single.items() if len(new) > 1 or not 0x4E00 <= old <= 0x9FFF],
        _LEADS: {*composites, *first, *range(0x1100, 0x1113), *range(0xAC00, 0xD7A4)},  # the ranges are Hangul's
        _FOLLOWS: {*second, *range(0x1161, 0x1176), *range(0x11A8, 0x11C3)},
        _HEAD: {ord(phrase[0]) for phrase in phrases},
        _TAIL: {ord(phrase[1]) for phrase in phrases},
    }
    for flag, codes in marked.items():
        for code in codes:
            if code < _LIMIT:
                flags[code] |= int(flag)

    def fold(code: int) -> int:
        """Returns the lower-cased NFKC form of one character, with its flags, or `_HARD`."""
        found = 0
        for _ in range(2 if unicode else 1):
            form = unicodedata.normalize("NFKC", chr(code).casefold() if unicode else chr(code).lower())
            if code in (_FINAL_SIGMA, _IOTA_BELOW) or len(form) != 1 or ord(form) >= _LIMIT:
                return int(_HARD)
            code = ord(form)
            found |= flags[code]
        return found | ord(signs.get(code, form))

    folded = np.array([*map(fold, range(_LIMIT)), _HARD], np.uint32)
    final = [_replaced(single.get(ord(character), character)[0], replaced) for character in characters]
    return _Tables(
        folded,
        np.array(final, np.uint32)[folded & 0xFFFF],
        phrases,
        max(map(len, phrases)),
        np.unique(np.array([ord(old[0]) << 16 | ord(old[1]) for old in phrases if ord(max(old[:2])) < _LIMIT], "u4")),
        np.array([*invisible, False]),
        np.array([*(spaceless.search(f"{character} {character}") is not None for character in characters), False]),
    )


def _replaced(character: str, replacements: Mapping[int, str | None]) -> int:
    new = " " if character.isspace() else replacements.get(ord(character), character)
    return SEPARATOR if character == "\n" else _GONE if new is None else ord(new)


# --- Shared units ---

GRAM_LENGTH = 3
_CELLS = 1 << 15  # numbers in a block of rows: they stay in the processor's cache


class Units(NamedTuple):
    """The units of groups of texts as numbers, uint32 or uint64."""

    # Each unit's number, from 1, shifted by `bits`, plus its text's number in the group; 0 where no unit is.
    numbers: UInt[np.ndarray, " entries"]
    bits: int  # width of a text's number
    sizes: Int[np.ndarray, " groups"]  # texts of each group
    counts: Int[np.ndarray, " texts"]  # units of each text
    widths: Int[np.ndarray, " groups"]  # entries of `numbers` that belong to each group

    @property
    def firsts(self) -> Int[np.ndarray, " groups"]:
        """The place of each group's first text."""
        return np.cumsum(self.sizes) - self.sizes


class Repeats(NamedTuple):
    """Adjacent equal units in the sorted units of some groups."""

    groups: Int[np.ndarray, " groups"]
    rows: Int[np.ndarray, " repetitions"]  # index into `groups`
    texts: Int[np.ndarray, " repetitions"]  # index of each repetition's text among all texts
    texts_before: Int[np.ndarray, " repetitions"]  # the same of the entry before it, which has the same unit
    begins: Bool[np.ndarray, " repetitions"]  # whether that entry is the first one with this unit
    equal: Bool[np.ndarray, " repetitions"]  # whether both entries are of the same text


def repeats(units: Units) -> Iterator[Repeats]:
    """Yields the repetitions of units within their groups, for blocks of groups of similar widths."""
    widths, firsts = units.widths, units.firsts
    padded = np.append(units.numbers, np.zeros(widths.max(initial=0), units.numbers.dtype))
    mask = padded.dtype.type((1 << units.bits) - 1)
    starts, order, begin = np.cumsum(widths) - widths, np.argsort(widths, kind="stable"), 0
    while begin < len(order):
        groups = order[begin : begin + max(1, _CELLS // int(max(1, widths[order[begin]])))]
        begin += len(groups)
        own = widths[groups]
        fewest, width = int(own[0]), int(own[-1])
        numbers = sliding_window_view(padded, width)[starts[groups]]
        numbers[:, fewest:][np.arange(fewest, width) >= own[:, None]] = 0
        numbers.sort(axis=1)
        before = numbers[:, :-1]
        places = np.flatnonzero((numbers[:, 1:] ^ before <= mask) & (before > mask))
        rows = places // max(1, width - 1)
        flat, texts, places = numbers.ravel(), firsts[groups][rows], places + rows
        one, other = flat[places], flat[places + 1]
        text, before = (texts + (hashes & mask).astype(np.int64) for hashes in (other, one))
        yield Repeats(groups, rows, text, before, np.diff(places, prepend=-2) > 1, one == other)


def gram_units(
    codes: UInt32[np.ndarray, " codes"],
    sizes: Int[np.ndarray, " groups"],
    *,
    words_apart: bool = False,
    short: bool = True,
) -> Units:
    """Returns the character 3-grams of groups of texts.

    Args:
      codes: Code points of the normalised texts, group by group, a separator after each.
      sizes: Number of texts of each group, at least 1.
      words_apart: Whether 3-grams end at spaces; `short` then refers to words instead of texts.
      short: Whether a text of one or two characters counts as one 3-gram; otherwise it has none.
    """
    ends = np.flatnonzero(codes == SEPARATOR)
    lengths, (members, bits) = np.diff(ends, prepend=-1), _members(sizes)
    # Digits number the characters that occur from 1; what separates texts or words is 0, also at both ends.
    index, present = codes.astype(np.intp), np.zeros(int(codes.max(initial=SPACE)) + 1, bool)
    present[index] = True
    present[[SEPARATOR, SPACE] if words_apart else SEPARATOR] = False
    characters = np.flatnonzero(present)
    base = len(characters) + 1
    table = np.zeros(len(present), _dtype(base**GRAM_LENGTH << bits))
    table[characters] = np.arange(1, base)
    digits = np.zeros(len(codes) + GRAM_LENGTH, table.dtype)
    table.take(index, out=digits[1:-2])
    before, first, second, third = (digits[place : place + len(codes)] for place in range(4))
    in_second = second > 0
    chosen = in_second & (third > 0)
    if short:
        chosen |= before == 0
    chosen &= first > 0
    numbers = first * base
    numbers += second
    numbers *= base
    numbers += third * in_second
    numbers <<= bits
    numbers |= np.repeat(members.astype(numbers.dtype), lengths)
    numbers *= chosen
    counts = np.add.reduceat(chosen, ends - lengths + 1, dtype=np.int64)
    return Units(numbers, bits, sizes, counts, np.add.reduceat(lengths, np.cumsum(sizes) - sizes))


def word_units(texts: Sequence[str], sizes: Int[np.ndarray, " groups"]) -> Units:
    """Returns the words of groups of texts; the arguments are as in `gram_units`."""
    words = [text.split() for text in texts]
    counts = np.fromiter(map(len, words), np.int64, len(words))
    known: dict[str, int] = {}
    flat = (known.setdefault(word, len(known) + 1) for word in itertools.chain.from_iterable(words))
    members, bits = _members(sizes)
    numbers = np.fromiter(flat, np.int64) << bits | np.repeat(members, counts)
    numbers = numbers.astype(_dtype(len(known) + 1 << bits))
    widths = np.diff(np.cumsum(counts)[np.cumsum(sizes) - 1], prepend=0)
    return Units(numbers, bits, sizes, counts, widths)


def shared(units: Units, multisets: bool = False) -> tuple[Int[np.ndarray, " texts"], Int[np.ndarray, " texts"]]:
    """Counts the units that each text shares with the first text of its group; in `multisets` each repetition counts.

    Returns:
      (number of the text's units that the first text has, 0 for the first itself; number of the text's units).
    """
    found, wanted, firsts = np.zeros_like(units.counts), units.counts.copy(), units.firsts
    for repeat in repeats(units):
        first, number = firsts[repeat.groups][repeat.rows], np.arange(len(repeat.rows))
        begin = np.where(repeat.begins, number, 0)
        # One after the last copy of the first text, or where the unit begins if the first text lacks it.
        end = np.maximum.accumulate(np.where(~repeat.equal & (repeat.texts_before == first), number + 1, begin))
        copies_of_first = end - np.maximum.accumulate(begin)
        if multisets:
            copies_before = number + 1 - np.maximum.accumulate(np.where(repeat.equal, begin, number + 1))
            hits = (repeat.texts != first) & (copies_before < copies_of_first)
        else:
            hits = ~repeat.equal & (copies_of_first > 0)
            wanted -= np.bincount(repeat.texts[repeat.equal], minlength=len(wanted))
        found += np.bincount(repeat.texts[hits], minlength=len(found))
    return found, wanted


def _members(sizes: Int[np.ndarray, " groups"]) -> tuple[Int[np.ndarray, " texts"], int]:
    """Returns the number of each text in its group, and the bits that hold it."""
    members = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return members, int(sizes.max(initial=1) - 1).bit_length()


def _dtype(numbers: int) -> type[np.uint32 | np.uint64]:
    return np.uint32 if numbers < 1 << 32 else np.uint64
