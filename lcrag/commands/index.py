"""`lcrag index`: builds a collection per language from articles or passages, and measures their retrieval."""

import hashlib
import itertools
import json
import operator
import pathlib
import shutil
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import gin
import numpy as np
from rich.table import Table

from lcrag.data.corpora import PASSAGE_LENGTH, Kind, Source, Unit, find_source
from lcrag.data.rows import BadRows, Judgements, counted_bad_rows, data_file, dataset_folder, read_trec
from lcrag.errors import UserError, typed
from lcrag.evaluation import Row, replace_rows, retrieval_rows
from lcrag.files import plain, readable_folder, resolved_folder
from lcrag.retrieval import (
    Corpus,
    Encoder,
    IndexSettings,
    Passage,
    SearchableCollections,
    build_collection,
    load_collections,
    load_encoder,
)
from lcrag.retrieval.collections import (
    ENCODER,
    META,
    USUAL_INDEX,
    VECTORS,
    index_bytes,
    is_language_code,
    keep_encoder,
    read_meta,
)
from lcrag.retrieval.encoder import configured_encoder
from lcrag.retrieval.qdrant import Qdrant
from lcrag.runs import operative_config, provenance
from lcrag.runs.display import ProgressDisplay, make_console, progress_display

EVALUATION = "evaluation.json"
DEPTH = 100  # passages of a judged search


@gin.configurable
@typed
def index(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    sources: Mapping[str, str] = types.MappingProxyType({}),
    encoder: str | None = None,
    kind: Kind | None = None,
    unit: Unit | None = None,
    length: int = PASSAGE_LENGTH,
    settings: IndexSettings = USUAL_INDEX,
    beam: Sequence[str] | None = None,
    engine: Qdrant | None = None,
    judgements: Sequence[Judgements] = (),
) -> None:
    """Builds the missing collections, continuing an interrupted attempt, and measures their retrieval.

    Args:
      words: Languages to build; empty: all of `sources`.
      sources: Language -> file, folder or pattern; see `lcrag.data.corpora`.
      encoder: Folder of the encoder, or name of a shipped one; None: that of the output folder.
      kind: Format of all sources; None: inferred for each.
      unit: Unit of passage lengths; None: that of the language's script.
      length: Words or characters of a passage.
      beam: Options of an Apache Beam pipeline that cuts and embeds; None: this machine does.
      engine: A vector engine that stores the collections too; see `lcrag.retrieval.qdrant`.
      judgements: Judged queries that measure retrieval; results are written to `evaluation.json`.
    """
    if output_dir is None:
        raise UserError("lcrag index needs a folder for the collections: --output_dir=FOLDER")
    if length < 1:
        raise UserError(f"index.length is {length}: a passage has at least one word or character")

    # All sources are looked at before the first is built.
    if not sources:
        raise UserError("index.sources names no source: set it to {language: file, folder or pattern}")
    for language in (*words, *sources):
        if language not in sources:
            raise UserError(f"index.sources has no {language}: it has {', '.join(sources)}")
        if not is_language_code(language):
            raise UserError(f"index.sources: {language!r} is not a language code, as fi or zh-yue is")
    plans = [find_source(code, sources[code], kind, unit, length) for code in words or sources]
    if encoder is not None:
        opened = configured_encoder(resolved_folder(encoder))
    elif readable_folder(output_dir / ENCODER).exists():
        opened = load_encoder(output_dir / ENCODER)
    else:
        raise UserError("index.encoder names no encoder: give the folder of one with --gin.index.encoder='\"FOLDER\"'")
    keep_encoder(output_dir, opened)

    console = make_console()
    for plan in plans:
        folder, identity = output_dir / plan.language, plan.identity() | {"encoder": opened.fingerprint()}
        source = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
        if not (readable_folder(folder) / META).exists():
            shown = progress_display(plan.language, 100, unit="%", transient=True, console=console)
            with counted_bad_rows() as bad_rows, shown as display:
                _build(plan, output_dir, opened, settings, source, bad_rows, display, beam)
        elif read_meta(folder).source != source:
            raise UserError(
                f"{folder} is a collection of another source or other settings: delete it, or choose another"
                " --output_dir"
            )
        meta = read_meta(folder)
        if meta.index.kind == "tree" and meta.index.quantize != settings.quantize:
            raise UserError(
                f"{folder} has an index with quantize {meta.index.quantize!r}, not {settings.quantize!r}: keep that, or"
                " choose another --output_dir"
            )
        memory = f"{index_bytes(readable_folder(folder), meta.index) / 2**20:,.1f} MiB of memory"
        line = f"{meta.count:,} passages; {meta.index.kind} index, recall@10 {meta.index.recall:.3f}; {memory}"
        console.print(f"{plan.language}: {line}", highlight=False, soft_wrap=True)
        if engine is not None:
            with progress_display(plan.language, 100, unit="%", transient=True, console=console) as display:
                display.phase(f"storing in {engine.name}")
                engine.store(folder, _percentage(display))
            console.print(f"{plan.language}: stored in {engine.name}", highlight=False, soft_wrap=True)

    for judged in judgements:
        rows, path = judge(load_collections(output_dir, opened), judged, encoder or ENCODER), output_dir / EVALUATION
        replace_rows(path, rows, lambda row: (row.dataset, row.split, row.model, row.language))
        metrics, languages = (
            list(dict.fromkeys(map(operator.attrgetter(name), rows))) for name in ("metric", "language")
        )
        values = {(row.language, row.metric): row for row in rows}
        table = Table("language", "queries", *metrics, title=f"{judged.dataset}, {judged.split}")
        for language in languages:
            cells = (f"{values[language, metric].value:.3f}" for metric in metrics)
            table.add_row(language, str(values[language, metrics[0]].count), *cells)
        console.print(table)


