"""The folder of a run: who made it, how it was configured, what it measured, what was said in it.

Everything is written atomically or appended and flushed, so that nothing written before is lost.
"""

from lcrag.app.runs.folder import RunFolder, open_run
from lcrag.app.runs.journal import Journal
from lcrag.app.runs.metrics import MetricsLog, read_metrics
from lcrag.app.runs.provenance import provenance
from lcrag.app.runs.writer import is_writer, writer_does

__all__ = [
    "Journal",
    "MetricsLog",
    "RunFolder",
    "is_writer",
    "open_run",
    "provenance",
    "read_metrics",
    "writer_does",
]
