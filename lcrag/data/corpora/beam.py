"""Builds shards and the parts of a collection with Apache Beam, on a cluster (`pip install 'lcrag[beam]'`).

The elements of the first pipeline are blocks of documents, so workers exchange wikitext. One worker writes a whole
shard, and a bundle that Beam retries writes the same shard. The elements of the second pipeline are parts: one worker
joins the shards of a part and indexes them. All workers must see the source files, the encoder and the output folder.
"""

import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions

from lcrag.data.corpora.documents import Block
from lcrag.data.corpora.local import CorpusPlan, check_complete, cleaned, finished_files, write_shard
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.retrieval import Encoder, load_encoder
from lcrag.retrieval.building import PartPlan, write_part
from lcrag.retrieval.shards import Shards

NAMESPACE = "lcrag"


def make_shards(
    plan: CorpusPlan,
    shards: Shards,
    encoder_folder: pathlib.Path,
    *,
    skip_bad_rows: bool = False,
    options: Sequence[str] = (),
) -> dict[str, int]:
    """Builds every missing shard and waits until all exist.

    Args:
      encoder_folder: Encoder of the passages, opened by each worker.
      skip_bad_rows: Whether to skip bad rows.
      options: Beam's command-line options: `--runner=FlinkRunner`, ...

    Returns:
      Numbers of `passages` embedded and `bad_rows` skipped by this call.

    Raises:
      UserError: a file is damaged, or a row is bad and bad rows are not skipped.
    """
    done = finished_files(plan.source, shards.finished())
    files = [number for number in range(len(plan.source.files)) if number not in done]
    pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
    _ = (
        pipeline
        | "Files" >> beam.Create(files)
        | "SpreadFiles" >> beam.Reshuffle()
        | "Read" >> beam.ParDo(ReadBlocks(plan, shards.folder, skip_bad_rows))
        | "SpreadBlocks" >> beam.Reshuffle()
        | "Shard" >> beam.ParDo(WriteShard(plan, shards.folder, encoder_folder, skip_bad_rows))
    )
    result = _finished(pipeline)
    check_complete(plan.source, shards.finished())
    counters = result.metrics().query(beam.metrics.MetricsFilter().with_namespace(NAMESPACE))["counters"]
    counts = {counter.key.metric.name: 0 for counter in counters} | {"passages": 0, "bad_rows": 0}
    for counter in counters:
        counts[counter.key.metric.name] += counter.result
    return counts


def write_parts(plans: Sequence[PartPlan], options: Sequence[str] = ()) -> None:
    """Writes the parts of a collection, each on one worker, and waits for them.

    Raises:
      UserError: two passages of a part have one id.
    """
    pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
    _ = pipeline | "Parts" >> beam.Create(plans) | "SpreadParts" >> beam.Reshuffle() | "Index" >> beam.Map(write_part)
    _finished(pipeline)


def _finished(pipeline: beam.Pipeline) -> Any:
    """Runs a pipeline to its end and returns its result; a worker's `UserError` is raised as such."""
    try:
        result = pipeline.run()
        result.wait_until_finish()
    except (UserError, RuntimeError) as error:
        raise _own_mistake(error) or error from error
    return result


class ReadBlocks(beam.DoFn):
    """Maps a file's number to its blocks without a shard."""

    def __init__(self, plan: CorpusPlan, folder: pathlib.Path, skip_bad_rows: bool):
        self._plan, self._shards, self._skip_bad_rows = plan, Shards(folder), skip_bad_rows
        self._bad_rows = beam.metrics.Metrics.counter(NAMESPACE, "bad_rows")

    def process(self, element: int) -> Iterator[Block]:
        bad_rows = BadRows(skip=self._skip_bad_rows)
        yield from self._plan.source.blocks(element, self._shards.finished(), bad_rows)
        self._bad_rows.inc(len(bad_rows.problems))


class WriteShard(beam.DoFn):
    """Writes the shard of a block; each worker opens the encoder once."""

    def __init__(self, plan: CorpusPlan, folder: pathlib.Path, encoder_folder: pathlib.Path, skip_bad_rows: bool):
        self._plan, self._shards, self._skip_bad_rows = plan, Shards(folder), skip_bad_rows
        self._encoder_folder = encoder_folder
        self._encoder: Encoder | None = None
        self._passages = beam.metrics.Metrics.counter(NAMESPACE, "passages")
        self._bad_rows = beam.metrics.Metrics.counter(NAMESPACE, "bad_rows")

    def setup(self) -> None:
        self._encoder = load_encoder(self._encoder_folder)

    def process(self, element: Block) -> None:
        assert self._encoder is not None, "Beam calls setup before it calls process"
        bad_rows = BadRows(skip=self._skip_bad_rows)
        passages = write_shard(self._plan, cleaned(element), self._shards, self._encoder, bad_rows)
        self._passages.inc(passages)
        self._bad_rows.inc(len(bad_rows.problems))


def _own_mistake(error: Exception) -> UserError | None:
    """Returns a worker's `UserError`, which Beam passes on as the last line of a traceback."""
    marker = f"{UserError.__module__}.{UserError.__qualname__}: "
    for line in str(error).splitlines():
        if line.startswith(marker):
            return UserError(line.removeprefix(marker).partition(" [while running")[0])
    return error if isinstance(error, UserError) else None
