"""A collection: the passages of one language, their vectors and their index, in a folder.

<folder>/encoder/                                               the encoder, so that the folder is complete
<folder>/<language>/passages.arrow vectors.npy meta.json [index/]
"""

import dataclasses
import json
import pathlib
import re
import shutil
import types
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from jaxtyping import Float

from lcrag.errors import UserError
from lcrag.retrieval.corpus import FILE_NAME, Corpus, write_passages
from lcrag.retrieval.encoder import Encoder
from lcrag.retrieval.encoder_folder import load_encoder, save_encoder
from lcrag.retrieval.folders import readable, replacing
from lcrag.retrieval.index import INDEX, USUAL_INDEX, VECTORS, Index, IndexFacts, IndexSettings, read_index, write_index
from lcrag.retrieval.passages import Hit, Passage, passage_text

META = "meta.json"
ENCODER = "encoder"
_PROGRESS = "progress.json"
_LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]+)*")
_PASSAGES_PER_CALL = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class CollectionMeta:
    """Content of `meta.json`.

    Attributes:
      language: Its code.
      count: Passages.
      fingerprint: Hash of the passages.
      encoder_fingerprint: Fingerprint of the encoder of the vectors.
      dimension: Width of the vectors.
      index: Properties of the index.
      source: Identifies the files and settings of the passages; empty if the caller has given none.
    """

    language: str
    count: int
    fingerprint: str
    encoder_fingerprint: str
    dimension: int
    index: IndexFacts
    source: str = ""


def read_meta(folder: str | pathlib.Path) -> CollectionMeta:
    """Reads the `meta.json` of the collection in `folder`.

    Raises:
      UserError: It has no readable `meta.json`.
    """
    path = readable(folder) / META
    try:
        values = json.loads(path.read_text())
        # Earlier versions wrote further fields, such as checksums.
        known = {field.name: values[field.name] for field in dataclasses.fields(CollectionMeta) if field.name in values}
        return CollectionMeta(**{**known, "index": IndexFacts(**values["index"])})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{path} cannot be read: build the collection again") from error


@dataclasses.dataclass(frozen=True)
class Collection:
    """An open collection."""

    meta: CollectionMeta
    corpus: Corpus
    index: Index

    def hits(self, queries: Float[np.ndarray, "queries width"], k: int) -> list[list[Hit]]:
        """Returns the best passages of each query vector, best first."""
        rows, scores = self.index.search(queries, k)
        return [
            [
                Hit(**vars(self.corpus[row]), score=score, language=self.meta.language)
                for row, score in zip(*found, strict=True)
                if row >= 0
            ]
            for found in zip(rows.tolist(), scores.tolist(), strict=True)
        ]


