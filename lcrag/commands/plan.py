"""What gin builds for a command without loading weights, and the checks of the command that need none.

Parts that are large or remote (the policy, collections, other models) are only named. `check` runs before train, sft
and evaluate load anything, and `lcrag describe` shows a `Plan`.
"""

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import gin
import jax
from gin.config import ConfigurableReference, current_scope
from jax.sharding import AbstractMesh

from lcrag.commands.bindings import arguments_of, plain, value_of
from lcrag.config import missing_as_sentence, no_value
from lcrag.data.demonstrations import read_demonstrations
from lcrag.data.questions import LCRL_LANGUAGES, Question, groups_of_step, share_of
from lcrag.data.rows import counted_bad_rows
from lcrag.episodes import Runner
from lcrag.errors import AbsentError, UserError, one_line
from lcrag.files import resolved_folder
from lcrag.policy import (
    DecoderConfig,
    Tokenizer,
    check_mesh_sizes,
    check_shape,
    load_tokenizer,
    make_mesh,
    read_config,
)
from lcrag.policy.config import MESH_AXES
from lcrag.retrieval.collections import META, read_meta
from lcrag.retrieval.encoder import MODULES_FILE
from lcrag.runs import mark_used
from lcrag.runs.folder import forget_used
from lcrag.sampling import SlotSampler
from lcrag.train.method import Method
from lcrag.train.rl import check_settings
from lcrag.train.rollout import Lanes, check_questions
from lcrag.train.steps import check_rewarded, check_rows

MODELS = ("LocalModel", "QuestionEncoder", "EndpointCompleter", "EndpointTranslator", "RemoteTranslator")
# Sets with all versions of a question, in all of `languages`, and those that ask a question in one language.
PARALLEL = ("atlas_questions", "atlas_comparisons", "atlas_conjunctions", "mkqa_questions", "xquad_questions")
ALONE = ("xor_tydi_questions",)
evaluated = ConfigurableReference.__deepcopy__  # gin's: what a reference of a binding stands for


def check(command: str) -> None:
    """Raises before anything is loaded what the command would refuse, or would not find."""
    if lacking := list(Plan(command).parts.lacking):
        raise AbsentError(lacking[0])
    forget_used()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Named:
    """A part that is named, not built: nothing can be asked of it."""

    name: str  # the function that would build it, with its gin scope: "train/mkqa_questions"
    settings: Mapping[str, Any]  # its arguments, defaults included
    absent: str = ""  # why it cannot be built here
    questions: Sequence[Question] = ()  # of a set of questions, which is read if its files are here
    where: Any = None  # folder or address of collections; None: the user's cache
    passages: Mapping[str, int] = dataclasses.field(default_factory=dict)  # by language, of collections on this machine
    languages: Sequence[str] = ()  # of collections; empty: unknown before they are opened

    def __call__(self, *asked: Any) -> Any:
        """Raises a UserError."""
        raise UserError(f"{self.name} is only named by `lcrag describe`: nothing can be asked of it")


