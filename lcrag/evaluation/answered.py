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
    """

    question_id: str
    dataset: str
    language: str
    answer: str | None
    golds: tuple[str, ...]
    searches: int = 0
    retrieval_rounds: int = 0
    subsets: tuple[str, ...] = ()

    @property
    def cluster(self) -> str:
        """Names the question across its languages: versions of one question are not independent."""
        return f"{self.dataset}/{self.question_id}"
