"""The output folder of a run: provenance, configuration, metrics, episodes, and how a signal ends it.

Everything is written atomically or appended and flushed, and earlier content is never lost.
"""

from lcrag.files import Journal, write_json, write_json_lines, write_text
from lcrag.runs.configuration import (
    check_used,
    differences,
    mark_used,
    operative_config,
    read_configured,
    read_values,
    statements,
)
from lcrag.runs.folder import RunFolder, check_folder, open_run, provenance
from lcrag.runs.metrics import MetricsLog, read_metrics
from lcrag.runs.processes import is_writer, writer_does
