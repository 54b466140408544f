"""The files of a model folder: JSON objects, and tensors in safetensors shards, read and written one by one."""

import hashlib
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import safetensors

from lcrag.errors import UserError
from lcrag.files import naming, write_text

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
SAMPLES, SAMPLE_BYTES = 16, 1 << 16

# Dtypes that weights may be stored in, by their safetensors codes.
DTYPES: dict[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
}


def read_json_object(path: pathlib.Path) -> dict[str, Any]:
    """Reads a file that holds one JSON object; anything else is a UserError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): copy the file again") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON ({error}): copy or write the file again") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object: copy or write the file again")
    return value


def read_optional_json(path: pathlib.Path) -> dict[str, Any]:
    """Reads a file that holds one JSON object; returns an empty object if the file does not exist."""
    return read_json_object(path) if path.is_file() else {}


def write_json_object(path: pathlib.Path, value: dict[str, Any]) -> None:
    """Writes an indented JSON object."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


class StoredTensor(NamedTuple):
    """A tensor in a file, as its header describes it."""

    file: pathlib.Path
    shape: tuple[int, ...]
    code: str  # its safetensors dtype ("F32", "BF16", "I64", ...)


class TensorFolder:
    """The tensors of `model.safetensors`, or of the shards listed in `model.safetensors.index.json`.

    As in `transformers`, the single file takes precedence. Headers are read at once, values on request.

    Raises:
      UserError: There are no weights, or only pickled ones, or a file is missing, truncated or contradicts the index.
    """

    def __init__(self, folder: str | pathlib.Path):
        self.folder = pathlib.Path(folder)
        self._handles: dict[pathlib.Path, Any] = {}
        single, index = self.folder / SINGLE_FILE, self.folder / INDEX_FILE
        if single.is_file():
            self.tensors = self._open(single)
            return
        if not index.is_file():
            pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in self.folder.glob(pattern))
            if pickles:
                raise UserError(
                    f"{folder} holds pickled weights only ({pickles[0]}), which are never opened: load it in"
                    f" transformers once and save_pretrained it, which writes {SINGLE_FILE}"
                )
            raise UserError(f"no weights in {folder}: expected {SINGLE_FILE} or {INDEX_FILE}")
        weight_map = read_json_object(index).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
            raise UserError(f"{index} has no weight_map from tensors to files: fetch or write it again")
        self.tensors = {}
        for file in sorted(set(weight_map.values())):
            if pathlib.Path(file).name != file:
                raise UserError(f"{index} names {file}, which is not a file of its folder: fetch the model again")
            if not (self.folder / file).is_file():
                raise UserError(f"{index} names the file {file}, which does not exist: copy or fetch it too")
            held = self._open(self.folder / file)
            self.tensors |= {name: tensor for name, tensor in held.items() if weight_map.get(name, file) == file}
        for name, file in weight_map.items():
            if name not in self.tensors:
                raise UserError(f"{index} says that {file} holds the tensor {name}, but it does not: fetch both again")

    def _open(self, path: pathlib.Path) -> dict[str, StoredTensor]:
        """Reads the header of a file, which stays open."""
        try:
            handle = safetensors.safe_open(path, framework="numpy")
        except (OSError, safetensors.SafetensorError) as error:
            raise UserError(
                f"{path} cannot be read ({error}): it is truncated or not a safetensors file; fetch or write it again"
            ) from error
        self._handles[path] = handle
        parts = {name: handle.get_slice(name) for name in handle.keys()}
        return {name: StoredTensor(path, tuple(part.get_shape()), part.get_dtype()) for name, part in parts.items()}

    def check(self, shapes: Mapping[str, tuple[int, ...]], unused: str = "(?!)") -> None:
        """Compares names, shapes and dtypes of the tensors with the `shapes` that a model needs; reads no values.

        Names that match the regular expression `unused` may be stored in addition; any other difference is a UserError.
        """
        for name, shape in shapes.items():
            if name not in self.tensors:
                raise UserError(
                    f"tensor {name} is missing from {self.folder}: the checkpoint is incomplete or of another model"
                )
            file, stored_shape, code = self.tensors[name]
            if stored_shape != tuple(shape):
                raise UserError(
                    f"tensor {name} in {file} has shape {stored_shape}, but config.json asks for {tuple(shape)}: one of"
                    " the two files is of another model"
                )
            if code not in DTYPES:
                raise UserError(
                    f"tensor {name} in {file} is stored as {code}, which is not supported: save the model unquantized,"
                    f" as {', '.join(DTYPES)}"
                )
        for name in sorted(self.tensors.keys() - shapes.keys()):
            if not re.fullmatch(unused, name):
                raise UserError(
                    f"tensor {name} in {self.tensors[name].file} is not part of the model that config.json describes:"
                    " the checkpoint is of another model, or holds parts (adapters, heads) that are not supported"
                )

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """Reads the values of a tensor or of a part of it."""
        handle = self._handles[self.tensors[name].file]
        return handle.get_slice(name)[index] if index else handle.get_tensor(name)


def plan_shards(shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype, max_bytes: int) -> dict[str, list[str]]:
    """Distributes tensors of one dtype over files, in their order, each file as full as possible.

    A file holds at most `max_bytes` bytes of values; a larger tensor has a file of its own.
    """
    shards: list[list[str]] = []
    filled = max_bytes
    for name, shape in shapes.items():
        needed = tensor_bytes(shape, dtype)
        if filled + needed > max_bytes:
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
    path: pathlib.Path, shapes: Mapping[str, tuple[int, ...]], dtype: np.dtype, values: Iterable[np.ndarray]
) -> None:
    """Writes one safetensors file with tensors of one dtype; `values` are taken one by one, in the order of `shapes`.

    The library's own writer needs the values of the whole file at once. The format (https://huggingface.co/docs/safetensors)
    is eight bytes with the header's length, a JSON header of names, dtypes, shapes and offsets, and the values.
    """
    code = next(code for code, stored in DTYPES.items() if stored == dtype)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + tensor_bytes(shape, dtype)
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # values begin at a multiple of eight bytes
    with naming(path), path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for value in values:
            file.write(np.ascontiguousarray(value, dtype).view(np.uint8).data)
        file.flush()
        os.fsync(file.fileno())


def sampled_fingerprint(folder: pathlib.Path) -> str:
    """Hashes the names and sizes of a folder's weights and 64 KiB at 16 places of each file: 16 hexadecimal digits.

    Distinguishes two checkpoints without reading them completely, which may take minutes.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for place in np.linspace(0, max(0, size - SAMPLE_BYTES), SAMPLES, dtype=np.int64):
                file.seek(int(place))
                digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]
