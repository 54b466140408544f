"""How well an answer matches its golds: one number in [0, 1] an answer.

Every function takes answers (None, an episode without one, is the empty string) and for each
a list of golds, and keeps the best gold. An empty list of golds scores 0, and so does a gold of
which normalisation leaves nothing: an empty answer never earns anything. Scores are
ratios of exact integer counts in float64, equal to the last bit to plain Python's.
"""

import functools
import itertools
from collections.abc import Callable, Collection, Sequence

import numpy as np
from jaxtyping import Float, Int, UInt32

from lcrag.rewards import kernels
from lcrag.rewards.packing import PADDING, Packed, map_pairs, pack, pack_sequences
from lcrag.rewards.text import normalised, normalised_english

Answers = Sequence[str | None]
Golds = Sequence[Sequence[str]]

VERDICTS = ("yes", "no", "noanswer")
_GRAM_LENGTH = 3


def c3_recall(predictions: Answers, golds: Golds, short_gold: str = "whole") -> Float[np.ndarray, " answers"]:
    """Character 3-gram recall |S(prediction) ∩ S(gold)| / |S(gold)|, the best over the golds.

    S is the *set* of 3-grams of the whole normalised string, spaces included (LcRL, Section 3.3).

    Args:
      predictions: Answers.
      golds: Golden answers and their aliases.
      short_gold: What a string of one or two characters is: "whole", one gram, itself; "zero",
        without grams, so that such a gold scores 0 (the published code).
    """
    texts, gold_texts, owners = _normalised(predictions, golds, normalised)
    left, right = pack(with_grams(texts, short_gold)), pack(with_grams(gold_texts, short_gold))
    counts = map_pairs(kernels.common_grams, left, right, _each_gold(owners))
    return _best(ratio(counts[:, 0], counts[:, 1]), owners, len(predictions))


def c3_recall_bergen(predictions: Answers, golds: Golds) -> Float[np.ndarray, " answers"]:
    """BERGEN's character 3-gram recall, the published evaluation number (Chirkova et al., 2024).

    Another quantity than `c3_recall`: English articles and ASCII punctuation deleted, grams within
    words only, a word shorter than 3 one gram, and *multisets*: the share of the gold's grams found.
    """
    texts, gold_texts, owners = _normalised(predictions, golds, normalised_english)
    multisets = functools.partial(kernels.common_grams, multiset=True)
    counts = map_pairs(multisets, _pack_words_apart(texts), _pack_words_apart(gold_texts), _each_gold(owners))
    return _best(ratio(counts[:, 0], counts[:, 1]), owners, len(predictions))


def exact_match(predictions: Answers, golds: Golds) -> Float[np.ndarray, " answers"]:
    """1 where the normalised answer is a normalised gold, else 0 (LcRL's baselines and ablation)."""
    return _match(kernels.same, predictions, golds, normalised)


def flexible_exact_match(predictions: Answers, golds: Golds) -> Float[np.ndarray, " answers"]:
    """fEM: 1 where a normalised gold is a substring of the normalised answer, else 0 (LcRL, Section 4)."""
    return _match(kernels.contains, predictions, golds, normalised)


def squad_exact_match(predictions: Answers, golds: Golds) -> Float[np.ndarray, " answers"]:
    """EM of the English benchmarks: `exact_match` after SQuAD's normalisation (Rajpurkar et al., 2016)."""
    return _match(kernels.same, predictions, golds, normalised_english)


def squad_accuracy(predictions: Answers, golds: Golds) -> Float[np.ndarray, " answers"]:
    """1 where a gold is contained in the answer, both after SQuAD's normalisation, else 0 (FlashRAG's accuracy)."""
    return _match(kernels.contains, predictions, golds, normalised_english)


