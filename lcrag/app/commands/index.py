"""`lcrag index`: builds a collection per language from dumps, articles or passages, and measures retrieval."""

import functools
import json
import pathlib
import sys
from collections.abc import Mapping, Sequence

from rich.console import Console
from rich.table import Table

from lcrag.app.composition.components import configured_encoder, resolved_folder
from lcrag.app.composition.configuration import operative_config
from lcrag.app.composition.datasets import counted_bad_rows
from lcrag.app.display import ProgressDisplay, make_console, progress_display
from lcrag.app.runs import provenance
from lcrag.app.runs.files import plain
from lcrag.data.corpora.chunking import PASSAGE_LENGTH, Unit
from lcrag.data.corpora.local import CorpusPlan, Progress, fingerprint_of, make_plan
from lcrag.data.corpora.source import Kind, find_source
from lcrag.data.files import data_file, dataset_folder
from lcrag.data.judgements import Judgements, read_trec
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.evaluation import Row, read_rows, retrieval_rows, write_rows
from lcrag.limits import Amount, Count
from lcrag.retrieval import Encoder, SearchableCollections, load_collections
from lcrag.retrieval.building import build_from_rows, is_language_code, keep_encoder
from lcrag.retrieval.collections import ENCODER, META, CollectionMeta, read_meta
from lcrag.retrieval.folders import readable
from lcrag.retrieval.shards import Shards, open_shards, remove_shards

EVALUATION = "evaluation.json"
METHOD = "retrieval"
DEPTH = 100
_QUERIES_PER_SEARCH = 512


def index(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    sources: Mapping[str, str],
    encoder: str,
    kind: Kind | None = None,
    unit: Unit | None = None,
    length: Count = PASSAGE_LENGTH,
    documents_per_shard: Count = 1024,
    workers: Amount | None = None,
    beam: Sequence[str] | None = None,
    judgements: Sequence[Judgements] = (),
) -> None:
    """Builds the missing collections, continuing an interrupted attempt, and measures their retrieval.

    Args:
      output_dir: The collections' folder.
      words: Languages to build; empty: all of `sources`.
      sources: Language -> file, folder or pattern; see `lcrag.data.corpora.source`.
      encoder: Folder of the encoder, or name of a shipped one.
      kind: Format of all sources; None: inferred for each.
      unit: Unit of passage lengths; None: that of the language's script.
      length: Words or characters of a passage.
      documents_per_shard: Pages or articles of a shard; eight times as many if the source consists of passages.
      workers: Processes that clean wikitext; None: one less than the processor cores; 0: this process cleans it.
      beam: Options of an Apache Beam pipeline; None: build on this machine.
      judgements: Judged queries that measure retrieval; results are written to `evaluation.json`.

    Raises:
      UserError: There is no output folder, a language is unknown, or a source cannot be read or has changed.
    """
    if output_dir is None:
        raise UserError("lcrag index needs a folder for the collections: --output_dir=FOLDER")
    plans = _plans(words, sources, kind, unit, length, documents_per_shard)
    console = make_console()
    opened = configured_encoder(resolved_folder(encoder))
    keep_encoder(output_dir, opened)
    for plan in plans:
        if not _is_built(plan, output_dir, opened):
            shown = progress_display(plan.language, 100, unit="%", transient=True, console=console)
            with counted_bad_rows() as bad_rows, shown as display:
                _build(plan, output_dir, opened, bad_rows, display, workers, beam)
        remove_shards(output_dir, plan.language)
        _print_collection(console, read_meta(output_dir / plan.language))
    for judged in judgements:
        rows = judge(load_collections(output_dir, opened), judged, encoder)
        add_rows(output_dir / EVALUATION, rows)
        console.print(_table(rows))


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


