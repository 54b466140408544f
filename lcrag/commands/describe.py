"""`lcrag describe`: what a command would run with the same arguments, without loading weights.

`Parts.build` evaluates gin's bindings as gin does, except that parts that are large or remote (policies, collections,
other models) are only named. `description` puts the result into one JSON object; `tables` shows it.
"""

import copy
import dataclasses
import functools
import inspect
import json as json_format
import pathlib
import types
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

import gin
import jax
from gin.config import ConfigurableReference, current_scope
from jax.sharding import AbstractMesh
from rich.table import Table
from rich.text import Text

from lcrag.commands.compile import AbstractRun, device_bytes, update_bytes
from lcrag.config import no_value
from lcrag.data.demonstrations import read_demonstrations
from lcrag.data.questions import LCRL_LANGUAGES, Question, groups_of_step, share_of
from lcrag.data.rows import counted_bad_rows
from lcrag.episodes import Completion, Runner
from lcrag.episodes.programs import (
    TRANSLATION,
    Complete,
    Observe,
    Retrieve,
    comes_with_lcrag,
    is_program,
    program_name,
    program_settings,
)
from lcrag.errors import AbsentError, UserError, typed
from lcrag.files import resolved_folder
from lcrag.learning import Layout, PolicyGradient
from lcrag.learning.learners import needs_reference
from lcrag.learning.update import adamw
from lcrag.policy import (
    DecoderConfig,
    Tokenizer,
    check_mesh_sizes,
    check_shape,
    load_tokenizer,
    make_mesh,
    parameter_count,
    read_config,
)
from lcrag.policy.config import ACCELERATORS, GIB, MESH_AXES
from lcrag.policy.parameters import causal_mean, decode_bytes, forward_flops, update_flops
from lcrag.retrieval.collections import META, memory_bytes, read_meta
from lcrag.runs import check_used, mark_used
from lcrag.runs.display import make_console, size_text
from lcrag.runs.folder import forget_used
from lcrag.train.method import Method
from lcrag.train.rl import check_settings
from lcrag.train.rollout import Lanes, check_questions
from lcrag.train.steps import check_rewarded, check_rows

DESCRIBED = ("train", "sft", "evaluate", "sample")
MODELS = ("LocalModel", "QuestionEncoder", "EndpointCompleter", "EndpointTranslator", "RemoteTranslator")
# Sets of questions that are the same in every language.
PARALLEL = ("atlas_questions", "atlas_comparisons", "atlas_conjunctions", "mkqa_questions", "xquad_questions")
ALONE = ("xor_tydi_questions",)  # and those that ask each question in one language
MADE_LATER = ("Chat", "Patience", "BadRows", "Trackers", "load_encoder", "Runner")  # built while the command runs
PAPERS: dict[str, list[dict[str, Any]]] = json_format.loads(
    pathlib.Path(__file__).with_name("paper_settings.json").read_text(encoding="utf-8")
)
# What a paper's table says of a value that the paper does not state, or whose formula its available text lacks. A row's
# "code" is what the authors' public code has; "ours" is what our file binds instead of it or of the paper's value.
SILENT = ("not stated", "in a formula")


def stated(row: Mapping[str, Any]) -> Any:
    """Returns the value of a row by the paper, else by the authors' code, else by our file."""
    return row.get("code", row.get("ours")) if row["paper"] in SILENT else row["paper"]


def source_text(row: Mapping[str, Any]) -> str:
    """Returns a row's values by the paper and by the authors' code."""
    code = f"; authors' code {shown(row['code'])}" if "code" in row else ""
    return f"{shown(row['paper'])}{code}"


# The tables of a description: title -> its fields.
TABLES = {
    "What runs": "command method program evaluated_program opening prompts_per_step samples episodes_per_step couplings"
    " prompts_per_coupling sampling evaluation",
    "Budgets of an episode": "budgets evaluated_budgets",
    "Learning": "rewards rows objective advantages steps updates_per_step episodes_per_update optimizer critic",
    "Searched, asked and computed": "collections encoder models policy mesh",
}
EVALUATED = ("split", "temperatures", "top_p", "max_tokens", "program_settings", "references")
MAX_OPENING_LINES, MAX_WIDTH = 4, 88
EXAMPLE = Question(id="example", dataset="example", language="en", text="Where is this city?", answers=("?",))
PROCESS_BYTES = 2.5 * GIB  # of Python's libraries, an encoder, and compiling
UNKNOWN_OF_ONES_OWN = ("searches", "longest_tokens", "fits_context")
LOOK_AHEAD = 20  # requests of a program before it opens its dialogue


