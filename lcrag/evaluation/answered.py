"""What evaluation reads: an answered question."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answered:
    """One question with the answer an episode gave.

    Attributes:
      question_id: The same in every language version of the question.
      dataset: Name of the data set.
      language: ISO 639-1 code of the language it was to be answered in.
      answer: The answer, None if the episode gave none.
      golds: Golden answers and their aliases in `language`.
      searches: How many queries the episode searched for.
      retrieval_rounds: How often it waited for some of them.
      subsets: Names of the parts of the data set it belongs to and that are reported apart, e.g.
        "native_missing", "copyable", "two_hops".
      sampled_tokens: How many tokens were sampled for it, those beside the dialogue included; None: not known.
      answer_retrieved: Whether a passage that a search found holds a golden answer, False without a search; None: not
        known.
      plan: The plan that the policy made, in its canonical form; None: it made none.
      domain: The question's domain, empty where there is one way of answering only.
      tier: The tier of its language, empty where there are none.
      reward: What the answer earns, without the cost of tools, in [0, 1]; None: not scored.
      tool_calls: How often the translation tool was called; None: the program has none.
    """

    question_id: str
    dataset: str
    language: str
    answer: str | None
    golds: tuple[str, ...]
    searches: int = 0
    retrieval_rounds: int = 0
    subsets: tuple[str, ...] = ()
    sampled_tokens: int | None = None
    answer_retrieved: bool | None = None
    plan: str | None = None
    domain: str = ""
    tier: str = ""
    reward: float | None = None
    tool_calls: int | None = None

    @property
    def cluster(self) -> str:
        """Names the question across its languages: versions of one question are not independent."""
        return f"{self.dataset}/{self.question_id}"
