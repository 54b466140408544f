"""Cheap signs of a degenerate text, which are looked at before a judge is asked (Translate-R1, appendices B and L)."""

import collections
from collections.abc import Sequence

import sacrebleu

REPETITION_SIZE, MOST_REPETITION = 10, 0.3
LEAST_LENGTH, MOST_LENGTH = 0.2, 3.0
MOST_ECHO = 0.9
COPY_SIZE, MOST_COPIED = 20, 0.9


def repetition_ratio(text: str, size: int = REPETITION_SIZE) -> float:
    """The share of a text's character n-grams that stood in it before, in [0, 1); 0 of a text shorter than one."""
    grams = _grams(text, size)
    return 1 - len(grams) / total if (total := grams.total()) else 0.0


def copied_share(text: str, source: str, size: int = COPY_SIZE) -> float:
    """The share of a text's character n-grams that stand in its source; 0 of a text shorter than one."""
    grams, known = _grams(text, size), _grams(source, size)
    copied = sum(count for gram, count in grams.items() if gram in known)
    return copied / total if (total := grams.total()) else 0.0


def length_ratio(text: str, reference: str) -> float:
    """Characters of a text for each of its reference's; infinite where the reference is empty."""
    length = len(" ".join(reference.split()))
    return len(" ".join(text.split())) / length if length else float("inf")


def chrf(text: str, references: Sequence[str]) -> float:
    """sacreBLEU's chrF2 (character 6-grams, no words) against the best of the references, in [0, 1]."""
    return sacrebleu.sentence_chrf(text, list(references)).score / 100


def is_degenerate(text: str) -> bool:
    """Whether a text is empty or goes in circles."""
    return not text.strip() or repetition_ratio(text) > MOST_REPETITION


def has_plausible_length(text: str, references: Sequence[str]) -> bool:
    """Whether a text is about as long as one of its references: not under a fifth, and not over three times."""
    return any(LEAST_LENGTH <= length_ratio(text, reference) <= MOST_LENGTH for reference in references)


def _grams(text: str, size: int) -> collections.Counter[str]:
    text = " ".join(text.split())
    return collections.Counter(text[place : place + size] for place in range(len(text) - size + 1))
