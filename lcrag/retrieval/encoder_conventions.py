"""What the authors of known encoders say on their model cards and no file of the model does: pooling and prefixes."""

import dataclasses
import pathlib
import re

from lcrag.policy.json_files import read_json_object
from lcrag.retrieval.encoder_settings import Pooling

_INSTRUCTION = "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery: "


@dataclasses.dataclass(frozen=True)
class Convention:
    """How a family of encoders is used.

    Attributes:
      family: What its name is recognised by.
      pooling: "mean" or "cls".
      query_prefix: Put in front of a query.
      passage_prefix: Put in front of a passage.
    """

    family: str
    pooling: Pooling
    query_prefix: str = ""
    passage_prefix: str = ""


# Regular expressions on a model's name in lower case, in the order in which they are tried.
_CONVENTIONS: tuple[tuple[str, Convention], ...] = (
    # Multilingual E5 (Wang et al. 2024, arXiv:2402.05672), the instruction of its card for web search.
    (r"\be5\b.*instruct", Convention("e5-instruct", "mean", _INSTRUCTION)),
    (r"\be5\b", Convention("e5", "mean", "query: ", "passage: ")),
    # BGE (Xiao et al. 2023, arXiv:2309.07597) and BGE-M3 (Chen et al. 2024, arXiv:2402.03216).
    (r"\bbge-m3\b", Convention("bge-m3", "cls")),
    (r"\bbge\b.*-zh\b", Convention("bge-zh", "cls", "为这个句子生成表示以用于检索相关文章：")),
    (r"\bbge\b", Convention("bge", "cls", "Represent this sentence for searching relevant passages: ")),
    # Contriever and mContriever (Izacard et al. 2022, arXiv:2112.09118).
    (r"contriever", Convention("contriever", "mean")),
)


def convention_of(folder: pathlib.Path, body: pathlib.Path) -> Convention | None:
    """The convention of the model in `folder`, by the folder's name or the name in its body's `config.json`."""
    for name in _names_of(folder.absolute(), body):
        for pattern, convention in _CONVENTIONS:
            if re.search(pattern, name.lower().replace("_", "-")):
                return convention
    return None


def _names_of(folder: pathlib.Path, body: pathlib.Path) -> list[str]:
    names = [folder.name]
    if folder.parent.name == "snapshots":  # the hub's cache: models--intfloat--e5-base-v2/snapshots/<commit>
        names.append(folder.parent.parent.name)
    origin = read_json_object(body / "config.json").get("_name_or_path")
    return [*names, origin] if isinstance(origin, str) else names
