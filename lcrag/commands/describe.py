"""`lcrag describe`: what a command would run with the same arguments, without loading weights.

`description` puts a `Plan` into one JSON object; `tables` shows that.
"""

import contextlib
import dataclasses
import json as json_format
import pathlib
import types
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import gin
import jax
from rich.table import Table
from rich.text import Text

from lcrag.commands.bindings import plain, shown, value_of
from lcrag.commands.compile import PROCESS_BYTES, AbstractRun, device_bytes, update_bytes
from lcrag.commands.plan import Plan
from lcrag.data.questions import Question
from lcrag.episodes import Completion, Program
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
from lcrag.errors import UserError, typed
from lcrag.learning import Layout, PolicyGradient
from lcrag.learning.learners import needs_reference
from lcrag.learning.update import adamw
from lcrag.policy import DecoderConfig, parameter_count
from lcrag.policy.config import ACCELERATORS
from lcrag.policy.parameters import causal_mean, decode_bytes, forward_flops, update_flops
from lcrag.retrieval.collections import memory_bytes
from lcrag.runs import check_used, mark_used
from lcrag.runs.display import make_console
from lcrag.train.method import Method

DESCRIBED = ("train", "sft", "evaluate", "sample")
MADE_LATER = ("Chat", "Patience", "BadRows", "Trackers", "load_encoder", "Runner")  # built while the command runs
PAPERS: dict[str, list[dict[str, Any]]] = json_format.loads(
    pathlib.Path(__file__).with_name("paper_settings.json").read_text(encoding="utf-8")
)
# What a paper's table says of a value that the paper does not state, or whose formula its available text lacks. A row's
# "code" is what the authors' public code has; "ours" is what our file binds instead of it or of the paper's value.
SILENT = ("not stated", "in a formula")
FIELDS = """
    command method program evaluated_program opening prompts_per_step samples episodes_per_step couplings
    prompts_per_coupling sampling evaluation budgets evaluated_budgets rewards rows objective advantages steps
    updates_per_step episodes_per_update optimizer critic collections encoder models policy mesh memory step_seconds
    data differences lacking
""".split()
LABELS = {
    "memory": "memory of a device, by formula",
    "step_seconds": "seconds of a step, at least",
    "lacking": "missing to start",
}
MAX_OPENING_LINES, MAX_WIDTH = 4, 88
EXAMPLE = Question(id="example", dataset="example", language="en", text="Where is this city?", answers=("?",))
LOOK_AHEAD = 20  # requests of a program before it opens its dialogue
# A tokenizer whose tokens are the bytes of a text, so that nothing of it is cut.
BYTES = types.SimpleNamespace(encode=str.encode, decode=lambda ids: bytes(ids).decode(errors="replace"))


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


# --- The description.


