"""A sampler without a model: the policy's text is a function of its context."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import numpy as np

from lcrag.policy import Tokenizer
from lcrag.sampling import FinishReason, Sampled, SamplerStatistics, SamplingParameters, SlotSampler

Script = Callable[[str, SamplingParameters], str]


class ScriptedSampler(SlotSampler):
    """Stands in for a sampler, with slots and blocks, but without devices.

    Args:
      tokenizer: Encodes what the script writes.
      script: (text of the context, parameters) -> the policy's next text; end-of-sequence follows it.
      slots: Contexts held at once.
      context: Longest context, in tokens.
      block: Tokens a running slot samples in one `decode`.

    Attributes:
      appends: Number of slots of each `append` call.
      forks: Number of targets of each `fork` call.
    """

    def __init__(self, tokenizer: Tokenizer, script: Script, *, slots: int = 4, context: int = 512, block: int = 8):
        self.slots, self.context = slots, context
        self._tokenizer, self._script, self._block = tokenizer, script, block
        self._contexts: dict[int, list[int]] = {}
        self._left: dict[int, list[int]] = {}  # tokens a running slot will still sample
        self._finished: dict[int, Sampled] = {}
        self.appends: list[int] = []
        self.forks: list[int] = []
        self.statistics = SamplerStatistics()

    @property
    def running(self) -> int:
        return len(self._left)

    def length(self, slot: int) -> int:
        return len(self._contexts.get(slot, ()))

    def tokens(self, slot: int) -> list[int]:
        """Returns the tokens in a slot."""
        return list(self._contexts[slot])

    def append(self, entries: Mapping[int, Sequence[int]], dropping: Collection[int] = ()) -> None:
        self.appends.append(len(entries))
        for slot in dropping:
            assert entries[slot] and self._contexts[slot].pop() in self._tokenizer.eos_ids
        for slot, tokens in entries.items():
            assert slot not in self._left, f"slot {slot} is sampling"
            self._extend(slot, tokens)
            self.statistics.appended_tokens += len(tokens)

    def fork(self, source: int, targets: Sequence[int]) -> None:
        self.forks.append(len(targets))
        for target in targets:
            assert target not in self._contexts, f"slot {target} is not free"
            self._contexts[target] = list(self._contexts[source])

    def begin(self, requests: Mapping[int, SamplingParameters]) -> None:
        for slot, request in requests.items():
            assert slot not in self._left and self.length(slot) < self.context
            written = self._script(self._tokenizer.decode(self._contexts[slot]), request)
            limit = min(request.max_tokens, self.context - self.length(slot))
            self._finished[slot] = self._sampled(
                [*self._tokenizer.encode_ordinary(written, continues=True), self._tokenizer.eos_ids[0]], request, limit
            )
            self._left[slot] = self._finished[slot].tokens.tolist()

    def decode(self) -> dict[int, Sampled]:
        ended = {}
        self.statistics.decode_steps += self._block
        self.statistics.slot_steps += self._block * self.slots
        for slot in sorted(self._left):
            now, self._left[slot] = self._left[slot][: self._block], self._left[slot][self._block :]
            self._extend(slot, now)
            self.statistics.sampled_tokens += len(now)
            if not self._left[slot]:
                del self._left[slot]
                ended[slot] = self._finished.pop(slot)
        return ended

    def free(self, slots: Iterable[int]) -> None:
        for slot in slots:
            self._contexts.pop(slot, None)
            self._left.pop(slot, None)

    def _extend(self, slot: int, tokens: Sequence[int]) -> None:
        self._contexts.setdefault(slot, []).extend(tokens)
        assert 0 <= slot < self.slots and len(self._contexts[slot]) <= self.context

    def _sampled(self, tokens: list[int], request: SamplingParameters, limit: int) -> Sampled:
        """Cuts at the first stop string, end-of-sequence or limit, as a device would."""
        eos, count, text = self._tokenizer.eos_ids[0], 0, ""
        reason: FinishReason = "length"
        while count < limit:
            count += 1
            if tokens[count - 1] == eos:
                reason = "eos"
                break
            text = self._tokenizer.decode_bytes(tokens[:count]).decode(errors="replace")
            ends = [text.index(stop) + len(stop) for stop in request.stop if stop in text]
            if ends:
                text, reason = text[: min(ends)], "stop"
                break
        return self._result(tokens[:count], text, reason, request)

    def _result(self, tokens: list[int], text: str, reason: FinishReason, request: SamplingParameters) -> Sampled:
        noise = np.random.default_rng((request.seed, request.episode)).random(len(tokens), np.float32)
        return Sampled(np.asarray(tokens, np.int32), -noise, text, reason, request.temperature)