def _build(
    plan: Source,
    root: pathlib.Path,
    encoder: Encoder,
    settings: IndexSettings,
    source: str,
    bad_rows: BadRows,
    display: ProgressDisplay,
    beam: Sequence[str] | None,
) -> None:
    """Builds a collection; `source` identifies its content."""
    vectors: Iterator[np.ndarray] | None = None
    blocks_folder = root / f".{plan.language}.{source}.blocks"
    display.phase("passages")
    if beam is None:
        passages = plan.passages(bad_rows, lambda share: display.update(100 * share))
    else:
        try:
            from lcrag.data.beam import embed_blocks
        except ModuleNotFoundError as error:
            raise UserError("index.beam needs Apache Beam: pip install 'lcrag[beam]', or leave it None") from error
        blocks, count = embed_blocks(
            plan, blocks_folder, (root / ENCODER).absolute(), skip_bad_rows=bad_rows.skip, options=beam
        )
        if count:
            rows = "1 bad row was" if count == 1 else f"{count} bad rows were"
            print(f"lcrag: {rows} left out", file=sys.stderr)
        passages = itertools.chain.from_iterable(map(Corpus, blocks))
        vectors = (np.load(block / VECTORS, mmap_mode="r") for block in blocks)

    def checked() -> Iterator[Passage]:
        """Yields the passages; the vectors are the next phase."""
        first = next(passages, None)
        if first is None:
            reason = bad_rows.summary() or "no document contains text"
            raise UserError(f"the source of {plan.language}, {plan.files[0]}, gives no passage: {reason}")
        yield first
        yield from passages
        display.phase("vectors")

    about = provenance(seed=0, hashes={"source": source, "encoder": encoder.fingerprint()})
    records = {"run.json": json.dumps(plain(about), ensure_ascii=False, indent=2) + "\n"}
    records["config.gin"] = operative_config()
    parts = checked(), encoder, root, plan.language, _percentage(display), settings
    build_collection(*parts, source=source, records=records, vectors=vectors)
    shutil.rmtree(blocks_folder, ignore_errors=True)


def _percentage(display: ProgressDisplay) -> Callable[[int, int], Any]:
    """Returns a function that shows how many of all passages are done."""
    return lambda done, total: display.update(100 * done / total, note=f"{done:,} of {total:,} passages")


@gin.configurable
@typed
def trec_judgements(
    dataset: str, split: str, topics: str, qrels: str, languages: Sequence[str], source: str, folder: str | None = None
) -> Judgements:
    """Reads queries and judgements from TREC files; see `lcrag.data.rows.read_trec`.

    Args:
      topics: Name of the file of queries, in the folder or its `topics/`; `{language}` stands for the language.
      qrels: Name of the file of judgements, in the folder or its `qrels/`, also with `{language}`.
      source: Where the files can be downloaded; for messages.
      folder: Folder of the files; None: `$LCRAG_DATA/<dataset>`.
    """
    place, queries = dataset_folder(dataset, folder), []
    with counted_bad_rows() as bad_rows:
        for language in languages:
            names = {
                kind: name.replace("{language}", language) for kind, name in (("topics", topics), ("qrels", qrels))
            }
            files = [data_file(place, (name, f"{kind}/{name}"), source) for kind, name in names.items()]
            queries += read_trec(files[0], files[1], language, bad_rows)
    return Judgements(dataset=dataset, split=split, queries=tuple(queries))


def judge(collections: SearchableCollections, judgements: Judgements, model: str) -> list[Row]:
    """Searches for each query in the collection of its language and scores the results."""
    queries, rankings = judgements.queries, []
    for start in range(0, len(queries), 512):
        part = queries[start : start + 512]
        hits = collections.search([query.text for query in part], [query.language for query in part], DEPTH)
        # Equal scores are in the order of the ids, as in trec_eval, and not in that of the source's lines.
        ordered = (sorted(some, key=lambda hit: (round(hit.score, 6), hit.id.encode()), reverse=True) for some in hits)
        rankings += [[hit.id for hit in some] for some in ordered]
    rows = retrieval_rows(
        rankings,
        [query.grades for query in queries],
        [query.language for query in queries],
        method="retrieval",
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
