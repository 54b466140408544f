"""`lcrag describe`: what a command would run with the same arguments, without loading weights.

`Parts.build` evaluates gin's bindings as gin does, except that parts that are large or remote (policies, collections,
other models) are only named. `description` puts the result into one JSON object; `tables` shows it.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import json as json_format
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gin
import jax
from gin.config import ConfigurableReference
from jax.sharding import AbstractMesh
from rich.table import Table
from rich.text import Text

from lcrag.commands.compile import AbstractRun, device_bytes
from lcrag.config import no_value
from lcrag.data.questions import LCRL_LANGUAGES, Question, groups_of_step, share_of
from lcrag.episodes import Completion, Runner
from lcrag.episodes.programs import TRANSLATION, Complete, Observe, Retrieve, is_program, program_name, program_settings
from lcrag.errors import AbsentError, UserError, typed
from lcrag.files import resolved_folder
from lcrag.learning import Layout, PolicyGradient
from lcrag.learning.update import adamw
from lcrag.policy import check_mesh_sizes, load_tokenizer, make_mesh, parameter_count, read_config
from lcrag.policy.config import MESH_AXES
from lcrag.retrieval.collections import META, read_meta
from lcrag.rewards import TermSum
from lcrag.runs import check_used, mark_used
from lcrag.runs.display import make_console, size_text
from lcrag.train.method import Method
from lcrag.train.rollout import Lanes
from lcrag.train.setup import check_rows

DESCRIBED = ("train", "sft", "evaluate", "sample")
MODELS = ("local_model", "question_encoder", "EndpointCompleter", "EndpointTranslator", "RemoteTranslator")
# Sets of questions that are the same in every language.
PARALLEL = ("atlas_questions", "atlas_comparisons", "atlas_conjunctions", "mkqa_questions", "xquad_questions")
MADE_LATER = ("Chat", "Retries", "BadRows", "Trackers", "load_encoder", "Runner")  # built while the command runs
PAPERS: dict[str, list[dict[str, Any]]] = json_format.loads(
    pathlib.Path(__file__).with_name("paper_settings.json").read_text(encoding="utf-8")
)
# The normaliser of each aggregation of a loss; see `lcrag.learning.losses`.
NORMALISERS = {
    "sequence_mean": "each episode's sum / its policy tokens, then / the episodes of the mini-batch",
    "token_mean": "sum over all policy tokens of the mini-batch / their number",
    "constant": "sum over all policy tokens of the mini-batch / (its episodes x {constant_length} tokens)",
}
# What a paper's table says of a value that the paper does not state, or whose formula its available text lacks.
SILENT = ("not stated", "in a formula")
# The tables of a description: title -> its fields.
TABLES = {
    "What runs": (
        *("command", "method", "program", "evaluated_program", "opening", "prompts_per_step", "samples"),
        *("episodes_per_step", "couplings", "prompts_per_coupling", "sampling", "evaluation"),
    ),
    "Budgets of an episode": ("budgets", "evaluated_budgets"),
    "Learning": (
        *("rewards", "rows", "objective", "steps", "updates_per_step", "episodes_per_update", "learning_rate"),
        "critic",
    ),
    "Searched, asked and computed": ("collections", "encoder", "models", "policy", "mesh", "memory"),
}
MAX_OPENING_LINES, MAX_WIDTH = 4, 88
EXAMPLE = Question(id="example", dataset="example", language="en", text="Where is this city?", answers=("?",))
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


@dataclasses.dataclass(frozen=True)
class Named:
    """A part that is named, not built: nothing can be asked of it."""

    name: str  # the function that would build it, with its gin scope: "train/mkqa_questions"
    settings: Mapping[str, Any]  # its arguments, defaults included
    absent: str = ""  # why it cannot be built here; empty if it can
    questions: Sequence[Question] = ()  # of a set of questions that is here

    @property
    def languages(self) -> tuple[str, ...]:
        """Languages of collections; empty: unknown before they are opened."""
        if self.name.endswith("atlas_collections"):
            return LCRL_LANGUAGES
        known = self.settings.get("languages") or self.settings.get("urls") or self.passages
        return ("en",) if self.name.endswith("english_collections") else tuple(known)

    @property
    def where(self) -> Any:
        """Folder or address of collections; None: the user's cache."""
        return next(filter(None, map(self.settings.get, ("url", "urls", "folder", "engine"))), None)

    @property
    def passages(self) -> dict[str, int]:
        """Number of passages by language, of collections in a folder of this machine; nothing is opened."""
        if not self.name.endswith("load_collections") or self.where is None:
            return {}
        metas = [read_meta(path.parent) for path in sorted(resolved_folder(self.where).glob(f"*/{META}"))]
        return {meta.language: meta.count for meta in metas}

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

    def __init__(self) -> None:
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
        selector = value.selector
        kind = selector.rpartition(".")[2]
        with gin.config_scope(value.scopes) if value.scopes else contextlib.nullcontext():
            if kind == "macro":
                mark_used(selector)
                return self.build(gin.get_bindings(selector, resolve_references=False)["value"])
            if kind == "mesh":
                mark_used(selector)
                return make_mesh(devices=jax.devices()[:1])  # of a model that is not loaded
            # Without gin around it, which would evaluate the bindings again.
            made, read = value.configurable.wrapped, len(self.sources)
            given = self.bound(selector)
            reads = inspect.signature(made).return_annotation == list[Question] and len(self.sources) == read
            if not (reads or kind == "policy" or kind in MODELS or kind.endswith("_collections")):
                return made(**given)

            # A part that is only named; a set of questions is read if its files are here.
            known = {key: parameter.default for key, parameter in inspect.signature(made).parameters.items()} | given
            missing = [name for name, setting in known.items() if setting is inspect.Parameter.empty]
            settings = {name: setting for name, setting in known.items() if name not in missing}
            name, folder = "/".join(filter(None, (gin.current_scope_str(), kind))), settings.get("folder")
            absent, questions = str(no_value(name, missing)) if missing else "", []
            if reads and not missing:
                try:
                    questions = made(**given)
                except AbsentError as error:
                    absent = str(error)
            part = Named(name, settings, absent, questions)
            if absent:
                self.lacking[absent] = None
            if kind == "load_collections" and part.where is not None and not part.passages:
                self.lacking[f"there are no collections in {part.where}: build them with `lcrag index`"] = None
            elif kind in (*MODELS, "policy") and folder is not None and not _is_model(folder):
                what = "policy" if name == "policy" else f"model for {name}"
                self.lacking[f"there is no {what} in {folder}: models are not downloaded"] = None
            if reads:
                self.sources.setdefault(name, part)
            elif kind in MODELS:
                self.models.setdefault(name, part)
            return questions if reads else part

    def bound(self, selector: str) -> dict[str, Any]:
        """Returns what gin binds of a function or class in the current scope, built; marks the bindings as used."""
        mark_used(selector)
        bound = gin.get_bindings(selector, resolve_references=False)
        return {name: self.build(value) for name, value in bound.items()}