def description(command: str) -> dict[str, Any]:
    """Returns what a command would run with gin's configuration, as a JSON object; what is unknown is None."""
    jax.config.update("jax_platforms", "cpu")  # shapes need a backend, but no accelerator
    plan = Plan(command)
    parts, given, runner, lanes, collections = plan.parts, plan.given, plan.runner, plan.lanes, plan.collections
    method: Any = given.get("method")
    evaluation: Any = given.get("evaluation")
    tokenizer, config, names = plan.tokenizer, plan.config, tuple[str, ...]()
    about: dict[str, Any] = dict.fromkeys(FIELDS) | {"command": command} | plan.step
    about["sampling"] = {name: runner[name] for name in ("temperature", "top_p")}
    about["sampling"] |= {"slots": lanes.sampler.slots, "lanes": lanes.count}
    if evaluation:
        names = ("split", "temperatures", "top_p", "max_tokens", "program_settings", "references")
        about["evaluation"] = {name: plain(getattr(evaluation, name)) for name in names}
        about["evaluation"] |= {"questions": len(evaluation.questions) or None, "runs": evaluation.decodings}

    # --- Programs, with their opening prompts and budgets.
    asked, context = evaluation.questions if evaluation else (), lanes.sampler.context
    cases = {"": (method, given.get("questions") or asked, runner["max_tokens"])}
    if evaluation and method is not None:
        changed = method.with_settings(evaluation.program_settings)
        cases["evaluated_"] = changed, asked, evaluation.max_tokens or runner["max_tokens"]
    if command == "evaluate":
        cases[""] = cases["evaluated_"]
    for kind, (asking, questions, tokens) in cases.items() if method is not None else ():
        question = next(iter(questions), EXAMPLE)
        languages = (collections and collections.languages) or (question.language,)
        first, lengths = opening(asking.program_for(languages)(question)), dict[str, int]()
        if first is not None and tokenizer is not None:
            prompt = runner["chat"].opening(tokenizer, str(first.text), first.system, first.tools)
            lengths = {"prompt": len(prompt.ids), "markup": runner["chat"].markup_tokens(tokenizer)}
        about[f"{kind}program"] = program_name(asking.program)
        about[f"{kind}budgets"] = budgets(asking, generation=tokens, context=context, **lengths)
        if first is not None and not kind:
            about["opening"] = "\n\n".join(str(text) for text in (first.system, first.text) if text)
            if TRANSLATION in first.tools and runner["translator"] is None:
                unset = "the program offers translation, but Runner.translator is not set"
                parts.lacking[f"{unset}: add --gin_file=translate_r1/translator.gin"] = None
    if method is not None:
        about |= {"method": method.name, "rewards": plain(value_of("Method.reward"), depth=3)}
        about["evaluated_program"] = about["evaluated_program"] or about["program"]

    # --- Episodes of a whole evaluation, and learning.
    if command == "evaluate":
        prompts, rounds = len(asked) or None, sum(evaluation.decodings.values())
        about |= {"prompts_per_step": prompts, "samples": rounds, "episodes_per_step": prompts and prompts * rounds}
    if command in ("train", "sft"):
        about |= {"steps": given["steps"], "optimizer": plain(value_of(f"{command}.optimizer"), depth=3)}
        about["objective"] = {"name": "supervised", **plain(vars(given["objective"]))}
    if command == "sft":
        about["rows"] = {name: plain(given[name]) for name in ("rows", "validation_rows", "rows_per_step", "epochs")}
    elif command == "train":
        critic, updates = plain(value_of("train.critic"), depth=3), given["updates_per_rollout"]
        by_group = "GSPO" if given["objective"].ratio == "sequence" else "GRPO"
        about["objective"]["name"] = "PPO" if critic else by_group
        about |= {"updates_per_step": updates * given["passes_per_rollout"], "critic": critic}
        about["episodes_per_update"] = about["episodes_per_step"] and about["episodes_per_step"] / updates
        if not critic:
            names = ("advantage_group", "normalise_std", "min_std")
            about["advantages"] = {name: getattr(method, name) for name in names}

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
        kind = collections.name.rpartition("/")[2]
        about["collections"] = {"source": kind, "where": plain(collections.where)}
        about["collections"] |= {"languages": list(collections.languages), "passages": collections.passages}
        about["encoder"] = collections.settings.get("encoder", "the service's")
        if kind == "load_collections":
            about["encoder"] = "the one kept with the collections"
    names = ("folder", "model", "url", "context", "slots")
    about["models"] = [
        {"name": name} | {key: plain(model.settings[key]) for key in names if key in model.settings}
        for name, model in parts.models.items()
    ]
    about["mesh"] = {axis: None if size == -1 else size for axis, size in plan.axes.items()}
    about["mesh"]["devices"] = plan.mesh.size if about["mesh"]["data"] else None
    about["policy"] = {"folder": plan.folder or "policy.folder is not set", "here": tokenizer is not None}
    if config is not None:
        names = ("family", "layers", "width", "vocabulary_size", "max_positions", "compute_dtype", "remat")
        about["policy"] |= {name: getattr(config, name) for name in names}
        about["policy"]["adapters"] = config.lora and {"rank": config.lora.rank, "alpha": config.lora.alpha}
        run = AbstractRun(
            config,
            plan.mesh,
            lanes,
            # What the command does not have (an evaluation has no optimizer) is a placeholder; sft's loss is another.
            objective=given["objective"] if command == "train" else PolicyGradient(),
            optimizer=given.get("optimizer") or adamw(learning_rate=1.0, steps=1),
            layout=given.get("layout") or Layout(rows=1, row_lengths=(2,)),
            critic=given.get("critic"),
        )
        held = run.residents
        if command in ("evaluate", "sample"):
            names = ("sampler's own parameters", "slots")
            held = {"policy": device_bytes(run.parameters)} | {name: held[name] for name in names}
        held = {name: size for name, size in held.items() if size}
        about["memory"] = {"parameters": parameter_count(config), "device_bytes": sum(held.values())}
        about["memory"]["resident_bytes"], peak = held, sum(held.values())
        if command in ("train", "sft"):
            needed = update_bytes(run, given["layout"])
            about["memory"] |= {"update_bytes": needed, "peak_bytes": (peak := peak + sum(needed.values()))}
            known = command == "train" and about["episodes_per_step"] and about["budgets"]["longest_tokens"]
            if known and config.compute_dtype == "bfloat16":  # on accelerators
                reference = needs_reference(given["objective"], None)
                about["step_seconds"] = step_seconds(config, about, reference, plan.mesh.size)
        if config.compute_dtype == "float32" and plan.mesh.size == 1:  # of a CPU, whose memory is the machine's
            about["memory"] |= {"process_bytes": PROCESS_BYTES, "machine_bytes": memory_bytes()}
            about["memory"]["fits_machine"] = peak + PROCESS_BYTES <= memory_bytes()

    # --- Settings that are not the paper's; None for a method without a table of settings. A value that the paper does
    # not state differs if it is not that of the method's paper.gin.
    about["differences"] = [] if method and method.name in PAPERS else None
    for row in PAPERS.get(method.name, ()) if method else ():
        source, ours = row["setting"].rpartition(".")[0], row.get("ours", stated(row))
        if source.endswith("_questions") and source not in parts.sources:
            continue  # the paper's questions, and this run asks others
        if (value := plain(value_of(row["setting"]))) != stated(row):
            why = row.get("why", "") if value == ours else ""
            about["differences"].append({"section": "", **row, "ours": ours, "value": value, "why": why})
    about["lacking"] = list(parts.lacking)
    for name in MADE_LATER:
        mark_used(name)
    if command != "sft":  # which builds its rows only while it runs
        check_used()
    return about


