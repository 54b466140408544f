"""Builds collections from passages, adds passages to them, and rebuilds their indexes.

<folder>/encoder/                                   the encoder, so that the folder is complete
<folder>/<language>/passages.arrow vectors.npy meta.json [index/]
<folder>/<language>/part0/ part1/ ... meta.json     the same, for a collection in several parts
<folder>/<language>/added0/ added1/ ...             passages added later, each as above
"""

import contextlib
import dataclasses
import pathlib
import re
import shutil
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from lcrag.errors import UserError
from lcrag.retrieval.collection import ADDED, META, PART, CollectionMeta, part_folders, read_meta, write_meta
from lcrag.retrieval.collections import ENCODER
from lcrag.retrieval.corpus import FILE_NAME, Corpus, check_distinct_ids, write_passages
from lcrag.retrieval.encoder import Encoder
from lcrag.retrieval.encoder_folder import load_encoder, save_encoder
from lcrag.retrieval.folders import adding_to, file_checks, first_damaged, readable, replacing
from lcrag.retrieval.index import USUAL_INDEX, VECTORS, IndexFacts, IndexSettings, write_index
from lcrag.retrieval.passages import Passage, passage_text
from lcrag.retrieval.shards import Rows, split_rows
from lcrag.retrieval.wire import combined_fingerprint

_LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]+)*")
_PASSAGES_PER_CALL = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartPlan:
    """The content of a part of a collection; any worker that sees the folders can write it.

    Attributes:
      folder: The part's folder; must exist.
      rows: Its passages and vectors.
      language, source, encoder_fingerprint, dimension: See `CollectionMeta`.
      settings: Settings of its index; None: exact search.
    """

    folder: pathlib.Path
    rows: Sequence[Rows]
    language: str
    source: str
    encoder_fingerprint: str
    dimension: int
    settings: IndexSettings | None


Assemble: TypeAlias = Callable[[Sequence[PartPlan]], None]  # writes all parts, here or on workers


def write_parts(plans: Sequence[PartPlan]) -> None:
    """Writes parts one after the other."""
    for plan in plans:
        write_part(plan)


def write_part(plan: PartPlan) -> None:
    """Joins the rows of a part, indexes them and writes its `meta.json`.

    Raises:
      UserError: There are no passages, or two have one id.
    """
    content = write_passages((passage for rows in plan.rows for passage in rows.passages()), plan.folder / FILE_NAME)
    shape = (content[0], plan.dimension)
    vectors = np.lib.format.open_memmap(plan.folder / VECTORS, mode="w+", dtype=np.float32, shape=shape)
    start = 0
    for rows in plan.rows:
        vectors[start : start + rows.stop - rows.start] = rows.vectors()
        start += rows.stop - rows.start
    vectors.flush()
    _finish(plan, content)


def _finish(plan: PartPlan, content: tuple[int, str]) -> CollectionMeta:
    """Indexes the passages in the folder of a part; `content` is the result of `write_passages`."""
    exact = IndexFacts(kind="exact", leaves_to_search=0, recall=1.0)
    meta = CollectionMeta(
        language=plan.language,
        count=content[0],
        fingerprint=content[1],
        encoder_fingerprint=plan.encoder_fingerprint,
        dimension=plan.dimension,
        index=exact if plan.settings is None else write_index(plan.folder, plan.settings),
        files=file_checks(plan.folder),
        source=plan.source,
    )
    write_meta(plan.folder, meta)
    return meta