@gin.configurable
@typed
def describe(output_dir: pathlib.Path | None, words: Sequence[str] = (), *, json: bool = False) -> None:
    """Prints what a command would run: its program, episodes, budgets, rewards, objective, data, mesh and memory.

    Args:
      output_dir: Not used.
      words: The command.
      json: Print one JSON object instead of tables.
    """
    if len(words) != 1 or words[0] not in DESCRIBED:
        given = f", not {' '.join(words)}" if words else ""
        raise UserError(f"lcrag describe shows one command: {', '.join(DESCRIBED)}{given}")
    described = description(words[0])
    if json:
        print(json_format.dumps(described, ensure_ascii=False, indent=2))
        return
    console = make_console()
    for table in tables(described):
        console.print(table)


# --- Parts.


@dataclasses.dataclass(frozen=True)
class Named:
    """A part that is named, not built: nothing can be asked of it."""

    name: str  # the function that would build it, with its gin scope: "train/mkqa_questions"
    settings: Mapping[str, Any]  # its arguments, defaults included
    absent: str  # why it cannot be built here; empty if it can
    questions: Sequence[Question]  # of a set of questions that is here
    where: Any  # folder or address of collections; None: the user's cache
    passages: Mapping[str, int]  # number by language, of collections in a folder of this machine
    languages: Sequence[str]  # of collections; empty: unknown before they are opened

    def __call__(self, *asked: Any) -> Any:
        """Raises a UserError."""
        raise UserError(f"{self.name} is only named by `lcrag describe`: nothing can be asked of it")


class Parts:
    """Builds what gin binds, and collects what it only names.

    Attributes:
      sources: All sets of questions.
      models: All other models.
      lacking: Sentences about missing parts without which the command would not start, as keys.
    """

    def __init__(self, rewarded: bool = True) -> None:
        self.rewarded = rewarded  # whether the command needs the models of the method's reward
        self.sources: dict[str, Named] = {}
        self.models: dict[str, Named] = {}
        self.lacking: dict[str, None] = {}

    def build(self, value: Any) -> Any:
        """Evaluates the references in the value of a binding; large and remote parts become `Named`."""
        if isinstance(value, list | tuple):
            return type(value)(map(self.build, value))
        if isinstance(value, dict):
            return {name: self.build(each) for name, each in value.items()}
        if not isinstance(value, ConfigurableReference) or not value.evaluate:
            return copy.deepcopy(value)
        kind = value.selector.rpartition(".")[2]
        with gin.config_scope(value.scopes or current_scope()):
            if kind == "macro":
                mark_used("", value.scopes[-1])  # gin knows only of the macros that it evaluates itself
                return self.build(gin.get_bindings(value.selector, resolve_references=False)["value"])
            if kind == "mesh":
                mark_used(kind)
                return make_mesh(devices=jax.local_devices()[:1])  # of a model that is not loaded
            # Without gin around it, which would evaluate the bindings again.
            made, read = value.configurable.wrapped, len(self.sources)
            given = self.bound(value.selector)
            reads = inspect.signature(made).return_annotation == list[Question] and len(self.sources) == read
            accepted = inspect.signature(made).parameters.values()
            named = (each for each in accepted if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD))
            known = {each.name: each.default for each in named} | given
            missing = [name for name, setting in known.items() if setting is inspect.Parameter.empty]
            settings = {name: setting for name, setting in known.items() if name not in missing}
            name, folder = "/".join(filter(None, (gin.current_scope_str(), kind))), settings.get("folder")
            if not (reads or kind == "policy" or kind in MODELS or kind.endswith("_collections")):
                if missing:
                    raise no_value(name, missing)
                return made(**given)

            # A part that is only named; a set of questions is read if its files are here.
            absent, questions, passages = str(no_value(name, missing)) if missing else "", [], {}
            if reads and not missing:
                try:
                    questions = made(**given)
                except AbsentError as error:
                    absent = str(error)
            if absent:
                self.lacking[absent] = None
            where = next(filter(None, map(settings.get, ("url", "urls", "folder", "engine"))), None)
            if kind == "load_collections" and where is not None:
                metas = [read_meta(path.parent) for path in sorted(resolved_folder(where).glob(f"[!.]*/{META}"))]
                passages = {meta.language: meta.count for meta in metas}
                if not passages:
                    self.lacking[f"there are no collections in {where}: build them with `lcrag index`"] = None
            elif kind in (*MODELS, "policy") and folder is not None and not _is_model(folder):
                what = "policy" if name == "policy" else f"model for {name}"
                self.lacking[f"there is no {what} in {folder}: models are not downloaded"] = None
            elif kind.endswith("_collections") and "encoder" in settings and kind != "load_collections":
                encoder = settings["encoder"]
                if encoder is None:
                    self.lacking[f"{name}.encoder is not set: name the folder of an encoder"] = None
                elif not _is_model(encoder):
                    self.lacking[f"there is no encoder in {encoder}: models are not downloaded"] = None
            languages = {"atlas_collections": LCRL_LANGUAGES, "english_collections": ("en",)}.get(kind, ())
            languages = languages or tuple(settings.get("languages") or settings.get("urls") or passages)
            part = Named(name, settings, absent, questions, where, passages, languages)
            if reads:
                self.sources.setdefault(name, part)
            elif kind in MODELS:
                self.models.setdefault(name, part)
            return questions if reads else part

    def bound(self, selector: str) -> dict[str, Any]:
        """Returns what gin binds of a function or class in the current scope, built; marks the bindings as used."""
        mark_used(selector)
        built = {}
        for name, value in gin.get_bindings(selector, resolve_references=False).items():
            lacking = dict(self.lacking)
            built[name] = self.build(value)
            if name == "reward" and selector.endswith("Method") and not self.rewarded:
                self.lacking = lacking
        return built


