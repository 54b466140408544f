"""Collections: the passages, vectors, index and `meta.json` of one language, and sets of such collections."""

import concurrent.futures
import dataclasses
import json
import pathlib
from collections.abc import Sequence

import numpy as np

from lcrag.errors import UserError
from lcrag.retrieval.corpus import FILE_NAME, Corpus
from lcrag.retrieval.encoder import Encoder
from lcrag.retrieval.encoder_folder import load_encoder
from lcrag.retrieval.folders import first_damaged, readable
from lcrag.retrieval.index import VECTORS, Index, IndexFacts, read_index
from lcrag.retrieval.passages import Hit

META = "meta.json"
ENCODER = "encoder"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectionMeta:
    """Content of `meta.json`: fingerprints of content and encoder, the index, and checksums of the files.

    `source` identifies the source and settings of a collection built from shards; empty otherwise.
    """

    language: str
    count: int
    fingerprint: str
    encoder_fingerprint: str
    dimension: int
    index: IndexFacts
    files: dict[str, dict[str, int]]
    source: str = ""


def write_meta(folder: pathlib.Path, meta: CollectionMeta) -> None:
    (folder / META).write_text(json.dumps(dataclasses.asdict(meta), indent=2) + "\n")


def read_meta(folder: str | pathlib.Path) -> CollectionMeta:
    """Reads the `meta.json` of the collection in `folder`.

    Raises:
      UserError: It has no readable `meta.json`.
    """
    path = readable(folder) / META
    try:
        values = json.loads(path.read_text())
        return CollectionMeta(**{**values, "index": IndexFacts(**values["index"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} cannot be read: build the collection again with build_collection") from error


@dataclasses.dataclass(frozen=True)
class Collection:
    """One language's passages and their index."""

    meta: CollectionMeta
    corpus: Corpus
    index: Index

    def hits(self, queries: np.ndarray, k: int) -> list[list[Hit]]:
        """Returns the best passages of each query vector, best first."""
        return [
            [self._hit(row, score) for row, score in zip(rows, scores, strict=True) if row >= 0]
            for rows, scores in zip(*(found.tolist() for found in self.index.search(queries, k)), strict=True)
        ]

    def _hit(self, row: int, score: float) -> Hit:
        passage = self.corpus[row]
        return Hit(id=passage.id, title=passage.title, text=passage.text, score=score, language=self.meta.language)


def open_collection(folder: str | pathlib.Path, encoder: Encoder) -> Collection:
    """Checks and opens one language's collection.

    Raises:
      UserError: A file is missing or damaged, or the vectors belong to another encoder.
    """
    folder = readable(folder)
    meta = read_meta(folder)
    if meta.encoder_fingerprint != encoder.fingerprint():
        raise UserError(
            f"{folder} was encoded by {meta.encoder_fingerprint}, not by the given encoder {encoder.fingerprint()}: "
            "build it again with build_collection, or load it with its own encoder"
        )
    if damaged := first_damaged(folder, meta.files):
        raise UserError(f"{folder / damaged} is missing or damaged: {_remedy(folder, damaged)}")
    try:
        return Collection(meta, Corpus(folder), read_index(folder, meta.index))
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"the index of {folder} cannot be opened ({error}): {_remedy(folder, 'index/')}") from error


def _remedy(folder: pathlib.Path, damaged: str) -> str:
    if damaged in (FILE_NAME, VECTORS):
        return "build the collection again with lcrag.retrieval.build_collection"
    return f'rebuild it with lcrag.retrieval.rebuild_index("{folder}")'


class Collections:
    """The collections of several languages with one batched search; thread-safe."""

    def __init__(self, encoder: Encoder, collections: dict[str, Collection]):
        self.encoder, self._collections = encoder, collections

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that have a collection, sorted."""
        return tuple(sorted(self._collections))

    def content_hashes(self) -> dict[str, str]:
        """Returns fingerprints of the encoder and of each collection, by name."""
        opened = sorted(self._collections.items())
        collections = {f"collection/{language}": collection.meta.fingerprint for language, collection in opened}
        return {"encoder": self.encoder.fingerprint()} | collections

    def collection(self, language: str) -> Collection:
        """Returns the collection of a language.

        Raises:
          UserError: The language has none.
        """
        if language not in self._collections:
            present = ", ".join(self.languages)
            raise UserError(f"no collection in language {language!r}: there are {present}; build it or choose another")
        return self._collections[language]

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> list[list[Hit]]:
        """Returns at most `k` best passages of each pair (queries[i], languages[i]), best first.

        Distinct queries are encoded in one batch, and each language's index answers one batch.

        Raises:
          UserError: A language has no collection, or k is not positive.
        """
        if k < 1:
            raise UserError(f"a search for {k} passages finds nothing: ask for at least one")
        pairs = list(dict.fromkeys(zip(queries, languages, strict=True)))
        for language in dict.fromkeys(languages):
            self.collection(language)
        texts = list(dict.fromkeys(query for query, _ in pairs))
        vectors = dict(zip(texts, self.encoder.encode(texts, kind="query"), strict=True))
        found: dict[tuple[str, str], list[Hit]] = {}
        for language in dict.fromkeys(languages):
            asked = [pair for pair in pairs if pair[1] == language]
            hits = self.collection(language).hits(np.stack([vectors[query] for query, _ in asked]), k)
            found.update(zip(asked, hits, strict=True))
        return [list(found[pair]) for pair in zip(queries, languages, strict=True)]


def load_collections(folder: str | pathlib.Path, encoder: Encoder | None = None) -> Collections:
    """Opens every language's collection in `folder` (or the one collection that `folder` itself is).

    Args:
      folder: Written by `build_collection`.
      encoder: Embeds queries; None: the encoder in the folder.

    Raises:
      UserError: There is no collection, or one is damaged or belongs to another encoder.
    """
    folder = pathlib.Path(folder).absolute()
    if (readable(folder) / META).exists():
        root, languages = folder.parent, [folder.name]
    else:
        root, languages = folder, _languages_in(folder)
    if not languages:
        raise UserError(f"no collection in {folder}: build one with `lcrag index`, or name another folder")
    encoder = load_encoder(root / ENCODER) if encoder is None else encoder
    with concurrent.futures.ThreadPoolExecutor() as pool:
        opened = pool.map(lambda language: open_collection(root / language, encoder), languages)
        return Collections(encoder, dict(zip(languages, opened, strict=True)))


def _languages_in(root: pathlib.Path) -> list[str]:
    """Returns the languages with a folder, including those whose replacement was killed half-way."""
    if not root.is_dir():
        return []
    names = {path.name.removeprefix(".").removesuffix(".previous") for path in root.iterdir() if path.is_dir()}
    return sorted(name for name in names if any((readable(root / name) / file).exists() for file in (META, FILE_NAME)))
