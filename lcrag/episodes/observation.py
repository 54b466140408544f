"""Formats the passages of a search for the policy: one `<information>` block within a token budget.

The budget covers the whole block, and the tags are never cut. The rest is divided fairly over the searched languages,
so every language that found something is visible. If the passages of a language exceed its share, the sentences that
match the query best are kept, or the first passages (`lcrag.episodes.passage_cuts`). At most `READ_CHARACTERS` of a
passage are read, which bounds the work on hostile text.
"""

import dataclasses
from collections.abc import Callable, Sequence

from lcrag.episodes.passage_cuts import Section, cut_section
from lcrag.episodes.requests import Found, FoundPassage, RetrievalFailure, TextTokenizer
from lcrag.episodes.tags import INFORMATION, closing, neutralise, opening
from lcrag.errors import lookup

SEARCH_FAILED = " The search failed. No passages could be retrieved.\n"
NOTHING_FOUND = " No passages were found.\n"
# Characters read of a passage, its title or a model's text: over four times as many as the largest observation in the
# papers' configurations (1,800 tokens) shows. The rest is never read.
READ_CHARACTERS = 2**15


@dataclasses.dataclass(frozen=True, kw_only=True)
class Style:
    """How passages are formatted."""

    before: str  # with the opening tag
    after: str  # with the closing tag
    passage: Callable[[int, str, str], str]  # (number from 1, title, text) -> one passage


STYLES = {
    "atlas": Style(
        before=f"{opening(INFORMATION)}\n",
        after=f"{closing(INFORMATION)}\n",
        passage=lambda number, title, text: f" {title}: {text}\n",
    ),
    "search_r1": Style(
        before=f"\n\n{opening(INFORMATION)}",
        after=f"{closing(INFORMATION)}\n\n",
        passage=lambda number, title, text: f"Doc {number}(Title: {title}) {text}\n",
    ),
    "rag_r1": Style(
        before=f"\n\n{opening(INFORMATION)}\n",
        after=f"{closing(INFORMATION)}\n\n",
        passage=lambda number, title, text: f"Doc {number}: {title} {text}\n",
    ),
}


def _fitted(
    build: Callable[[int], str | None], target_tokens: int, tokenizer: TextTokenizer, room_tokens: int
) -> str | None:
    """Lowers the target until the text fits: a text may have more tokens than its parts together."""
    while (text := build(target_tokens)) is not None:
        excess = len(tokenizer.encode(text)) - room_tokens
        if excess <= 0:
            return text
        target_tokens -= excess
    return None


@dataclasses.dataclass(frozen=True)
class Information:
    """Passages by language, to be written as one block; a `FittedText` for `Observe`."""

    sections: tuple[Section, ...]  # the results of each query in each searched language, best first; neutralised
    style: Style
    budget_tokens: int  # maximum of the block, tags included

    def fit(self, tokenizer: TextTokenizer, room_tokens: int) -> str | None:
        """Returns the block in at most `room_tokens` and `budget_tokens`; None if a language has no room."""
        budget = min(self.budget_tokens, room_tokens)
        body_budget = budget - len(tokenizer.encode(self.style.before + self.style.after))
        return _fitted(lambda target: self._block(tokenizer, target), body_budget, tokenizer, budget)

    def _block(self, tokenizer: TextTokenizer, body_budget: int) -> str | None:
        if body_budget < len(self.sections):
            return None
        needs = [len(tokenizer.encode(section.text)) for section in self.sections]
        shares = zip(self.sections, share_out(body_budget, needs), strict=True)
        body = "".join(cut_section(section, share, tokenizer, self.style.passage) for section, share in shares)
        return self.style.before + neutralise(body) + self.style.after  # a cut may join two halves of a tag


