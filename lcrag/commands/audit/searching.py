"""Searches for the gold answers of questions, and checks which of them the observations show."""

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lcrag.commands.describe.run_plan import NO_LIMIT, budgets
from lcrag.composition.components import configured_chat
from lcrag.data.questions import Question
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.episodes.observation import information
from lcrag.episodes.requests import FoundPassages
from lcrag.episodes.routing import native_only
from lcrag.evaluation.answerable import Audited, Golds, holds, patterns, searchable
from lcrag.policy import Tokenizer
from lcrag.retrieval import Hit, SearchableCollections
from lcrag.retrieval.passages import passage_text
from lcrag.train.method import Method

QUESTIONS_AT_ONCE = 128
SEARCHES = (1, 2)  # numbers of the searches of an episode whose observations are made


@dataclasses.dataclass(frozen=True, kw_only=True)
class Observations:
    """Settings of a method's observations.

    Attributes:
      method: The method.
      tokenizer: The policy's tokenizer, with the runner's way of cutting passages.
      passages: Passages of each searched language.
      tokens: Budget of an observation.
      shown: Most passages of an observation: the best over all searched languages; None: all.
    """

    method: Method
    tokenizer: ContextTokenizer
    passages: int
    tokens: int
    shown: int | None = None

    @property
    def about(self) -> str:
        """A sentence that describes how passages are shown."""
        best = "" if self.shown is None else f" the best {self.shown} of them,"
        return (
            f"{self.passages} passages of each searched language,{best}"
            f" in {self.tokens:,} tokens; beyond them is cut {self.tokenizer.cut_passages!r}."
        )

    def of(
        self, question: Question, found: Mapping[str, Sequence[Hit]], golds: Golds, ranks: Mapping[str, int]
    ) -> dict[str, tuple[bool, bool]]:
        """Returns number of a search -> (whether it found a gold, whether its observation shows one)."""
        settings = getattr(self.method.program, "keywords", {})
        route, style = settings.get("route", native_only), settings.get("style", "search_r1")
        collections, shown, searched = self.method.collections(question, tuple(found)), {}, set()
        for number in SEARCHES:
            languages = tuple(code for code in route(number, question.language, collections) if code in found)
            if not languages or languages in searched:
                continue
            searched.add(languages)
            holding = [code for code in languages if ranks.get(code, NO_LIMIT) <= self.passages]
            if holding:
                hits = FoundPassages([[list(found[code][: self.passages]) for code in languages]], (question.text,))
                text = information(hits, style, self.tokens, shown=self.shown).fit(self.tokenizer, NO_LIMIT) or ""
                wanted = [gold for code in holding for gold in golds.of(question, code)]
            shown[str(number)] = (bool(holding), bool(holding) and holds([text], wanted))
        return shown


def observations(method: Method, tokenizer: Tokenizer | None, cut_passages: str) -> Observations | None:
    """Returns the settings of a method's observations; None if it never searches, or there is no tokenizer."""
    budget = budgets(method, generation_tokens=0, context_tokens=0, prompt=None)
    own = getattr(method.program, "keywords", {})
    tokens = own.get("query_tokens") or budget["observation_tokens"]
    if tokenizer is None or budget["passages"] is None or tokens is None:
        return None
    context = ContextTokenizer(tokenizer, configured_chat(), cut_passages)
    shown = own.get("shown")
    return Observations(method=method, tokenizer=context, passages=budget["passages"], tokens=tokens, shown=shown)


def search(
    asked: Sequence[tuple[Question, Audited]],
    collections: SearchableCollections,
    golds: Golds,
    depth: int,
    shown: Observations | None,
) -> Iterator[Audited]:
    """Yields the rows of questions with the ranks of golds in every collection, and whether observations show them.

    Args:
      asked: Questions with their rows.
      collections: The collections to search.
      golds: The golds to look for.
      depth: Passages of each search.
      shown: Settings of the observations; None: observations are left out.
    """
    codes = collections.languages
    stream = iter(asked)
    while batch := list(itertools.islice(stream, QUESTIONS_AT_ONCE)):
        pairs = list(itertools.product([question for question, _ in batch], codes))
        hits = collections.search([each.text for each, _ in pairs], [code for _, code in pairs], depth)
        distinct = {(code, hit.id): hit for (_, code), own in zip(pairs, hits, strict=True) for hit in own}
        forms = dict(zip(distinct, searchable(map(passage_text, distinct.values())), strict=True))
        by_question = [hits[start : start + len(codes)] for start in range(0, len(hits), len(codes))]
        for (question, row), found in zip(batch, by_question, strict=True):
            ranks: dict[str, int] = {}
            for code, own in zip(codes, found, strict=True):
                wanted = list(filter(None, patterns(golds.of(question, code))))
                held = (rank for rank, hit in enumerate(own, 1) if any(each in forms[code, hit.id] for each in wanted))
                if (rank := next(held, None)) is not None:
                    ranks[code] = rank
            changes: dict[str, Any] = {"ranks": ranks}
            if shown is not None:
                changes["observed"] = shown.of(question, dict(zip(codes, found, strict=True)), golds, ranks)
            yield dataclasses.replace(row, **changes)
