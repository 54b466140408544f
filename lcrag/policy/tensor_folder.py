"""The tensors of a model folder (safetensors): every header is checked first, values are read when asked for."""

import dataclasses
import pathlib
import re
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import safetensors

from lcrag.errors import UserError
from lcrag.policy.json_files import read_json_object

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"

# The safetensors codes of the dtypes that weights may be stored in.
DTYPES: dict[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "F16": np.dtype(np.float16),
}


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """What a file says of one of its tensors.

    Attributes:
      name: Its name.
      file: Where it is.
      shape: Its shape.
      code: Its dtype as safetensors writes it: "F32", "BF16", "I64", "F8_E4M3", ...
    """

    name: str
    file: pathlib.Path
    shape: tuple[int, ...]
    code: str


class TensorFolder:
    """The tensors of `model.safetensors`, or of the shards that `model.safetensors.index.json` names.

    As in `transformers`, the single file is taken where both are there.

    Args:
      folder: A model folder.

    Raises:
      UserError: there are no weights, or only pickled ones, or a file is absent, truncated or not what the index says.
    """

    def __init__(self, folder: str | pathlib.Path):
        self.folder = pathlib.Path(folder)
        self._handles: dict[pathlib.Path, Any] = {}
        self.tensors: Mapping[str, StoredTensor] = self._listed()

    def check(self, shapes: Mapping[str, tuple[int, ...]], unused: str = "(?!)") -> None:
        """Compares what is stored with what a model needs, before any value is read.

        Args:
          shapes: The name and shape of every tensor that the model needs.
          unused: A regular expression of names that may be stored beside them.

        Raises:
          UserError: a tensor is missing, has another shape or is no floating-point tensor, or one is left over.
        """
        for name, shape in shapes.items():
            if name not in self.tensors:
                raise UserError(
                    f"tensor {name} is missing from {self.folder}: the checkpoint is incomplete or of another model"
                )
            tensor = self.tensors[name]
            if tensor.shape != tuple(shape):
                raise UserError(
                    f"tensor {name} in {tensor.file} has shape {tensor.shape}, but config.json asks for"
                    f" {tuple(shape)}: one of the two files is of another model"
                )
            if tensor.code not in DTYPES:
                raise UserError(
                    f"tensor {name} in {tensor.file} is stored as {tensor.code}, which is not supported:"
                    f" save the model unquantized, as {', '.join(DTYPES)}"
                )
        for name in sorted(self.tensors.keys() - shapes.keys()):
            if not re.fullmatch(unused, name):
                raise UserError(
                    f"tensor {name} in {self.tensors[name].file} has no place in the model that config.json describes:"
                    " the checkpoint is of another model, or holds parts (adapters, heads) that are not supported"
                )

    def read(self, name: str, index: tuple[slice, ...] = ()) -> np.ndarray:
        """The values of a tensor, or of a part of it; nothing else of the file is read."""
        handle = self._handles[self.tensors[name].file]
        return handle.get_slice(name)[index] if index else handle.get_tensor(name)

    def _listed(self) -> dict[str, StoredTensor]:
        single, index = self.folder / SINGLE_FILE, self.folder / INDEX_FILE
        if single.is_file():
            return self._tensors_of(single)
        if not index.is_file():
            raise UserError(_without_weights(self.folder))
        weight_map = _weight_map(index)
        found: dict[str, StoredTensor] = {}
        for file in sorted(set(weight_map.values())):
            if not (self.folder / file).is_file():
                raise UserError(f"{index} names the file {file}, which is not there: copy or fetch it too")
            held = self._tensors_of(self.folder / file)
            found |= {name: tensor for name, tensor in held.items() if weight_map.get(name, file) == file}
        for name, file in weight_map.items():
            if name not in found:
                raise UserError(f"{index} says that {file} holds the tensor {name}, but it does not: fetch both again")
        return found

    def _tensors_of(self, path: pathlib.Path) -> dict[str, StoredTensor]:
        try:
            handle = safetensors.safe_open(path, framework="numpy")
        except (OSError, safetensors.SafetensorError) as error:
            raise UserError(
                f"{path} cannot be read ({error}): it is truncated or not a safetensors file; fetch or write it again"
            ) from error
        self._handles[path] = handle
        parts = {name: handle.get_slice(name) for name in handle.keys()}
        return {
            name: StoredTensor(name, path, tuple(part.get_shape()), part.get_dtype()) for name, part in parts.items()
        }


def _weight_map(index: pathlib.Path) -> dict[str, str]:
    weight_map = read_json_object(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise UserError(f"{index} has no weight_map from tensors to files: fetch or write it again")
    return weight_map


def _without_weights(folder: pathlib.Path) -> str:
    pickles = sorted(path.name for pattern in ("*.bin", "*.pt", "*.pth") for path in folder.glob(pattern))
    if pickles:
        return (
            f"{folder} holds pickled weights only ({pickles[0]}), which are never opened: load it in transformers once"
            f" and save_pretrained it, which writes {SINGLE_FILE}"
        )
    return f"no weights in {folder}: expected {SINGLE_FILE} or {INDEX_FILE}"