@dataclasses.dataclass(frozen=True)
class Framed:
    """A block of passages inside a longer text; a `FittedText` of which only the block is cut."""

    before: str
    block: Information
    after: str

    def fit(self, tokenizer: TextTokenizer, room_tokens: int) -> str | None:
        """Returns the text in at most `room_tokens`; None if a language has no room for a token."""

        def build(block_room: int) -> str | None:
            block = self.block.fit(tokenizer, block_room)
            return None if block is None else self.before + block + self.after

        frame_tokens = len(tokenizer.encode(self.before)) + len(tokenizer.encode(self.after))
        return _fitted(build, room_tokens - frame_tokens, tokenizer, room_tokens)


def statements(texts: Sequence[str], style: str | Style = "atlas", budget_tokens: int = 600) -> Information:
    """Returns texts of models as a block in the style of passages, one section for each; tags are neutralised."""
    sections = tuple(Section(neutralise(text[:READ_CHARACTERS])) for text in texts)
    return Information(sections or (Section(NOTHING_FOUND),), known_style(style), budget_tokens)


def information(
    found: Found | RetrievalFailure,
    style: str | Style = "atlas",
    budget_tokens: int = 600,
    query: str = "",
    shown: int | None = None,
) -> Information:
    """Returns the observation of a search's results.

    Args:
      found: The answer to a `Retrieve`: for each query, for each language, its hits, best first. A failure is shown
        as a sentence.
      style: Name in `STYLES`, or a style.
      budget_tokens: Maximum number of tokens of the block, tags included (LcRL's code: 600).
      query: The query of passages that a program has gathered from several searches.
      shown: Maximum number of passages of each query: the best over all its languages by their scores; None: all.
    """
    chosen = known_style(style)
    if isinstance(found, RetrievalFailure):
        return Information((Section(SEARCH_FAILED),), chosen, budget_tokens)
    queries: Sequence[str] = getattr(found, "queries", None) or (query,) * len(found)
    sections: list[Section] = []
    number = 1  # continues across sections
    for own_query, languages in zip(queries, found, strict=True):
        if shown is not None:
            languages = _best(languages, shown)
        for passages in filter(None, languages):
            sections.append(section_of(passages, chosen, own_query, number))
            number += len(passages)
    return Information(tuple(sections) or (Section(NOTHING_FOUND),), chosen, budget_tokens)


def _best(languages: Sequence[Sequence[FoundPassage]], count: int) -> list[list[FoundPassage]]:
    """Returns the `count` passages with the highest scores; earlier languages and passages go first among equals."""
    scores = sorted((getattr(each, "score", 0.0) for passages in languages for each in passages), reverse=True)[:count]
    kept: list[list[FoundPassage]] = []
    for passages in languages:
        kept.append([])
        for each in passages:
            if (score := getattr(each, "score", 0.0)) in scores:
                scores.remove(score)
                kept[-1].append(each)
    return kept


def known_style(style: str | Style) -> Style:
    """Returns the style with this name, or the given style; raises a UserError for an unknown name."""
    return style if isinstance(style, Style) else lookup(STYLES, style, "passage style")


def section_of(passages: Sequence[FoundPassage], style: Style, query: str, first: int = 1) -> Section:
    """Returns passages as a neutralised section, numbered from `first`."""

    def on_one_line(text: str) -> str:  # so that one passage cannot look like two; the rest is never read
        return neutralise(" ".join(text[:READ_CHARACTERS].split()))

    numbered = tuple(
        (number, on_one_line(each.title), on_one_line(each.text)) for number, each in enumerate(passages, start=first)
    )
    return Section(neutralise("".join(style.passage(*each) for each in numbered)), query, numbered)


def share_out(total: int, needs: Sequence[int]) -> list[int]:
    """Returns max-min fair shares: at most each need, with unneeded parts divided equally among the others.

    An indivisible remainder goes to the first ones, one token each.
    """
    shares = [0] * len(needs)
    left = min(total, sum(needs))
    while left:
        hungry = [index for index, need in enumerate(needs) if shares[index] < need]
        equal = max(left // len(hungry), 1)
        for index in hungry:
            portion = min(equal, needs[index] - shares[index], left)
            shares[index] += portion
            left -= portion
    return shares