def _is_model(folder: str) -> bool:
    return (resolved_folder(folder) / "config.json").is_file()


# --- The description.


class Plan:
    """What a command is given, without weights: parts that are large or remote are only named.

    Making it makes the checks of the command that need no weights. `Parts.lacking` says what the command lacks.

    Attributes:
      given, runner: The arguments of the command, and the settings of `Runner`, by name.
      folder, here: The folder of the policy (None: not set), and whether it is there.
      config: The policy's shape, or that of a file of gin/model if the folder is missing; None: unknown.
      axes, mesh: Sizes of the policy's mesh (-1: all devices), and the mesh.
      collections: The collections, if they are only named.
      step: Prompts, samples and episodes of a training step; see `_training_step`.

    Raises:
      UserError: The command would refuse this.
    """

    def __init__(self, command: str) -> None:
        self.command, self.parts = command, (parts := Parts(rewarded=command == "train"))
        parameters = inspect.signature(gin.get_configurable(command)).parameters.values()
        self.given = given = {each.name: each.default for each in parameters if each.kind is each.KEYWORD_ONLY}
        given |= parts.bound(command)
        if missing := [name for name, value in given.items() if value is inspect.Parameter.empty]:
            raise no_value(command, missing)
        fields = {name: field.default for name, field in Runner.__dataclass_fields__.items()}
        self.runner: dict[str, Any] = fields | {"completers": {}} | parts.bound("Runner")
        self.lanes: Lanes = given.get("lanes") or parts.build(ConfigurableReference("Lanes", True))
        if command not in ("train", "evaluate"):
            self.lanes = dataclasses.replace(self.lanes, count=1, tensor=1)
        self.lanes.lane_sampler()  # rejects slots that the lanes cannot share

        # --- The policy and its mesh.
        settings = given["policy"].settings
        self.folder: str | None = settings.get("folder")
        self.here = self.folder is not None and _is_model(self.folder)
        self.tokenizer: Tokenizer | None = None
        self.config: DecoderConfig | None = parts.build(value_of("compile.decoder"))
        if self.folder is not None and self.here:
            self.config = read_config(resolved_folder(self.folder))
            self.tokenizer = load_tokenizer(resolved_folder(self.folder))
            self.config.check_vocabulary(self.tokenizer.vocabulary_size, self.folder)
            self.runner["chat"].check(self.tokenizer)
        if self.config is not None:
            self.config = settings["computation"].of(self.config)
        if "mesh" not in settings:
            raise no_value("policy", ["mesh"])
        with gin.config_scope(gin.get_bindings("policy", resolve_references=False)["mesh"].scopes):
            sizes = _arguments_of("mesh")
        self.axes = {axis: sizes[axis] for axis in MESH_AXES}
        check_mesh_sizes(**self.axes)
        self.mesh = AbstractMesh(tuple(max(1, size) for size in self.axes.values()), MESH_AXES)

        # --- The checks of the command.
        self.collections = named if isinstance(named := given.get("collections"), Named) else None
        self.step: dict[str, Any] = {}
        method, evaluation = given.get("method"), given.get("evaluation")
        if evaluation is not None:
            check_rewarded(evaluation.reward, evaluation.questions)
            for reference in evaluation.references.values():
                if self.folder is not None and self.config is not None and self.here and _is_model(reference):
                    check_shape(reference, self.config, self.folder)
            if method is not None:
                self._check_asked(method.with_settings(evaluation.program_settings), evaluation.questions)
        if command == "train":
            check_rows(given["layout"], self.lanes.sampler.context, self.mesh)
            check_settings(given, self.runner["temperature"])
            self.step = _training_step(parts, given)
        if evaluation is not None and command in ("train", "sft"):
            evaluation.after_training(given["questions"] if command == "train" else _demonstrated(parts))
        if method is not None and command == "train":
            self._check_asked(method, given["questions"])

    def _check_asked(self, method: Method, questions: Sequence[Question]) -> None:
        """Makes the checks of `Rollouts` with the longest questions of each language and a samplerless runner."""
        if self.collections is None or not self.collections.languages or not questions or self.tokenizer is None:
            return
        longest: dict[str, list[Question]] = {}
        for question in sorted(questions, key=lambda question: -len(question.text)):
            longest.setdefault(question.language, []).append(question)
        runner = object.__new__(Runner)
        sampler = types.SimpleNamespace(context=self.lanes.sampler.context)
        vars(runner).update(self.runner | {"sampler": sampler, "tokenizer": self.tokenizer, "seed": 0})
        runner.__post_init__()
        check_questions(
            [each for some in longest.values() for each in some[:3]], method, self.collections.languages, runner
        )


