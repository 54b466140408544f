"""Stand-ins of `lcrag describe` for large, remote or missing parts: their names, and shapes without weights."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from jax.sharding import AbstractMesh

from lcrag.composition.components import Computation, model_file_shape, resolved_folder
from lcrag.composition.configuration import no_value
from lcrag.composition.stand_ins import Call, Kind, StandIn
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.data.questions import Question
from lcrag.errors import AbsentError, UserError
from lcrag.policy import DecoderConfig, Tokenizer, check_mesh_sizes, load_tokenizer, read_config
from lcrag.policy.sharding import MESH_AXES
from lcrag.retrieval import Hit
from lcrag.retrieval.collection import META, read_meta

# Sets of questions that are the same in every language.
PARALLEL = ("atlas_questions", "atlas_comparisons", "atlas_conjunctions", "mkqa_questions", "xquad_questions")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyShape:
    """A policy without weights.

    Attributes:
      name: Its folder, or a description if it has none.
      config: Its decoder with the platform's settings; None: unknown.
      mesh: Sizes of its mesh; `data` is 1 if it depends on the devices present.
      all_devices: Whether the mesh takes all devices that are present.
      here: Whether its folder contains a configuration.
    """

    name: str
    config: DecoderConfig | None
    mesh: AbstractMesh
    all_devices: bool
    here: bool

    @functools.cached_property
    def tokenizer(self) -> Tokenizer | None:
        """Its tokenizer; None if it is missing."""
        path = resolved_folder(self.name)
        return load_tokenizer(path) if self.here and (path / "tokenizer.json").is_file() else None


@dataclasses.dataclass(frozen=True)
class SizedMesh:
    """The sizes of a mesh.

    Attributes:
      mesh: A mesh without devices.
      all_devices: Whether `data` is as large as the devices present allow; it is 1 in `mesh`.
    """

    mesh: AbstractMesh
    all_devices: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class NamedCollections:
    """Collections that are not opened; `SearchableCollections` in which nothing is found.

    Attributes:
      name: Name of the function that opens them, in configurations.
      where: Their folder or address; None: the user's cache.
      encoder: Folder of the encoder, or a description of it.
      languages: Their languages; empty: unknown before they are opened.
      passages: Number of passages by language, of collections on this machine.
    """

    name: str
    where: Any
    encoder: str
    languages: tuple[str, ...]
    passages: Mapping[str, int]

    def search(self, queries: Sequence[str], languages: Sequence[str], k: int) -> list[list[Hit]]:
        """Finds nothing."""
        return [[] for _ in queries]

    def content_hashes(self) -> dict[str, str]:
        """Nothing is hashed."""
        return {}


@dataclasses.dataclass(frozen=True)
class NamedModel:
    """Another model, by name only: calling it is an error."""

    name: str
    arguments: Mapping[str, Any]

    def __call__(self, *asked: Any) -> Any:
        raise UserError(f"{self.name} is only named by `lcrag describe`: nothing can be asked of it")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Questions that a configuration names.

    Attributes:
      name: Name of the function that reads them, with its scope: "train/mkqa_questions".
      arguments: Its arguments.
      questions: The questions; empty if their files are missing.
      absent: Why the files are missing; empty if they are present.
    """

    name: str
    arguments: Mapping[str, Any]
    questions: Sequence[Question]
    absent: str = ""

    @property
    def is_parallel(self) -> bool:
        """Whether every question is asked in each of its languages."""
        return self.name.rsplit("/", 1)[-1] in PARALLEL


