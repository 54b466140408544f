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
    """Encodes and indexes the passages of one language, into `<folder>/<language>`.

    With no `language`, `folder` is itself the collection and its name the language. A collection
    that is already there is replaced once the new one is complete, and untouched if that never happens.

    Args:
      passages: Streamed once.
      encoder: Kept in `<folder>/encoder` at the first build; later ones must use the same.
      folder: The collections' folder.
      language: ISO 639-1 code.
      progress: Called with the passages encoded so far and their total.

    Raises:
      UserError: there are no passages, or other languages there were built with another encoder.
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
    """Puts shards together, in the order of their names, and indexes them, into `<root>/<language>`.

    A collection that is already there is replaced once the new one is complete. The shards stay.

    Args:
      shards: All of them finished.
      encoder: That of the shards.
      root: The collections' folder.
      language: ISO 639-1 code.
      source: Names what the shards were made from.
      records: Files to keep in the collection's folder, name -> text.

    Raises:
      UserError: there are no passages.
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
    """Indexes what `folder` holds and writes its `meta.json`; `content` is what `write_passages` returned."""
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
        raise UserError(f"{language!r} is not a language code: say language='en', say, when building in {folder}")
    return root, language


def is_language_code(name: str) -> bool:
    """Whether a collection may have this name: "fi", "zh-yue", "pt_BR"."""
    return _LANGUAGE.fullmatch(name) is not None


def keep_encoder(root: pathlib.Path, encoder: Encoder) -> None:
    """Writes the encoder beside the collections of `root`, unless it is there.

    Raises:
      UserError: the collections there are another encoder's.
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
    """Makes the index of the collection in `folder` again from its stored passages and vectors.

    Raises:
      UserError: those are damaged too.
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