def build_collection(
    passages: Iterable[Passage],
    encoder: Encoder,
    folder: str | pathlib.Path,
    language: str | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
    settings: IndexSettings = USUAL_INDEX,
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
      settings: How they are indexed.

    Raises:
      UserError: There are no passages, or the folder has collections of another encoder.
    """
    root, language = _root_and_language(pathlib.Path(folder), language)
    keep_encoder(root, encoder)
    with replacing(root / language) as temporary:
        return _encoded(passages, encoder, temporary, language, progress, settings)


def add_passages(
    passages: Iterable[Passage], encoder: Encoder, folder: str | pathlib.Path, language: str
) -> CollectionMeta:
    """Adds passages to the collection `<folder>/<language>`; they are searched exactly, together with the others.

    A search costs a product with every added vector; `rebuild_index` moves many of them into the index.

    Raises:
      UserError: There is no such collection, it is of another encoder, or a passage has an id that is taken.
    """
    collection = pathlib.Path(folder) / language
    keep_encoder(collection.parent, encoder)
    with _addition(collection) as temporary:
        return _encoded(passages, encoder, temporary, language, lambda done, total: None, None)


def _encoded(
    passages: Iterable[Passage],
    encoder: Encoder,
    folder: pathlib.Path,
    language: str,
    progress: Callable[[int, int], None],
    settings: IndexSettings | None,
) -> CollectionMeta:
    content = write_passages(passages, folder / FILE_NAME)
    _write_vectors(folder, encoder, progress)
    return _finish(_plan(folder, (), language, encoder, "", settings), content)


def _plan(
    folder: pathlib.Path,
    rows: Sequence[Rows],
    language: str,
    encoder: Encoder,
    source: str,
    settings: IndexSettings | None,
) -> PartPlan:
    return PartPlan(
        folder=folder,
        rows=rows,
        language=language,
        source=source,
        encoder_fingerprint=encoder.fingerprint(),
        dimension=encoder.dimension,
        settings=settings,
    )


def build_from_rows(
    rows: Sequence[Rows],
    encoder: Encoder,
    root: pathlib.Path,
    language: str,
    source: str,
    records: Mapping[str, str] = types.MappingProxyType({}),
    *,
    settings: IndexSettings = USUAL_INDEX,
    parts: int = 1,
    assemble: Assemble = write_parts,
) -> CollectionMeta:
    """Joins rows of shards and indexes them in `<root>/<language>`.

    An existing collection is replaced once the new one is complete. The shards stay.

    Args:
      rows: Of finished shards.
      encoder: The encoder of the shards.
      root: The collections' folder.
      language: ISO 639-1 code.
      source: Identifies the source and settings of the shards.
      records: Further files of the collection's folder, name -> text.
      settings: How they are indexed.
      parts: Number of parts with an index each.
      assemble: Writes the parts.

    Raises:
      UserError: There are no passages, or fewer than parts.
    """
    with replacing(root / language) as temporary:
        meta = _assembled(_plan(temporary, rows, language, encoder, source, settings), parts, assemble)
        _write_records(temporary, records)
    return meta


def add_from_rows(
    rows: Sequence[Rows], encoder: Encoder, root: pathlib.Path, language: str, source: str, records: Mapping[str, str]
) -> CollectionMeta:
    """Adds rows of shards to the collection `<root>/<language>`; see `add_passages` and `build_from_rows`."""
    with _addition(root / language) as temporary:
        write_part(_plan(temporary, rows, language, encoder, source, None))
        _write_records(temporary, records)
        return read_meta(temporary)


def _write_records(folder: pathlib.Path, records: Mapping[str, str]) -> None:
    for name, text in records.items():
        (folder / name).write_text(text, encoding="utf-8")


def _assembled(plan: PartPlan, parts: int, assemble: Assemble) -> CollectionMeta:
    """Writes the parts of a collection and its `meta.json`."""
    if parts == 1:
        assemble([plan])
        return read_meta(plan.folder)
    shares = split_rows(plan.rows, parts)
    if not all(shares):
        raise UserError(f"index.parts is {parts}, but {plan.language} has fewer passages: lower it")
    plans = [
        dataclasses.replace(plan, folder=plan.folder / f"{PART}{number}", rows=share)
        for number, share in enumerate(shares)
    ]
    for each in plans:
        each.folder.mkdir()
    assemble(plans)
    check_distinct_ids([Corpus(each.folder) for each in plans])
    metas = {each.folder.name: read_meta(each.folder) for each in plans}
    worst = min(metas.values(), key=lambda meta: meta.index.recall)
    whole = dataclasses.replace(
        worst,
        count=sum(meta.count for meta in metas.values()),
        fingerprint=combined_fingerprint({name: meta.fingerprint for name, meta in metas.items()}),
        files={},
        parts=parts,
    )
    write_meta(plan.folder, whole)
    return whole


@contextlib.contextmanager
def _addition(collection: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yields an empty temporary folder that becomes the next addition of a collection."""
    if not (collection / META).exists():
        raise UserError(f"there is no collection {collection} to add to: build it first, without --add")
    with adding_to(collection):
        before = part_folders(collection, read_meta(collection).parts)
        number = sum(name.startswith(ADDED) for name in before)
        with replacing(collection / f"{ADDED}{number}") as temporary:
            yield temporary
            check_distinct_ids([Corpus(folder) for folder in (*before.values(), temporary)])


def additions(collection: pathlib.Path) -> list[CollectionMeta]:
    """Returns the additions to a collection since it was built."""
    folders = part_folders(collection, read_meta(collection).parts)
    return [read_meta(path) for name, path in folders.items() if name.startswith(ADDED)]


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


def rebuild_index(
    folder: str | pathlib.Path,
    settings: IndexSettings = USUAL_INDEX,
    parts: int | None = None,
    assemble: Assemble = write_parts,
) -> CollectionMeta:
    """Rebuilds a collection from its stored passages and vectors, additions included, which become part of its index.

    Args:
      folder: The collection's folder, replaced once the new one is complete.
      settings: How it is indexed.
      parts: Number of parts; None: as many as it has.
      assemble: Writes the parts.

    Raises:
      UserError: Passages or vectors are damaged too.
    """
    source, meta = readable(folder), read_meta(folder)
    old = {path: read_meta(path) for path in part_folders(source, meta.parts).values()}
    for path, own in old.items():
        if damaged := first_damaged(path, {name: own.files[name] for name in (FILE_NAME, VECTORS)}):
            raise UserError(f"{path / damaged} is damaged too: build the collection again with build_collection")
    added = [own.source for own in additions(source)]
    with replacing(folder) as temporary:
        plan = PartPlan(
            folder=temporary,
            rows=[Rows(path, 0, own.count) for path, own in old.items()],
            language=meta.language,
            source=meta.source,
            encoder_fingerprint=meta.encoder_fingerprint,
            dimension=meta.dimension,
            settings=settings,
        )
        new = _assembled(plan, parts or meta.parts, assemble)
        new = dataclasses.replace(new, folded=[*meta.folded, *filter(None, added)])
        write_meta(temporary, new)
        for path in source.glob("*.*"):
            if path.name not in (FILE_NAME, VECTORS, META):
                shutil.copyfile(path, temporary / path.name)
    return new
