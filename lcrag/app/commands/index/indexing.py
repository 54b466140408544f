"""`lcrag index`: a collection for each language, from dumps, articles or passages; and how well it is searched."""

import contextlib
import json
import pathlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn
from rich.progress import Progress as ProgressBar
from rich.table import Table

from lcrag.app.commands.index.judged_queries import add_rows, judge
from lcrag.app.composition.components import configured_encoder, resolved_folder
from lcrag.app.composition.configuration import operative_config
from lcrag.app.composition.datasets import counted_bad_rows
from lcrag.app.display import hours_and_minutes, make_console
from lcrag.app.runs import provenance
from lcrag.app.runs.files import plain
from lcrag.data.corpora.chunking import PASSAGE_LENGTH, Unit
from lcrag.data.corpora.local import Progress
from lcrag.data.corpora.plan import Plan, fingerprint_of, make_plan
from lcrag.data.corpora.source import Kind, find_source
from lcrag.data.judgements import Judgements
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.evaluation import Row
from lcrag.retrieval import Encoder, load_collections
from lcrag.retrieval.building import build_from_shards, is_language_code, keep_encoder
from lcrag.retrieval.collections import ENCODER, META, CollectionMeta, read_meta
from lcrag.retrieval.folders import readable
from lcrag.retrieval.shards import Shards, open_shards, remove_shards

EVALUATION = "evaluation.json"
# Where output is no terminal, a line at most this often.
_SECONDS_PER_LINE = 10.0


def index(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    sources: Mapping[str, str],
    encoder: str,
    kind: Kind | None = None,
    unit: Unit | None = None,
    length: int = PASSAGE_LENGTH,
    documents_per_shard: int = 1024,
    workers: int | None = None,
    beam: Sequence[str] | None = None,
    judgements: Sequence[Judgements] = (),
) -> None:
    """Builds the collections that are not there yet, continuing where an earlier attempt ended, and judges them.

    Args:
      output_dir: The collections' folder.
      words: Languages to build; none: all of `sources`.
      sources: Language -> a file, a folder or a pattern; see `lcrag.data.corpora.source`.
      encoder: Folder of the encoder, or the name of one that ships with the package.
      kind: What all sources hold; None: what each looks like.
      unit: What passages are counted in; None: as the language's script asks for.
      length: Words or characters of a passage.
      documents_per_shard: Pages or articles that are embedded and kept together; eight times as many of passages that
        are cut already.
      workers: Processes that clean wikitext; None: one for every other processor core.
      beam: Options of an Apache Beam pipeline that does the work; None: this machine does it.
      judgements: By which retrieval is measured once all is built; what is found goes into `evaluation.json`.

    Raises:
      UserError: no output folder, an unknown language, a source that cannot be read or that has changed.
    """
    if output_dir is None:
        raise UserError("lcrag index needs a folder for the collections: --output_dir=FOLDER")
    plans = _plans(words, sources, kind, unit, length, documents_per_shard)
    console = make_console()
    opened = configured_encoder(resolved_folder(encoder))
    keep_encoder(output_dir, opened)
    for plan in plans:
        if not _is_built(plan, output_dir, opened):
            with counted_bad_rows() as bad_rows, _display(plan.language, console) as show:
                _build(plan, output_dir, opened, bad_rows, show, workers, beam)
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
) -> list[Plan]:
    """What is to be built, all of it looked at before the first is begun."""
    if not sources:
        raise UserError("index.sources names no source: set it to {language: file, folder or pattern}")
    for language in (*words, *sources):
        if language not in sources:
            raise UserError(f"index.sources has no {language}: it has {', '.join(sources)}")
        if not is_language_code(language):
            raise UserError(f"index.sources: {language!r} is not a language code, as fi or zh-yue is")
    for name, value in {"length": length, "documents_per_shard": documents_per_shard}.items():
        if value < 1:
            raise UserError(f"index.{name} is {value}: it must be at least 1")
    found = {language: find_source(sources[language], kind, documents_per_shard) for language in words or sources}
    return [make_plan(language, source, unit, length) for language, source in found.items()]


def _identity(plan: Plan, encoder: Encoder) -> dict:
    return plan.identity() | {"encoder": encoder.fingerprint()}


