"""An answered question, and the parts of a data set that are reported separately."""

import collections
import dataclasses
from collections.abc import Collection, Iterator, Sequence

import numpy as np
from jaxtyping import Bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answered:
    """One question with the answer of one episode."""

    question_id: str  # the same in every language version of the question
    dataset: str
    language: str  # ISO 639-1 code of the language the answer should be in
    answer: str | None  # None if the episode gave none
    golds: tuple[str, ...]  # gold answers and their aliases in `language`
    searches: int = 0  # number of queries the episode searched for
    retrieval_rounds: int = 0  # number of times it waited for search results
    subsets: tuple[str, ...] = ()  # reported parts of the data set with the question: "native_missing", "two_hops", ...
    sampled_tokens: int | None = None  # including completions outside the dialogue; None if unknown
    total_tokens: int | None = None  # of all contexts: sampled, prompts and observations; None if unknown
    answer_retrieved: bool | None = None  # whether a retrieved passage contains a gold answer; None if unknown
    plan: str | None = None  # canonical text of the policy's plan; None without a plan
    domain: str = ""  # empty for data sets with one way of answering
    tier: str = ""  # tier of its language; empty for data sets without tiers
    reward: float | None = None  # in [0, 1], excluding tool costs; None if not scored
    tool_calls: int | None = None  # calls of the translation tool; None if the program has no tool
    failed: bool = False  # whether a search, translator or another model of the episode failed; no mean counts it
    unscored: bool = False  # whether the reward's judge failed; the mean reward does not count it

    @property
    def cluster(self) -> str:
        """Identifies the question across languages: its versions are not independent observations."""
        return f"{self.dataset}/{self.question_id}"


def slices(
    answered: Sequence[Answered], seen_languages: Collection[str]
) -> Iterator[tuple[str, str, Bool[np.ndarray, " questions"]]]:
    """Yields (subset, language, questions): groups of languages, languages, then subsets; subset "" is the whole."""
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


def split_name(split: str, subset: str) -> str:
    """Returns the "split" field of a subset's rows: "held_out/native_missing", or the split itself for subset ""."""
    return f"{split}/{subset}" if subset else split