def token_f1(predictions: Answers, golds: Golds, verdicts: Collection[str] = ()) -> Float[np.ndarray, " answers"]:
    """Word F1 after SQuAD's normalisation: the harmonic mean of the precision and the recall of the
    words as multisets, the best over the golds (Rajpurkar et al., 2016).

    Args:
      predictions: Answers.
      golds: Golden answers and their aliases.
      verdicts: Normalised texts that are right only as a whole, whichever side they stand on: "no way" earns nothing
        of the gold "no". `VERDICTS` in the scripts of HotpotQA and 2WikiMultiHopQA, none in SQuAD's and MuSiQue's.
    """
    texts, gold_texts, owners = _normalised(predictions, golds, normalised_english)
    numbers: dict[str, int] = {}
    left, right = _pack_words(texts, numbers), _pack_words(gold_texts, numbers)
    counts = map_pairs(kernels.common_words, left, right, _each_gold(owners))
    # 2PR/(P+R) with P = common/left and R = common/right.
    scores = ratio(2 * counts[:, 0], left.lengths[owners] + right.lengths)
    pairs = [(texts[owner], gold) for owner, gold in zip(owners, gold_texts, strict=True)]
    wrong = [text != gold and not {text, gold}.isdisjoint(verdicts) for text, gold in pairs]
    return _best(np.where(np.array(wrong, bool), 0.0, scores), owners, len(predictions))


def with_grams(texts: Sequence[str], short_gold: str) -> list[str]:
    """The normalised texts with those that `short_gold` declares to be without grams emptied."""
    if short_gold not in ("whole", "zero"):
        raise ValueError(f'short_gold is "whole" or "zero", not {short_gold!r}')
    return list(texts) if short_gold == "whole" else [text if len(text) >= _GRAM_LENGTH else "" for text in texts]


def ratio(part: Int[np.ndarray, "*shape"], whole: Int[np.ndarray, "*shape"]) -> Float[np.ndarray, "*shape"]:
    """part / whole, 0 where there is no whole."""
    return np.divide(part, whole, out=np.zeros(part.shape), where=whole > 0)


def _match(kernel: Callable, predictions: Answers, golds: Golds, normaliser: Callable) -> Float[np.ndarray, " answers"]:
    texts, gold_texts, owners = _normalised(predictions, golds, normaliser)
    matches = map_pairs(kernel, pack(texts), pack(gold_texts), _each_gold(owners))
    return _best(matches.astype(np.float64), owners, len(predictions))


def _normalised(
    predictions: Answers, golds: Golds, normaliser: Callable
) -> tuple[list[str], list[str], Int[np.ndarray, " golds"]]:
    """Normalised answers, all normalised golds in a row, and for each gold the number of its answer."""
    if len(predictions) != len(golds):
        raise ValueError(f"{len(predictions)} answers but {len(golds)} lists of golds")
    if any(isinstance(own, str) for own in golds):
        raise ValueError("golds must be a list of golds for each answer, not one string")
    owners = np.repeat(np.arange(len(golds)), [len(own) for own in golds])
    return normaliser(predictions), normaliser(itertools.chain.from_iterable(golds)), owners


def _each_gold(owners: Int[np.ndarray, " golds"]) -> tuple[Int[np.ndarray, " golds"], Int[np.ndarray, " golds"]]:
    return owners, np.arange(len(owners))


def _best(scores: Float[np.ndarray, " golds"], owners: Int[np.ndarray, " golds"], answers: int) -> np.ndarray:
    best = np.zeros(answers)
    np.maximum.at(best, owners, scores)
    return best


def _pack_words_apart(texts: Sequence[str]) -> Packed:
    packed = pack(texts)
    separated = np.where(packed.numbers == ord(" "), np.uint32(PADDING), packed.numbers)
    return Packed(separated, packed.starts, packed.lengths)


def _pack_words(texts: Sequence[str], numbers: dict[str, int]) -> Packed:
    """Texts as sequences of word numbers; `numbers` gains the words it does not have yet."""
    words = [text.split() for text in texts]
    flat: UInt32[np.ndarray, " total"] = np.fromiter(
        (numbers.setdefault(word, len(numbers)) for word in itertools.chain.from_iterable(words)), np.uint32
    )
    return pack_sequences(flat, [len(own) for own in words])
