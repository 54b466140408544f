"""Stop strings, found on the device by a deterministic automaton over the bytes of tokens.

For each set of stop strings an Aho-Corasick automaton (Aho and Corasick, 1975) over bytes is
closed over whole tokens: `table[state, token]` is the state after all bytes of the token. So a
stop string is found however the tokenizer splits it, at the cost of one gather a step.
"""

import dataclasses
import functools
import hashlib
from collections.abc import Sequence

import numpy as np

NEVER = 0  # the state of a generation without stop strings
FOUND = 1  # absorbing: a stop string has been completed
LARGEST_STATE = np.iinfo(np.uint8).max


def byte_automaton(stop: Sequence[str]) -> np.ndarray:
    """Transitions of the Aho-Corasick automaton of some stop strings.

    Returns:
      int64[states, 256]; state 0 is the start, and -1 means that a stop string was completed.
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


@dataclasses.dataclass(frozen=True)
class VocabularyBytes:
    """The bytes of every token, laid out for stepping through all tokens at once; equal where the bytes are.

    Attributes:
      digest: Of the tokens.
      tokens: Bytes of every token of the vocabulary.
    """

    digest: str
    tokens: tuple[bytes, ...] = dataclasses.field(compare=False, repr=False)

    @functools.cached_property
    def longest_first(self) -> np.ndarray:
        """int64[vocabulary]: tokens by length, so that those that have a byte at some place come first."""
        return np.argsort([-len(token) for token in self.tokens], kind="stable")

    @functools.cached_property
    def columns(self) -> tuple[np.ndarray, ...]:
        """For each place in a token: uint8[count], the bytes there of the `longest_first` tokens that have one."""
        ordered = [self.tokens[index] for index in self.longest_first]
        lengths = np.array([len(token) for token in ordered])
        joined = np.frombuffer(b"".join(ordered), np.uint8)
        starts = np.cumsum(lengths) - lengths
        counts = [int(np.searchsorted(-lengths, -place)) for place in range(int(lengths.max(initial=0)))]
        return tuple(joined[starts[:count] + place] for place, count in enumerate(counts))


def vocabulary_bytes(token_bytes: Sequence[bytes]) -> VocabularyBytes:
    """The tokens with their digest; their lengths count, since where one ends matters."""
    digest = hashlib.sha256(np.array([len(token) for token in token_bytes], np.int64).tobytes())
    digest.update(b"".join(token_bytes))
    return VocabularyBytes(digest.hexdigest(), tuple(token_bytes))


@functools.lru_cache(maxsize=64)
def token_table(stop: tuple[str, ...], vocabulary: VocabularyBytes) -> np.ndarray:
    """Closes the automaton of some stop strings over whole tokens; remembered, and so read-only.

    Args:
      stop: The stop strings.
      vocabulary: From `vocabulary_bytes`.

    Returns:
      int16[states, vocabulary]: the state after all bytes of a token, or -1 if a stop string was completed in it.
    """
    transitions = byte_automaton(stop)
    found = len(transitions)
    closed = np.vstack([np.where(transitions < 0, found, transitions), np.full((1, 256), found)]).astype(np.int16)
    table = np.empty((found, len(vocabulary.tokens)), np.int16)
    for start, row in enumerate(table):
        states = np.full(len(row), start, np.int16)
        for column in vocabulary.columns:
            states[: len(column)] = closed[states[: len(column)], column]
        row[vocabulary.longest_first] = np.where(states == found, -1, states)
    table.flags.writeable = False
    return table


class StopTable:
    """The transition table of every stop set seen so far, and where each set starts."""

    def __init__(self, token_bytes: Sequence[bytes], capacity: int = 64):
        self._vocabulary = vocabulary_bytes(token_bytes)
        self._starts: dict[tuple[str, ...], int] = {(): NEVER}
        self._rows = np.zeros((2, len(token_bytes)), np.uint8)
        self._rows[FOUND] = FOUND
        self._capacity = capacity

    def start(self, stop: Sequence[str]) -> int:
        """The automaton's state at the beginning of a generation with these stop strings."""
        stop = tuple(sorted(set(stop)))
        if "" in stop:
            raise ValueError("a stop string is empty")
        if stop not in self._starts:
            first, rows = len(self._rows), token_table(stop, self._vocabulary)
            if first + len(rows) > LARGEST_STATE:
                raise ValueError(f"stop strings need {first + len(rows)} automaton states, at most {LARGEST_STATE}")
            numbered = np.where(rows < 0, FOUND, rows + first).astype(np.uint8)
            self._rows = np.vstack([self._rows, numbered])
            self._starts[stop] = first
        return self._starts[stop]

    @property
    def table(self) -> np.ndarray:
        """uint8[capacity, vocabulary]; the capacity doubles when it must, which compiles anew."""
        while len(self._rows) > self._capacity:
            self._capacity *= 2
        return np.pad(self._rows, ((0, self._capacity - len(self._rows)), (0, 0)))

    @property
    def sets(self) -> int:
        return len(self._starts)


def text_until_stop(content: bytes, stop: Sequence[str]) -> str:
    """The text up to and including the stop string that is completed first, or all of it."""
    ends = [content.find(each.encode()) + len(each.encode()) for each in stop if each.encode() in content]
    return content[: min(ends, default=len(content))].decode("utf-8", errors="replace")
