"""`lcrag curate`: makes training data of one kind.

`demonstrations` (a teacher's episodes as rows for SFT), `selection` (questions for reinforcement learning),
`golden_plans` (GlobalRAG's reference plans) and `translations` (Translate-R1's questions) are one module each;
`teaching` contains the code that the first three share.
"""

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
      output_dir: Output folder.
      words: The kind, or empty to use `kind`.
      kinds: Name of a kind -> the function that makes it.
      kind: The kind if `words` is empty.

    Raises:
      UserError: there is no output folder, or no such kind.
    """
    if output_dir is None:
        raise UserError("lcrag curate needs a folder for its results: --output_dir=FOLDER")
    named = [*words, *([kind] if kind and not words else [])]
    if len(named) != 1 or named[0] not in kinds:
        given = " ".join(named) or "nothing"
        raise UserError(f"lcrag curate was given {given!r}: name one kind of data, {' or '.join(kinds)}")
    kinds[named[0]](output_dir)