def _build(
    plan: CorpusPlan,
    root: pathlib.Path,
    encoder: Encoder,
    bad_rows: BadRows,
    display: ProgressDisplay,
    workers: int | None,
    beam: Sequence[str] | None,
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
        build_from_rows(shards.rows(), encoder, root, plan.language, source, _records(source, encoder))


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
    try:
        from lcrag.data.corpora import beam
    except ModuleNotFoundError as error:
        raise UserError("index.beam needs Apache Beam: pip install 'lcrag[beam]', or leave it None") from error
    counts = beam.make_shards(plan, shards, encoder.absolute(), skip_bad_rows=bad_rows.skip, options=options)
    if count := counts["bad_rows"]:
        rows = "1 bad row was" if count == 1 else f"{count} bad rows were"
        print(f"lcrag: {rows} left out", file=sys.stderr)


def _show(display: ProgressDisplay, progress: Progress) -> None:
    note = f"{progress.passages:,} passages; {progress.passages_per_second:,.0f} a second"
    display.update(100 * progress.share, note=note, seconds_left=progress.seconds_left)


def _print_collection(console: Console, meta: CollectionMeta) -> None:
    index = f"{meta.index.kind} index, recall@10 {meta.index.recall:.3f}"
    console.print(f"{meta.language}: {meta.count:,} passages; {index}", highlight=False, soft_wrap=True)


def _table(rows: Sequence[Row]) -> Table:
    """Returns a table with a row per language and a column per metric."""
    metrics, languages = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("metric", "language"))
    values = {(row.language, row.metric): row for row in rows}
    table = Table("language", "queries", *metrics, title=f"{rows[0].dataset}, {rows[0].split}")
    for language in languages:
        cells = (f"{values[language, metric].value:.3f}" for metric in metrics)
        table.add_row(language, str(values[language, metrics[0]].count), *cells)
    return table


def trec_judgements(
    dataset: str, split: str, topics: str, qrels: str, languages: Sequence[str], source: str, folder: str | None = None
) -> Judgements:
    """Reads queries and judgements from TREC files; see `lcrag.data.judgements.read_trec`.

    Args:
      dataset: Name of the data set.
      split: Its split.
      topics: Name of the file of queries; `{language}` stands for the language.
      qrels: Name of the file of judgements, likewise.
      languages: Languages to read.
      source: Where the files can be downloaded; for messages.
      folder: Folder of the files; None: `$LCRAG_DATA/<dataset>`.
    """
    found = dataset_folder(dataset, folder)
    with counted_bad_rows() as bad_rows:
        queries = []
        for language in languages:
            files = [data_file(found, (name.format(language=language),), source) for name in (topics, qrels)]
            queries += read_trec(files[0], files[1], language, bad_rows)
    return Judgements(dataset=dataset, split=split, queries=tuple(queries))


def judge(collections: SearchableCollections, judgements: Judgements, model: str) -> list[Row]:
    """Searches for each query in the collection of its language and scores the results.

    Raises:
      UserError: A language has no collection, or no search finds a relevant passage.
    """
    queries = judgements.queries
    found: list[list[str]] = []
    for start in range(0, len(queries), _QUERIES_PER_SEARCH):
        part = queries[start : start + _QUERIES_PER_SEARCH]
        hits = collections.search([query.text for query in part], [query.language for query in part], DEPTH)
        found += [[hit.id for hit in each] for each in hits]
    rows = retrieval_rows(
        found,
        [query.grades for query in queries],
        [query.language for query in queries],
        method=METHOD,
        model=model,
        dataset=judgements.dataset,
        split=judgements.split,
    )
    if not any(row.value for row in rows):
        raise UserError(
            f"no passage that {judgements.dataset} judges relevant is among the first {DEPTH} of any search:"
            " do the collections contain the judged passages?"
        )
    return rows


def add_rows(path: pathlib.Path, rows: Sequence[Row]) -> None:
    """Adds rows to a file, replacing those of the same data set, split and encoder."""
    replaced = {(row.dataset, row.split, row.model) for row in rows}
    old = read_rows(path) if path.exists() else []
    write_rows(path, [*(row for row in old if (row.dataset, row.split, row.model) not in replaced), *rows])
