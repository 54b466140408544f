"""The choice of a token, and the detection of stop strings in what was chosen."""

import functools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, UInt

from lcrag.errors import UserError

WEIGHT_BITS = 30  # of float32 numbers in [0, 1]; the two highest bits are 0
BITS_PER_PASS = 3  # 7 sums in each of 10 passes over the vocabulary
SHARES = 16  # largest number of shards of the vocabulary (mesh axis "tensor") that stay separate while sampling


def streams(seeds: UInt[Array, "slots"], episodes: UInt[Array, "slots"]) -> Key[Array, "slots"]:
    """Returns the random key of each slot, a function of (seed, episode) only."""
    return jax.vmap(lambda seed, episode: jax.random.fold_in(jax.random.key(seed), episode))(seeds, episodes)


def uniforms(keys: Key[Array, "slots"], positions: Int[Array, "slots"]) -> Float[Array, "slots"]:
    """Draws one number in [0, 1) for the next position of each slot."""
    return jax.vmap(lambda key, position: jax.random.uniform(jax.random.fold_in(key, position)))(keys, positions)


def sample_token(
    logits: Float[Array, "slots vocabulary"],
    uniform: Float[Array, "slots"],
    temperatures: Float[Array, "slots"],
    top_ps: Float[Array, "slots"],
    unscaled_scores: Bool[Array, "slots"] | None = None,
) -> tuple[Int[Array, "slots"], Float[Array, "slots"]]:
    """Samples one token per slot.

    Returns:
      The ids, and their log-probabilities under the untruncated distribution at the slot's temperature (1 if greedy, or
      where `unscaled_scores`).
    """
    greedy = temperatures <= 0
    scaled = logits / jnp.where(greedy, 1.0, temperatures)[:, None]
    largest = jnp.max(scaled, axis=-1, keepdims=True)
    weights = jnp.exp(scaled - largest)
    total = jnp.sum(weights, axis=-1, keepdims=True)
    log_normaliser = jnp.log(total) + largest
    kept = jax.lax.cond(jnp.any(top_ps < 1), lambda: nucleus(weights, top_ps), lambda: weights)
    none = jnp.zeros(len(uniform), jnp.int32)
    sampled = jax.lax.cond(jnp.all(greedy), lambda: none, lambda: inverse_cdf(kept, uniform))
    best = jax.lax.cond(jnp.any(greedy), lambda: jnp.argmax(logits, axis=-1).astype(jnp.int32), lambda: none)
    tokens = jnp.where(greedy, best, sampled)
    log_probabilities = (jnp.take_along_axis(scaled, tokens[:, None], axis=-1) - log_normaliser)[:, 0]
    if unscaled_scores is None:
        return tokens, log_probabilities

    def unscaled() -> Float[Array, "slots"]:
        picked = jnp.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
        return jnp.where(unscaled_scores, picked - jax.nn.logsumexp(logits, axis=-1), log_probabilities)

    differs = unscaled_scores & ~greedy & (temperatures != 1)
    return tokens, jax.lax.cond(jnp.any(differs), unscaled, lambda: log_probabilities)