class Parts:
    """Lets gin build what a command is given, and collects what is only named.

    Attributes:
      sources, models: All sets of questions and all other models, by name.
      lacking: Sentences about missing parts without which the command would not start, as keys.
    """

    def __init__(self, rewarded: bool = True) -> None:
        self.rewarded = rewarded  # whether the command needs the models of the method's reward
        self.sources: dict[str, Named] = {}
        self.models: dict[str, Named] = {}
        self.lacking: dict[str, None] = {}

    def arguments(self, selector: str) -> dict[str, Any]:
        """Returns the arguments with which gin would call a command or class, those with a default included."""
        mark_used(selector)
        # gin evaluates references while it copies bindings, and has no hook for it.
        before = ConfigurableReference.__deepcopy__
        ConfigurableReference.__deepcopy__ = lambda reference, memo: self._built(reference)
        try:
            return arguments_of(selector) | gin.get_bindings(selector)
        finally:
            ConfigurableReference.__deepcopy__ = before

    def _built(self, reference: ConfigurableReference) -> Any:
        """Returns what gin makes of a reference, or what stands for a large or remote part."""
        kind, made = reference.selector.rpartition(".")[2], reference.configurable.wrapped
        if kind == "Method" and not self.rewarded:
            lacking = dict(self.lacking)
            method = evaluated(reference, {})
            self.lacking = lacking
            return method
        reads = inspect.signature(made).return_annotation == list[Question]
        named = reads or kind in ("policy", "mesh", *MODELS) or kind.endswith("_collections")
        if not reference.evaluate or not named:
            return evaluated(reference, {})
        with gin.config_scope(reference.scopes or current_scope()):
            name = "/".join(filter(None, (gin.current_scope_str(), kind)))
            if reads:
                return self.questions(name, reference)
            mark_used(kind)
            settings = arguments_of(reference.selector) | gin.get_bindings(reference.selector)
        if kind == "mesh":
            return make_mesh(devices=jax.local_devices()[:1])  # of a model that is not loaded

        # --- What it lacks, and the languages of collections.
        what = "policy" if kind == "policy" else f"model for {name}" if kind in MODELS else "encoder"
        encoder = (
            what == "encoder" or kind == "QuestionEncoder"
        )  # which may be tables of vectors, without a config.json
        model = settings.get("encoder" if what == "encoder" else "folder", "")
        where = next(filter(None, map(settings.get, ("url", "urls", "folder", "engine"))), None)
        absent, passages = "", dict[str, int]()
        if missing := [parameter for parameter in inspect.signature(made).parameters if parameter not in settings]:
            absent = str(no_value(name, missing))
        elif kind == "load_collections" and where is not None:
            metas = [read_meta(path.parent) for path in sorted(resolved_folder(where).glob(f"[!.]*/{META}"))]
            passages = {meta.language: meta.count for meta in metas}
            if not passages:
                absent = f"there are no collections in {where}: build them with `lcrag index`"
        elif what == "encoder" and model is None:
            absent = f"{name}.encoder is not set: name the folder of an encoder"
        elif model and not (is_model(model) or (encoder and (resolved_folder(model) / MODULES_FILE).is_file())):
            absent = f"there is no {what} in {model}: models are not downloaded"
        if absent:
            self.lacking[absent] = None
        languages = {"atlas_collections": LCRL_LANGUAGES, "english_collections": ("en",)}.get(kind)
        languages = languages or tuple(settings.get("languages") or settings.get("urls") or passages)
        part = Named(name=name, settings=settings, absent=absent, where=where, passages=passages, languages=languages)
        if kind in MODELS:
            self.models.setdefault(name, part)
        return part

    def questions(self, name: str, reference: ConfigurableReference) -> list[Question]:
        """Returns the questions of a set; none if its files are missing."""
        read, absent, questions = len(self.sources), "", list[Question]()
        try:
            with missing_as_sentence():
                questions = evaluated(reference, {})
        except AbsentError as error:
            absent = one_line(str(error))
            self.lacking[absent] = None
        if len(self.sources) == read:  # it is not made of other sets
            settings = plain(arguments_of(reference.selector))
            self.sources.setdefault(name, Named(name=name, settings=settings, absent=absent, questions=questions))
        return questions


def is_model(folder: str) -> bool:
    """Whether there is a model in a folder."""
    return (resolved_folder(folder) / "config.json").is_file()


