"""The collections of several languages with one search."""

import concurrent.futures
import logging
import os
import pathlib
from collections.abc import Sequence

import numpy as np

from lcrag.errors import UserError
from lcrag.files import local_files
from lcrag.retrieval.collection import META, Collection, collection_bytes, open_collection
from lcrag.retrieval.corpus import FILE_NAME
from lcrag.retrieval.encoder import Devices, Encoder
from lcrag.retrieval.encoder_folder import load_encoder
from lcrag.retrieval.folders import readable
from lcrag.retrieval.passages import Hit

ENCODER = "encoder"
_LOGGER = logging.getLogger(__name__)
_WORTH_SAYING_BYTES = 1 << 30  # larger indexes take a while to read


class Collections:
    """The collections of several languages with one batched search; thread-safe."""

    def __init__(self, encoder: Encoder, collections: dict[str, Collection]):
        self.encoder, self._collections = encoder, collections
        self._threads = concurrent.futures.ThreadPoolExecutor(thread_name_prefix="search")

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that have a collection, sorted."""
        return tuple(sorted(self._collections))

    def content_hashes(self) -> dict[str, str]:
        """Returns fingerprints of the encoder and of each collection, by name."""
        hashes = {"encoder": self.encoder.fingerprint()}
        for _, collection in sorted(self._collections.items()):
            hashes |= collection.hashes()
        return hashes

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

        def search_language(language: str) -> None:
            asked = [pair for pair in pairs if pair[1] == language]
            hits = self.collection(language).hits(np.stack([vectors[query] for query, _ in asked]), k)
            found.update(zip(asked, hits, strict=True))

        distinct = list(dict.fromkeys(languages))
        searches = self._threads.map(search_language, distinct) if len(distinct) > 1 else map(search_language, distinct)
        list(searches)
        return [list(found[pair]) for pair in zip(queries, languages, strict=True)]


def load_collections(
    folder: str | pathlib.Path,
    encoder: Encoder | None = None,
    languages: Sequence[str] | None = None,
    parts: Sequence[int] | None = None,
    devices: Devices = "all",
) -> Collections:
    """Opens every language's collection in `folder` (or the one collection that `folder` itself is).

    Args:
      folder: Written by `build_collection`.
      encoder: Embeds queries; None: the encoder in the folder.
      languages: Languages to open; None: all.
      parts: Parts to open of languages in several parts, where other hosts search the rest; None: all.
      devices: Where the encoder in the folder encodes; see `lcrag.retrieval.encoder.rows_mesh`.

    Raises:
      UserError: There is no collection, one is damaged or belongs to another encoder, or the memory does not suffice.
    """
    root, chosen = _chosen(folder, languages)
    _check_memory(sum(collection_bytes(root / language, parts) for language in chosen), root)
    encoder = load_encoder(root / ENCODER, devices=devices) if encoder is None else encoder
    with concurrent.futures.ThreadPoolExecutor() as pool:
        opened = pool.map(lambda language: open_collection(root / language, encoder, parts), chosen)
        return Collections(encoder, dict(zip(chosen, opened, strict=True)))


def collection_sizes(
    folder: str | pathlib.Path, languages: Sequence[str] | None = None, parts: Sequence[int] | None = None
) -> dict[str, int]:
    """Returns language -> bytes of memory of the indexes that `load_collections` would open; opens none.

    Raises:
      UserError: There is no collection.
    """
    root, chosen = _chosen(folder, languages)
    return {language: collection_bytes(root / language, parts) for language in chosen}


def _chosen(folder: str | pathlib.Path, languages: Sequence[str] | None) -> tuple[pathlib.Path, list[str]]:
    """Returns the folder that holds the chosen languages' folders, and their names."""
    folder = local_files(folder).absolute()
    if (readable(folder) / META).exists():
        root, present = folder.parent, [folder.name]
    else:
        root, present = folder, _languages_in(folder)
    if not present:
        raise UserError(f"no collection in {folder}: build one with `lcrag index`, or name another folder")
    if missing := sorted(set(languages or ()) - set(present)):
        raise UserError(f"load_collections.languages: no collection {missing[0]!r} in {folder}: {', '.join(present)}")
    return root, list(dict.fromkeys(languages or present))


def _check_memory(needed_bytes: int, root: pathlib.Path) -> None:
    """Logs the memory that the indexes need if it is a GiB or more; a UserError if this machine has less."""
    there = memory_bytes()
    level = logging.WARNING if needed_bytes >= _WORTH_SAYING_BYTES else logging.INFO
    needed, has = (f"{number / 2**30:.1f}" for number in (needed_bytes, there))
    _LOGGER.log(level, "opening the indexes of %s: %s GiB of this machine's %s GiB of memory", root, needed, has)
    if needed_bytes > there:
        raise UserError(
            f"the indexes of {root} need {needed} GiB of memory, and this machine has {has}: open fewer with"
            " load_collections.languages or load_collections.parts, or --rebuild with IndexSettings.quantize = 'int8'"
        )


def memory_bytes() -> int:
    """Returns the memory of this machine, or of its container if that has a smaller limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = pathlib.Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(machine, int(text)) if text.isdigit() else machine


def _languages_in(root: pathlib.Path) -> list[str]:
    """Returns the languages with a folder, including those whose replacement was killed half-way."""
    if not root.is_dir():
        return []
    names = {path.name.removeprefix(".").removesuffix(".previous") for path in root.iterdir() if path.is_dir()}
    return sorted(name for name in names if any((readable(root / name) / file).exists() for file in (META, FILE_NAME)))
