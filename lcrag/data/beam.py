"""Cuts and embeds a corpus with Apache Beam, on a cluster (`pip install 'lcrag[beam]'`).

The elements of the pipeline are blocks of documents, so workers exchange texts. One worker writes the passages and
vectors of a block into a folder, which it renames at the end: a bundle that Beam retries, or a second run after an
interruption, skips the blocks that exist. All workers must see the source files, the encoder and the output folder.
"""

import pathlib
import shutil
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.options.pipeline_options import PipelineOptions

from lcrag.data.corpora import Block, Source
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.retrieval import Encoder, load_encoder
from lcrag.retrieval.collections import PASSAGES_FILE, VECTORS, write_passages
from lcrag.retrieval.passages import passage_text

_NAMESPACE = "lcrag"


def embed_blocks(
    source: Source,
    folder: pathlib.Path,
    encoder_folder: pathlib.Path,
    *,
    skip_bad_rows: bool = False,
    options: Sequence[str] = (),
) -> tuple[list[pathlib.Path], int]:
    """Writes the passages and vectors of every block and waits until all exist.

    Args:
      folder: Receives a folder for each block, with `passages.arrow` and `vectors.npy`.
      encoder_folder: Encoder of the passages, opened by each worker.
      options: Beam's command-line options: `--runner=FlinkRunner`, ...

    Returns:
      The folders of the blocks with passages, in the order of the corpus, and the number of bad rows skipped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pipeline = beam.Pipeline(options=PipelineOptions(list(options)))
    _ = (
        pipeline
        | "Files" >> beam.Create(range(len(source.files)))
        | "SpreadFiles" >> beam.Reshuffle()
        | "Read" >> beam.ParDo(_ReadBlocks(source, skip_bad_rows))
        | "SpreadBlocks" >> beam.Reshuffle()
        | "Embed" >> beam.ParDo(_EmbedBlock(source, folder, encoder_folder))
    )
    try:
        result = pipeline.run()
        result.wait_until_finish()
    except (UserError, RuntimeError) as error:
        # Beam passes on a worker's `UserError` as the last line of a traceback.
        marker = f"{UserError.__module__}.{UserError.__qualname__}: "
        for line in str(error).splitlines():
            if line.startswith(marker):
                raise UserError(line.removeprefix(marker).partition(" [while running")[0]) from error
        raise
    counters = result.metrics().query(beam.metrics.MetricsFilter().with_namespace(_NAMESPACE))["counters"]
    blocks = sorted(path for path in folder.glob("[!.]*") if (path / PASSAGES_FILE).exists())
    return blocks, sum(counter.result for counter in counters)


class _ReadBlocks(beam.DoFn):
    """Maps a file's number to its blocks."""

    def __init__(self, source: Source, skip_bad_rows: bool):
        self._source, self._skip_bad_rows = source, skip_bad_rows
        self._count: Any = beam.metrics.Metrics.counter(_NAMESPACE, "bad_rows")

    def process(self, element: int) -> Iterator[Block]:
        bad_rows = BadRows(skip=self._skip_bad_rows)
        yield from self._source.blocks(element, bad_rows)
        self._count.inc(len(bad_rows.problems))


class _EmbedBlock(beam.DoFn):
    """Writes the folder of a block, unless it exists; each worker opens the encoder once."""

    def __init__(self, source: Source, folder: pathlib.Path, encoder_folder: pathlib.Path):
        self._source, self._folder, self._encoder_folder = source, folder, encoder_folder
        self._encoder: Encoder | None = None

    def setup(self) -> None:
        self._encoder = load_encoder(self._encoder_folder)

    def process(self, element: Block) -> None:
        assert self._encoder is not None, "Beam calls setup before it calls process"
        target = self._folder / element.name
        if target.exists():
            return
        passages = self._source.cut(element)
        temporary = self._folder / f".{element.name}.{uuid.uuid4().hex}"
        temporary.mkdir()
        if passages:
            write_passages(passages, temporary / PASSAGES_FILE)
            texts = [passage_text(passage) for passage in passages]
            np.save(temporary / VECTORS, self._encoder.encode(texts, kind="passage"))
        try:
            temporary.rename(target)
        except OSError:  # another worker has written the same block meanwhile
            shutil.rmtree(temporary)
