"""What the files of a corpus hold: pages in wikitext, articles in plain text, or passages that are cut already."""

import dataclasses
import pathlib

from lcrag.retrieval.passages import Passage


@dataclasses.dataclass(frozen=True, kw_only=True)
class WikiPage:
    """A page of a Wikimedia dump.

    Attributes:
      id: The page's number in its wiki.
      title: Its title.
      wikitext: The markup of its last revision.
      hidden_namespaces: Names, in lower case, of the namespaces whose links show no text: files, categories.
    """

    id: str
    title: str
    wikitext: str
    hidden_namespaces: frozenset[str]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Article:
    """An article in plain text, to be cut into passages."""

    id: str
    title: str
    text: str


Document = WikiPage | Article | Passage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Block:
    """Consecutive documents of one file: what is prepared, embedded and kept together.

    Attributes:
      file: The file's number among those of its source.
      path: The file.
      number: The block's number in the file.
      documents: In the file's order; empty only where a whole file is.
      bytes_read: How far the file, as it is stored, was read when the block ended.
      is_last: Whether the file ends here.
    """

    file: int
    path: pathlib.Path
    number: int
    documents: tuple[Document, ...]
    bytes_read: int
    is_last: bool

    @property
    def name(self) -> str:
        """Sorts as the blocks of a source follow each other."""
        return block_name(self.file, self.number)


def block_name(file: int, number: int) -> str:
    """The name of a block of a file."""
    return f"{file:05d}-{number:07d}"
