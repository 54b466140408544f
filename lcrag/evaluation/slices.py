"""The parts of a data set that are reported: everything, groups of languages, languages, subsets."""

import collections
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from jaxtyping import Bool

from lcrag.evaluation.answered import Answered


def split_name(split: str, subset: str) -> str:
    """What a subset of a split is called in the field "split"; "" is the whole split."""
    return f"{split}/{subset}" if subset else split


def slices(
    answered: Sequence[Answered], seen_languages: Collection[str]
) -> Iterator[tuple[str, str, Bool[np.ndarray, " questions"]]]:
    """(subset, language, questions): the whole first, then languages, then what is reported apart."""
    codes = np.array([question.language for question in answered])
    seen = np.isin(codes, list(seen_languages))
    groups = {"all": np.ones(len(codes), bool), "seen": seen, "zero_shot": ~seen}
    yield from (("", name, chosen) for name, chosen in groups.items() if chosen.any())
    yield from (("", code, codes == code) for code in dict.fromkeys(codes.tolist()))
    members: dict[str, np.ndarray] = collections.defaultdict(lambda: np.zeros(len(codes), bool))
    for index, question in enumerate(answered):
        for subset in question.subsets:
            members[subset][index] = True
    for subset in sorted(members):
        for name, chosen in groups.items():
            if (both := chosen & members[subset]).any():
                yield subset, name, both
