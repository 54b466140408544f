"""A hash of what a data set holds, for the record of a run."""

import dataclasses
import hashlib
import json
from collections.abc import Iterable
from typing import Any


def records_fingerprint(records: Iterable[Any]) -> str:
    """Sixteen hexadecimal digits that name the content of some dataclass instances, in their order."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(json.dumps(dataclasses.asdict(record), ensure_ascii=False, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:16]
