"""Compares answers with golds: one score in [0, 1] per answer.

Every function takes answers (None, for an episode without one, counts as the empty string) and a list of golds per
answer, and returns the best score over the golds. An empty list of golds scores 0, and so does a gold without a visible
character: an empty answer never scores. A gold of which normalisation leaves nothing ("A+", "---") matches the answers
of which it leaves nothing, but has no trigrams for c3. Scores are ratios of exact integer counts in float64, equal to
plain Python's to the last bit.
"""

import functools
import operator
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float, Int

from lcrag.errors import lookup
from lcrag.rewards.text import (
    GRAM_LENGTH,
    encoded,
    folded,
    gram_units,
    is_visible,
    lines_of,
    normalise_bergen,
    normalise_english,
    normalised,
    normalised_codes,
    normalised_english,
    segmented,
    shared,
    word_units,
)

Answers = Sequence[str | None]
Golds = Sequence[Sequence[str]]
Normaliser = Callable[[list[str]], list[str]]
Scores = Callable[[list[str], Int[np.ndarray, " answers"]], Float[np.ndarray, " texts"]]

VERDICTS = ("yes", "no", "noanswer")
SHORT_GOLD = ("whole", "zero", "contained")
_ANSWERS = 512  # answers compared at a time, so their arrays stay in the processor's cache
_HANGUL = re.compile("([\uac00-\ud7af])")


def c3_recall(
    predictions: Answers, golds: Golds, short_gold: str = "whole", normalisation: str = "lcrl"
) -> Float[np.ndarray, " answers"]:
    """Character 3-gram recall |S(prediction) ∩ S(gold)| / |S(gold)|, the best over the golds.

    S is the *set* of 3-grams of the whole normalised string, spaces included (LcRL, Section 3.3).

    Args:
      short_gold: How a string of one or two characters counts: "whole": as one gram; "zero": as no gram, which
        scores 0 for such a gold (the published code); "contained": as one gram, but such a gold scores 1 wherever the
        answer contains it, "12" in "in 2012".
      normalisation: See `normalise`.
    """
    lookup(dict.fromkeys(SHORT_GOLD), short_gold, "short_gold")

    def scores(texts: list[str], sizes: Int[np.ndarray, " answers"]) -> Float[np.ndarray, " texts"]:
        codes = normalised_codes(texts, normalisation)
        recalls = ratio(*shared(gram_units(codes, sizes, short=short_gold != "zero")))
        if short_gold == "contained":
            answers, normal = _answers(sizes), lines_of(codes)
            for place, text in enumerate(normal):
                if 0 < len(text) < GRAM_LENGTH:
                    recalls[place] = text in normal[answers[place]]
        return recalls

    return _best(scores, predictions, golds)


def c3_f(predictions: Answers, golds: Golds, normalisation: str = "lcrl") -> Float[np.ndarray, " answers"]:
    """Harmonic mean of `c3_recall` and the precision |S(prediction) ∩ S(gold)| / |S(prediction)|, the best over golds.

    chrF of order 3 and beta 1 (Popović, 2015), but with spaces, over sets, and with a text of one or two characters as
    one gram; 0 without grams. Unlike the recall it charges for length.
    """

    def scores(texts: list[str], sizes: Int[np.ndarray, " answers"]) -> Float[np.ndarray, " texts"]:
        common, grams = shared(gram_units(normalised_codes(texts, normalisation), sizes))
        return ratio(2 * common, grams[_answers(sizes)] + grams)

    return _best(scores, predictions, golds)


def c3_recall_bergen(predictions: Answers, golds: Golds) -> Float[np.ndarray, " answers"]:
    """BERGEN's character 3-gram recall, the published evaluation number (Chirkova et al., 2024).

    It differs from `c3_recall`: English articles and ASCII punctuation are deleted, n-grams do not cross words, a word
    of fewer than 3 characters is one n-gram, and n-grams are *multisets*: the share of the gold's n-grams found.
    """

    def scores(texts: list[str], sizes: Int[np.ndarray, " answers"]) -> Float[np.ndarray, " texts"]:
        codes = encoded(map(normalise_bergen, texts))
        return ratio(*shared(gram_units(codes, sizes, words_apart=True), multisets=True))

    return _best(scores, predictions, golds)


