"""`lcrag view`: the episodes of runs and evaluations as one static HTML file, which needs no network.

`run_parts` finds and reads the files of episodes, `page_rows` converts their rows for the page, and `page` writes it
with the files in `template/`.
"""

from pathlib import Path

from lcrag.cli.arguments import Arguments, whole_number
from lcrag.commands.view.page import render_page
from lcrag.commands.view.run_parts import Limits, read_runs
from lcrag.errors import UserError
from lcrag.runs import write_text

PAGE = "view.html"


def view(arguments: Arguments) -> None:
    """Writes the page of some runs.

    Args:
      arguments: Folders of runs as words; `--output`, `--steps` and `--megabytes`.

    Raises:
      UserError: a folder has no episodes, a row is damaged, the runs have no question in common, or the page cannot
        be written.
    """
    typed = dict(arguments.others)
    if not arguments.words:
        raise UserError("lcrag view needs the folder of a run: lcrag view RUN [RUN ...]")
    if arguments.gin_files or arguments.bindings:
        raise UserError("lcrag view reads what runs have written and takes no configuration: leave --gin out")
    steps, megabytes = (
        whole_number(option, typed.get(option, usual), least=1)
        for option, usual in (("--steps", "100"), ("--megabytes", "50"))
    )
    limits = Limits(steps=steps, megabytes=megabytes)
    folders = list(dict.fromkeys(map(Path, arguments.words)))
    try:
        runs = read_runs(folders, limits)
    except OSError as error:
        raise UserError(f"cannot read {error.filename}: {error.strerror}") from error
    output = Path(typed["--output"]) if "--output" in typed else (arguments.output_dir or folders[0]) / PAGE
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_text(output, render_page(runs))
    except OSError as error:
        raise UserError(f"cannot write the page {output}: {error.strerror}") from error
    for run in runs:
        print(f"{run['folder']}: {run['shown']}", flush=True)
    print(f"{output} ({output.stat().st_size / 1e6:.1f} MB): open it in a browser", flush=True)