def _is_built(plan: Plan, root: pathlib.Path, encoder: Encoder) -> bool:
    """Whether the collection is there and made of the same.

    Raises:
      UserError: it is made of something else.
    """
    if not (readable(root / plan.language) / META).exists():
        return False
    if read_meta(root / plan.language).source == fingerprint_of(_identity(plan, encoder)):
        return True
    raise UserError(
        f"{root / plan.language} is a collection of another source or of other settings:"
        " delete it, or choose another --output_dir"
    )


def _build(
    plan: Plan,
    root: pathlib.Path,
    encoder: Encoder,
    bad_rows: BadRows,
    show: Callable[[Progress], None],
    workers: int | None,
    beam: Sequence[str] | None,
) -> None:
    with open_shards(root, plan.language, _identity(plan, encoder)) as shards:
        if beam is None:
            from lcrag.data.corpora import local

            local.make_shards(plan, shards, encoder, bad_rows=bad_rows, progress=show, workers=workers)
        else:
            _make_by_beam(plan, shards, root / ENCODER, bad_rows, beam)
        _check_passages(plan, shards, bad_rows)
        source = fingerprint_of(_identity(plan, encoder))
        build_from_shards(shards, encoder, root, plan.language, source, _records(source, encoder))


def _check_passages(plan: Plan, shards: Shards, bad_rows: BadRows) -> None:
    """Raises a UserError where no document has made a passage."""
    if not any(record.passages for record in shards.finished().values()):
        reason = bad_rows.summary() or "no document holds any text"
        raise UserError(f"the source of {plan.language}, {plan.source.files[0]}, makes no passage: {reason}")


def _records(source: str, encoder: Encoder) -> dict[str, str]:
    """What is kept beside a collection of how it was made."""
    about = plain(provenance(seed=0, hashes={"source": source, "encoder": encoder.fingerprint()}))
    return {
        "config.gin": operative_config(),
        "run.json": json.dumps(about, ensure_ascii=False, indent=2) + "\n",
    }


def _make_by_beam(plan: Plan, shards: Shards, encoder: pathlib.Path, bad_rows: BadRows, options: Sequence[str]) -> None:
    try:
        from lcrag.data.corpora import beam
    except ModuleNotFoundError as error:
        raise UserError("index.beam needs Apache Beam: pip install 'lcrag[beam]', or leave it None") from error
    counts = beam.make_shards(plan, shards, encoder.absolute(), skip_bad_rows=bad_rows.skip, options=options)
    if count := counts["bad_rows"]:
        rows = "1 bad row was" if count == 1 else f"{count} bad rows were"
        print(f"lcrag: {rows} left out", file=sys.stderr)


@contextlib.contextmanager
def _display(language: str, console: Console) -> Iterator[Callable[[Progress], None]]:
    """Shows progress: a bar on a terminal, now and then a line elsewhere."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[numbers]}"),
    )
    with ProgressBar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(language, total=1.0, numbers="")
        last = -_SECONDS_PER_LINE

        def show(progress: Progress) -> None:
            nonlocal last
            numbers = _numbers(progress)
            bar.update(task, completed=progress.share, numbers=numbers)
            if not console.is_terminal and time.monotonic() - last >= _SECONDS_PER_LINE:
                last = time.monotonic()
                console.print(f"{language}: {progress.share:.1%}; {numbers}", highlight=False, soft_wrap=True)

        yield show


def _numbers(progress: Progress) -> str:
    left = "" if progress.seconds_left is None else f"; {hours_and_minutes(progress.seconds_left)} left"
    return f"{progress.passages:,} passages; {progress.passages_per_second:,.0f} a second{left}"


def _print_collection(console: Console, meta: CollectionMeta) -> None:
    index = f"{meta.index.kind} index, recall@10 {meta.index.recall:.3f}"
    console.print(f"{meta.language}: {meta.count:,} passages; {index}", highlight=False, soft_wrap=True)


def _table(rows: Sequence[Row]) -> Table:
    """Metrics as columns, languages as rows."""
    metrics, languages = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("metric", "language"))
    values = {(row.language, row.metric): row for row in rows}
    table = Table("language", "queries", *metrics, title=f"{rows[0].dataset}, {rows[0].split}")
    for language in languages:
        cells = (f"{values[language, metric].value:.3f}" for metric in metrics)
        table.add_row(language, str(values[language, metrics[0]].count), *cells)
    return table
