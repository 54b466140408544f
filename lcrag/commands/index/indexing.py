"""`lcrag index`: builds a collection per language from dumps, articles or passages, adds to them and rebuilds them."""

import functools
import json
import pathlib
import sys
import types
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console

from lcrag.commands.index.judging import add_rows, judge, table_of
from lcrag.composition.components import configured_encoder, resolved_folder
from lcrag.composition.configuration import operative_config
from lcrag.composition.datasets import counted_bad_rows
from lcrag.data.corpora.chunking import PASSAGE_LENGTH, Unit
from lcrag.data.corpora.local import CorpusPlan, Progress, fingerprint_of, make_plan
from lcrag.data.corpora.source import Kind, find_source
from lcrag.data.judgements import Judgements
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.limits import Amount, Count
from lcrag.retrieval import Encoder, IndexSettings, build_from_rows, load_collections, load_encoder, rebuild_index
from lcrag.retrieval.building import (
    Assemble,
    add_from_rows,
    additions,
    is_language_code,
    keep_encoder,
    write_parts,
)
from lcrag.retrieval.collection import META, collection_bytes, read_meta
from lcrag.retrieval.collections import ENCODER
from lcrag.retrieval.folders import readable
from lcrag.retrieval.index import USUAL_INDEX
from lcrag.retrieval.remote import Qdrant
from lcrag.retrieval.shards import Shards, open_shards, remove_shards
from lcrag.runs import provenance
from lcrag.runs.display import ProgressDisplay, make_console, progress_display
from lcrag.runs.files import plain

EVALUATION = "evaluation.json"
# Above this number of additions, their exact search is slower than the index.
MOST_ADDED = 100_000


def index(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    sources: Mapping[str, str] = types.MappingProxyType({}),
    encoder: str | None = None,
    kind: Kind | None = None,
    unit: Unit | None = None,
    length: Count = PASSAGE_LENGTH,
    documents_per_shard: Count = 1024,
    workers: Amount | None = None,
    settings: IndexSettings = USUAL_INDEX,
    parts: Count | None = None,
    add: bool = False,
    rebuild: bool = False,
    beam: Sequence[str] | None = None,
    engine: Qdrant | None = None,
    judgements: Sequence[Judgements] = (),
) -> None:
    """Builds the missing collections, continuing an interrupted attempt, and measures their retrieval.

    Args:
      output_dir: The collections' folder.
      words: Languages to build; empty: all of `sources`, or with `rebuild` all of the folder.
      sources: Language -> file, folder or pattern; see `lcrag.data.corpora.source`.
      encoder: Folder of the encoder, or name of a shipped one; None: that of the output folder.
      kind: Format of all sources; None: inferred for each.
      unit: Unit of passage lengths; None: that of the language's script.
      length: Words or characters of a passage.
      documents_per_shard: Pages or articles of a shard; eight times as many if the source consists of passages.
      workers: Processes that clean wikitext; None: one less than the processor cores; 0: this process cleans it.
      settings: How passages are indexed.
      parts: Parts of a collection, with an index each, which hosts can build and search separately; None: one, or with
        `rebuild` as many as there are.
      add: Add the passages of the sources to existing collections; they are searched exactly.
      rebuild: Rebuild the indexes of existing collections, additions included, instead of building collections.
      beam: Options of an Apache Beam pipeline; None: build on this machine.
      engine: A vector engine that stores the collections too; see `lcrag.retrieval.remote.qdrant`.
      judgements: Judged queries that measure retrieval; results are written to `evaluation.json`.

    Raises:
      UserError: There is no output folder, a language is unknown, or a source cannot be read or has changed.
    """
    if output_dir is None:
        raise UserError("lcrag index needs a folder for the collections: --output_dir=FOLDER")
    if add and rebuild:
        raise UserError("--add builds additions and --rebuild folds them into the index: run one, then the other")
    plans = [] if rebuild else _plans(words, sources, kind, unit, length, documents_per_shard)
    console, assemble = make_console(), _assembly(beam)
    opened = _encoder(encoder, output_dir)
    keep_encoder(output_dir, opened)
    build = functools.partial(build_from_rows, settings=settings, parts=parts or 1, assemble=assemble)
    for plan in plans:
        if not (_is_added if add else _is_built)(plan, output_dir, opened):
            shown = progress_display(plan.language, 100, unit="%", transient=True, console=console)
            with counted_bad_rows() as bad_rows, shown as display:
                _build(plan, output_dir, opened, bad_rows, display, workers, beam, add_from_rows if add else build)
        remove_shards(output_dir, plan.language)
    for language in _present(words, output_dir) if rebuild else [plan.language for plan in plans]:
        if rebuild:
            rebuild_index(output_dir / language, settings, parts, assemble)
        _print_collection(console, output_dir / language)
        _store(engine, output_dir / language, console)
    for judged in judgements:
        rows = judge(load_collections(output_dir, opened), judged, encoder or ENCODER)
        add_rows(output_dir / EVALUATION, rows)
        console.print(table_of(rows))


