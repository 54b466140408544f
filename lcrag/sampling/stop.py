"""Detection of stop strings on the device by a deterministic automaton over the bytes of tokens.

For each set of stop strings an Aho-Corasick automaton (Aho and Corasick, 1975) over bytes is closed over whole tokens:
`table[state, token]` is the state after all bytes of the token. A stop string is found however the tokenizer splits it,
at the cost of one gather per decode step.
"""

import functools
from collections.abc import Sequence

import numpy as np

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
            raise ValueError("a stop string is empty")
        if stop not in self._starts:
            first, rows = len(self._rows), token_table(stop, self._tokens)
            if first + len(rows) > LARGEST_STATE:
                raise ValueError(f"stop strings need {first + len(rows)} automaton states, at most {LARGEST_STATE}")
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
    ends = [content.find(each.encode()) + len(each.encode()) for each in stop if each.encode() in content]
    return content[: min(ends, default=len(content))].decode("utf-8", errors="replace")