def stated(row: Mapping[str, Any]) -> Any:
    """Returns the value of a row by the paper, else by the authors' code, else by our file."""
    return row.get("code", row.get("ours")) if row["paper"] in SILENT else row["paper"]


def source_text(row: Mapping[str, Any]) -> str:
    """Returns a row's values by the paper and by the authors' code."""
    code = f"; authors' code {shown(row['code'])}" if "code" in row else ""
    return f"{shown(row['paper'])}{code}"


def opening(program: Program) -> Observe | None:
    """Returns the text that opens a program's dialogue, or else the first prompt outside of a dialogue.

    Searches before it find nothing, and completions are empty. None: the policy is given no text.
    """

    def whole(text: Any) -> str:
        return text if isinstance(text, str) else text.fit(BYTES, 2**40) or ""

    answer, prompts = None, []
    with contextlib.suppress(StopIteration):
        for _ in range(LOOK_AHEAD):
            request: Any = program.send(answer)
            if isinstance(request, Observe):
                return dataclasses.replace(request, text=whole(request.text))
            answers: list[Any] = []
            for single in request if isinstance(request, tuple) else (request,):
                if isinstance(single, Retrieve):
                    answers.append([[[] for _ in single.languages] for _ in single.queries])
                elif isinstance(single, Complete):
                    prompts.append(Observe(whole(single.prompt)))
                    answers.append(Completion(text="", finish_reason="eos", tokens=0))
                else:
                    answers.append("")
            answer = answers if isinstance(request, tuple) else answers[0]
    return prompts[0] if prompts else None


def budgets(
    method: Method, *, generation: int, context: int, prompt: int | None = None, markup: int = 0
) -> dict[str, Any]:
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
    settings = max((program_settings(other) for other in others if is_program(other)), key=searches_of, default=given)
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


# --- Tables.


def tables(about: Mapping[str, Any]) -> Iterator[Table]:
    """Yields the tables of a description for the terminal, without what is unknown or not of the command."""

    def table(rows: Iterable[Sequence[str]], *header: str) -> Table:
        made = Table(
            *header, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", show_header=any(header)
        )
        for first, *others in rows:
            made.add_row(Text(first, "dim"), *map(Text, others))
        made.add_row()
        return made

    lines = [line[:MAX_WIDTH] for line in (about["opening"] or "").splitlines() if line.strip()]
    more = [f"({len(lines) - MAX_OPENING_LINES} more lines)"] if len(lines) > MAX_OPENING_LINES else []
    fields = {name: value for name, value in about.items() if name != "differences"}
    fields["opening"] = "\n".join(lines[:MAX_OPENING_LINES] + more)
    for name in ("budgets", "evaluated_budgets"):  # a program of one's own has budgets that are not known
        short = {key: budget for key, budget in (about[name] or {}).items() if key != "settings"}
        unknown = [key for key in ("searches", "longest_tokens", "fits_context") if short.get(key, "") is None]
        fields[name] = short | dict.fromkeys(unknown, "not known")
    yield table(
        [
            (LABELS.get(name, name.replace("_", " ")), shown(value))
            for name, value in fields.items()
            if value not in (None, "", [], {})
        ],
        *("", ""),
    )
    if about["differences"]:
        rows = []
        for row in about["differences"]:
            silent = row["paper"] in SILENT and "code" not in row
            paper = source_text(row) + (f" ({shown(row['ours'])} in its paper.gin)" if silent else "")
            rows.append((row["setting"], paper, shown(row["value"]), row["why"]))
        yield table(rows, "different from the paper", "paper", "here", "why")
