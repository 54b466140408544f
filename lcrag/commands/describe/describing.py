"""`lcrag describe`: prints what a command would run with the same arguments, without loading weights."""

import json as json_format
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from lcrag.commands.describe import run_plan
from lcrag.commands.describe.learning_plan import learning, rewards
from lcrag.commands.describe.memory import memory, mesh_of
from lcrag.commands.describe.named_parts import NamedCollections, NamedParts, PolicyShape
from lcrag.commands.describe.tables import tables
from lcrag.commands.lane_settings import configured_lanes, lane_sampler
from lcrag.composition.bound_values import BoundValues
from lcrag.composition.components import configured_sampler
from lcrag.composition.stand_ins import Composition, bound_settings, composed
from lcrag.composition.used_bindings import check_used, mark_used
from lcrag.data.questions import Question
from lcrag.episodes import Runner
from lcrag.episodes.requests import TRANSLATION, Observe
from lcrag.errors import UserError
from lcrag.evaluation.paper_settings import PaperSetting, differences
from lcrag.methods.globalrag.paper import GLOBALRAG
from lcrag.methods.lcrl.paper import LCRL
from lcrag.methods.r_search.paper import R_SEARCH
from lcrag.methods.rag_r1.paper import RAG_R1
from lcrag.methods.translate_r1.paper import TRANSLATE_R1
from lcrag.retrieval import NoCollections
from lcrag.runs.display import make_console
from lcrag.train.checks import (
    check_rewarded,
    check_rows,
)
from lcrag.train.method import Method

MADE_LATER = ("Chat", "Retries", "BadRows", "Trackers", "load_encoder")  # built while the command runs
PAPERS: dict[str, Sequence[PaperSetting]] = {  # the settings of the papers, by the name of the method
    "LcRL": LCRL,
    "R-Search": R_SEARCH,
    "RAG-R1": RAG_R1,
    "GlobalRAG": GLOBALRAG,
    "Translate-R1": TRANSLATE_R1,
}
DESCRIBED = ("train", "sft", "evaluate", "sample")


def describe(output_dir: pathlib.Path | None, words: Sequence[str] = (), *, json: bool = False) -> None:
    """Prints what a command would run: its program, episodes, budgets, rewards, objective, data, mesh and memory.

    Args:
      output_dir: Not used.
      words: The command.
      json: Print one JSON object instead of tables.

    Raises:
      UserError: no such command, or a mistake that the command itself would reject.
    """
    if len(words) != 1 or words[0] not in DESCRIBED:
        given = f", not {' '.join(words)}" if words else ""
        raise UserError(f"lcrag describe shows one command: {', '.join(DESCRIBED)}{given}")
    parts = NamedParts()
    described = description(composed(words[0], parts.stand_ins), parts)
    if json:
        print(json_format.dumps(described, ensure_ascii=False, indent=2))
        return
    console = make_console()
    for table in tables(described):
        console.print(table)


def description(composition: Composition, parts: NamedParts) -> dict[str, Any]:
    """Returns the description of a composed command as a JSON object.

    Args:
      composition: Composed with the stand-ins of `parts`.
      parts: The stand-ins, with the names of the parts that they replace.

    Raises:
      UserError: a mistake that the command itself would reject.
    """
    arguments, bound = composition.arguments, BoundValues()
    runner = _runner(parts)
    _check(composition, runner["temperature"])
    policy: PolicyShape = arguments["policy"]
    method, evaluation = arguments.get("method"), arguments.get("evaluation")
    about: dict[str, Any] = {"command": composition.command, "method": method and method.name}
    about |= _programs(composition, runner, parts) | run_plan.episodes(composition, parts)
    about |= {
        "rewards": rewards(composition.command, bound) if method else {},
        **learning(composition, bound, about["episodes_per_step"]),
        "data": [_source(source) for source in parts.sources],
        **_searched(arguments.get("collections")),
        "models": [{"name": each.name, **run_plan.plain(_shown(each.arguments))} for each in parts.models],
        "policy": _policy(policy),
        "mesh": mesh_of(policy),
        "memory": memory(composition.command, policy, arguments),
        "sampling": {name: runner[name] for name in ("temperature", "top_p")} | _slots(composition.command),
        "evaluation": evaluation and _evaluation(evaluation, runner["max_tokens"]),
        "differences": _differences(method, bound, parts),
        "lacking": parts.lacking,
    }
    _check_used(composition)
    return about


def _slots(command: str) -> dict[str, int]:
    """Returns the number of slots, and of the lanes that share them if the command has lanes."""
    sampler = configured_sampler()
    lanes = configured_lanes().count if command in ("train", "evaluate") else 1
    lane_sampler(sampler, lanes)  # rejects slots that they cannot share
    return {"slots": sampler.slots} | ({"lanes": lanes} if lanes > 1 else {})


def _runner(parts: NamedParts) -> dict[str, Any]:
    """The runner's settings, defaults included."""
    defaults = {name: field.default for name, field in Runner.__dataclass_fields__.items()}
    return defaults | bound_settings("Runner", parts.stand_ins)


