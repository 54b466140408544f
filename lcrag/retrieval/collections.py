"""The collections of several languages with one search."""

import concurrent.futures
import logging
import os
import pathlib
from collections.abc import Callable, Iterable, Sequence

import gin
import numpy as np

from lcrag.errors import UserError, typed
from lcrag.files import local_files
from lcrag.retrieval.collection import ENCODER, META, Collection, build_collection, open_collection, read_meta
from lcrag.retrieval.encoder import Devices, Encoder
from lcrag.retrieval.encoder_folder import load_encoder
from lcrag.retrieval.folders import readable
from lcrag.retrieval.index import index_bytes
from lcrag.retrieval.passages import Hit, Passage

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
        collections = {f"collection/{code}": self._collections[code].meta.fingerprint for code in self.languages}
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
    devices: Devices = "all",
) -> Collections:
    """Opens every language's collection in `folder` (or the one collection that `folder` itself is).

    Args:
      folder: Written by `build_collection`.
      encoder: Embeds queries; None: the encoder in the folder.
      languages: Languages to open; None: all.
      devices: Where the encoder in the folder encodes; see `lcrag.retrieval.encoder.rows_mesh`.

    Raises:
      UserError: There is no collection, one is damaged or belongs to another encoder, or the memory does not suffice.
    """
    folder = local_files(folder).absolute()
    if (readable(folder) / META).exists():
        root, present = folder.parent, [folder.name]
    else:
        # Languages whose replacement was killed half-way have their earlier content in a hidden folder.
        paths = folder.iterdir() if folder.is_dir() else ()
        names = {path.name.removeprefix(".").removesuffix(".previous") for path in paths if path.is_dir()}
        root, present = folder, sorted(name for name in names if (readable(folder / name) / META).exists())
    if not present:
        raise UserError(f"no collection in {folder}: build one with `lcrag index`, or name another folder")
    if missing := sorted(set(languages or ()) - set(present)):
        raise UserError(f"load_collections.languages: no collection {missing[0]!r} in {folder}: {', '.join(present)}")
    chosen = list(dict.fromkeys(languages or present))
    needed_bytes = sum(collection_bytes(root / language) for language in chosen)
    there = memory_bytes()
    level = logging.WARNING if needed_bytes >= _WORTH_SAYING_BYTES else logging.INFO
    needed, has = (f"{number / 2**30:.1f}" for number in (needed_bytes, there))
    _LOGGER.log(level, "opening the indexes of %s: %s GiB of this machine's %s GiB of memory", root, needed, has)
    if needed_bytes > there:
        raise UserError(
            f"the indexes of {root} need {needed} GiB of memory, and this machine has {has}: open fewer with"
            " load_collections.languages, or build them with IndexSettings.quantize = 'int8'"
        )
    opened_encoder = load_encoder(root / ENCODER, devices=devices) if encoder is None else encoder
    with concurrent.futures.ThreadPoolExecutor() as pool:
        opened = pool.map(lambda language: open_collection(root / language, opened_encoder), chosen)
        return Collections(opened_encoder, dict(zip(chosen, opened, strict=True)))


configured_collections = gin.external_configurable(
    typed(load_collections), "load_collections", module="lcrag.retrieval"
)


def kept_collections(
    root: pathlib.Path, encoder: Encoder, languages: Sequence[str], passages: Callable[[str], Iterable[Passage]]
) -> Collections:
    """Opens the collections in a folder; collections that do not exist yet are built first.

    Args:
      root: The folder.
      encoder: Their encoder.
      languages: Their languages.
      passages: Returns the passages of a language.
    """
    for language in languages:
        if not (root / language).exists():
            build_collection(passages(language), encoder, root, language=language)
    return load_collections(root, encoder)


def cache_folder() -> pathlib.Path:
    """Returns the folder where collections that can be rebuilt are kept between runs."""
    base = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(base) / "lcrag" / "collections-2"


def collection_bytes(folder: str | pathlib.Path) -> int:
    """Returns the bytes of memory that the index of a collection needs once open; passages stay on disk."""
    return index_bytes(readable(folder), read_meta(folder).index)


def memory_bytes() -> int:
    """Returns the memory of this machine, or of its container if that has a smaller limit."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = pathlib.Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else ""
    return min(machine, int(text)) if text.isdigit() else machine
