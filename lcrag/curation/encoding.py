"""Encodes demonstrations into training rows, as their text would be encoded in an episode."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Int32

from lcrag.data.demonstrations import Demonstration
from lcrag.episodes import Chat, EpisodeRecord
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.policy import Tokenizer


class UnusableRow(ValueError):
    """A demonstration that cannot be used for training."""

    def __init__(self, field: str, problem: str):
        super().__init__(problem)
        self.field, self.problem = field, problem


@dataclasses.dataclass(frozen=True, eq=False)
class EncodedRow:
    """A training row.

    Attributes:
      tokens: The whole context.
      learned: True for the target tokens.
    """

    tokens: Int32[np.ndarray, " n"]
    learned: Bool[np.ndarray, " n"]


class RowEncoder:
    """Encodes demonstrations for one policy.

    Args:
      tokenizer: The policy's tokenizer.
      chat: How openings are given to a model with a chat template.
      longest_tokens: Rows with more tokens are unusable.
      end_of_sequence: Append end-of-sequence to dialogues that end with the policy's turn. Episodes end at their stop
        strings without it; generation without stop strings needs it.
    """

    def __init__(self, tokenizer: Tokenizer, chat: Chat, longest_tokens: int, end_of_sequence: bool = True):
        self.context_tokenizer = ContextTokenizer(tokenizer, chat)
        self._tokenizer, self._chat = tokenizer, chat  # uncached: files hold too many texts
        self.longest_tokens = longest_tokens
        self._end = [tokenizer.eos_ids[0]] if end_of_sequence else []
        templated = chat.template and tokenizer.chat_template is not None
        self._special_tokens = tuple(tokenizer.special_tokens) if templated else ()

    def demonstration(self, demonstration: Demonstration) -> EncodedRow:
        """Encodes a demonstration up to the policy's last turn.

        Raises:
          UnusableRow: it is too long, or its prompt is in a chat template already.
        """
        self._check_opening(demonstration)
        learned_turns = [number for number, turn in enumerate(demonstration.turns, start=1) if turn.learn]
        turns = demonstration.turns[: max(learned_turns, default=0)]
        self._check_length([demonstration.opening, *(turn.text for turn in turns)])
        opening = self._chat.opening(self._tokenizer, demonstration.opening, demonstration.system)
        pieces = [(opening.ids, False)]
        pieces += [(self._tokenizer.encode_ordinary(turn.text, continues=True), turn.learn) for turn in turns]
        tokens = np.concatenate([np.asarray(ids, np.int32) for ids, _ in pieces])
        learned = np.concatenate([np.full(len(ids), learned) for ids, learned in pieces])
        return self._row(tokens, learned, ends=demonstration.turns[-1].learn)

    def record(self, record: EpisodeRecord) -> EncodedRow:
        """Encodes a played episode.

        Raises:
          UnusableRow: it is too long, or the policy wrote nothing in it.
        """
        if not record.by_policy.any():
            raise UnusableRow("", "the policy wrote nothing in it")
        last = int(np.flatnonzero(record.by_policy)[-1]) + 1
        return self._row(record.tokens[:last], record.by_policy[:last], ends=bool(record.by_policy[-1]))

    def completions(self, record: EpisodeRecord) -> list[EncodedRow]:
        """Encodes the completions of an episode outside its dialogue, one row for each.

        Raises:
          UnusableRow: one is too long.
        """
        rows = []
        for each in record.completions:
            if each.model is None:
                prompt = self.context_tokenizer.place(each.opening or each.prompt, opens=True).tokens
                text = self.context_tokenizer.encode(each.text)
                learned = np.repeat([False, True], [len(prompt), len(text)])
                rows.append(self._row(np.asarray([*prompt, *text], np.int32), learned, ends=True))
        return rows

    def _row(self, tokens: np.ndarray, learned: np.ndarray, *, ends: bool) -> EncodedRow:
        """Appends end-of-sequence if the policy's turn is the last, and checks the row."""
        end = self._end if ends else []
        tokens = np.concatenate([tokens, np.asarray(end, np.int32)])
        learned = np.concatenate([learned, np.full(len(end), True)])
        if learned[0]:
            raise UnusableRow("prompt", "it has no tokens, so nothing precedes the policy's first token")
        if not learned.any():
            raise UnusableRow("turns", "the policy's text has no tokens to learn")
        if len(tokens) > self.longest_tokens:
            longest = f"the longest training row holds {self.longest_tokens}; raise Layout.row_lengths"
            raise UnusableRow("", f"it has {len(tokens)} tokens, but {longest}")
        return EncodedRow(tokens, learned)

    def _check_length(self, texts: Sequence[str]) -> None:
        """Rejects text that is certainly too long without encoding it, which would take long."""
        characters = sum(map(len, texts))
        if characters > self.context_tokenizer.most_characters(self.longest_tokens):
            longest = f"the longest training row holds {self.longest_tokens} tokens; raise Layout.row_lengths"
            raise UnusableRow("", f"it has {characters} characters, but {longest}")

    def _check_opening(self, demonstration: Demonstration) -> None:
        spelled = [token for token in self._special_tokens if token in demonstration.opening]
        if demonstration.in_template and spelled:
            raise UnusableRow(
                "prompt",
                f"it holds the control token {spelled[0]}: if it stands in a chat template already, give the text"
                ' without it as "opening": ["..."]',
            )
