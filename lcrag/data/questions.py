"""Questions, their languages and tiers, and seeded orders, splits and shares of them."""

import collections
import dataclasses
import functools
import hashlib
import json
import re
import unicodedata
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import gin
import numpy as np
import regex
from babel.core import get_global

from lcrag.errors import UserError, lookup, typed
from lcrag.rewards.text import INVISIBLE, is_visible, normalised

MATHEMATICS = "mathematics"
MULTIPLE_CHOICE = "multiple_choice"
INSTRUCTION_FOLLOWING = "instruction_following"
SUMMARISATION = "summarisation"
TRANSLATION = "translation"
DOMAINS: tuple[str, ...] = (MATHEMATICS, MULTIPLE_CHOICE, INSTRUCTION_FOLLOWING, SUMMARISATION, TRANSLATION)
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")  # all of ASCII except white space
# Of every script by Unicode's names, with the semicolon that Greek texts write for theirs.
QUESTION_MARKS = (
    ";",
    *(chr(c) for c in range(0x20000) if "QUESTION MARK" in unicodedata.name(chr(c), "") and c != 0xBF),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """One question in one language."""

    id: str  # stable, the same in every language version of the question
    dataset: str  # name of the data set, e.g. "atlas"
    language: str  # ISO 639-1 code of the language of question and answers
    text: str
    answers: tuple[str, ...]  # golden answers in `language`, aliases included
    # Data for single methods: golden plan, domain, tier, kind, whether the native collection holds the fact.
    extra: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def coupling(self) -> str:
        """Key of the question across languages, shared by LcRL's coupled groups."""
        return f"{self.dataset}/{self.id}"

    @property
    def key(self) -> str:
        """Key of the question in its language."""
        return f"{self.coupling}/{self.language}"

    @property
    def domain(self) -> str:
        """Its task domain, one of `lcrag.data.questions.DOMAINS`; empty for plain question answering."""
        return self.extra.get("domain", "")

    @property
    def tier(self) -> str:
        """The tier of its language, a key of `lcrag.data.questions.ALL_TIERS` or user-defined; empty: none."""
        return self.extra.get("tier", "")


def trimmed(text: str) -> str:
    """Returns a text without white space or byte order marks around it."""
    return text.strip().strip("\ufeff").strip()


def distinct_answers(texts: Iterable[str]) -> tuple[str, ...]:
    """Returns the trimmed texts that have a visible character, each once."""
    return tuple(dict.fromkeys(trimmed(text) for text in texts if is_visible(text)))


def fault_of(text: str) -> str:
    """Returns why a text cannot be a question or an answer, as a predicate for a message; empty if it can."""
    if control := _CONTROL.search(text):
        return f"holds the control character U+{ord(control[0]):04X}"
    if any("\ud800" <= character <= "\udfff" for character in text):
        return "is not UTF-8"
    if not is_visible(text):
        return "has no visible character"
    return ""


def with_question_mark(text: str) -> str:
    """Appends `?` unless the text ends with a question mark of some script (LcRL's MKQA preprocessing)."""
    text = text.strip()
    return text if INVISIBLE.sub("", text).rstrip().endswith(QUESTION_MARKS) else text + "?"


# --- Languages ---

# ISO 15924's mixtures and variants of scripts, which no character has. Korean is no longer written in Han.
_PARTS = {"Hanb": "Hani Bopo", "Hans": "Hani", "Hant": "Hani", "Jpan": "Hani Hira Kana", "Kore": "Hang", "Aran": "Arab"}
_PARTS |= {"Hrkt": "Hira Kana", "Jamo": "Hang", "Latf": "Latn", "Latg": "Latn"}
_LIKELY: Mapping[str, str] = get_global("likely_subtags")  # "sr": "sr_Cyrl_RS", "sr_ME": "sr_Latn_ME"
_SCRIPTS = {tag.split("_")[1]: _PARTS.get(tag.split("_")[1], tag.split("_")[1]).split() for tag in _LIKELY.values()}
# CLDR has only Han for these Chinese languages, whose Wikipedias are in Latin letters.
_ROMANISED = ("nan", "hak", "cdo")


def main_code(code: str) -> str:
    """Returns the language of a code with more subtags: "sr" of "sr-Latn", "yue" of "zh-yue", "nan" of "zh-min-nan"."""
    main, *rest = code.replace("_", "-").lower().split("-")
    main = next((part for part in reversed(rest) if len(part) == 3 and part.isalpha()), main)
    return get_global("language_aliases").get(main, main).partition("_")[0]


@functools.cache
def scripts_of(code: str, everywhere: bool = False) -> frozenset[str]:
    """Returns the ISO 15924 codes of a language's scripts by CLDR's likely subtags; none if CLDR does not know it.

    Args:
      code: A language, or its form in a script or country: "sr", "sr-Latn", "pt_br", "zh-min-nan".
      everywhere: Whether the scripts of all countries count, not only the most likely one.
    """
    main, named = main_code(code), {part.title() for part in re.split("[-_]", code)[1:]} & _SCRIPTS.keys()
    keys = {key for key in _LIKELY if key.split("_")[0] == main and not _SCRIPTS.keys() & {*key.split("_")[1:]}}
    scripts = named or {_LIKELY[key].split("_")[1] for key in (keys if everywhere else keys & {main})}
    parts = frozenset(part for script in scripts for part in _SCRIPTS[script])
    return parts | {"Latn"} if main in _ROMANISED and not named else parts


@functools.lru_cache(1 << 16)
def script_of(letter: str) -> str:
    """Returns the ISO 15924 code of a letter's script by Unicode; empty for a letter of several, or of none in CLDR."""
    codes = {part for parts in _SCRIPTS.values() for part in parts}
    return next((code for code in sorted(codes) if regex.match(rf"\p{{Script={code}}}", letter)), "")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Language:
    """A language."""

    code: str  # of ISO 639-1, else of ISO 639-3
    name: str  # in English, as used in prompts
    endonym: str  # its name in itself
    relative: str  # code of a larger language close by family, script or region, for prompts in a pivot language
    example: str  # an example answer for prompts


_ALL = (
    Language(code="en", name="English", endonym="English", relative="fr", example="Beijing"),
    Language(code="ar", name="Arabic", endonym="العربية", relative="fr", example="بكين"),
    Language(code="fi", name="Finnish", endonym="suomi", relative="ru", example="Peking"),
    Language(code="fr", name="French", endonym="français", relative="it", example="Pékin"),
    Language(code="ja", name="Japanese", endonym="日本語", relative="zh", example="北京"),
    Language(code="it", name="Italian", endonym="italiano", relative="fr", example="Pechino"),
    Language(code="ru", name="Russian", endonym="русский", relative="fr", example="Пекин"),
    Language(code="zh", name="Chinese", endonym="中文", relative="ja", example="北京"),
    Language(code="de", name="German", endonym="Deutsch", relative="fr", example="Peking"),
    Language(code="ko", name="Korean", endonym="한국어", relative="ja", example="베이징"),
    Language(code="es", name="Spanish", endonym="español", relative="fr", example="Pekín"),
    Language(code="pt", name="Portuguese", endonym="português", relative="es", example="Pequim"),
    Language(code="th", name="Thai", endonym="ไทย", relative="zh", example="ปักกิ่ง"),
    # beyond LcRL's MKQA: the other languages of XOR-TyDi QA, XQuAD and MKQA
    Language(code="bn", name="Bengali", endonym="বাংলা", relative="hi", example="বেইজিং"),
    Language(code="te", name="Telugu", endonym="తెలుగు", relative="hi", example="బీజింగ్"),
    Language(code="da", name="Danish", endonym="dansk", relative="de", example="Beijing"),
    Language(code="el", name="Greek", endonym="Ελληνικά", relative="fr", example="Πεκίνο"),
    Language(code="he", name="Hebrew", endonym="עברית", relative="ar", example="בייג׳ינג"),
    Language(code="hi", name="Hindi", endonym="हिन्दी", relative="fr", example="बीजिंग"),
    Language(code="hu", name="Hungarian", endonym="magyar", relative="de", example="Peking"),
    Language(code="km", name="Khmer", endonym="ខ្មែរ", relative="th", example="ប៉េកាំង"),
    Language(code="ms", name="Malay", endonym="Melayu", relative="zh", example="Beijing"),
    Language(code="nl", name="Dutch", endonym="Nederlands", relative="de", example="Peking"),
    Language(code="no", name="Norwegian", endonym="norsk", relative="de", example="Beijing"),
    Language(code="pl", name="Polish", endonym="polski", relative="ru", example="Pekin"),
    Language(code="ro", name="Romanian", endonym="română", relative="it", example="Beijing"),
    Language(code="sv", name="Swedish", endonym="svenska", relative="de", example="Peking"),
    Language(code="tr", name="Turkish", endonym="Türkçe", relative="de", example="Pekin"),
    Language(code="vi", name="Vietnamese", endonym="Tiếng Việt", relative="zh", example="Bắc Kinh"),
    # Translate-R1's languages with few digital speakers, and those that it holds out
    Language(code="am", name="Amharic", endonym="አማርኛ", relative="ar", example="ቤይጂንግ"),
    Language(code="ay", name="Aymara", endonym="Aymar aru", relative="es", example="Pekin"),
    Language(code="gn", name="Guarani", endonym="avañe’ẽ", relative="es", example="Pekín"),
    Language(code="ha", name="Hausa", endonym="Hausa", relative="ar", example="Beijing"),
    Language(code="rw", name="Kinyarwanda", endonym="Ikinyarwanda", relative="sw", example="Beijing"),
    Language(code="lg", name="Luganda", endonym="Luganda", relative="sw", example="Beijing"),
    Language(code="qu", name="Quechua", endonym="Runasimi", relative="es", example="Pekin"),
    Language(code="so", name="Somali", endonym="Soomaali", relative="ar", example="Beijing"),
    Language(code="ug", name="Uyghur", endonym="ئۇيغۇرچە", relative="tr", example="بېيجىڭ"),
    Language(code="wo", name="Wolof", endonym="Wolof", relative="fr", example="Pekin"),
    Language(code="yo", name="Yoruba", endonym="Yorùbá", relative="ha", example="Beijing"),
    Language(code="zu", name="Zulu", endonym="isiZulu", relative="sw", example="Beijing"),
    Language(code="bm", name="Bambara", endonym="bamanankan", relative="fr", example="Pekin"),
    Language(code="ee", name="Ewe", endonym="Eʋegbe", relative="fr", example="Beijing"),
    Language(code="ln", name="Lingala", endonym="lingála", relative="fr", example="Pekin"),
    Language(code="tw", name="Twi", endonym="Twi", relative="fr", example="Beijing"),
    Language(code="ig", name="Igbo", endonym="Igbo", relative="ha", example="Beijing"),
    Language(code="sn", name="Shona", endonym="chiShona", relative="sw", example="Beijing"),
    Language(code="st", name="Sesotho", endonym="Sesotho", relative="zu", example="Beijing"),
    Language(code="om", name="Oromo", endonym="Oromoo", relative="am", example="Beijing"),
    Language(code="tn", name="Tswana", endonym="Setswana", relative="zu", example="Beijing"),
    Language(code="mi", name="Maori", endonym="te reo Māori", relative="ms", example="Beijing"),
    # Translate-R1's constructed languages, with ISO 639's private-use codes; see `lcrag.data.constructed`
    Language(code="qki", name="Kivari", endonym="Kivari", relative="qto", example="Beijing"),
    Language(code="qto", name="Toqal", endonym="Toqal", relative="qki", example="Beijing"),
    # the other languages of MGSM and Global-MMLU
    Language(code="sw", name="Swahili", endonym="Kiswahili", relative="ar", example="Beijing"),
    Language(code="cs", name="Czech", endonym="čeština", relative="pl", example="Peking"),
    Language(code="fa", name="Persian", endonym="فارسی", relative="ar", example="پکن"),
    Language(code="fil", name="Filipino", endonym="Filipino", relative="ms", example="Beijing"),
    Language(code="id", name="Indonesian", endonym="Indonesia", relative="ms", example="Beijing"),
    Language(code="ky", name="Kyrgyz", endonym="кыргызча", relative="ru", example="Пекин"),
    Language(code="lt", name="Lithuanian", endonym="lietuvių", relative="pl", example="Pekinas"),
    Language(code="mg", name="Malagasy", endonym="Malagasy", relative="fr", example="Beijing"),
    Language(code="ne", name="Nepali", endonym="नेपाली", relative="hi", example="बेइजिङ"),
    Language(code="ny", name="Chichewa", endonym="Chichewa", relative="sw", example="Beijing"),
    Language(code="si", name="Sinhala", endonym="සිංහල", relative="hi", example="බෙයිජිං"),
    Language(code="sr", name="Serbian", endonym="српски", relative="ru", example="Пекинг"),
    Language(code="uk", name="Ukrainian", endonym="українська", relative="ru", example="Пекін"),
)

LANGUAGES: dict[str, Language] = {language.code: language for language in _ALL}

# LcRL trains on the first eight languages of MKQA and tests zero-shot on five more (Section 4.1).
LCRL_TRAINING: tuple[str, ...] = ("en", "ar", "fi", "fr", "ja", "it", "ru", "zh")
LCRL_ZERO_SHOT: tuple[str, ...] = ("de", "ko", "es", "pt", "th")
LCRL_LANGUAGES: tuple[str, ...] = LCRL_TRAINING + LCRL_ZERO_SHOT

# Its languages of XOR-TyDi QA; the validation split, on which it is tested, has no English.
XOR_TYDI_TRAINING: tuple[str, ...] = ("en", "fi", "ja", "ko", "ru", "ar")
XOR_TYDI_TEST: tuple[str, ...] = ("fi", "ja", "ko", "ru", "ar", "bn", "te")


def language_of(code: str) -> Language:
    return lookup(LANGUAGES, code, "language")


def known_languages(
    codes: Iterable[str] | None, among: tuple[str, ...] = LCRL_LANGUAGES, dataset: str = ""
) -> tuple[str, ...]:
    """Returns `codes` as a tuple, if all are `among` the languages of a data set; None: all of those."""
    chosen = among if codes is None else tuple(codes)
    for code in chosen:
        lookup(dict.fromkeys(among), code, f"{dataset} question in the language" if dataset else "language")
    return chosen


# --- Orders, splits and shares ---

Coupled = tuple[Question, ...]
Key = TypeVar("Key")


def coupled(questions: Iterable[Question]) -> list[Coupled]:
    """Groups the language versions of each question, in the order in which the questions first appear."""
    groups: dict[str, list[Question]] = {}
    for question in questions:
        groups.setdefault(question.coupling, []).append(question)
    return [tuple(group) for group in groups.values()]


def groups_of_step(table: Sequence[Coupled], *, seed: int, step: int, couplings: int) -> list[Coupled]:
    """Returns the `couplings` questions of one step, each in all the language versions of the table.

    Every epoch visits the table once in its own random order. No question occurs twice in a step, even at the boundary
    of two epochs.
    """
    return [table[row] for row in rows_of_step(len(table), seed=seed, step=step, size=couplings)]


def rows_of_step(count: int, *, seed: int, step: int, size: int) -> np.ndarray:
    """Returns the rows of a step, int64[size] in [0, count): a pure function, so a resumed run draws the same ones.

    They are consecutive elements of an endless sequence of permutations.
    """
    if not 1 <= size <= count:
        raise UserError(f"a step of {size} questions cannot be drawn from {count}: choose between 1 and {count}")
    places = np.arange(step * size, (step + 1) * size)
    epochs, offsets = places // count, places % count
    orders = {epoch: _order_of_epoch(count, seed, int(epoch), size) for epoch in np.unique(epochs)}
    return np.array([orders[epoch][offset] for epoch, offset in zip(epochs, offsets, strict=True)], np.int64)


def _order_of_epoch(count: int, seed: int, epoch: int, size: int) -> np.ndarray:
    """Returns the permutation of an epoch, whose first `size` rows differ from the last `size` of the epoch before.

    Rows that occur in both are swapped with rows of the middle, so the tail of an epoch does not depend on earlier
    epochs. A table with no middle (fewer than 3 * size rows) has the same order in every epoch.
    """
    if count < 3 * size:
        return np.random.default_rng([seed, 0]).permutation(count)
    order = np.random.default_rng([seed, epoch]).permutation(count)
    if epoch == 0:
        return order
    tail = np.random.default_rng([seed, epoch - 1]).permutation(count)[-size:]
    clashing = np.flatnonzero(np.isin(order[:size], tail))
    middle = np.arange(size, count - size)
    free = middle[~np.isin(order[middle], tail)]  # at least count - 3 size + len(clashing) of them
    order[clashing], order[free[: len(clashing)]] = order[free[: len(clashing)]], order[clashing]
    return order


def in_every_language(
    versions: Sequence[Mapping[Key, Question]], choose: Callable[[list[Key]], Iterable[Key]]
) -> list[Question]:
    """Returns the questions whose keys all languages have and `choose` takes, in the first language's order.

    `versions` holds the questions of each language by key; the versions of a question are adjacent.
    """
    shared = [key for key in versions[0] if all(key in version for version in versions)] if versions else []
    chosen = set(choose(shared))
    return [version[key] for key in shared if key in chosen for version in versions]


def seeded_order(keys: Iterable[str], seed: int) -> list[str]:
    """Sorts keys by the SHA-256 of seed and key, so the order of two keys does not depend on other keys."""
    return sorted(keys, key=lambda key: _shuffled(key, seed))


def _shuffled(key: str, seed: int) -> tuple[bytes, str]:
    return hashlib.sha256(f"{seed}:{key}".encode()).digest(), key


def in_share(key: str, share: float, seed: int) -> bool:
    """Returns whether a key is in the seed's share (0 to 1) of all keys; smaller shares are subsets of larger ones."""
    return zlib.crc32(f"{seed}/{key}".encode()) < share * 2**32


def take_split(keys: Iterable[str], split: str, sizes: Mapping[str, int], *, seed: int, what: str) -> Sequence[str]:
    """Returns the keys of one split: consecutive pieces of the seeded order, in the order of `sizes`.

    A smaller last split is a prefix of a larger one and leaves the other splits unchanged.

    Args:
      split: Name of the split; "all": every key.
      sizes: Split -> its number of keys.
      what: Name of the keys in messages: "questions of mkqa".
    """
    order = seeded_order(keys, seed)
    if split == "all":
        return order
    if split not in sizes:
        raise UserError(f"there is no split {split!r} of the {what}: use one of {', '.join([*sizes, 'all'])}")
    if sum(sizes.values()) > len(order) or min(sizes.values()) < 0:
        wanted = ", ".join(f"{name} {size}" for name, size in sizes.items())
        raise UserError(f"the {len(order)} usable {what} cannot be split into {wanted}: ask for smaller splits")
    names = list(sizes)
    start = sum(sizes[name] for name in names[: names.index(split)])
    return order[start : start + sizes[split]]


def share_of(questions: Iterable[Question], share: float, *, seed: int) -> list[Question]:
    """Returns a share of the questions, at least one, in their given order.

    A question is kept in all its languages or in none. With the same seed, a smaller share is a subset of every larger
    one.
    """
    table = {versions[0].coupling: versions for versions in coupled(questions)}
    kept = set(seeded_order(table, seed)[: max(1, round(share * len(table)))])
    return [question for name, versions in table.items() if name in kept for question in versions]


def limited(questions: Sequence[Question], limit: int | None, *, seed: int) -> list[Question]:
    """Returns at most `limit` questions of each language (None: all) in their given order.

    The choice depends only on seed and ids: if every language has all questions, all versions of a question are kept
    together, and a smaller limit keeps a subset of the questions of a larger one.
    """
    if limit is None:
        return list(questions)
    # By id, then by data set: several may share ids, such as "test_0", without a relation.
    orders: dict[str, dict[tuple, str]] = defaultdict(dict)  # language -> place in the order -> coupling
    for question in questions:
        place = _shuffled(question.id, seed), _shuffled(question.coupling, seed)
        orders[question.language][place] = question.coupling
    kept = {(language, order[place]) for language, order in orders.items() for place in sorted(order)[:limit]}
    return [question for question in questions if (question.language, question.coupling) in kept]


@gin.configurable
@typed
def several_questions(parts: Sequence[Sequence[Question]]) -> list[Question]:
    return [question for part in parts for question in part]


def overlap(trained: Iterable[Question], held_out: Iterable[Question]) -> list[Question]:
    """Returns the held-out questions that are also trained on.

    These have a trained question's words, ignoring case and punctuation, in its language, or its id in the same data
    set and an answer in common with one of its versions, which finds its other languages. A trained question whose
    language or id is not known has an empty one.
    """
    trained, held_out = list(trained), list(held_out)
    known = dict.fromkeys(text for q in (*trained, *held_out) for text in (q.text, *q.answers))
    folded = dict(zip(known, normalised(known, "unicode"), strict=True))
    asked = {(folded[question.text], question.language) for question in trained}
    answers = {
        (question.coupling, folded[answer]) for question in trained if question.id for answer in question.answers
    }
    return [
        question
        for question in held_out
        if not asked.isdisjoint((folded[question.text], language) for language in (question.language, ""))
        or any((question.coupling, folded[answer]) in answers for answer in question.answers)
    ]


# --- Tiers of languages ---

# Tier -> its languages (table 1; the constructed ones: section 3.4; the held-out ones: section 6.6).
TIERS: Mapping[str, tuple[str, ...]] = {
    "high": ("en", "ar", "zh", "fr", "ja", "ru"),
    "low": ("am", "ay", "gn", "ha", "rw", "lg", "qu", "so", "ug", "wo", "yo", "zu"),
    "xlow": ("bm", "ee", "ln", "tw"),
    "synthetic": ("qki", "qto"),
}
HELD_OUT_TIERS: Mapping[str, tuple[str, ...]] = {
    "held_out_high": ("hi", "tr", "ko"),
    "held_out_low": ("ig", "sn", "st", "om", "tn", "mi"),
}
ALL_TIERS: Mapping[str, tuple[str, ...]] = {**TIERS, **HELD_OUT_TIERS}

# Tier -> training questions of a language in a domain (appendix L; of the constructed ones: section 3.4).
QUOTAS: Mapping[str, float] = {"high": 610, "low": 4880, "xlow": 3660, "synthetic": 2000}


def tier_of(language: str, tiers: Mapping[str, Sequence[str]] = ALL_TIERS) -> str:
    """Returns the tier of a language."""
    for tier, languages in tiers.items():
        if language in languages:
            return tier
    raise UserError(
        f"the language {language!r} is in no tier of {', '.join(tiers)}: name its tier, or leave its questions out"
    )


def with_tiers(questions: Iterable[Question], tiers: Mapping[str, Sequence[str]] = ALL_TIERS) -> list[Question]:
    """Returns the questions with the tier of their language in `extra`."""
    return [
        dataclasses.replace(question, extra=question.extra | {"tier": tier_of(question.language, tiers)})
        for question in questions
    ]


@gin.configurable
@typed
def tiered_questions(
    questions: Sequence[Question],
    weights: Mapping[str, float] | None = None,
    seed: int = 0,
) -> list[Question]:
    """Adds a tier to each question and, given weights, takes as many as possible in proportion to them.

    With weights (tier -> weight of each of its languages within a domain), returns the largest subset in which the
    languages of every domain are in this proportion. The choice depends on seed and ids: of two languages with the same
    questions, the one with less weight keeps a subset. Questions are never repeated, so a language with too few
    questions reduces the others.
    """
    questions = with_tiers(questions)
    if weights is None:
        return questions
    cells: dict[str, dict[str, list[Question]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for question in questions:
        cells[question.domain][question.language].append(question)
    kept: set[tuple[str, str, str]] = set()
    for domain, languages in cells.items():
        weight = {language: weights.get(cell[0].tier, 0.0) for language, cell in languages.items()}
        if lacking := [cell[0].tier for language, cell in languages.items() if weight[language] <= 0]:
            raise UserError(
                f"the tier {lacking[0]!r} has no weight above 0 in tiered_questions.weights: give it one, or leave its"
                " languages out"
            )
        scale = min(len(cell) / weight[language] for language, cell in languages.items())
        for language, cell in languages.items():
            order = seeded_order((question.coupling for question in cell), seed)
            kept |= {(domain, language, name) for name in order[: max(1, round(scale * weight[language]))]}
    return [q for q in questions if (q.domain, q.language, q.coupling) in kept]


def records_fingerprint(records: Iterable[Any]) -> str:
    """Returns sixteen hexadecimal digits that identify the content of some dataclass instances, in order."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(dataclasses.asdict(record), ensure_ascii=False, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:16]
