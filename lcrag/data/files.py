"""Files of published data sets, which are downloaded by hand (docs/data.md), and hashes of their content."""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from lcrag.errors import UserError

ENVIRONMENT = "LCRAG_DATA"


def dataset_folder(
    dataset: str, folder: str | pathlib.Path | None = None, *, binding: str | None = None
) -> pathlib.Path:
    """The folder of a data set's files: `folder` if it is given, else `$LCRAG_DATA/<dataset>`.

    Args:
      dataset: Name of the data set.
      folder: Where its files are.
      binding: The parameter that names another folder; None: `<dataset>_questions.folder`.

    Raises:
      UserError: neither is there.
    """
    if folder is None and ENVIRONMENT not in os.environ:
        raise UserError(
            f"nothing says where the files of {dataset} are: set {ENVIRONMENT} to the folder that holds the folder"
            f" {dataset}, or bind {binding or f'{dataset}_questions.folder'}"
        )
    found = pathlib.Path(folder) if folder is not None else pathlib.Path(os.environ[ENVIRONMENT]) / dataset
    if not found.is_dir():
        raise UserError(f"there is no folder {found} with the files of {dataset}: see docs/data.md for the downloads")
    return found


def data_file(folder: pathlib.Path, names: Sequence[str], source: str) -> pathlib.Path:
    """The first of some files that is there, as it is published, gzipped or unpacked.

    Args:
      folder: Where to look.
      names: Names it may have, the official one first.
      source: Where it is downloaded from.

    Raises:
      UserError: none is there.
    """
    for name in names:
        for path in (folder / name, folder / f"{name}.gz", folder / name.removesuffix(".gz")):
            if path.is_file():
                return path
    raise UserError(f"there is no {names[0]} in {folder}: download {source}")


def records_fingerprint(records: Iterable[Any]) -> str:
    """Sixteen hexadecimal digits that name the content of some dataclass instances, in their order."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(dataclasses.asdict(record), ensure_ascii=False, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:16]
