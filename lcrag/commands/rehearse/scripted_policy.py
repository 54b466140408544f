"""A policy that follows a script: it searches with the question as often as allowed, then answers.

It fills the slots of a sampler like a policy, without computing anything. The lengths of its texts are an assumption;
everything else in the episodes (prompts, searches, observations) is real.
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lcrag.data.questions import Question
from lcrag.episodes.tags import ANSWER, SEARCH, TOOL_CALL, closing, opening
from lcrag.methods.rag_r1.parallel_queries import quoted
from lcrag.methods.translate_r1.oracles import call
from lcrag.policy import TokenIds, Tokenizer
from lcrag.sampling import FinishReason, Sampled, SamplingParameters

# Names the class of the hardest questions (Adaptive-RAG) and two candidates (SuRe), and answers any other program.
ANSWERED = f"{opening(ANSWER)} C (a) one (b) another {closing(ANSWER)}"
FILLER = " the"
# Below FLARE's threshold for a search, and above its threshold for leaving a token out of the query.
LOG_PROBABILITY = math.log(0.5)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Script:
    """The texts of a scripted policy.

    Attributes:
      questions: The question of each episode, by the number of its random stream.
      generated_tokens: Length of each generation in tokens, unless its limit or context allows less.
      queries: Queries of one search.
      calls: Translations requested in an episode.
    """

    questions: Mapping[int, Question]
    generated_tokens: int
    queries: int = 1
    calls: int = 0

    def ending(self, request: SamplingParameters, actions: int) -> str:
        """Returns the last words of a generation, with the stop string that ends it.

        Args:
          request: Its sampling parameters.
          actions: Number of searches and calls in the episode so far. Every search begins with another word of the
            question, because services may cache queries.
        """
        question = self.questions[request.episode].text
        if closing(TOOL_CALL) in request.stop and actions < self.calls:
            return call(question)
        if closing(SEARCH) in request.stop:
            return f"{opening(SEARCH)} {self._queries(turned(question, actions))} {closing(SEARCH)}"
        if closing(ANSWER) in request.stop:
            return ANSWERED
        return request.stop[0] if request.stop else ""

    def _queries(self, question: str) -> str:
        """Returns the query or, if a search may have several, also beginnings of it as further queries."""
        if self.queries == 1:
            return question
        cuts = [round(len(question) * (part + 1) / self.queries) for part in reversed(range(self.queries))]
        return ", ".join(quoted(question[:cut].strip() or question) for cut in cuts)


def turned(text: str, places: int) -> str:
    """Rotates a text by a number of words, or of characters if it has few words."""
    words = text.split()
    apart = " " if len(words) > 2 else ""
    parts = words if apart else list(text)
    places %= len(parts)
    return apart.join(parts[places:] + parts[:places])


class ScriptedSampler:
    """The slots of a sampler, filled by a script; implements `lcrag.sampling.SlotSampler`.

    Every generation takes one call of `decode`, so all slots search at the same time.

    Args:
      tokenizer: Encodes the script's texts.
      script: Writes the texts.
      slots: Contexts held at once.
      context: Longest context, in tokens.

    Attributes:
      appended_tokens: Environment tokens that were prefilled; a shared opening counts once.
      sampled_tokens: Tokens written by the script.
    """

    def __init__(self, tokenizer: Tokenizer, script: Script, *, slots: int, context: int):
        self.slots, self.context = slots, context
        self.appended_tokens = self.sampled_tokens = 0
        self._tokenizer, self._script = tokenizer, script
        self._filler = tokenizer.encode_ordinary(FILLER, continues=True)[0]
        self._lengths: dict[int, int] = {}
        self._running: dict[int, SamplingParameters] = {}
        self._actions: dict[int, int] = {}

    @property
    def running(self) -> int:
        """Number of slots that are writing."""
        return len(self._running)

    def length(self, slot: int) -> int:
        """Number of tokens in a slot."""
        return self._lengths.get(slot, 0)

    def append(self, entries: Mapping[int, TokenIds]) -> None:
        """Adds environment tokens to slots."""
        for slot, tokens in entries.items():
            self._lengths[slot] = self._lengths.get(slot, 0) + len(tokens)
            self.appended_tokens += len(tokens)

    def fork(self, source: int, targets: Sequence[int]) -> None:
        """Copies a slot to others."""
        self._lengths |= dict.fromkeys(targets, self._lengths[source])

    def begin(self, requests: Mapping[int, SamplingParameters]) -> None:
        """Begins generations."""
        self._running |= requests

    def decode(self) -> dict[int, Sampled]:
        """Returns what every running slot writes."""
        written = {slot: self._written(slot, request) for slot, request in self._running.items()}
        self._running = {}
        return written

    def free(self, slots: Iterable[int]) -> None:
        """Empties slots."""
        for slot in slots:
            self._lengths.pop(slot, None)
            self._running.pop(slot, None)

    def _written(self, slot: int, request: SamplingParameters) -> Sampled:
        limit = min(request.max_tokens, self.context - self._lengths[slot])
        made = self._actions.get(request.episode, 0)
        ending = self._script.ending(request, made)
        last = self._tokenizer.encode_ordinary(ending, continues=True) or [self._tokenizer.eos_ids[0]]
        ids = [*[self._filler] * (min(self._script.generated_tokens, limit) - len(last)), *last]
        reason: FinishReason = "length" if len(ids) > limit else "stop" if ending else "eos"
        if reason == "stop" and ending.endswith((closing(SEARCH), closing(TOOL_CALL))):
            self._actions[request.episode] = made + 1
        tokens = np.asarray(ids[:limit], np.int32)
        self._lengths[slot] += len(tokens)
        self.sampled_tokens += len(tokens)
        text = self._tokenizer.decode_bytes(tokens).decode(errors="replace")
        return Sampled(tokens, np.full(len(tokens), LOG_PROBABILITY, np.float32), text, reason)