def _store(engine: Qdrant | None, folder: pathlib.Path, console: Console) -> None:
    """Stores a collection in a vector engine, if there is one."""
    if engine is not None:
        with progress_display(folder.name, 100, unit="%", transient=True, console=console) as display:
            display.phase(f"storing in {engine.name}")
            engine.store(folder, lambda done, total: display.update(100 * done / total))
        console.print(f"{folder.name}: stored in {engine.name}", highlight=False, soft_wrap=True)


def _encoder(name: str | None, root: pathlib.Path) -> Encoder:
    """Returns the named encoder, or that of the collections in `root`."""
    if name is None and not readable(root / ENCODER).exists():
        raise UserError("index.encoder names no encoder: give the folder of one with --gin.index.encoder='\"FOLDER\"'")
    return load_encoder(root / ENCODER) if name is None else configured_encoder(resolved_folder(name))


def _present(words: Sequence[str], root: pathlib.Path) -> list[str]:
    """Returns the languages to rebuild."""
    present = sorted(path.parent.name for path in root.glob(f"*/{META}"))
    if not present:
        raise UserError(f"--rebuild: there is no collection in {root}: build one first, without --rebuild")
    if missing := sorted(set(words) - set(present)):
        raise UserError(f"--rebuild: there is no collection {missing[0]} in {root}: there are {', '.join(present)}")
    return list(words or present)


def _assembly(beam: Sequence[str] | None) -> Assemble:
    """Returns the function that writes the parts of a collection: in this process, or in a Beam pipeline."""
    return write_parts if beam is None else lambda plans: _beam().write_parts(plans, options=beam)


def _beam() -> types.ModuleType:
    try:
        from lcrag.data.corpora import beam
    except ModuleNotFoundError as error:
        raise UserError("index.beam needs Apache Beam: pip install 'lcrag[beam]', or leave it None") from error
    return beam


def _plans(
    words: Sequence[str],
    sources: Mapping[str, str],
    kind: Kind | None,
    unit: Unit | None,
    length: int,
    documents_per_shard: int,
) -> list[CorpusPlan]:
    """Checks all sources before the first is built, and returns their plans."""
    if not sources:
        raise UserError("index.sources names no source: set it to {language: file, folder or pattern}")
    for language in (*words, *sources):
        if language not in sources:
            raise UserError(f"index.sources has no {language}: it has {', '.join(sources)}")
        if not is_language_code(language):
            raise UserError(f"index.sources: {language!r} is not a language code, as fi or zh-yue is")
    found = {language: find_source(sources[language], kind, documents_per_shard) for language in words or sources}
    return [make_plan(language, source, unit, length) for language, source in found.items()]


def _identity(plan: CorpusPlan, encoder: Encoder) -> dict:
    return plan.identity() | {"encoder": encoder.fingerprint()}