def open_collection(folder: str | pathlib.Path, encoder: Encoder) -> Collection:
    """Opens one language's collection.

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
    corpus = Corpus(folder)
    try:
        index = read_index(folder, meta.index)
    except (ValueError, RuntimeError, OSError) as error:
        raise UserError(f"the index of {folder} cannot be opened ({error}): build the collection again") from error
    if not len(corpus) == index.count == meta.count:
        raise UserError(
            f"{folder} holds {len(corpus)} passages and {index.count} vectors, not {meta.count}: build it again"
        )
    return Collection(meta, corpus, index)


def build_collection(
    passages: Iterable[Passage],
    encoder: Encoder,
    folder: str | pathlib.Path,
    language: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    settings: IndexSettings = USUAL_INDEX,
    *,
    source: str = "",
    records: Mapping[str, str] = types.MappingProxyType({}),
    vectors: Iterable[Float[np.ndarray, "passages width"]] | None = None,
) -> CollectionMeta:
    """Encodes and indexes the passages of one language in `<folder>/<language>`.

    Without `language`, `folder` itself is the collection and its name the language. An existing collection is replaced
    once the new one is complete. With a `source`, an interrupted build is continued by the next call: passages that
    were all written are not read again, and passages that were encoded are not encoded again.

    Args:
      passages: Streamed once.
      encoder: Saved in `<folder>/encoder` by the first build; later builds must use the same.
      folder: The collections' folder.
      language: ISO 639-1 code.
      progress: Called with (passages encoded, total).
      settings: How they are indexed.
      source: Identifies everything that the content depends on.
      records: Further files of the collection's folder, name -> text.
      vectors: Vectors of the passages that have been encoded elsewhere, in blocks; None: they are encoded here.

    Raises:
      UserError: There are no passages, two have one id, the folder has collections of another encoder, or an
        interrupted build had another source.
    """
    root, language = _root_and_language(pathlib.Path(folder), language)
    keep_encoder(root, encoder)
    with replacing(root / language, keep=bool(source)) as building:
        state_path = building / _PROGRESS
        state = json.loads(state_path.read_text()) if state_path.exists() else None
        if state is not None and state["source"] != source:
            raise UserError(
                f"{building} is the unfinished work of another configuration: continue that one, or delete the folder"
            )

        def save(state: Mapping[str, str | int]) -> None:
            temporary = state_path.with_suffix(".new")
            temporary.write_text(json.dumps(state))
            temporary.replace(state_path)

        if state is None:
            count, fingerprint = write_passages(passages, building / FILE_NAME)
            state = {"source": source, "count": count, "fingerprint": fingerprint, "encoded": 0}
            save(state)
        shape = (state["count"], encoder.dimension)
        mode = "r+" if state["encoded"] else "w+"
        stored = np.lib.format.open_memmap(building / VECTORS, mode=mode, dtype=np.float32, shape=shape)
        if vectors is None:
            vectors = _encoded(Corpus(building), encoder, state["encoded"])
        else:
            state["encoded"] = 0  # blocks of vectors cost a copy only
        for block in vectors:
            start, state["encoded"] = state["encoded"], state["encoded"] + len(block)
            stored[start : state["encoded"]] = block
            stored.flush()  # before the progress that promises these rows
            save(state)
            progress(state["encoded"], state["count"])
        del stored

        shutil.rmtree(building / INDEX, ignore_errors=True)  # of an attempt that was killed while it indexed
        meta = CollectionMeta(
            language=language,
            count=state["count"],
            fingerprint=state["fingerprint"],
            encoder_fingerprint=encoder.fingerprint(),
            dimension=encoder.dimension,
            index=write_index(building, settings),
            source=source,
        )
        (building / META).write_text(json.dumps(dataclasses.asdict(meta), indent=2) + "\n")
        for name, text in records.items():
            (building / name).write_text(text, encoding="utf-8")
        state_path.unlink()
    return meta


def _encoded(corpus: Corpus, encoder: Encoder, start: int) -> Iterable[Float[np.ndarray, "passages width"]]:
    """Yields the vectors of the passages from row `start` on, in blocks."""
    for first in range(start, len(corpus), _PASSAGES_PER_CALL):
        texts = [passage_text(passage) for passage in corpus.rows(first, min(first + _PASSAGES_PER_CALL, len(corpus)))]
        yield encoder.encode(texts, kind="passage")


def _root_and_language(folder: pathlib.Path, language: str | None) -> tuple[pathlib.Path, str]:
    root, language = (folder.absolute().parent, folder.absolute().name) if language is None else (folder, language)
    if not is_language_code(language):
        raise UserError(f"{language!r} is not a language code: pass one, such as language='en', to build in {folder}")
    return root, language


def is_language_code(name: str) -> bool:
    """Whether a collection may have this name: "fi", "zh-yue", "pt_BR"."""
    return _LANGUAGE.fullmatch(name) is not None


def keep_encoder(root: pathlib.Path, encoder: Encoder) -> None:
    """Writes the encoder into the collections' folder `root`, unless it is there.

    Raises:
      UserError: The folder has collections of another encoder.
    """
    folder = root / ENCODER
    if not readable(folder).exists():
        save_encoder(folder, encoder)
    elif load_encoder(folder).fingerprint() != encoder.fingerprint():
        raise UserError(
            f"{root} holds collections of another encoder: build into a new folder, or delete this one first"
        )