def exact_match(predictions: Answers, golds: Golds, normalisation: str = "lcrl") -> Float[np.ndarray, " answers"]:
    """1 where the normalised answer is a normalised gold, else 0 (LcRL's baselines and ablation)."""
    return _match(operator.eq, predictions, golds, functools.partial(normalised, normalisation=normalisation))


def flexible_exact_match(
    predictions: Answers, golds: Golds, normalisation: str = "lcrl"
) -> Float[np.ndarray, " answers"]:
    """fEM: 1 where a normalised gold is a substring of the normalised answer, else 0 (LcRL, Section 4)."""
    return _match(operator.contains, predictions, golds, functools.partial(normalised, normalisation=normalisation))


def squad_exact_match(predictions: Answers, golds: Golds) -> Float[np.ndarray, " answers"]:
    """EM of the English benchmarks: `exact_match` after SQuAD's normalisation (Rajpurkar et al., 2016)."""
    return _match(operator.eq, predictions, golds, normalised_english)


def squad_accuracy(predictions: Answers, golds: Golds) -> Float[np.ndarray, " answers"]:
    """1 where a gold is contained in the answer, both after SQuAD's normalisation, else 0 (FlashRAG's accuracy)."""
    return _match(operator.contains, predictions, golds, normalised_english)


def token_f1(predictions: Answers, golds: Golds, verdicts: Collection[str] = ()) -> Float[np.ndarray, " answers"]:
    """Word F1 after SQuAD's normalisation, words as multisets, the best over the golds (Rajpurkar et al., 2016).

    Args:
      verdicts: Normalised texts that must match as a whole, on either side: "no way" scores 0 for the gold "no".
        `VERDICTS` in the scripts of HotpotQA and 2WikiMultiHopQA, where an answer of no words scores 0; empty in those
        of SQuAD and MuSiQue.
    """
    return _word_f1(predictions, golds, normalised_english, verdicts)


def mixed_f1(
    predictions: Answers, golds: Golds, languages: Sequence[str] | None = None
) -> Float[np.ndarray, " answers"]:
    """`token_f1` in mixed segmentation, as in MLQA's evaluation (Lewis et al., 2020, section 4.1).

    Texts are `folded` (see `lcrag.rewards.text`), punctuation of any script is deleted, and each character of a script
    without spaces between words is a word. For ASCII texts in English it equals `token_f1`.

    Args:
      languages: Of each answer, whose articles do not count, as in MLQA's script; None: English.
    """
    best, chosen = np.zeros(len(predictions)), np.array(languages or ["en"] * len(predictions))
    for language in dict.fromkeys(chosen.tolist()):
        places = np.flatnonzero(chosen == language).tolist()

        def normaliser(texts: list[str], language: str = language) -> list[str]:
            return [normalise_english(segmented(text), language) for text in texts]

        best[places] = _word_f1([predictions[n] for n in places], [golds[n] for n in places], normaliser)
    return best


def _word_f1(
    predictions: Answers, golds: Golds, normaliser: Normaliser, verdicts: Collection[str] = ()
) -> Float[np.ndarray, " answers"]:
    def scores(texts: list[str], sizes: Int[np.ndarray, " answers"]) -> Float[np.ndarray, " texts"]:
        normal, answers = normaliser(texts), _answers(sizes)
        common, words = shared(units := word_units(normal, sizes), multisets=True)
        f1 = ratio(2 * common, units.counts[answers] + words)  # 2PR/(P+R), P = common/answer and R = common/gold
        if not verdicts:
            return np.where(_both_vanish(texts, normal, answers), 1.0, f1)
        for place, text in enumerate(normal):
            pair = text, normal[answers[place]]
            f1[place] *= pair[0] == pair[1] or {*pair}.isdisjoint(verdicts)
        return f1

    return _best(scores, predictions, golds)


