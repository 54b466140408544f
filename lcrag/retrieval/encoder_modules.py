"""The modules of a `sentence-transformers` folder: a body, a pooling, a normalisation, and where each one lies."""

import dataclasses
import json
import pathlib
from typing import Any

from lcrag.errors import UserError
from lcrag.policy.json_files import read_json_object, read_optional_json
from lcrag.retrieval.encoder_settings import POOLINGS

MODULES_FILE = "modules.json"
POOLING_FILE = "1_Pooling/config.json"
BODY_FILE = "sentence_bert_config.json"
_SUPPORTED = ("Transformer", "Pooling", "Normalize")
# The flags that older versions of the library write -> the mode that newer ones name.
_FLAGS = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}


@dataclasses.dataclass(frozen=True)
class EncoderModules:
    """Where the parts of an encoder lie.

    Attributes:
      listed: Whether the folder lists its modules, and so is of the making of `sentence-transformers`.
      body: Folder of the body's `config.json`, weights and tokenizer.
      pooling: The pooling's `config.json`, None if there is none.
    """

    listed: bool
    body: pathlib.Path
    pooling: pathlib.Path | None

    @property
    def body_settings(self) -> pathlib.Path:
        """What `sentence-transformers` says of the body; its older versions wrote XLM-R's name into the file's."""
        older = self.body / "sentence_xlm-roberta_config.json"
        return older if older.is_file() else self.body / BODY_FILE

    @property
    def lower_cases(self) -> bool:
        """Whether a text is to be in lower case before it is tokenized."""
        return read_optional_json(self.body_settings).get("do_lower_case") is True

    @property
    def leaves_out_prompts(self) -> bool:
        """Whether the prefix's tokens do not take part in the pooling."""
        return self.pooling is not None and read_json_object(self.pooling).get("include_prompt") is False


def read_modules(folder: pathlib.Path) -> EncoderModules:
    """Reads `modules.json`; without it the body is the folder itself, and the pooling where it is by custom.

    Raises:
      UserError: a module is listed that is not supported, or the list cannot be read.
    """
    if not (folder / MODULES_FILE).is_file():
        customary = folder / POOLING_FILE
        return EncoderModules(listed=False, body=folder, pooling=customary if customary.is_file() else None)
    paths = _listed_paths(folder / MODULES_FILE)
    pooling = folder / paths["Pooling"] / "config.json" if "Pooling" in paths else None
    return EncoderModules(listed=True, body=folder / paths.get("Transformer", ""), pooling=pooling)


def _listed_paths(path: pathlib.Path) -> dict[str, str]:
    try:
        paths = {module["type"].rsplit(".", 1)[-1]: module["path"] for module in json.loads(path.read_text())}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is not a readable list of modules: {error}") from error
    for kind in paths:
        if kind not in _SUPPORTED:
            raise UserError(f"{path} lists a {kind} module, which is not supported: there are {', '.join(_SUPPORTED)}")
    return paths


def read_pooling(path: pathlib.Path) -> str:
    """The pooling that a pooling module's `config.json` asks for.

    Raises:
      UserError: it is none that is supported, or several that would be concatenated.
    """
    modes = _modes(read_json_object(path))
    if len(modes) != 1 or modes[0] not in POOLINGS:
        raise UserError(f"{path} asks for {' + '.join(modes)} pooling, which is not supported: choose 'mean' or 'cls'")
    return modes[0]


def _modes(values: dict[str, Any]) -> list[str]:
    """The modes that are concatenated; the library takes the mean where none is named."""
    named = values.get("pooling_mode")
    if named is None:
        return [mode for flag, mode in _FLAGS.items() if values.get(flag)] or ["mean"]
    return [str(mode) for mode in (named if isinstance(named, list) else [named])]
