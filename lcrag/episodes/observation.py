"""What a search shows the policy: one `<information>` block within a budget of tokens.

The budget covers the whole block. The tags are counted first and never cut. What is left is shared over the
searched languages: each may use an equal share, and what one does not need is shared again among the others, so
that every language that found something is visible. Within a language the best passages come first and the last
ones are cut.
"""

import dataclasses
import itertools
import re
from collections.abc import Callable, Sequence

from lcrag.episodes.requests import Found, FoundPassage, RetrievalFailure, TextTokenizer
from lcrag.episodes.tags import INFORMATION, closing, neutralise, opening
from lcrag.errors import UserError

SEARCH_FAILED = " The search failed. No passages could be retrieved.\n"
NOTHING_FOUND = " No passages were found.\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Style:
    """How passages are written down.

    Attributes:
      before: What comes before the passages, the opening tag included.
      after: What comes after them, the closing tag included.
      passage: (number from 1, title, text) -> one passage.
    """

    before: str
    after: str
    passage: Callable[[int, str, str], str]


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


@dataclasses.dataclass(frozen=True)
class Information:
    """Passages by language, to be written as one block; a `FittedText` for `Observe`.

    Attributes:
      sections: The neutralised text found in each searched language, best passage first.
      style: How the block is written.
      budget_tokens: At most this many tokens for the block, tags included.
    """

    sections: tuple[str, ...]
    style: Style
    budget_tokens: int

    def fit(self, tokenizer: TextTokenizer, room_tokens: int) -> str | None:
        """The block in at most `room_tokens` and `budget_tokens`; None if not one token a language has room."""
        budget = min(self.budget_tokens, room_tokens)
        body_budget = budget - len(tokenizer.encode(self.style.before + self.style.after))
        while body_budget >= len(self.sections):
            block = self._block(tokenizer, body_budget)
            excess = len(tokenizer.encode(block)) - budget  # tokens of the whole are not quite the sum of the parts
            if excess <= 0:
                return block
            body_budget -= excess
        return None

    def _block(self, tokenizer: TextTokenizer, body_budget: int) -> str:
        needs = [len(tokenizer.encode(section)) for section in self.sections]
        shares = share_out(body_budget, needs)
        body = "".join(cut(text, share, tokenizer) for text, share in zip(self.sections, shares, strict=True))
        return self.style.before + neutralise(body) + self.style.after  # two halves of a tag may meet at a cut


@dataclasses.dataclass(frozen=True)
class Framed:
    """A block of passages inside a longer text; a `FittedText` of which only the block is ever cut.

    Attributes:
      before: Text in front of the block.
      block: The passages.
      after: Text behind it.
    """

    before: str
    block: Information
    after: str

    def fit(self, tokenizer: TextTokenizer, room_tokens: int) -> str | None:
        """The text in at most `room_tokens`; None if the block would not have a token a language."""
        block_room = room_tokens - len(tokenizer.encode(self.before)) - len(tokenizer.encode(self.after))
        while (block := self.block.fit(tokenizer, block_room)) is not None:
            text = self.before + block + self.after
            excess = len(tokenizer.encode(text)) - room_tokens  # tokens of the whole are not quite the sum of the parts
            if excess <= 0:
                return text
            block_room -= excess
        return None


def statements(texts: Sequence[str], style: str = "atlas", budget_tokens: int = 600) -> Information:
    """What models wrote elsewhere, shown in the way passages are: none of it can be taken for a tag.

    Args:
      texts: Each is a section of its own.
      style: Name in `STYLES`.
      budget_tokens: At most this many tokens for the block, tags included.

    Raises:
      UserError: there is no such style.
    """
    sections = tuple(neutralise(text) for text in texts)
    return Information(sections or (NOTHING_FOUND,), known_style(style), budget_tokens)


def information(found: Found | RetrievalFailure, style: str | Style = "atlas", budget_tokens: int = 600) -> Information:
    """What a search found, as the environment shows it.

    Args:
      found: The answer to a `Retrieve`: for each query, for each language, its hits, best first. The policy is told
        of a search that failed.
      style: Name in `STYLES`, or a style of the caller's own.
      budget_tokens: At most this many tokens for the block, tags included (LcRL's code: 600).

    Raises:
      UserError: there is no such style.
    """
    chosen = known_style(style)
    if isinstance(found, RetrievalFailure):
        return Information((SEARCH_FAILED,), chosen, budget_tokens)
    return Information(_sections(found, chosen) or (NOTHING_FOUND,), chosen, budget_tokens)


def known_style(name: str | Style) -> Style:
    """The passage style of a name, or the style itself.

    Raises:
      UserError: there is no such style.
    """
    if isinstance(name, Style):
        return name
    if name not in STYLES:
        raise UserError(f"there is no passage style {name!r}: choose one of {', '.join(STYLES)}")
    return STYLES[name]


def _sections(found: Found, style: Style) -> tuple[str, ...]:
    """The text of each query and language that found something; passages are numbered through."""
    sections, number = [], 0
    for passages in filter(None, itertools.chain.from_iterable(found)):
        numbered = enumerate(passages, start=number + 1)
        sections.append("".join(style.passage(n, _line(p.title), _line(p.text)) for n, p in numbered))
        number += len(passages)
    return tuple(neutralise(section) for section in sections)


def passages_of(languages: Sequence[Sequence[FoundPassage]], style: Style) -> str:
    """The neutralised text of what one query found, in the order of its languages; passages are numbered through."""
    passages = enumerate(itertools.chain.from_iterable(languages), start=1)
    return neutralise("".join(style.passage(number, _line(each.title), _line(each.text)) for number, each in passages))


def _line(text: str) -> str:
    """The text on one line, so that a passage cannot look like two."""
    return " ".join(text.split())


def share_out(total: int, needs: Sequence[int]) -> list[int]:
    """Max-min fair shares: nobody gets more than it needs, and what some leave goes equally to the others.

    An indivisible rest goes to the first ones, a token each.
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


_BROKEN_END = re.compile(r"(?:\s\S{0,20}|\d+)$")


def cut(text: str, tokens: int, tokenizer: TextTokenizer) -> str:
    """The beginning of `text` in about `tokens` tokens; the whole text where it fits.

    A last word or number that may be broken is dropped (half a year is a wrong year), unless nothing would remain.
    """
    ids = tokenizer.encode(text)
    if len(ids) <= tokens:
        return text
    beginning = tokenizer.decode(ids[: max(tokens - 1, 1)]).rstrip("\ufffd")
    return (_BROKEN_END.sub("", beginning.rstrip()) or beginning.rstrip()) + "\n"
