"""The output folder of a run: provenance, configuration, metrics, episodes, journals.

Everything is written atomically or appended and flushed, and earlier content is never lost.

Public API: `check_folder`, `open_run` and its `RunFolder`; `provenance`; `is_writer` and `writer_does` for several
processes; `read_metrics`; `Journal` for resumable pipelines; `differences`, `read_configured`, `read_values` and
`statements` for recorded configurations; `write_text`, `write_json` and `write_json_lines` for files. Signals are
handled by `stopping`.
"""

from lcrag.runs.configuration import (
    check_used,
    differences,
    mark_used,
    operative_config,
    read_configured,
    read_values,
    statements,
)
from lcrag.runs.files import Journal, write_json, write_json_lines, write_text
from lcrag.runs.folder import RunFolder, check_folder, open_run
from lcrag.runs.metrics import MetricsLog, read_metrics
from lcrag.runs.processes import is_writer, writer_does
from lcrag.runs.provenance import provenance
