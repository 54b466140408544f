"""Stop strings, found on the device by a deterministic automaton over the bytes of tokens.

For each set of stop strings an Aho-Corasick automaton (Aho and Corasick, 1975) over bytes is
closed over whole tokens: `table[state, token]` is the state after all bytes of the token. So a
stop string is found however the tokenizer splits it, at the cost of one gather a step.
"""

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


def token_table(transitions: np.ndarray, token_bytes: Sequence[bytes], first_state: int) -> np.ndarray:
    """Closes a byte automaton over whole tokens.

    Args:
      transitions: From `byte_automaton`.
      token_bytes: Bytes of every token of the vocabulary.
      first_state: Number given to the automaton's start; the others follow.

    Returns:
      uint8[states, vocabulary]: next state, or FOUND.
    """
    lengths = np.array([len(each) for each in token_bytes])
    order = np.argsort(-lengths, kind="stable")
    longest = int(lengths.max(initial=0))
    padded = np.frombuffer(b"".join(each.ljust(longest, b"\0") for each in token_bytes), np.uint8)
    padded = padded.reshape(len(token_bytes), longest)[order]
    found = len(transitions)
    closed = np.where(transitions < 0, found, transitions)
    closed = np.vstack([closed, np.full((1, 256), found)])
    states = np.repeat(np.arange(found)[:, None], len(token_bytes), axis=1)
    for place in range(longest):
        count = int((lengths > place).sum())  # tokens are sorted: the first `count` have a byte here
        states[:, :count] = closed[states[:, :count], padded[None, :count, place]]
    table = np.empty_like(states)
    table[:, order] = np.where(states == found, FOUND, states + first_state)
    return table.astype(np.uint8)


class StopTable:
    """The transition table of every stop set seen so far, and where each set starts."""

    def __init__(self, token_bytes: Sequence[bytes], capacity: int = 64):
        self._token_bytes = token_bytes
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
            first = len(self._rows)
            rows = token_table(byte_automaton(stop), self._token_bytes, first)
            if first + len(rows) > LARGEST_STATE:
                raise ValueError(f"stop strings need {first + len(rows)} automaton states, at most {LARGEST_STATE}")
            self._rows = np.vstack([self._rows, rows])
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