def _is_model(folder: str) -> bool:
    return (resolved_folder(folder) / "config.json").is_file()


def description(command: str) -> dict[str, Any]:
    """Returns what a command would run with gin's configuration, as a JSON object."""
    jax.config.update("jax_platforms", "cpu")  # shapes need a backend, but no accelerator
    parts = Parts()
    parameters = inspect.signature(gin.get_configurable(command)).parameters
    bound = parts.bound(command)
    given = {name: known.default for name, known in parameters.items() if known.kind is known.KEYWORD_ONLY} | bound
    if missing := [name for name, value in given.items() if value is inspect.Parameter.empty]:
        raise no_value(command, missing)
    runner: dict[str, Any] = {name: field.default for name, field in Runner.__dataclass_fields__.items()}
    runner |= parts.bound("Runner")
    lanes: Lanes = given.get("lanes") or Lanes(**parts.bound("Lanes"))
    if command not in ("train", "evaluate"):
        lanes = dataclasses.replace(lanes, count=1, tensor=1)
    method, evaluation, context = given.get("method"), given.get("evaluation"), lanes.sampler.context
    collections = given.get("collections") if isinstance(given.get("collections"), Named) else None

    # --- The policy: its decoder (None: unknown), and its mesh; a size of None: all devices.
    with gin.config_scope(gin.get_bindings("policy", resolve_references=False)["mesh"].scopes):
        settings = _arguments_of("mesh")
    axes = {axis: settings[axis] for axis in MESH_AXES}
    check_mesh_sizes(**axes)
    mesh = AbstractMesh(tuple(max(1, size) for size in axes.values()), MESH_AXES)
    sizes = {axis: None if size == -1 else size for axis, size in axes.items()}
    folder: str | None = given["policy"].settings.get("folder")
    here = folder is not None and _is_model(folder)
    config = parts.build(value_of("compile.decoder", None))  # as a file of gin/model binds it
    if folder is not None and here:
        config = read_config(resolved_folder(folder))
    policy: dict[str, Any] = {"folder": folder or "policy.folder is not set", "here": here}
    if config is not None:
        config = given["policy"].settings["computation"].of(config)
        shape = ("family", "layers", "width", "vocabulary_size", "max_positions", "compute_dtype", "remat")
        policy |= {name: getattr(config, name) for name in shape}
        policy["adapters"] = config.lora and {"rank": config.lora.rank, "alpha": config.lora.alpha}

    # --- The checks of the command that need neither weights nor data.
    if evaluation is not None:
        _check_rewarded(evaluation.reward, evaluation.questions)
    if command == "train":
        check_rows(given["layout"], context, mesh)

    # --- Programs, with their opening prompts and budgets.
    about: dict[str, Any] = {"command": command, "method": method and method.name, "program": None, "opening": ""}
    about |= {"evaluated_program": None, "budgets": None, "evaluated_budgets": None}
    if method is not None:
        asked = evaluation.questions if evaluation else ()
        first = evaluated = method, given.get("questions") or asked, runner["max_tokens"]
        if evaluation:
            changed = method.with_settings(evaluation.program_settings)
            evaluated = changed, asked, evaluation.max_tokens or runner["max_tokens"]
            first = evaluated if command == "evaluate" else first
        tokenizer = resolved_folder(policy["folder"]) / "tokenizer.json" if here else None

        def opened(method: Method, questions: Sequence[Question], tokens: int) -> tuple[Observe | None, dict[str, Any]]:
            first_text = opening(method, questions, collections.languages if collections else ())
            prompt = None
            if first_text is not None and tokenizer is not None and tokenizer.is_file():
                loaded = load_tokenizer(tokenizer.parent)
                prompt = len(runner["chat"].opening(loaded, str(first_text.text), first_text.system).ids)
            return first_text, budgets(method, generation_tokens=tokens, context_tokens=context, prompt=prompt)

        shown, about["budgets"] = opened(*first)
        about["evaluated_budgets"] = opened(*evaluated)[1] if evaluation else None
        about |= {"program": program_name(first[0].program), "evaluated_program": program_name(evaluated[0].program)}
        about["opening"] = "\n\n".join(str(text) for text in (shown.system, shown.text) if text) if shown else ""
        if shown is not None and TRANSLATION in shown.tools and runner["translator"] is None:
            unset = "the program offers translation, but Runner.translator is not set: add a file of gin/translator"
            parts.lacking[unset] = None

    # --- Prompts and episodes of a step, or of a whole evaluation; None where unknown.
    about |= {"prompts_per_step": None, "samples": None, "episodes_per_step": None}
    if command == "train":
        about |= _training_step(parts, given)
    elif evaluation and command == "evaluate":
        prompts, rounds = len(evaluation.questions) or None, sum(evaluation.decodings.values())
        about |= {"prompts_per_step": prompts, "samples": rounds, "episodes_per_step": prompts and prompts * rounds}

    # --- Learning, data and parts.
    about |= {"rewards": expanded(value_of("Method.reward")) if method else {}}
    about |= _learning(command, given, about["episodes_per_step"])
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
    about |= {"collections": None, "encoder": None}
    if collections is not None:
        about["collections"] = {"source": collections.name.rpartition("/")[2], "where": plain(collections.where)}
        about["collections"] |= {"languages": list(collections.languages), "passages": collections.passages}
        encoder = collections.settings.get("encoder")
        if collections.name.endswith("load_collections"):
            encoder = "the one kept with the collections"
        elif "encoder" not in collections.settings and not collections.absent:
            encoder = "the service's"
        elif not isinstance(encoder, str):
            parts.lacking[f"{collections.name}.encoder is not set: name the folder of an encoder"] = None
            encoder = "not named"
        elif not _is_model(encoder):
            parts.lacking[f"there is no encoder in {encoder}: models are not downloaded"] = None
        about["encoder"] = encoder
    keys = ("folder", "model", "url", "context", "slots")
    about["models"] = [
        {"name": name} | {key: plain(model.settings[key]) for key in keys if key in model.settings}
        for name, model in parts.models.items()
    ]
    about |= {"policy": policy, "mesh": sizes | {"devices": mesh.size if sizes["data"] else None}, "memory": None}
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
            kept = {"policy": device_bytes(run.parameters)} | {
                name: kept[name] for name in ("sampler's own parameters", "slots")
            }
        kept = {name: size for name, size in kept.items() if size}
        about["memory"] = {"parameters": parameter_count(config), "resident_bytes": kept}
        about["memory"]["device_bytes"] = sum(kept.values())
    about["sampling"] = {name: runner[name] for name in ("temperature", "top_p")} | {"slots": lanes.sampler.slots}
    lanes.lane_sampler()  # rejects slots that the lanes cannot share
    if lanes.count > 1:
        about["sampling"]["lanes"] = lanes.count
    about["evaluation"] = evaluation and {
        "questions": len(evaluation.questions) or None,
        "split": evaluation.split,
        "decodings": {
            name: {"temperature": temperature, "runs": evaluation.decodings[name]}
            for name, temperature in evaluation.temperatures.items()
        },
        "generation_tokens": evaluation.max_tokens or runner["max_tokens"],
        "program_settings": dict(evaluation.program_settings),
        "references": dict(evaluation.references),
    }

    # --- Settings that are not the paper's; None for a method without a table of settings. A value that the paper does
    # not state differs if it is not that of the method's paper.gin.
    about["differences"] = [] if method and method.name in PAPERS else None
    for row in PAPERS.get(method.name, ()) if method else ():
        ours = row.get("ours", row["paper"])
        source = row["setting"].rpartition(".")[0]
        asked = not source.endswith("_questions") or source in parts.sources
        value = plain(value_of(row["setting"])) if asked else "not asked"
        if value != (ours if row["paper"] in SILENT else row["paper"]):
            why = row.get("why", "") if value == ours else ""
            differing = {**row, "section": row.get("section", ""), "ours": ours, "value": value, "why": why}
            about["differences"].append(differing)
    about["lacking"] = list(parts.lacking)
    for name in MADE_LATER:
        mark_used(name)
    if command != "sft":  # which builds its rows only while it runs
        check_used()
    return about


