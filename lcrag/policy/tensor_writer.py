"""Writing safetensors shards from values that come in pieces, so that no whole shard is ever in memory.

The format: eight bytes with the header's length, a JSON header of names, dtypes, shapes and offsets, the values in
the header's order (https://huggingface.co/docs/safetensors). The library's own writer wants all values at once.
"""

import json
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lcrag.policy.json_files import write_json_object
from lcrag.policy.tensor_folder import DTYPES, INDEX_FILE, SINGLE_FILE

_CODES = {dtype: code for code, dtype in DTYPES.items()}


def plan_shards(shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype, most_bytes: int) -> dict[str, list[str]]:
    """Which tensors go into which file: in their order, each file as full as it may be.

    Args:
      shapes: The tensors.
      dtype: Of all of them.
      most_bytes: The most bytes of values in a file; a larger tensor has a file of its own.
    """
    shards: list[list[str]] = [[]]
    filled = 0
    for name, shape in shapes.items():
        needed = tensor_bytes(shape, dtype)
        if shards[-1] and filled + needed > most_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += needed
    if len(shards) == 1:
        return {SINGLE_FILE: shards[0]}
    return {f"model-{number:05d}-of-{len(shards):05d}.safetensors": names for number, names in enumerate(shards, 1)}


def tensor_bytes(shape: Sequence[int], dtype: np.dtype) -> int:
    return int(np.prod(shape, dtype=np.int64)) * dtype.itemsize


def write_shard(
    path: pathlib.Path,
    shapes: Mapping[str, tuple[int, ...]],
    dtype: np.dtype,
    pieces: Iterable[tuple[str, int, np.ndarray]],
) -> None:
    """Writes one safetensors file.

    Args:
      path: The file.
      shapes: Its tensors, in the order in which they lie in it.
      dtype: Of all of them.
      pieces: Consecutive rows of a tensor: its name, the first row's number and the values; in any order, but all.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    begins, end = {}, 0
    for name, shape in shapes.items():
        begins[name], end = end, end + tensor_bytes(shape, dtype)
        header[name] = {"dtype": _CODES[dtype], "shape": list(shape), "data_offsets": [begins[name], end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # values begin at a multiple of eight bytes
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name, first, rows in pieces:
            file.seek(8 + len(text) + begins[name] + first * tensor_bytes(shapes[name][1:], dtype))
            file.write(np.ascontiguousarray(rows, dtype).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def write_index(folder: pathlib.Path, shards: Mapping[str, Sequence[str]], total_bytes: int) -> None:
    """Writes the file that says which shard holds which tensor."""
    weight_map = {name: file for file, names in shards.items() for name in names}
    write_json_object(
        folder / INDEX_FILE, {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(weight_map.items()))}
    )
