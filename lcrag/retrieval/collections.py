"""Collections: for each language a corpus and its index, all searched with one encoder."""

import concurrent.futures
import pathlib
from collections.abc import Sequence

import numpy as np

from lcrag.errors import UserError
from lcrag.retrieval.collection import ENCODER, META, Collection, open_collection
from lcrag.retrieval.corpus import FILE_NAME
from lcrag.retrieval.encoder import Encoder
from lcrag.retrieval.encoder_folder import load_encoder
from lcrag.retrieval.folders import readable
from lcrag.retrieval.passages import Hit


class Collections:
    """Several languages' collections behind one batched search. Threads may share one."""

    def __init__(self, encoder: Encoder, collections: dict[str, Collection]):
        self.encoder, self._collections = encoder, collections

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that have a collection, sorted."""
        return tuple(sorted(self._collections))

    def content_hashes(self) -> dict[str, str]:
        """Fingerprints of the encoder and of each collection, by name."""
        opened = sorted(self._collections.items())
        collections = {f"collection/{language}": collection.meta.fingerprint for language, collection in opened}
        return {"encoder": self.encoder.fingerprint()} | collections

    def collection(self, language: str) -> Collection:
        """One language's collection.

        Raises:
          UserError: the language has none.
        """
        if language not in self._collections:
            present = ", ".join(self.languages)
            raise UserError(f"no collection in language {language!r}: there are {present}; build it or choose another")
        return self._collections[language]

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> list[list[Hit]]:
        """For each pair (queries[i], languages[i]) its best `k` passages, best first; fewer in a smaller collection.

        Distinct queries are encoded in one batch, and each language's index answers one batch.

        Raises:
          UserError: a language has no collection, or k is not positive.
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
      folder: What `build_collection` wrote.
      encoder: None: the one kept in the folder.

    Raises:
      UserError: there is none, or one of them is damaged or belongs to another encoder.
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
    """Languages with a folder, or with one whose replacement was killed half-way."""
    if not root.is_dir():
        return []
    names = {path.name.removeprefix(".").removesuffix(".previous") for path in root.iterdir() if path.is_dir()}
    return sorted(name for name in names if any((readable(root / name) / file).exists() for file in (META, FILE_NAME)))
