"""The composition root: gin builds the parts here and nowhere else.

Every function named here is a command of `lcrag`, called as `function(output_dir, words)`.
"""

import lcrag.experiments.comprehension  # noqa: F401  gin finds its functions by their names
import lcrag.experiments.datasets  # noqa: F401
import lcrag.experiments.domains  # noqa: F401
import lcrag.experiments.english  # noqa: F401
import lcrag.experiments.planning  # noqa: F401
import lcrag.experiments.readers  # noqa: F401
import lcrag.experiments.translators  # noqa: F401
from lcrag.experiments.building import build
from lcrag.experiments.compiling import compile_programs
from lcrag.experiments.curating import curate
from lcrag.experiments.evaluating import evaluate
from lcrag.experiments.exporting import export
from lcrag.experiments.fine_tuning import sft
from lcrag.experiments.indexing import index
from lcrag.experiments.reporting import report
from lcrag.experiments.serving import serve
from lcrag.experiments.showing import sample
from lcrag.experiments.training import train

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
