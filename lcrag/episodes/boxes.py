"""The tag boxes in what a policy wrote: what the well-formed ones hold, and how many tags are malformed."""

import dataclasses
import re
from collections.abc import Iterable

from lcrag.episodes.tags import TAGS

_TAG = re.compile(rf"<(/?)({'|'.join(TAGS)})>")


@dataclasses.dataclass(frozen=True)
class Boxes:
    """The boxes of one tag.

    Attributes:
      contents: What each pair holds that encloses no other tag of ours, stripped.
      stray: Tags of this name outside of such pairs.
    """

    contents: tuple[str, ...]
    stray: int

    @property
    def sole(self) -> str | None:
        """What the one box holds; None unless there is exactly one, it is not empty, and no tag is stray."""
        return self.contents[0] or None if len(self.contents) == 1 and not self.stray else None

    @property
    def malformed(self) -> int:
        """Stray tags and empty boxes."""
        return self.stray + self.contents.count("")

    @property
    def tags(self) -> int:
        """All tags of this name."""
        return self.stray + 2 * len(self.contents)


def boxes_in(texts: Iterable[str], tag: str) -> Boxes:
    """The boxes of a tag in some texts; none reaches from one text into another.

    Args:
      texts: What the policy wrote in each turn.
      tag: One of `TAGS`; exact and lower case, as stop strings are.
    """
    contents, stray = [], 0
    for text in texts:
        found = list(_TAG.finditer(text))
        own = [place for place, match in enumerate(found) if match[2] == tag]
        pairs = [place for place in own if place + 1 in own and not found[place][1] and found[place + 1][1]]
        contents += [text[found[place].end() : found[place + 1].start()].strip() for place in pairs]
        stray += len(own) - 2 * len(pairs)
    return Boxes(tuple(contents), stray)