def holds_answer(passages: Iterable[str], golds: Iterable[str]) -> bool:
    """Whether a passage, title included, contains a golden answer as whole words, ignoring case and articles.

    This measures whether a reader of the passages could answer (GlobalRAG, appendix B). Texts that look alike to a
    reader are equal, as in `lcrag.rewards.text.folded`. Punctuation is either deleted or a separator, whichever
    matches: "U.S." is in "the US army", and "1999" in "1999–2001". In scripts without spaces between words, and in
    Korean, whose particles are attached to words, each character is a word. A gold that is empty after normalisation
    is never contained.
    """
    wanted = [_word_forms(gold) for gold in golds]
    return any(
        words != "  " and words in text
        for passage in passages
        for place, text in enumerate(_word_forms(passage))
        for words in (forms[place] for forms in wanted)
    )


def ratio(part: Int[np.ndarray, "*shape"], whole: Int[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """Returns part / whole, 0 where the whole is 0."""
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0)


def _match(
    matches: Callable[[str, str], bool], predictions: Answers, golds: Golds, normaliser: Normaliser
) -> Float[np.ndarray, " answers"]:
    def scores(texts: list[str], sizes: Int[np.ndarray, " answers"]) -> Float[np.ndarray, " texts"]:
        normal, answers = normaliser(texts), _answers(sizes)
        pairs = zip(answers.tolist(), normal, strict=True)
        matched = [text != "" and matches(normal[answer], text) for answer, text in pairs]
        return np.array(matched, bool) | _both_vanish(texts, normal, answers)

    return _best(scores, predictions, golds)


def _both_vanish(texts: list[str], normal: list[str], answers: Int[np.ndarray, " texts"]) -> Bool[np.ndarray, " texts"]:
    """Whether normalisation leaves nothing of a text or its answer, although both are visible."""
    vanished = np.fromiter((text != "" and not left for text, left in zip(texts, normal, strict=True)), bool)
    return vanished & vanished[answers]


def _best(scores: Scores, predictions: Answers, golds: Golds) -> Float[np.ndarray, " answers"]:
    """Returns the best score of each answer over its golds.

    `scores` gives a score to each text: an answer is followed by its golds, and sizes count the texts of each answer.
    """
    if len(predictions) != len(golds):
        raise ValueError(f"{len(predictions)} answers but {len(golds)} lists of golds")
    if any(isinstance(texts, str) for texts in golds):
        raise ValueError("golds must be a list of golds for each answer, not one string")
    best = np.zeros(len(predictions))
    for begin in range(0, len(predictions), _ANSWERS):
        part = golds[begin : begin + _ANSWERS]
        sizes = np.fromiter(map(len, part), np.int64, len(part)) + 1
        pairs = zip(predictions[begin : begin + _ANSWERS], part, strict=True)
        texts = (text or "" for answer, own in pairs for text in (answer, *own))
        found = scores([text if is_visible(text) else "" for text in texts], sizes)
        firsts = np.cumsum(sizes) - sizes
        found[firsts] = 0  # answers themselves
        best[begin : begin + len(part)] = np.maximum.reduceat(found, firsts)
    return best


def _answers(sizes: Int[np.ndarray, " answers"]) -> Int[np.ndarray, " texts"]:
    return np.repeat(np.cumsum(sizes) - sizes, sizes)


@functools.lru_cache(2**12)  # the episodes of a question are given the same passages
def _word_forms(text: str) -> list[str]:
    """Returns the words of a folded text between spaces: with punctuation deleted, and with punctuation as spaces."""
    text = folded(text)
    split = (_HANGUL.sub(r" \1 ", segmented(form)) for form in (text, text.translate(_spaces())))
    return [f" {normalise_english(form)} " for form in split]


@functools.cache
def _spaces() -> Mapping[int, str]:
    return {code: " " for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code))[0] in "PS"}
