"""Building collections from passages.

<folder>/encoder/                                   the encoder, so that the folder is complete
<folder>/<language>/passages.arrow vectors.npy meta.json [index/]
"""

import dataclasses
import pathlib
import re
import shutil
import types
from collections.abc import Callable, Iterable, Mapping

import numpy as np

from lcrag.errors import UserError
from lcrag.retrieval.collections import ENCODER, CollectionMeta, read_meta, write_meta
from lcrag.retrieval.corpus import FILE_NAME, Corpus, write_passages
from lcrag.retrieval.encoder import Encoder
from lcrag.retrieval.encoder_folder import load_encoder, save_encoder
from lcrag.retrieval.folders import file_checks, first_damaged, readable, replacing
from lcrag.retrieval.index import VECTORS, write_index
from lcrag.retrieval.passages import Passage, passage_text
from lcrag.retrieval.shards import Shards

_LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]+)*")
_PASSAGES_PER_CALL = 4096


def build_collection(
    passages: Iterable[Passage],
    encoder: Encoder,
    folder: str | pathlib.Path,
    language: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> CollectionMeta:
    """Encodes and indexes the passages of one language in `<folder>/<language>`.

    Without `language`, `folder` itself is the collection and its name the language. An existing collection is replaced
    once the new one is complete.

    Args:
      passages: Streamed once.
      encoder: Saved in `<folder>/encoder` by the first build; later builds must use the same.
      folder: The collections' folder.
      language: ISO 639-1 code.
      progress: Called with (passages encoded, total).

    Raises:
      UserError: There are no passages, or the folder has collections of another encoder.
    """
    root, language = _root_and_language(pathlib.Path(folder), language)
    keep_encoder(root, encoder)
    with replacing(root / language) as temporary:
        content = write_passages(passages, temporary / FILE_NAME)
        _write_vectors(temporary, encoder, progress)
        return _finished(temporary, language, encoder, content)


def build_from_shards(
    shards: Shards,
    encoder: Encoder,
    root: pathlib.Path,
    language: str,
    source: str,
    records: Mapping[str, str] = types.MappingProxyType({}),
) -> CollectionMeta:
    """Joins shards in the order of their names and indexes them in `<root>/<language>`.

    An existing collection is replaced once the new one is complete. The shards stay.

    Args:
      shards: Finished shards.
      encoder: The encoder of the shards.
      root: The collections' folder.
      language: ISO 639-1 code.
      source: Identifies the source and settings of the shards.
      records: Further files of the collection's folder, name -> text.

    Raises:
      UserError: There are no passages.
    """
    with replacing(root / language) as temporary:
        content = write_passages(shards.passages(), temporary / FILE_NAME)
        shape = (content[0], encoder.dimension)
        vectors = np.lib.format.open_memmap(temporary / VECTORS, mode="w+", dtype=np.float32, shape=shape)
        start = 0
        for part in shards.vectors():
            vectors[start : start + len(part)] = part
            start += len(part)
        vectors.flush()
        meta = _finished(temporary, language, encoder, content, source)
        for name, text in records.items():
            (temporary / name).write_text(text, encoding="utf-8")
    return meta


def _finished(
    folder: pathlib.Path, language: str, encoder: Encoder, content: tuple[int, str], source: str = ""
) -> CollectionMeta:
    """Indexes the passages in `folder` and writes its `meta.json`; `content` is the result of `write_passages`."""
    count, fingerprint = content
    meta = CollectionMeta(
        language=language,
        count=count,
        fingerprint=fingerprint,
        encoder_fingerprint=encoder.fingerprint(),
        dimension=encoder.dimension,
        index=write_index(folder),
        files=file_checks(folder),
        source=source,
    )
    write_meta(folder, meta)
    return meta


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


def _write_vectors(folder: pathlib.Path, encoder: Encoder, progress: Callable[[int, int], None]) -> None:
    corpus = Corpus(folder)
    shape = (len(corpus), encoder.dimension)
    vectors = np.lib.format.open_memmap(folder / VECTORS, mode="w+", dtype=np.float32, shape=shape)
    for start in range(0, len(corpus), _PASSAGES_PER_CALL):
        texts = [passage_text(passage) for passage in corpus[start : start + _PASSAGES_PER_CALL]]
        vectors[start : start + len(texts)] = encoder.encode(texts, kind="passage")
        progress(start + len(texts), len(corpus))
    vectors.flush()


def rebuild_index(folder: str | pathlib.Path) -> CollectionMeta:
    """Rebuilds the index of a collection from its stored passages and vectors.

    Raises:
      UserError: They are damaged too.
    """
    source, meta = readable(folder), read_meta(folder)
    kept = {name: meta.files[name] for name in (FILE_NAME, VECTORS)}
    if damaged := first_damaged(source, kept):
        raise UserError(f"{source / damaged} is damaged too: build the collection again with build_collection")
    with replacing(folder) as temporary:
        for name in kept:
            shutil.copyfile(source / name, temporary / name)
        meta = dataclasses.replace(meta, index=write_index(temporary), files=file_checks(temporary))
        write_meta(temporary, meta)
    return meta
