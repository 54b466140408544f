"""Similarity of the answers within a group; each set of grams is built once."""

import numpy as np
from jaxtyping import Float

from lcrag.rewards.matching import ratio
from lcrag.rewards.shared_units import Units, repeats


def largest_similarities(units: Units) -> Float[np.ndarray, " texts"]:
    """Returns the largest similarity of each text to another text of its group, 0 for a group of one.

    The similarity of two texts is the mean of their recalls of each other's units, as sets; 0 if either has none. The
    units that occur twice in a group are the columns of a matrix of zeros and ones, one row a text, whose products are
    sums of fewer than 2**24 ones, exact in float32.
    """
    largest, counts, firsts = np.zeros(len(units.counts)), units.counts.copy(), units.firsts
    for each in repeats(units):
        counts -= np.bincount(each.texts[each.equal], minlength=len(counts))
        column = np.cumsum(each.begins) - 1
        runs = np.bincount(each.rows[each.begins], minlength=len(each.groups))
        column -= (np.cumsum(runs) - runs)[each.rows]
        first, sizes = firsts[each.groups], units.sizes[each.groups]
        incidence = np.zeros((len(sizes), sizes.max(), runs.max(initial=0)), np.float32)
        for texts in (each.texts_before, each.texts):
            incidence[each.rows, texts - first[each.rows], column] = 1
        common = (incidence @ incidence.swapaxes(1, 2)).astype(np.int64)
        members = np.minimum(first[:, None] + np.arange(sizes.max()), len(counts) - 1)
        recalls = ratio(common, np.broadcast_to(counts[members][:, None, :], common.shape))
        similarity = (recalls + recalls.swapaxes(1, 2)) / 2
        others = np.arange(sizes.max()) < sizes[:, None]
        similarity *= others[:, None, :] & ~np.eye(sizes.max(), dtype=bool)
        largest[members[others]] = similarity.max(axis=2)[others]
    return largest
