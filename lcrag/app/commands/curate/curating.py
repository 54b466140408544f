"""`lcrag curate`: makes training data; what kind is the first word."""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from lcrag.errors import UserError

Curation: TypeAlias = Callable[[pathlib.Path], None]


def curate(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    kinds: Mapping[str, Curation],
    kind: str | None = None,
) -> None:
    """Makes one kind of training data; the same call continues after an interruption.

    Args:
      output_dir: The folder for it.
      words: The kind; none: `kind`.
      kinds: Name of a kind -> the function that makes it.
      kind: The kind where no word names it.

    Raises:
      UserError: no output folder, or no such kind.
    """
    if output_dir is None:
        raise UserError("lcrag curate needs a folder for its results: --output_dir=FOLDER")
    named = [*words, *([kind] if kind and not words else [])]
    if len(named) != 1 or named[0] not in kinds:
        said = " ".join(named) or "nothing"
        raise UserError(f"lcrag curate is told {said!r}: name one kind of data, {' or '.join(kinds)}")
    kinds[named[0]](output_dir)
