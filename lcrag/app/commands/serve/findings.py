"""What the tool returns for a question."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import pydantic

from lcrag.episodes import EpisodeRecord, RetrievalFailure
from lcrag.episodes.search_log import LoggedSearch
from lcrag.retrieval.passages import Hit

# What a program that writes evidence calls it in `Outcome.extra`.
EVIDENCE = "evidence"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Findings:
    """What a policy found for a question.

    Attributes:
      question: As it was asked.
      language: ISO 639-1 code of the language it was asked in.
      answer: The policy's answer; None if it gave none.
      evidence: What the policy itself wrote down from the passages; None if its program asks for no evidence, or it
        wrote none.
      passages: What its searches found, each passage once, in the order found.
      searches: Its queries, in the order asked.
      failed_searches: Requests to the collections that failed after every retry; the policy was told.
      finished: Whether the episode ran to its own end; False: the policy's context was full.
    """

    question: str
    language: str
    answer: str | None
    evidence: str | None
    passages: tuple[Hit, ...]
    searches: tuple[str, ...]
    failed_searches: int
    finished: bool


_ADAPTER = pydantic.TypeAdapter(Findings)


def findings_json(findings: Findings) -> dict[str, Any]:
    """Findings as an object of JSON."""
    return _ADAPTER.dump_python(findings, mode="json")


def findings_schema() -> dict[str, Any]:
    """The JSON schema of findings."""
    return _ADAPTER.json_schema(mode="serialization")


def findings_of(record: EpisodeRecord, noted: Sequence[LoggedSearch]) -> Findings:
    """What an episode found.

    Args:
      record: The finished episode.
      noted: Its searches; the passages are `Hit`s.
    """
    hits: dict[tuple[str, str], Hit] = {}
    for search in noted:
        for hit in search.passages:
            assert isinstance(hit, Hit)
            hits.setdefault((hit.language, hit.id), hit)
    return Findings(
        question=record.question.text,
        language=record.question.language,
        answer=record.outcome.answer,
        evidence=record.outcome.extra.get(EVIDENCE) or None,
        passages=tuple(hits.values()),
        searches=tuple(query for search in noted for query in search.request.queries),
        failed_searches=sum(isinstance(search.answer, RetrievalFailure) for search in noted),
        finished=record.finished,
    )
