"""The output folder of a run: provenance, configuration, metrics, episodes, and how a signal ends it.

Everything is written atomically or appended and flushed, and earlier content is never lost.
"""

from lcrag.files import Journal, write_json, write_json_lines, write_text
from lcrag.runs.folder import (
    MetricsLog,
    RunFolder,
    check_folder,
    check_used,
    differences,
    mark_used,
    open_run,
    operative_config,
    provenance,
    read_configured,
    read_metrics,
    read_values,
    statements,
)
from lcrag.runs.processes import is_writer, writer_does
