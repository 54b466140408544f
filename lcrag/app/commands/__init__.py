"""The commands of `lcrag`, each called as `function(output_dir, words)` once gin holds its configuration."""

import lcrag.app.composition  # noqa: F401  registers what the configurations name
from lcrag.app.commands.build.building import build
from lcrag.app.commands.compile.compiling import compile_programs
from lcrag.app.commands.curate.curating import curate
from lcrag.app.commands.evaluate import evaluate
from lcrag.app.commands.export import export
from lcrag.app.commands.index.indexing import index
from lcrag.app.commands.report.reporting import report
from lcrag.app.commands.sample import sample
from lcrag.app.commands.serve.serving import serve
from lcrag.app.commands.sft.fine_tuning import sft
from lcrag.app.commands.train.training import train

SCOPES = ("train", "evaluate", "sample")

__all__ = [
    "SCOPES",
    "build",
    "compile_programs",
    "curate",
    "evaluate",
    "export",
    "index",
    "report",
    "sample",
    "serve",
    "sft",
    "train",
]