def _check_used(composition: Composition) -> None:
    """Checks that the command would use the bindings of its command line; SFT builds its rows only while it runs."""
    for name in MADE_LATER:
        mark_used(name)
    if composition.command != "sft":
        check_used()


def _check(composition: Composition, temperature: float) -> None:
    """Makes the checks of the command that need neither weights nor data."""
    given, evaluation = composition.arguments, composition.arguments.get("evaluation")
    if evaluation is not None:
        check_rewarded(evaluation.reward, evaluation.questions)
    if composition.command != "train":
        return
    check_rows(given["layout"], configured_sampler().context, given["policy"].mesh)


def _programs(composition: Composition, runner: Mapping[str, Any], parts: NamedParts) -> dict[str, Any]:
    """Describes the program and that of the evaluation, with their opening prompts and budgets."""
    arguments = composition.arguments
    method, evaluation = arguments.get("method"), arguments.get("evaluation")
    if method is None:
        return {"program": None, "evaluated_program": None, "opening": "", "budgets": None, "evaluated_budgets": None}
    asked = evaluation.questions if evaluation else ()
    first = method, arguments.get("questions") or asked, runner["max_tokens"]
    evaluated = first
    if evaluation:
        settings = evaluation.program_settings
        evaluated = method.with_settings(settings), asked, evaluation.max_tokens or runner["max_tokens"]
    if composition.command == "evaluate":
        first = evaluated
    opened, budgets = _opened(arguments, *first)
    if opened is not None and TRANSLATION in opened.tools and runner["translator"] is None:
        parts.lacks("the program offers translation, but Runner.translator is not set: add a file of gin/translator")
    return {
        "program": run_plan.program_name(first[0].program),
        "evaluated_program": run_plan.program_name(evaluated[0].program),
        "opening": run_plan.opening_text(opened),
        "budgets": budgets,
        "evaluated_budgets": _opened(arguments, *evaluated)[1] if evaluation else None,
    }


def _opened(
    arguments: Mapping[str, Any], method: Method, questions: Sequence[Question], generation_tokens: int
) -> tuple[Observe | None, dict[str, Any]]:
    """Returns the opening prompt of a method's program, and its budgets."""
    collections = arguments.get("collections")
    opened = run_plan.opening(method, questions, collections.languages if collections else ())
    prompt = run_plan.prompt_tokens(opened, arguments["policy"])
    context = configured_sampler().context
    sizes = {"generation_tokens": generation_tokens, "context_tokens": context, "prompt": prompt}
    return opened, run_plan.budgets(method, **sizes)


def _source(source: Any) -> dict[str, Any]:
    return {
        "source": source.name,
        **{name: source.arguments[name] for name in ("dataset", "split", "limit") if source.arguments.get(name)},
        "questions": None if source.absent else len(source.questions),
        "languages": run_plan.by_language(source.questions),
        "absent": source.absent or None,
    }


def _searched(collections: NamedCollections | NoCollections | None) -> dict[str, Any]:
    if not isinstance(collections, NamedCollections):
        return {"collections": None, "encoder": None}
    return {
        "collections": {
            "source": collections.name,
            "where": run_plan.plain(collections.where),
            "languages": list(collections.languages),
            "passages": dict(collections.passages),
        },
        "encoder": collections.encoder,
    }


def _shown(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of another model that say which one it is."""
    return {name: arguments[name] for name in ("folder", "model", "url", "context", "slots") if name in arguments}


def _policy(policy: PolicyShape) -> dict[str, Any]:
    about: dict[str, Any] = {"folder": policy.name, "here": policy.here}
    config = policy.config
    if config is None:
        return about
    shape = ("family", "layers", "width", "vocabulary_size", "max_positions", "compute_dtype", "remat")
    adapters = config.lora and {"rank": config.lora.rank, "alpha": config.lora.alpha}
    return about | {name: getattr(config, name) for name in shape} | {"adapters": adapters}


def _evaluation(evaluation: Any, generation_tokens: int) -> dict[str, Any]:
    return {
        "questions": len(evaluation.questions) or None,
        "split": evaluation.split,
        "decodings": {
            name: {"temperature": temperature, "runs": evaluation.decodings[name]}
            for name, temperature in evaluation.temperatures.items()
        },
        "generation_tokens": evaluation.max_tokens or generation_tokens,
        "program_settings": dict(evaluation.program_settings),
        "references": dict(evaluation.references),
    }


def _differences(method: Method | None, bound: BoundValues, parts: NamedParts) -> list[dict[str, Any]] | None:
    """Returns the differences from the method's paper; None for a method without a table of settings."""
    table = PAPERS.get(method.name) if method else None
    if table is None:
        return None
    read = {source.name for source in parts.sources}

    def value_of(name: str) -> Any:
        address = name.rpartition(".")[0]
        return "not asked" if address.endswith("_questions") and address not in read else bound.value(name)

    return [
        {
            "setting": each.setting.name,
            "paper": run_plan.plain(each.setting.paper),
            "ours": run_plan.plain(each.setting.expected),
            "section": each.setting.section,
            "value": run_plan.plain(each.value),
            "why": each.why,
        }
        for each in differences(table, value_of)
    ]
