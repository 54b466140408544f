"""`lcrag report`: the tables and `report.md` of one run, or those of several runs (see `comparing`)."""

import pathlib
from collections.abc import Callable, Sequence

from rich.console import Console

from lcrag.commands.report.comparing import compare_runs
from lcrag.composition.used_bindings import check_used
from lcrag.errors import UserError
from lcrag.runs.answers import EVALUATION
from lcrag.runs.display import make_console
from lcrag.runs.folder import RUN
from lcrag.train.evaluation import Evaluation
from lcrag.train.run_report import is_evaluated, report_run


def report(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    compare: Callable[[pathlib.Path | None, Sequence[str], Console], None] = compare_runs,
    evaluation: Evaluation | None = None,
) -> None:
    """Writes the report of several runs, or rewrites `report.md` of one run.

    Args:
      output_dir: Folder for the report of several runs; without `words`, the folder of the one run.
      words: Folders of runs, or folders that contain such folders.
      compare: Writes the report of several runs, or their records.
      evaluation: Evaluation settings of the one run; tables of results also need its answers before and after training.

    Raises:
      UserError: there is no output folder, it is not the folder of a run, or the configuration of a run's evaluation is
        missing.
    """
    console = make_console()
    if words:
        compare(output_dir, words, console)
        return
    if output_dir is None or not (output_dir / RUN).is_file():
        where = "no folder is given" if output_dir is None else f"{output_dir} is not the folder of a run"
        raise UserError(f"{where}: give a run's with --output_dir=FOLDER, or name several after the command")
    if evaluation is None and (output_dir / EVALUATION).is_file():
        raise UserError(
            f"{output_dir} was evaluated, but nothing binds report.evaluation: name the experiment that it was trained"
            " with (--gin_file=quickstart.gin, say), and its further bindings"
        )
    check_used()
    report_run(output_dir, evaluation if evaluation and is_evaluated(output_dir, evaluation) else None, console)