def check(command: str) -> None:
    """Raises before anything is loaded what the command would refuse, or would not find."""
    if lacking := list(Plan(command).parts.lacking):
        raise AbsentError(lacking[0])
    forget_used()


def _demonstrated(parts: Parts) -> list[Question]:
    """Returns what is known of the questions that rows of `lcrag sft` demonstrate; reads their files."""
    found: list[Question] = []
    for name in ("rows", "validation_rows"):
        rows = value_of(f"sft.{name}")
        if not isinstance(rows, ConfigurableReference):
            continue
        with gin.config_scope(rows.scopes):
            settings = {name: parts.build(value) for name, value in _arguments_of(rows.selector).items()}
        if rows.selector.endswith("demonstration_files"):
            if settings["files"] is None:
                parts.lacking[str(no_value(rows.scoped_selector, ["files"]))] = None
                continue
            try:
                with counted_bad_rows() as bad_rows:
                    read = read_demonstrations(settings["files"], bad_rows)
                found += [question for row in read for question in row.asked]
            except AbsentError as error:
                parts.lacking[str(error)] = None
        elif isinstance(settings.get("questions"), list):
            found += settings["questions"]
    return found


def description(command: str) -> dict[str, Any]:
    """Returns what a command would run with gin's configuration, as a JSON object; what is unknown is None."""
    jax.config.update("jax_platforms", "cpu")  # shapes need a backend, but no accelerator
    plan = Plan(command)
    parts, given, runner, lanes, collections = plan.parts, plan.given, plan.runner, plan.lanes, plan.collections
    config, tokenizer, mesh, chat = plan.config, plan.tokenizer, plan.mesh, plan.runner["chat"]
    method, evaluation, context = given.get("method"), given.get("evaluation"), lanes.sampler.context
    names = " ".join((*TABLES.values(), "memory", "step_seconds")).split()
    about: dict[str, Any] = dict.fromkeys(names) | {"command": command}
    about["policy"] = {"folder": plan.folder or "policy.folder is not set", "here": plan.here}
    if config is not None:
        shape = ("family", "layers", "width", "vocabulary_size", "max_positions", "compute_dtype", "remat")
        about["policy"] |= {name: getattr(config, name) for name in shape}
        about["policy"]["adapters"] = config.lora and {"rank": config.lora.rank, "alpha": config.lora.alpha}
    about["mesh"] = {axis: None if size == -1 else size for axis, size in plan.axes.items()}
    about["mesh"]["devices"] = mesh.size if about["mesh"]["data"] else None

    # --- Programs, with their opening prompts and budgets.
    if method is not None:
        asked = evaluation.questions if evaluation else ()
        markup = 0 if tokenizer is None else chat.markup_tokens(tokenizer)
        cases = {"": (method, given.get("questions") or asked, runner["max_tokens"])}
        if evaluation:
            changed = method.with_settings(evaluation.program_settings)
            cases["evaluated_"] = changed, asked, evaluation.max_tokens or runner["max_tokens"]
        if command == "evaluate":
            cases[""] = cases["evaluated_"]
        about |= {"method": method.name, "rewards": plain(value_of("Method.reward"), depth=3)}
        for kind, (asking, questions, tokens) in cases.items():
            first, prompt = opening(asking, questions, collections.languages if collections else ()), None
            if first is not None and tokenizer is not None:
                prompt = len(chat.opening(tokenizer, str(first.text), first.system, first.tools).ids)
            about[f"{kind}program"] = program_name(asking.program)
            about[f"{kind}budgets"] = budgets(asking, generation=tokens, context=context, prompt=prompt, markup=markup)
            if first is not None and not kind:
                about["opening"] = "\n\n".join(str(text) for text in (first.system, first.text) if text)
                if TRANSLATION in first.tools and runner["translator"] is None:
                    unset = "the program offers translation, but Runner.translator is not set"
                    parts.lacking[f"{unset}: add --gin_file=translate_r1/translator.gin"] = None
        about["evaluated_program"] = about["evaluated_program"] or about["program"]

    # --- Prompts and episodes of a step, or of a whole evaluation, and learning.
    if command == "train":
        about |= plan.step
    elif command == "evaluate" and evaluation is not None:
        prompts, rounds = len(evaluation.questions) or None, sum(evaluation.decodings.values())
        about |= {"prompts_per_step": prompts, "samples": rounds, "episodes_per_step": prompts and prompts * rounds}
    if command in ("train", "sft"):
        about |= {"steps": given["steps"], "optimizer": plain(value_of(f"{command}.optimizer"), depth=3)}
        about["objective"] = {"name": "supervised", **plain(vars(given["objective"]))}
    if command == "sft":
        about["rows"] = {name: plain(given[name]) for name in ("rows", "validation_rows", "rows_per_step", "epochs")}
    elif command == "train":
        critic, episodes = plain(value_of("train.critic"), depth=3), about["episodes_per_step"]
        by_sequence = given["objective"].ratio == "sequence"
        about["objective"]["name"] = "PPO" if critic else "GSPO" if by_sequence else "GRPO"
        about |= {"updates_per_step": given["updates_per_rollout"] * given["passes_per_rollout"], "critic": critic}
        about["episodes_per_update"] = episodes and episodes / given["updates_per_rollout"]
        if not critic:
            of_groups = ("advantage_group", "normalise_std", "min_std")
            about["advantages"] = {name: getattr(method, name) for name in of_groups}

    # --- Data and other parts.
    about["data"] = [
        {
            "source": name,
            **{key: source.settings[key] for key in ("dataset", "split", "limit") if source.settings.get(key)},
            "questions": None if source.absent else len(source.questions),
            "languages": dict(Counter(question.language for question in source.questions)),
            "absent": source.absent or None,
        }
        for name, source in parts.sources.items()
    ]
    if collections is not None:
        about["collections"] = {"source": collections.name.rpartition("/")[2], "where": plain(collections.where)}
        about["collections"] |= {"languages": list(collections.languages), "passages": collections.passages}
        about["encoder"] = collections.settings.get("encoder", "the service's")
        if collections.name.endswith("load_collections"):
            about["encoder"] = "the one kept with the collections"
    keys = ("folder", "model", "url", "context", "slots")
    about["models"] = [
        {"name": name} | {key: plain(model.settings[key]) for key in keys if key in model.settings}
        for name, model in parts.models.items()
    ]
    about["sampling"] = {name: runner[name] for name in ("temperature", "top_p")}
    about["sampling"] |= {"slots": lanes.sampler.slots, "lanes": lanes.count}
    if evaluation:
        about["evaluation"] = {name: plain(getattr(evaluation, name)) for name in EVALUATED}
        about["evaluation"] |= {"questions": len(evaluation.questions) or None, "runs": evaluation.decodings}
    if config is not None:
        run = AbstractRun(
            config,
            mesh,
            lanes,
            # What the command does not have (an evaluation has no optimizer) is a placeholder; sft's loss is another.
            objective=given["objective"] if command == "train" else PolicyGradient(),
            optimizer=given.get("optimizer") or adamw(learning_rate=1.0, steps=1),
            layout=given.get("layout") or Layout(rows=1, row_lengths=(2,)),
            critic=given.get("critic"),
        )
        kept = run.residents
        if command in ("evaluate", "sample"):
            sampling = ("sampler's own parameters", "slots")
            kept = {"policy": device_bytes(run.parameters)} | {name: kept[name] for name in sampling}
        kept = {name: size for name, size in kept.items() if size}
        about["memory"] = {"parameters": parameter_count(config), "resident_bytes": kept}
        about["memory"]["device_bytes"] = peak = sum(kept.values())
        if command in ("train", "sft"):
            about["memory"]["update_bytes"] = needed = update_bytes(run, given["layout"])
            about["memory"]["peak_bytes"] = peak = peak + sum(needed.values())
            known = command == "train" and about["episodes_per_step"] and about["budgets"]["longest_tokens"]
            if known and config.compute_dtype == "bfloat16":  # on accelerators
                about["step_seconds"] = step_seconds(
                    config, about, needs_reference(given["objective"], None), mesh.size
                )
        if config.compute_dtype == "float32" and mesh.size == 1:  # of a CPU, whose memory is the machine's
            about["memory"] |= {"process_bytes": PROCESS_BYTES, "machine_bytes": memory_bytes()}
            about["memory"]["fits_machine"] = peak + PROCESS_BYTES <= memory_bytes()

    # --- Settings that are not the paper's; None for a method without a table of settings. A value that the paper does
    # not state differs if it is not that of the method's paper.gin.
    about["differences"] = [] if method and method.name in PAPERS else None
    for row in PAPERS.get(method.name, ()) if method else ():
        ours = row.get("ours", stated(row))
        source = row["setting"].rpartition(".")[0]
        if source.endswith("_questions") and source not in parts.sources:
            continue  # the paper's questions, and this run asks others
        value = plain(value_of(row["setting"]))
        if value != stated(row):
            why = row.get("why", "") if value == ours else ""
            about["differences"].append({"section": "", **row, "ours": ours, "value": value, "why": why})
    about["lacking"] = list(parts.lacking)
    for name in MADE_LATER:
        mark_used(name)
    if command != "sft":  # which builds its rows only while it runs
        check_used()
    return about