class Plan:
    """What a command is given, without weights; making it makes the command's checks that need none.

    Attributes:
      given, runner: The arguments of the command and of `Runner`, by name.
      folder: Of the policy; None: it is not set.
      tokenizer, config: Of the policy. Without its folder there is no tokenizer, and a file of gin/model may have its
        shape; None: unknown.
      axes, mesh: Sizes of the policy's mesh (-1: all devices), and the mesh.
      collections: The collections, if they are only named.
      step: Prompts, samples and episodes of a training step.

    Raises:
      UserError: The command would refuse this.
    """

    def __init__(self, command: str) -> None:
        self.parts = parts = Parts(rewarded=command == "train")
        self.given = given = parts.arguments(command)
        parameters = inspect.signature(gin.get_configurable(command)).parameters.values()
        if missing := [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in given]:
            raise no_value(command, missing)
        self.runner = parts.arguments("Runner")
        self.lanes: Lanes = given["lanes"] or gin.get_configurable("Lanes")()
        if command == "sample":
            self.lanes = self.lanes.single()
        self.lanes.lane_sampler()  # rejects slots that the lanes cannot share

        # --- The policy and its mesh.
        settings: Mapping[str, Any] = given["policy"].settings
        self.folder: str | None = settings.get("folder")
        self.tokenizer: Tokenizer | None = None
        shape: DecoderConfig | None = None
        if self.folder is not None and is_model(self.folder):
            shape = read_config(resolved_folder(self.folder))
            self.tokenizer = load_tokenizer(resolved_folder(self.folder))
            shape.check_vocabulary(self.tokenizer.vocabulary_size, self.folder)
            self.runner["chat"].check(self.tokenizer)
        else:
            shape = parts.arguments("compile").get("decoder")
        self.config = shape and settings["computation"].of(shape)
        if (mesh := value_of("policy.mesh")) is None:
            raise no_value("policy", ["mesh"])
        with gin.config_scope(mesh.scopes):
            sizes = parts.arguments("mesh")
        self.axes = {axis: sizes[axis] for axis in MESH_AXES}
        check_mesh_sizes(**self.axes)
        self.mesh = AbstractMesh(tuple(max(1, size) for size in self.axes.values()), MESH_AXES)

        # --- The checks of the command.
        self.collections = named if isinstance(named := given.get("collections"), Named) else None
        self.step: dict[str, Any] = {}
        method: Any = given.get("method")
        evaluation, questions = given.get("evaluation"), given.get("questions", ())
        if evaluation is not None:
            check_rewarded(evaluation.reward, evaluation.questions)
            for reference in evaluation.references.values():
                if self.tokenizer is not None and self.config is not None and is_model(reference):
                    check_shape(reference, self.config, str(self.folder))
            if method is not None:
                self._check_asked(method.with_settings(evaluation.program_settings), evaluation.questions)
        if command == "train":
            check_rows(given["layout"], self.lanes.sampler.context, self.mesh)
            check_settings(given, self.runner["temperature"])
            self.step = training_step(parts, given)
            self._check_asked(method, questions)
        if evaluation is not None and command in ("train", "sft"):
            evaluation.after_training(questions if command == "train" else demonstrated(parts))

    def _check_asked(self, method: Method, questions: Sequence[Question]) -> None:
        """Makes the checks of `Rollouts` with the longest questions of each language and a sampler without slots."""
        if self.collections is None or not self.collections.languages or not questions or self.tokenizer is None:
            return
        longest: dict[str, list[Question]] = {}
        for question in sorted(questions, key=lambda question: -len(question.text)):
            longest.setdefault(question.language, []).append(question)
        sampler = object.__new__(SlotSampler)
        sampler.context = self.lanes.sampler.context
        settings = self.runner | {"sampler": sampler, "tokenizer": self.tokenizer, "search": self.collections}
        asked = [question for some in longest.values() for question in some[:3]]
        check_questions(asked, method, self.collections.languages, Runner(**settings))


def demonstrated(parts: Parts) -> list[Question]:
    """Returns what is known of the questions that rows of `lcrag sft` demonstrate; reads their files."""
    known: list[Question] = []
    for name in ("rows", "validation_rows"):
        rows = value_of(f"sft.{name}")
        if not isinstance(rows, ConfigurableReference):
            continue
        with gin.config_scope(rows.scopes):
            settings = parts.arguments(rows.selector)
        if not rows.selector.endswith("demonstration_files"):
            known += settings["questions"] if isinstance(settings.get("questions"), list) else ()
        elif not settings.get("files"):
            parts.lacking[str(no_value(rows.scoped_selector, ["files"]))] = None
        else:
            try:
                with counted_bad_rows() as bad_rows:
                    known += [asked for row in read_demonstrations(settings["files"], bad_rows) for asked in row.asked]
            except AbsentError as error:
                parts.lacking[str(error)] = None
    return known


def training_step(parts: Parts, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns prompts, samples and episodes of a training step; None for what depends on data that are missing."""
    method, couplings, prompts = given["method"], given["questions_per_step"], given["prompts_per_step"]
    by_group, size = given["critic"] is None, None  # prompts of a coupled question
    absent = [name for name, source in parts.sources.items() if source.absent]
    trained = [name for name in absent if name.startswith("train/")]
    if not trained and (given["questions"] or not absent):
        questions = share_of(given["questions"], given["question_share"], seed=given["seed"])
        method, table, couplings = method.of_step(questions, couplings, prompts, group_baseline=by_group)
        groups_of_step(table, seed=given["seed"], step=0, couplings=couplings * given["max_rollouts"])  # enough for it
        check_rewarded(method.reward, questions)
        size = sum(map(len, table)) / len(table)
    else:
        if method.coupling == "independent" or (len(trained) == 1 and trained[0].endswith(ALONE)):
            size = 1
        elif method.coupling == "parallel" and len(trained) == 1 and trained[0].endswith(PARALLEL):
            size = len(parts.sources[trained[0]].settings["languages"])
        couplings = couplings or (size and prompts and max(1, round(prompts / size)))
        if by_group and couplings:
            method, couplings = method.with_advantage_group(couplings)
    prompts = round(couplings * size) if couplings and size else prompts
    about = {"couplings": couplings, "prompts_per_coupling": size, "prompts_per_step": prompts}
    return about | {"samples": method.samples, "episodes_per_step": prompts and prompts * method.samples}