class NamedParts:
    """The stand-ins of one description; collects the parts that they replace.

    Attributes:
      sources: All sets of questions.
      models: All other models.
      lacking: Sentences about missing parts without which the command would not start.
    """

    def __init__(self) -> None:
        self.sources: list[Source] = []
        self.models: list[NamedModel] = []
        self.lacking: list[str] = []

    @property
    def stand_ins(self) -> dict[Kind, StandIn]:
        """The stand-ins, by kind."""
        return {
            "policy": self._policy,
            "mesh": self._mesh,
            "collections": self._collections,
            "questions": self._questions,
            "model": self._model,
            "encoder": self._model,
        }

    def lacks(self, sentence: object) -> None:
        """Adds a sentence to `lacking`, once."""
        if str(sentence) not in self.lacking:
            self.lacking.append(str(sentence))

    def _note_missing(self, call: Call) -> None:
        if call.missing:
            self.lacks(no_value(call.selector, call.missing))

    def _mesh(self, call: Call) -> SizedMesh:
        sizes = {axis: call.arguments[axis] for axis in MESH_AXES}
        check_mesh_sizes(**sizes)
        known = {axis: max(1, size) for axis, size in sizes.items()}
        return SizedMesh(AbstractMesh(tuple(known.values()), MESH_AXES), sizes["data"] == -1)

    def _policy(self, call: Call) -> PolicyShape:
        computation: Computation = call.arguments["computation"]
        sized: SizedMesh = call.arguments["mesh"]
        self._note_missing(call)
        folder: str | None = call.arguments.get("folder")
        config = model_file_shape()
        here = folder is not None and (resolved_folder(folder) / "config.json").is_file()
        if folder is not None and here:
            config = read_config(resolved_folder(folder))
        elif folder is not None:
            self.lacks(f"there is no policy in {folder}: models are not downloaded")
        return PolicyShape(
            name=folder or "policy.folder is not set",
            config=None if config is None else computation.of(config),
            mesh=sized.mesh,
            all_devices=sized.all_devices,
            here=here,
        )

    def _collections(self, call: Call) -> NamedCollections:
        self._note_missing(call)
        given = call.arguments
        where = next((given[name] for name in ("url", "urls", "hosts", "folder", "engine") if given.get(name)), None)
        passages = _passages(where) if call.name == "load_collections" and where is not None else {}
        if call.name == "load_collections" and where is not None and not passages:
            self.lacks(f"there are no collections in {where}: build them with `lcrag index`")
        return NamedCollections(
            name=call.name,
            where=where,
            encoder=self._encoder(call),
            languages=_languages(call) or tuple(sorted(passages)),
            passages=passages,
        )

    def _encoder(self, call: Call) -> str:
        if call.name == "load_collections":
            return "the one kept with the collections"
        if "encoder" not in call.arguments and "encoder" not in call.missing:
            return "the service's"
        folder = call.arguments.get("encoder")
        if not isinstance(folder, str):
            self.lacks(f"{call.name}.encoder is not set: name the folder of an encoder")
            return "not named"
        if not (resolved_folder(folder) / "config.json").is_file():
            self.lacks(f"there is no encoder in {folder}: models are not downloaded")
        return folder

    def _questions(self, call: Call) -> Sequence[Question]:
        self._note_missing(call)
        questions: Sequence[Question] = ()
        absent = str(no_value(call.selector, call.missing)) if call.missing else ""
        if not absent:
            try:
                questions = call.make()
            except AbsentError as error:
                absent = str(error)
                self.lacks(error)
        self.sources.append(Source(name=call.selector, arguments=call.arguments, questions=questions, absent=absent))
        return list(questions)

    def _model(self, call: Call) -> NamedModel:
        self._note_missing(call)
        folder = call.arguments.get("folder")
        if folder is not None and not (resolved_folder(folder) / "config.json").is_file():
            self.lacks(f"there is no model for {call.selector} in {folder}: models are not downloaded")
        model = NamedModel(call.selector, call.arguments)
        self.models.append(model)
        return model


def _languages(call: Call) -> tuple[str, ...]:
    if call.name == "atlas_collections":
        return LCRL_LANGUAGES
    if call.name == "english_collections":
        return ("en",)
    return tuple(call.arguments.get("languages") or call.arguments.get("urls") or ())


def _passages(folder: str) -> dict[str, int]:
    """Passages by language of the collections in a folder; nothing is opened."""
    found = resolved_folder(folder)
    metas = [read_meta(path.parent) for path in sorted(found.glob(f"*/{META}"))]
    return {meta.language: meta.count for meta in metas}