def _training_step(parts: Parts, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns prompts, samples and episodes of a training step; None where the data are missing."""
    method, couplings, prompts = given["method"], given["questions_per_step"], given["prompts_per_step"]
    by_group = given["critic"] is None
    absent = [source for name, source in parts.sources.items() if source.absent and name.startswith("train/")]
    size: float | None = None  # prompts of a coupled question
    if not absent and (given["questions"] or not any(source.absent for source in parts.sources.values())):
        questions = share_of(given["questions"], given["question_share"], seed=given["seed"])
        method, table, couplings = method.of_step(questions, couplings, prompts, group_baseline=by_group)
        groups_of_step(table, seed=given["seed"], step=0, couplings=couplings * given["max_rollouts"])  # enough for it
        check_rewarded(method.reward, questions)
        size = sum(map(len, table)) / len(table)
    else:
        if method.coupling == "independent" or (len(absent) == 1 and absent[0].name.endswith(ALONE)):
            size = 1
        elif method.coupling == "parallel" and len(absent) == 1 and absent[0].name.endswith(PARALLEL):
            size = len(absent[0].settings["languages"])
        couplings = couplings or (size and prompts and max(1, round(prompts / size)))
        if by_group and couplings:
            method, couplings = method.with_advantage_group(couplings)
    prompts = round(couplings * size) if couplings and size else prompts
    about = {"couplings": couplings, "prompts_per_coupling": size, "prompts_per_step": prompts}
    return about | {"samples": method.samples, "episodes_per_step": prompts and prompts * method.samples}


def opening(method: Method, questions: Sequence[Question], languages: Sequence[str]) -> Observe | None:
    """Returns the text that opens the first question's dialogue, or else the first prompt outside of a dialogue.

    Searches before it find nothing, and completions are empty. None: the policy is given no text.
    """

    # A tokenizer whose tokens are the bytes of a text, so that nothing of it is cut.
    by_bytes = types.SimpleNamespace(encode=str.encode, decode=lambda ids: bytes(ids).decode(errors="replace"))

    def whole(text: Any) -> str:
        return text if isinstance(text, str) else text.fit(by_bytes, 2**40) or ""

    def nothing(request: Any) -> Any:
        if isinstance(request, Retrieve):
            return [[[] for _ in request.languages] for _ in request.queries]
        return Completion(text="", finish_reason="eos", tokens=0) if isinstance(request, Complete) else ""

    question = next(iter(questions), EXAMPLE)
    program = method.program_for(languages or (question.language,))(question)
    answer, prompts = None, []
    for _ in range(LOOK_AHEAD):
        try:
            request: Any = program.send(answer)
        except StopIteration:
            break
        if isinstance(request, Observe):
            return dataclasses.replace(request, text=whole(request.text))
        several = request if isinstance(request, tuple) else (request,)
        prompts += [Observe(whole(one.prompt)) for one in several if isinstance(one, Complete)]
        answer = [nothing(one) for one in request] if isinstance(request, tuple) else nothing(request)
    return prompts[0] if prompts else None


def budgets(method: Method, *, generation: int, context: int, prompt: int | None, markup: int = 0) -> dict[str, Any]:
    """Returns the budgets of an episode, in tokens, and the length of the longest episode that they allow.

    The settings of a program of one's own need not mean what they mean here, so what follows from them is None.
    `prompt` is the length of the opening; None: unknown, and left out of the comparison with the context. `markup` is
    what a chat template adds to an observation.
    """

    def searches_of(settings: Mapping[str, Any]) -> int:
        limits = (settings[name] for name in ("budget", "attempts", "sentences") if name in settings)
        return next(limits, 1 if "passages" in settings else 0)  # one for passages without a budget

    given = program_settings(method.program)
    inner = given.get("programs")  # of a program that chooses among several, those of the one that searches most
    others = inner.values() if isinstance(inner, Mapping) else ()
    settings = max((program_settings(inner) for inner in others if is_program(inner)), key=searches_of, default=given)
    searches, calls = searches_of(settings), settings.get("calls", 0)
    observed = settings.get("observation_tokens", 0) * settings.get("queries", 1)  # of every query of a search
    longest = (searches + calls + 1) * generation + searches * observed + (prompt or 0)
    longest += calls * settings.get("response_tokens", 0) + (searches + calls) * markup
    known = comes_with_lcrag(method.program)
    return {
        "searches": searches if known else None,
        "passages": settings.get("passages"),
        "observation_tokens": observed or None,
        "generation_tokens": generation,
        "context_tokens": context,
        "prompt_tokens": prompt,
        "invalid_actions": settings.get("invalid_limit"),
        "tool_calls": calls or None,
        "longest_tokens": longest if known else None,
        "fits_context": longest <= context if known else None,
        "settings": plain(given),
    }


def step_seconds(config: DecoderConfig, about: Mapping[str, Any], reference: bool, devices: int) -> dict[str, float]:
    """Returns a lower bound of the seconds of a training step on each accelerator that holds what a run keeps.

    All episodes have the longest length. Learning, with the scores of a `reference`, is bounded by operations, and
    sampling by the bytes of its decode steps, at data sheets' rates. Padding, recomputation and searches cost more.
    """
    tokens, episodes = about["budgets"]["longest_tokens"], about["episodes_per_step"]
    turns = 1 + (about["budgets"]["searches"] or 0) + (about["budgets"]["tool_calls"] or 0)
    written, slots = turns * about["budgets"]["generation_tokens"], min(about["sampling"]["slots"], episodes)
    sizes = {"tokens": tokens, "attended": causal_mean(tokens), "unembedded": written}
    passes = about["updates_per_step"] * about["episodes_per_update"] / episodes
    flops = passes * update_flops(config, **sizes) + (1 + reference) * forward_flops(config, **sizes)
    moved = written / slots * decode_bytes(config, slots, tokens / 2)
    return {
        card.name: round(episodes * (flops / card.flops_per_second + moved / card.bytes_per_second) / devices, 1)
        for card in ACCELERATORS
        if card.memory_bytes >= about["memory"]["device_bytes"]
    }


# --- Values of bindings.


def value_of(name: str) -> Any:
    """Returns what gin binds to a parameter such as "critic/adamw.learning_rate" (else its default), or to a macro."""
    address, _, parameter = name.rpartition(".")
    *scopes, selector = (address or f"{name}/macro").split("/")
    with gin.config_scope(scopes):
        value = _arguments_of(selector).get(parameter if address else "value")
        return value_of("/".join(value.scopes)) if _is_macro(value) else value


def _is_macro(value: Any) -> TypeGuard[ConfigurableReference]:
    return isinstance(value, ConfigurableReference) and value.selector.rpartition(".")[2] == "macro"


def _arguments_of(selector: str) -> dict[str, Any]:
    """Returns the bound values and defaults of a function or class in the current scope, not evaluated."""
    made = ConfigurableReference(selector, False).configurable.wrapped
    known = {name: each.default for name, each in inspect.signature(made).parameters.items()}
    for field in dataclasses.fields(made) if inspect.isclass(made) and dataclasses.is_dataclass(made) else ():
        if field.default_factory is not dataclasses.MISSING:
            known[field.name] = field.default_factory()
    known = {name: None if value is inspect.Parameter.empty else value for name, value in known.items()}
    return known | gin.get_bindings(selector, resolve_references=False)


def plain(value: Any, depth: int = 0) -> Any:
    """Returns a value that JSON can hold: functions, objects and references by their names, macros by their values.

    References are followed `depth` references deep, and replaced by names and settings.
    """
    if isinstance(value, Mapping):
        return {str(name): plain(each, depth) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each, depth) for each in value]
    if _is_macro(value):
        return plain(value_of("/".join(value.scopes)), depth)
    if isinstance(value, ConfigurableReference):
        if not value.evaluate or not depth:
            return str(value)
        with gin.config_scope(value.scopes or current_scope()):
            return {value.scoped_selector: plain(_arguments_of(value.selector), depth - 1)}
    if inspect.isroutine(value) or isinstance(value, functools.partial):
        settings = program_settings(value) if is_program(value) else {}
        return {program_name(value): plain(settings)} if settings else program_name(value)
    return value if isinstance(value, str | int | float | None) else getattr(value, "name", type(value).__name__)


# --- Tables.


def tables(about: Mapping[str, Any]) -> Iterator[Table]:
    """Yields the tables of a description for the terminal, without what is unknown or not of the command."""

    def table(title: str, *columns: str) -> Table:
        made = Table(title=Text(title, "bold"), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        made.show_header = bool(columns)
        for name in columns or ("", ""):
            made.add_column(name, header_style="dim")
        return made

    lines = [line[:MAX_WIDTH] for line in (about["opening"] or "").splitlines() if line.strip()]
    more = [f"({len(lines) - MAX_OPENING_LINES} more lines)"] if len(lines) > MAX_OPENING_LINES else []
    about = {**about, "opening": "\n".join(lines[:MAX_OPENING_LINES] + more)}
    groups: dict[str, dict[str, Any]] = {
        title: {name: about[name] for name in names.split()} for title, names in TABLES.items()
    }
    budgeted = groups["Budgets of an episode"]
    for name, budget in budgeted.items():
        short = {key: value for key, value in (budget or {}).items() if key != "settings"}
        unknown = {key: "not known" for key in UNKNOWN_OF_ONES_OWN if short.get(key, "") is None}
        budgeted[name] = short | unknown
    groups["Memory of each device, bounded by formula; `lcrag compile` asks XLA"] = about["memory"] or {}
    groups["Seconds of a step, at least, by data sheets"] = {"with the longest episodes": about["step_seconds"]}
    of_data = ("dataset", "questions", "languages")
    groups["Questions"] = {
        source["source"]: "absent" if source["absent"] else {name: source.get(name) for name in of_data}
        for source in about["data"]
    }
    groups["Missing: the command would not start"] = {
        str(number): text for number, text in enumerate(about["lacking"], 1)
    }
    for title, rows in groups.items():
        made = table(title)
        for name, value in rows.items():
            if value is not None and (text := shown(value, unit=name.rpartition("_")[2])):
                made.add_row(Text(name if title == "Questions" else name.replace("_", " "), "dim"), Text(text))
        made.add_row()
        if made.row_count > 1:
            yield made
        if title == "Questions" and about["differences"]:
            made = table("Different from the paper", "setting", "paper", "here", "why")
            for row in about["differences"]:
                silent = row["paper"] in SILENT and "code" not in row
                text = source_text(row) + (f" ({shown(row['ours'])} in its paper.gin)" if silent else "")
                made.add_row(row["setting"], text, shown(row["value"]), row["why"])
            made.add_row()
            yield made


def shown(value: Any, inner: bool = False, unit: str = "") -> str:
    """Returns a value as text: 1e-06 as 1e-6, 1005 as 1,005, settings without empty ones, inner ones in brackets."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | float) and unit == "bytes":
        return size_text(value)
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}".replace("e-0", "e-")
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    if isinstance(value, Mapping):
        known = {name: each for name, each in value.items() if each not in (None, "", [], {})}
        text = ", ".join(f"{name.replace('_', ' ')} {shown(each, True, unit)}" for name, each in known.items())
        return f"({text})" if inner else text
    return str(value)
