"""The dialogue of an episode while it grows: texts by turn and everything known of each token."""

import numpy as np

from lcrag.episodes.context_text import PlacedText
from lcrag.episodes.record import PROMPT_TURN, Turn
from lcrag.sampling.generation import Sampled


class Transcript:
    """Grows by what the environment shows and what the policy samples; forgets nothing."""

    def __init__(self):
        self.prompt = ""
        self.opening: list[str] = []
        self.system: str | None = None
        self.turns: list[Turn] = []
        self.length = 0
        self._pieces: list[tuple[np.ndarray, np.ndarray | None, int]] = []

    def observe(self, placed: PlacedText) -> None:
        """The environment wrote a text; before the policy's first turn it belongs to the prompt."""
        if self.turns:
            self.turns.append(Turn("environment", placed.text))
        else:
            self.prompt += placed.text
            self.opening.append(placed.written)
            self.system = self.system or placed.system
        self._add(np.asarray(placed.tokens, np.int32), None, len(self.turns) - 1 if self.turns else PROMPT_TURN)

    def generate(self, sampled: Sampled) -> None:
        """The policy sampled a turn."""
        self.turns.append(Turn("policy", sampled.text))
        self._add(np.asarray(sampled.tokens, np.int32), sampled.log_probabilities, len(self.turns) - 1)

    def _add(self, tokens: np.ndarray, log_probabilities: np.ndarray | None, turn: int) -> None:
        self._pieces.append((tokens, log_probabilities, turn))
        self.length += len(tokens)

    def arrays(self) -> dict[str, np.ndarray]:
        """`tokens`, `by_policy`, `log_probabilities` and `turn` of an `EpisodeRecord`."""
        pieces = self._pieces
        return {
            "tokens": _joined([tokens for tokens, _, _ in pieces], np.int32),
            "by_policy": _joined([np.full(len(tokens), scores is not None) for tokens, scores, _ in pieces], np.bool_),
            "log_probabilities": _joined([_scores(tokens, scores) for tokens, scores, _ in pieces], np.float32),
            "turn": _joined([np.full(len(tokens), turn) for tokens, _, turn in pieces], np.int32),
        }


def _scores(tokens: np.ndarray, log_probabilities: np.ndarray | None) -> np.ndarray:
    return np.zeros(len(tokens), np.float32) if log_probabilities is None else log_probabilities


def _joined(pieces: list[np.ndarray], dtype) -> np.ndarray:
    return np.concatenate([np.empty(0, dtype), *pieces], dtype=dtype, casting="unsafe")