def nucleus(
    weights: Float[Array, "slots vocabulary"], top_ps: Float[Array, "slots"]
) -> Float[Array, "slots vocabulary"]:
    """Zeroes all but the smallest set of heaviest tokens whose share reaches top_p; 1 keeps all, however small.

    A token is kept if all heavier ones together weigh less than top_p of the total; the heaviest is always kept
    (Holtzman et al., 2020). The lightest kept weight is found bit by bit, because the bits of positive float32 numbers
    are ordered like the numbers: nothing is sorted, and on a mesh devices exchange only sums. Weights are in [0, 1].
    """
    bits = jax.lax.bitcast_convert_type(weights, jnp.int32)
    wanted = top_ps * jnp.sum(weights, axis=-1)

    def extended(step, found: Int[Array, "slots"]) -> Int[Array, "slots"]:
        """Adds the next bits of the largest threshold above which the weights still reach the share."""
        shift = WEIGHT_BITS - (step + 1) * BITS_PER_PASS
        candidates = [found + (digit << shift) for digit in range(1, 2**BITS_PER_PASS)]
        heavier = (jnp.sum(jnp.where(bits > candidate[:, None], weights, 0.0), axis=-1) for candidate in candidates)
        return found + (sum((sums >= wanted).astype(jnp.int32) for sums in heavier) << shift)

    found = jax.lax.fori_loop(0, WEIGHT_BITS // BITS_PER_PASS, extended, jnp.zeros(len(top_ps), jnp.int32))
    threshold = jnp.minimum(found + 1, jnp.max(bits, axis=-1))
    return jnp.where((bits >= threshold[:, None]) | (top_ps >= 1)[:, None], weights, 0.0)


def inverse_cdf(weights: Float[Array, "slots vocabulary"], uniform: Float[Array, "slots"]) -> Int[Array, "slots"]:
    """Returns the first index at which the cumulative weight exceeds `uniform` x the total.

    Works in two levels (blocks of about the square root of the vocabulary, then inside one block), which is cheaper
    than one long cumulative sum. No block crosses the boundary of a `SHARES`-th of the vocabulary, so on a mesh devices
    exchange only sums and one block. A token of weight 0 is never chosen.
    """
    slots, vocabulary = weights.shape
    size = max(1, 2 ** round(math.log2(vocabulary) / 2))
    shares = math.gcd(vocabulary, SHARES)
    apart = weights.reshape(slots, shares, -1)
    padded = jnp.pad(apart, ((0, 0), (0, 0), (0, -(vocabulary // shares) % size))).reshape(slots, shares, -1, size)
    block_weights = jnp.sum(padded, axis=-1)
    blocks = block_weights.shape[2]
    flat = block_weights.reshape(slots, -1)
    target = uniform * jnp.sum(flat, axis=-1)
    block = _first_beyond(flat, target)
    before = jnp.where(jnp.arange(flat.shape[1]) < block[:, None], flat, 0.0).sum(-1)
    share, at = block // blocks, block % blocks
    inside = jnp.take_along_axis(padded, share[:, None, None, None], axis=1)
    inside = jnp.take_along_axis(inside, at[:, None, None, None], axis=2)[:, 0, 0]
    return share * (vocabulary // shares) + at * size + _first_beyond(inside, target - before)


def _first_beyond(weights: Float[Array, "slots n"], target: Float[Array, "slots"]) -> Int[Array, "slots"]:
    """Finds the first positive entry whose cumulative weight exceeds the target; the last one if rounding hides it."""
    positive: Bool[Array, "slots n"] = weights > 0
    beyond = positive & (jnp.cumsum(weights, axis=-1) > target[:, None])
    last = weights.shape[-1] - 1 - jnp.argmax(positive[:, ::-1], axis=-1)
    return jnp.where(beyond.any(-1), jnp.argmax(beyond, axis=-1), last).astype(jnp.int32)


# --- Stop strings ---

NEVER = 0  # the state of a generation without stop strings
FOUND = 1  # absorbing: a stop string is complete
LARGEST_STATE = np.iinfo(np.uint8).max


def byte_automaton(stop: Sequence[str]) -> np.ndarray:
    """Builds the transitions of the Aho-Corasick automaton of some stop strings.

    Returns:
      int64[states, 256]; state 0 is the start, and -1 means that a stop string is complete.
    """
    trie: list[dict[int, int]] = [{}]
    accepting: set[int] = set()
    for string in stop:
        node = 0
        for byte in string.encode():
            if byte not in trie[node]:
                trie[node][byte] = len(trie)
                trie.append({})
            node = trie[node][byte]
        accepting.add(node)
    table = np.zeros((len(trie), 256), np.int64)
    failure = [0] * len(trie)
    queue = [0]
    for node in queue:  # breadth first: a node's failure link is complete before its children's
        table[node] = table[failure[node]] if node else 0
        for byte, child in trie[node].items():
            failure[child] = int(table[failure[node], byte]) if node else 0
            accepting |= {child} if failure[child] in accepting else set()
            table[node, byte] = child
            queue.append(child)
    return np.where(np.isin(table, sorted(accepting)), -1, table)


@functools.lru_cache(maxsize=4)
def _byte_columns(tokens: tuple[bytes, ...]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Lays out the bytes of a vocabulary for stepping through all tokens at once.

    Returns:
      longest_first: int64[vocabulary], tokens by decreasing length, so that tokens with a byte at some position are
        the first ones.
      columns: For each position in a token uint8[count], the byte there of the `longest_first` tokens that have one.
    """
    longest_first = np.argsort([-len(token) for token in tokens], kind="stable")
    ordered = [tokens[index] for index in longest_first]
    lengths = np.array([len(token) for token in ordered])
    joined = np.frombuffer(b"".join(ordered), np.uint8)
    starts = np.cumsum(lengths) - lengths
    counts = [int(np.searchsorted(-lengths, -place)) for place in range(int(lengths.max(initial=0)))]
    return longest_first, tuple(joined[starts[:count] + place] for place, count in enumerate(counts))


@functools.lru_cache(maxsize=64)
def token_table(stop: tuple[str, ...], tokens: tuple[bytes, ...]) -> np.ndarray:
    """Closes the automaton of some stop strings over whole tokens. The result is cached, and so read-only.

    Returns:
      int16[states, vocabulary]: the state after all bytes of a token, or -1 if a stop string was completed in it.
    """
    longest_first, columns = _byte_columns(tokens)
    transitions = byte_automaton(stop)
    found = len(transitions)
    closed = np.vstack([np.where(transitions < 0, found, transitions), np.full((1, 256), found)]).astype(np.int16)
    table = np.empty((found, len(tokens)), np.int16)
    for start, row in enumerate(table):
        states = np.full(len(row), start, np.int16)
        for column in columns:
            states[: len(column)] = closed[states[: len(column)], column]
        row[longest_first] = np.where(states == found, -1, states)
    table.flags.writeable = False
    return table


class StopTable:
    """One transition table for all sets of stop strings seen so far, and the start state of each set."""

    def __init__(self, token_bytes: Sequence[bytes], capacity: int = 64):
        self._tokens = tuple(token_bytes)
        self._starts: dict[tuple[str, ...], int] = {(): NEVER}
        self._rows = np.zeros((2, len(token_bytes)), np.uint8)
        self._rows[FOUND] = FOUND
        self._capacity = capacity

    def start(self, stop: Sequence[str]) -> int:
        """Returns the automaton's state at the beginning of a generation with these stop strings."""
        stop = tuple(sorted(set(stop)))
        if "" in stop:
            raise UserError("a stop string is empty: leave it out")
        if stop not in self._starts:
            first, rows = len(self._rows), token_table(stop, self._tokens)
            if first + len(rows) > LARGEST_STATE:
                raise UserError(
                    f"stop strings need {first + len(rows)} automaton states, at most {LARGEST_STATE}: give fewer or"
                    " shorter ones"
                )
            numbered = np.where(rows < 0, FOUND, rows + first).astype(np.uint8)
            self._rows = np.vstack([self._rows, numbered])
            self._starts[stop] = first
        return self._starts[stop]

    @property
    def table(self) -> np.ndarray:
        """uint8[capacity, vocabulary]; the capacity doubles when it is exceeded, which causes a new compilation."""
        while len(self._rows) > self._capacity:
            self._capacity *= 2
        return np.pad(self._rows, ((0, self._capacity - len(self._rows)), (0, 0)))

    @property
    def sets(self) -> int:
        return len(self._starts)


def text_until_stop(content: bytes, stop: Sequence[str]) -> str:
    """Decodes up to and including the stop string that is completed first; without one, decodes everything."""
    ends = [content.find(text.encode()) + len(text.encode()) for text in stop if text.encode() in content]
    return content[: min(ends, default=len(content))].decode("utf-8", errors="replace")