def _check_rewarded(reward: Any, questions: Sequence[Question]) -> None:
    """Checks that a reward can score the questions; its models may be absent."""
    for question in questions if isinstance(reward, TermSum) else ():
        reward.check(f"{question.coupling} in {question.language} ({question.text[:60]!r})", question.extra)


def _training_step(parts: Parts, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns prompts, samples and episodes of a training step; None where the data are missing."""
    method, couplings, by_critic = given["method"], given["questions_per_step"], given["critic"] is not None
    if not by_critic:
        method, couplings = method.with_baseline(couplings)
    absent = [source for name, source in parts.sources.items() if source.absent and name.startswith("train/")]
    size: float | None = None
    if not absent and (given["questions"] or not any(source.absent for source in parts.sources.values())):
        questions = share_of(given["questions"], given["question_share"], seed=given["seed"])
        table = method.table(questions, group_baseline=not by_critic)
        groups_of_step(table, seed=given["seed"], step=0, couplings=couplings * given["max_rollouts"])  # enough for it
        _check_rewarded(method.reward, questions)
        size = sum(map(len, table)) / len(table)
    elif method.coupling == "independent":
        size = 1
    elif method.coupling == "parallel" and len(absent) == 1 and absent[0].name.endswith(PARALLEL):
        size = len(absent[0].settings["languages"])
    prompts = size and round(couplings * size)
    return {
        "prompts_per_step": prompts,
        "samples": method.samples,
        "episodes_per_step": prompts and prompts * method.samples,
        "couplings": couplings,
        "prompts_per_coupling": size,
    }


def opening(method: Method, questions: Sequence[Question], languages: Sequence[str]) -> Observe | None:
    """Returns the text that opens the first question's dialogue, or else the first prompt outside of a dialogue.

    Searches before it find nothing, and completions are empty. None: the policy is given no text.
    """

    class Bytes:
        """A tokenizer whose tokens are the bytes of a text, so that nothing of it is cut."""

        def encode(self, text: str) -> Sequence[int]:
            return text.encode()

        def decode(self, ids: Sequence[int]) -> str:
            return bytes(ids).decode(errors="replace")

    def whole(text: Any) -> str:
        return text if isinstance(text, str) else text.fit(Bytes(), 2**40) or ""

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


def budgets(method: Method, *, generation_tokens: int, context_tokens: int, prompt: int | None) -> dict[str, Any]:
    """Returns the budgets of an episode, and the tokens of the longest episode that they allow.

    Args:
      method: The method with the program.
      generation_tokens: Limit of a generation.
      context_tokens: Size of a slot.
      prompt: Tokens of the opening; None: unknown, and left out of the comparison with the context.
    """

    def searches_of(settings: Mapping[str, Any]) -> int:
        limits = (settings[name] for name in ("budget", "attempts", "sentences") if name in settings)
        return next(limits, 1 if "passages" in settings else 0)  # one for passages without a budget

    given = program_settings(method.program)
    inner = given.get("programs")  # of a program that chooses among several, those of the one that searches most
    others = inner.values() if isinstance(inner, Mapping) else ()
    settings = max((program_settings(inner) for inner in others if is_program(inner)), key=searches_of, default=given)
    searches, calls = searches_of(settings), settings.get("calls", 0)
    observed = settings.get("observation_tokens", 0)
    if "query_tokens" in settings:
        observed = settings["query_tokens"] * settings.get("queries", 1)
    longest = (searches + calls + 1) * generation_tokens + searches * observed + (prompt or 0)
    longest += calls * settings.get("response_tokens", 0)
    return {
        "searches": searches,
        "passages": settings.get("passages"),
        "observation_tokens": observed or None,
        "generation_tokens": generation_tokens,
        "context_tokens": context_tokens,
        "prompt_tokens": prompt,
        "invalid_actions": settings.get("invalid_limit"),
        "tool_calls": calls or None,
        "longest_tokens": longest,
        "fits_context": longest <= context_tokens,
        "settings": plain(given),
    }


def _learning(command: str, given: Mapping[str, Any], episodes: int | None) -> dict[str, Any]:
    """Returns steps, updates, objective and learning rates of a training; None for commands that do not learn."""

    def rate(optimizer: str) -> dict[str, Any]:
        with gin.config_scope(value_of(optimizer).scopes):
            settings = {name: _followed(value) for name, value in _arguments_of("adamw").items()}
        steps, share = settings["steps"], settings["warmup_share"]
        warm = f"linear warm-up over the first {round(steps * share):,} of {steps:,} steps, then " if share else ""
        after = {"constant": "constant", "cosine": "a cosine to 0"}.get(settings["decay"], settings["decay"])
        named = {name: settings[name] for name in ("decay", "weight_decay", "gradient_clip")}
        sizes = {"peak": settings["learning_rate"], "warmup_steps": round(steps * share), "steps": steps}
        return sizes | named | {"schedule": f"{warm}{after}"}

    if command not in ("train", "sft"):
        return {"steps": None, "updates_per_step": None, "objective": None, "learning_rate": None}
    loss = given["objective"]
    about: dict[str, Any] = {"steps": given["steps"], "learning_rate": rate(f"{command}.optimizer")}
    objective = {"aggregation": loss.aggregation, "normaliser": NORMALISERS[loss.aggregation].format_map(vars(loss))}
    if command == "sft":
        about["rows"] = {name: plain(given[name]) for name in ("rows", "validation_rows", "rows_per_step")}
        return about | {"updates_per_step": 1, "objective": {"name": "supervised"} | objective}
    method, critic = given["method"], given["critic"]
    alone = method.coupling == "independent" or method.baseline == "prompt"
    group = "the samples of one prompt" if alone else "all episodes of a coupled question"
    floor = f", at least {method.min_std:g}" if method.min_std else ""
    advantages = f"(reward - mean) / standard deviation{floor} over {group}"
    if critic is not None:
        advantages = f"of a critic, generalised with discount {critic.discount:g} and trace {critic.trace:g}"
        of_critic = ("discount", "trace", "value_clip", "kl_in_reward", "whiten")
        critic = {name: getattr(critic, name) for name in of_critic} | {"learning_rate": rate("Critic.optimizer")}
    elif not method.normalise_std:
        advantages = f"reward - mean over {group}"
    clip = ("ratio", "clip_low", "clip_high", "importance_cap", "kl_coefficient", "kl_estimator")
    objective |= {name: getattr(loss, name) for name in clip} | {"advantages": advantages}
    return about | {
        "updates_per_step": given["updates_per_rollout"] * given["passes_per_rollout"],
        "episodes_per_update": episodes and episodes / given["updates_per_rollout"],
        "max_rollouts": given["max_rollouts"],
        "objective": {"name": "PPO" if critic else "GSPO" if loss.ratio == "sequence" else "GRPO"} | objective,
        "critic": critic,
    }


def value_of(name: str, *default: Any) -> Any:
    """Returns what gin binds to a parameter such as "critic/adamw.learning_rate", or to a macro; macros are followed.

    An unbound parameter has its default, or the value given as `default`.
    """
    address, _, parameter = name.rpartition(".")
    *scopes, selector = f"{address or name + '/macro'}".split("/")
    with gin.config_scope(scopes):
        values = gin.get_bindings(selector, resolve_references=False) if default else _arguments_of(selector)
        return _followed(values.get(parameter if address else "value", *default))


def _arguments_of(selector: str) -> dict[str, Any]:
    """Returns the bound values and defaults of a function or class in the current scope, not evaluated."""
    made = ConfigurableReference(selector, False).configurable.wrapped
    known = {name: each.default for name, each in inspect.signature(made).parameters.items()}
    for field in dataclasses.fields(made) if inspect.isclass(made) and dataclasses.is_dataclass(made) else ():
        if field.default_factory is not dataclasses.MISSING:
            known[field.name] = field.default_factory()
    known = {name: None if value is inspect.Parameter.empty else value for name, value in known.items()}
    return known | gin.get_bindings(selector, resolve_references=False)


def _followed(value: Any) -> Any:
    """Replaces macros in the value of a binding by their values; keeps other references."""
    if isinstance(value, ConfigurableReference) and value.selector.rpartition(".")[2] == "macro":
        return value_of("/".join(value.scopes))
    if isinstance(value, dict):
        return {name: _followed(each) for name, each in value.items()}
    return type(value)(map(_followed, value)) if isinstance(value, list | tuple) else value


def expanded(value: Any, depth: int = 3) -> Any:
    """Replaces references by names and settings, `depth` references deep, as plain values."""
    value = _followed(value)
    if not isinstance(value, ConfigurableReference) or not value.evaluate or not depth:
        return plain(value)
    with gin.config_scope(value.scopes) if value.scopes else contextlib.nullcontext():
        arguments = _arguments_of(value.selector)
        return {value.scoped_selector: {name: expanded(each, depth - 1) for name, each in arguments.items()}}


def plain(value: Any) -> Any:
    """Returns a value that JSON can hold: functions and objects by their names."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, ConfigurableReference):
        return str(value)
    if inspect.isroutine(value) or isinstance(value, functools.partial):
        settings = program_settings(value) if is_program(value) else {}
        return {program_name(value): plain(settings)} if settings else program_name(value)
    return value if isinstance(value, str | int | float | None) else getattr(value, "name", type(value).__name__)


def tables(about: Mapping[str, Any]) -> Iterator[Table]:
    """Yields the tables of a description for the terminal, without what is unknown or not of the command."""

    def table(title: str, *columns: str) -> Table:
        made = Table(title=Text(title, "bold"), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        made.show_header = bool(columns)
        for name in columns or ("", ""):
            made.add_column(name, header_style="dim")
        return made

    lines = [line for line in about["opening"].splitlines() if line.strip()]
    more = [f"({len(lines) - MAX_OPENING_LINES} more lines)"] if len(lines) > MAX_OPENING_LINES else []
    cut = [f"{line[:MAX_WIDTH]}{' ...' * (len(line) > MAX_WIDTH)}" for line in lines[:MAX_OPENING_LINES]]
    about = {**about, "opening": "\n".join(cut + more)}
    if memory := about["memory"]:
        kept = {name: size_text(size) for name, size in memory["resident_bytes"].items()}
        about["memory"] = {"kept on each device, by formula": size_text(memory["device_bytes"])} | kept
    for name in ("budgets", "evaluated_budgets"):
        about[name] = {key: value for key, value in (about[name] or {}).items() if key != "settings"}
    for title, fields in TABLES.items():
        made = table(title)
        for name in fields:
            if text := shown(about.get(name, "") if about.get(name) is not None else ""):
                made.add_row(Text(name.replace("_", " "), "dim"), Text(text))
        made.add_row()
        yield made
    if about["data"]:
        made = table("Questions", "source", "questions", "languages")
        for source in about["data"]:
            named = source["source"] + (f" ({source['dataset']})" if "dataset" in source else "")
            made.add_row(
                named, "absent" if source["absent"] else shown(source["questions"]), shown(source["languages"])
            )
        made.add_row()
        yield made
    if about["differences"]:
        made = table("Different from the paper", "setting", "paper", "here", "why")
        for row in about["differences"]:
            silent = f" ({shown(row['ours'])} in its paper.gin)" if row["paper"] in SILENT else ""
            made.add_row(row["setting"], f"{shown(row['paper'])}{silent}", shown(row["value"]), row["why"])
        made.add_row()
        yield made
    if about["lacking"]:
        made = table("Missing: the command would not start")
        for number, sentence in enumerate(about["lacking"], 1):
            made.add_row(str(number), Text(sentence))
        yield made


def shown(value: Any, inner: bool = False) -> str:
    """Returns a value as text: 1e-06 as 1e-6, 1005 as 1,005, settings without empty ones, inner ones in brackets."""
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int | float):
        return f"{value:,}" if isinstance(value, int) else f"{value:g}".replace("e-0", "e-")
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    if isinstance(value, Mapping):
        known = {name: each for name, each in value.items() if each not in (None, "", [], {})}
        text = ", ".join(f"{name.replace('_', ' ')} {shown(each, True)}" for name, each in known.items())
        return f"({text})" if inner else text
    return str(value)
