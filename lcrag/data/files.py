"""Files of published data sets, which are downloaded by hand (docs/data.md), and a hash of records."""

import dataclasses
import hashlib
import json
import os
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from lcrag.errors import AbsentError
from lcrag.files import local_files

ENVIRONMENT = "LCRAG_DATA"


def dataset_folder(
    dataset: str, folder: str | pathlib.Path | None = None, *, binding: str | None = None
) -> pathlib.Path:
    """Returns the folder of a data set's files: `folder` if given, else `$LCRAG_DATA/<dataset>`.

    The `AbsentError` of a folder that is not configured names `binding`, by default `<dataset>_questions.folder`.
    """
    if folder is None and ENVIRONMENT not in os.environ:
        raise AbsentError(
            f"the folder of {dataset} is not configured: set {ENVIRONMENT} to the folder that holds the folder"
            f" {dataset}, or bind {binding or f'{dataset}_questions.folder'}"
        )
    found = local_files(folder if folder is not None else f"{os.environ[ENVIRONMENT]}/{dataset}")
    if not found.is_dir():
        raise AbsentError(f"there is no folder {found} with the files of {dataset}: see docs/data.md for the downloads")
    return found


def data_file(folder: pathlib.Path, names: Sequence[str], source: str) -> pathlib.Path:
    """Returns the first existing file among some names (the official one first), as published, gzipped or unpacked.

    If none exists, the message of the `AbsentError` names `source`, the download address.
    """
    for name in names:
        for path in (folder / name, folder / f"{name}.gz", folder / name.removesuffix(".gz")):
            if path.is_file():
                return path
    raise AbsentError(f"there is no {names[0]} in {folder}: download {source}")


def records_fingerprint(records: Iterable[Any]) -> str:
    """Returns sixteen hexadecimal digits that identify the content of some dataclass instances, in order."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(dataclasses.asdict(record), ensure_ascii=False, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:16]
