"""What is to be made of a source: passages of a language, in an order and with ids that never change."""

import dataclasses
import hashlib
import json
from typing import Any

from lcrag.data.corpora.chunking import PASSAGE_LENGTH, Unit, passages_of, unit_of
from lcrag.data.corpora.documents import Article, Block, WikiPage
from lcrag.data.corpora.dump import clean
from lcrag.data.corpora.source import Source
from lcrag.data.rows import BadRows
from lcrag.retrieval.passages import Passage


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """What becomes of one language's source.

    Attributes:
      language: Its code, also the name of the collection.
      source: The files.
      unit: What passages are counted in; of no account where they are cut already.
      length: Units in a passage.
    """

    language: str
    source: Source
    unit: Unit
    length: int = PASSAGE_LENGTH

    def identity(self) -> dict[str, Any]:
        """All that the passages depend on, files by name and size; two plans of one identity make the same."""
        files = [f"{path.name}: {path.stat().st_size} bytes" for path in self.source.files]
        cut = {"documents_per_block": self.source.documents_per_block, "unit": self.unit, "length": self.length}
        return {"language": self.language, "kind": self.source.kind, "files": files, **cut}


def make_plan(language: str, source: Source, unit: Unit | None = None, length: int = PASSAGE_LENGTH) -> Plan:
    """A plan; without a unit, the language's script decides."""
    return Plan(language=language, source=source, unit=unit or unit_of(language), length=length)


def fingerprint_of(identity: dict[str, Any]) -> str:
    """Sixteen hexadecimal digits that name an identity."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]


def cleaned(block: Block) -> tuple[Block, list[tuple[str, str]]]:
    """The block with its wiki pages as articles; and (page, problem) of each that cannot be parsed."""
    pages = tuple(document for document in block.documents if isinstance(document, WikiPage))
    if not pages:
        return block, []
    articles, problems = clean(pages)
    return dataclasses.replace(block, documents=tuple(articles)), problems


def block_passages(plan: Plan, block: Block) -> list[Passage]:
    """The passages of a cleaned block."""
    articles = [document for document in block.documents if isinstance(document, Article)]
    if articles:
        return list(passages_of(articles, plan.unit, plan.length))
    return [document for document in block.documents if isinstance(document, Passage)]


def count_problems(block: Block, problems: list[tuple[str, str]], bad_rows: BadRows) -> None:
    """Hands the problems of a block's pages to `bad_rows`."""
    for page, problem in problems:
        bad_rows.add(block.path, None, page, problem)