def _is_built(plan: CorpusPlan, root: pathlib.Path, encoder: Encoder) -> bool:
    """Returns whether the collection exists with the same source and settings.

    Raises:
      UserError: It exists with others.
    """
    if not (readable(root / plan.language) / META).exists():
        return False
    if read_meta(root / plan.language).source == fingerprint_of(_identity(plan, encoder)):
        return True
    raise UserError(
        f"{root / plan.language} is a collection of another source or other settings:"
        " delete it, or choose another --output_dir"
    )


def _is_added(plan: CorpusPlan, root: pathlib.Path, encoder: Encoder) -> bool:
    """Returns whether the collection contains this source.

    Raises:
      UserError: There is no collection.
    """
    folder = root / plan.language
    if not (readable(folder) / META).exists():
        raise UserError(f"--add: there is no collection {folder} to add to: build it first, without --add")
    meta = read_meta(folder)
    there = {meta.source, *meta.folded, *(addition.source for addition in additions(readable(folder)))}
    return fingerprint_of(_identity(plan, encoder)) in there


def _build(
    plan: CorpusPlan,
    root: pathlib.Path,
    encoder: Encoder,
    bad_rows: BadRows,
    display: ProgressDisplay,
    workers: int | None,
    beam: Sequence[str] | None,
    builder: Callable[..., object],
) -> None:
    with open_shards(root, plan.language, _identity(plan, encoder)) as shards:
        display.phase("passages and vectors")
        if beam is None:
            from lcrag.data.corpora import local

            show = functools.partial(_show, display)
            local.make_shards(plan, shards, encoder, bad_rows=bad_rows, progress=show, workers=workers)
        else:
            _make_by_beam(plan, shards, root / ENCODER, bad_rows, beam)
        _check_passages(plan, shards, bad_rows)
        display.phase("index")
        source = fingerprint_of(_identity(plan, encoder))
        builder(shards.rows(), encoder, root, plan.language, source, _records(source, encoder))


def _check_passages(plan: CorpusPlan, shards: Shards, bad_rows: BadRows) -> None:
    """Raises a UserError if the documents gave no passage."""
    if not any(record.passages for record in shards.finished().values()):
        reason = bad_rows.summary() or "no document contains text"
        raise UserError(f"the source of {plan.language}, {plan.source.files[0]}, gives no passage: {reason}")


def _records(source: str, encoder: Encoder) -> dict[str, str]:
    """Returns the files that record how a collection was built."""
    about = plain(provenance(seed=0, hashes={"source": source, "encoder": encoder.fingerprint()}))
    return {
        "config.gin": operative_config(),
        "run.json": json.dumps(about, ensure_ascii=False, indent=2) + "\n",
    }


def _make_by_beam(
    plan: CorpusPlan, shards: Shards, encoder: pathlib.Path, bad_rows: BadRows, options: Sequence[str]
) -> None:
    counts = _beam().make_shards(plan, shards, encoder.absolute(), skip_bad_rows=bad_rows.skip, options=options)
    if count := counts["bad_rows"]:
        rows = "1 bad row was" if count == 1 else f"{count} bad rows were"
        print(f"lcrag: {rows} left out", file=sys.stderr)


def _show(display: ProgressDisplay, progress: Progress) -> None:
    note = f"{progress.passages:,} passages; {progress.passages_per_second:,.0f} a second"
    display.update(100 * progress.share, note=note, seconds_left=progress.seconds_left)


def _print_collection(console: Console, folder: pathlib.Path) -> None:
    meta, added = read_meta(folder), sum(addition.count for addition in additions(folder))
    in_parts = f" in {meta.parts} parts" if meta.parts > 1 else ""
    index = f"{meta.index.kind} index{in_parts}, recall@10 {meta.index.recall:.3f}"
    later = f"; {added:,} added since, searched exactly" if added else ""
    memory = f"{collection_bytes(folder) / 2**20:,.1f} MiB of memory"
    console.print(
        f"{meta.language}: {meta.count:,} passages; {index}; {memory}{later}", highlight=False, soft_wrap=True
    )
    if added > MOST_ADDED:
        console.print(f"{meta.language}: searches are slow with so many additions: rebuild the index with --rebuild")
