"""`lcrag rehearse`: runs a command's episodes on its own data, and computes the memory, time and cost of its run."""

import collections
import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from rich.console import Console

from lcrag.commands.compile.topologies import read_topology
from lcrag.commands.describe.memory import abstract_plan
from lcrag.commands.rehearse.answerable import answerable, passages_here, rows_of
from lcrag.commands.rehearse.costs import (
    Workload,
    compiled_shares,
    memory_of,
    phases_of,
    run_costs,
)
from lcrag.commands.rehearse.episodes import (
    Played,
    ScriptedEpisodes,
    lengths,
    play_script,
    spread,
    texts_by_language,
    tokens_per_word,
)
from lcrag.commands.rehearse.planned_run import PlannedRun, planned_run
from lcrag.commands.rehearse.tables import tables
from lcrag.commands.rehearse.tiny_parts import TinyParts
from lcrag.composition.components import configured_sampler, make_runner
from lcrag.composition.stand_ins import composed, standing_in
from lcrag.composition.used_bindings import check_used
from lcrag.episodes import Runner
from lcrag.errors import UserError
from lcrag.evaluation.tables import to_markdown, to_rich
from lcrag.learning.learners import Learner
from lcrag.limits import Count, PositiveShare
from lcrag.policy import AnyMesh, parameter_count
from lcrag.runs import write_json, write_text
from lcrag.runs.display import make_console, progress_display
from lcrag.sampling import Sampler
from lcrag.train.checking import check_exploration, check_questions, check_rewarded, check_rows
from lcrag.train.lane_plan import configured_lanes, lane_sampler

REHEARSED = ("train", "evaluate")
PARTS = 5
TINY_SLOTS = 8
REPEATS = {"parts": "updates_per_rollout", "passes": "passes_per_rollout"}  # arguments of `train`
READING = (
    "The floor: every phase at the devices' peak rates, the slots always full, nothing lost to communication. A run is"
    " slower."
)
TOO_FEW = " These data have {missing:,} coupled questions too few for one step; training would refuse them."


def rehearse(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    prompts: Count = 256,
    generated_tokens: Count | None = None,
    sampled_tokens: Count = 16,
    scanned_passages: Count = 200_000,
    efficiency: PositiveShare = 1.0,
    topology: str = "",
) -> None:
    """Measures the episodes of a command on its own data, and computes the memory, time and cost of its run.

    Args:
      output_dir: Folder for `rehearsal.json` and `rehearsal.md`; None: nothing is written.
      words: The command: "train" or "evaluate".
      prompts: Number of prompts to run: those of the first steps, or a part of the questions of an evaluation.
      generated_tokens: Assumed length of each generation; None: half of `Runner.max_tokens`.
      sampled_tokens: Longest generation of the tiny policy.
      scanned_passages: Maximum number of passages of each collection to scan for gold answers.
      efficiency: Share of the devices' peak rates that the run is assumed to reach; the full rates are reported too.
      topology: Devices, as in "v5e:4x4" or "h100:8"; empty: memory and times are not computed.

    Raises:
      UserError: another command, settings out of range, or whatever the command itself would reject before it starts.
    """
    if len(words) != 1 or words[0] not in REHEARSED:
        raise UserError(f"lcrag rehearse needs the command to rehearse: lcrag rehearse {'|'.join(REHEARSED)}")
    if topology:
        read_topology(topology)
        jax.config.update("jax_platforms", "cpu")  # compilers for absent devices must not look for them
    console, tiny = make_console(), TinyParts()
    with progress_display("rehearse", PARTS, unit="part", transient=True, console=console) as display:
        display.phase("opening questions and collections")
        run = planned_run(composed(words[0], tiny.stand_ins), prompts)
        with standing_in(tiny.stand_ins):
            runner = _runner(run)
        written = generated_tokens or max(1, runner.max_tokens // 2)
        _check(run, runner, tiny.platform(_device_count(topology)))
        check_used()
        display.update(1)
        episodes = _played(run, runner, written, functools.partial(display.phase, "playing the script"))
        display.update(2)
        display.phase("looking for gold answers in the passages")
        rehearsal = measured(run, runner, episodes, written, tiny.replaced)
        rehearsal |= {"answerable": _answerable(run, episodes.played, scanned_passages)}
        display.update(3)
        display.phase("sampling with the tiny policy")
        rehearsal["sampled"] = sampled(run, runner, sampled_tokens)
        display.update(4)
        display.phase("computing memory and times")
        if topology:
            rehearsal |= computed(run, episodes, tiny, topology, efficiency)
    _show(rehearsal, output_dir, console)


def _device_count(topology: str) -> int | None:
    return math.prod(map(int, read_topology(topology)[1].split("x"))) if topology else None


def _check(run: PlannedRun, runner: Runner, mesh: AnyMesh) -> None:
    """Makes the checks of the command itself; `mesh` is that of the real devices."""
    native, evaluation = run.method.native_collections, run.arguments["evaluation"]
    check_questions(run.prompts, run.collections, runner, run.program, native_collections=native)
    if run.command in ("train", "evaluate"):
        lane_sampler(configured_sampler(), configured_lanes().count)
    if run.command == "train":
        check_rewarded(run.method.reward, run.questions)
        check_exploration(runner.temperature)
        check_rows(run.arguments["layout"], configured_sampler().context, mesh)
    if evaluation is not None:
        check_rewarded(evaluation.reward, evaluation.questions)


def _runner(run: PlannedRun) -> Runner:
    """The command's runner, over few slots of the tiny policy."""
    policy, settings = run.policy, configured_sampler()
    small = dataclasses.replace(settings, slots=min(settings.slots, TINY_SLOTS))
    sampler = Sampler(policy.config, policy.params, policy.tokenizer, small, policy.mesh)
    runner = make_runner(sampler, policy, run.collections, run.seed)
    return dataclasses.replace(runner, max_tokens=run.max_tokens or runner.max_tokens)


def _played(
    run: PlannedRun, runner: Runner, generated_tokens: int, progress: Callable[[int, int], None]
) -> ScriptedEpisodes:
    return play_script(
        run.prompts,
        run.program,
        runner,
        run.policy.tokenizer,
        slots=configured_sampler().slots,
        generated_tokens=generated_tokens,
        queries=run.settings.get("queries", 1),
        calls=run.settings.get("calls", 0),
        progress=progress,
    )


def measured(
    run: PlannedRun,
    runner: Runner,
    episodes: ScriptedEpisodes,
    generated_tokens: int,
    replaced: Sequence[str],
) -> dict[str, Any]:
    """Returns the measurements of the scripted episodes."""
    each = f"{generated_tokens:,} tokens (at most {runner.max_tokens:,})"
    pretended = f" {', '.join(sorted(set(replaced)))} only pretended to answer." if replaced else ""
    return {
        "command": run.command,
        "method": run.method.name,
        "policy": run.policy.name,
        "questions": len(run.questions),
        "assumed": f"every generation has {each}, and the policy searches as often as it may.{pretended}",
        "lengths": {group: lengths(played) for group, played in grouped(episodes.played).items()},
        "tokens_per_word": tokens_per_word(texts_by_language(episodes.played), run.policy.tokenizer),
        "retrieval": _retrieval(episodes),
    }


def grouped(played: Sequence[Played]) -> dict[str, list[Played]]:
    """Returns the episodes by language; by data set if there is one language and several sets; and all of them."""
    languages = {each.language for each in played}
    groups: dict[str, list[Played]] = {}
    for each in played:
        groups.setdefault(each.language if len(languages) > 1 else each.record.question.dataset, []).append(each)
    return {**groups, "all": list(played)} if len(groups) > 1 else {each: groups[each] for each in groups}


def _retrieval(episodes: ScriptedEpisodes) -> dict[str, Any] | None:
    search = episodes.search
    if not search.seconds and not search.errors:
        return None
    return {
        "clients": episodes.clients,
        "calls": len(search.seconds),
        "pairs": spread(search.pairs),
        "seconds": spread(search.seconds),
        "failed_calls": sum(search.errors.values()),
        "failures": sum(each.record.counts["retrieval_failures"] for each in episodes.played),
        "errors": dict(search.errors),
    }


def _answerable(run: PlannedRun, played: Sequence[Played], most_passages: int) -> dict[str, Any]:
    """Returns the questions by language, and the share that can be answered from passages on this machine."""
    passages = passages_here(run.collections)
    if passages is None:
        counts = collections.Counter(question.language for question in run.questions)
        languages: dict[str, Any] = {code: {"questions": count} for code, count in counts.items()}
        about: dict[str, Any] = {}
    else:
        languages = answerable(run.questions, passages, most_passages)
        looked = {code: len(rows_of(own, most_passages)) for code, own in passages.items()}
        about = {"passages": looked, "partial": any(looked[code] < len(own) for code, own in passages.items())}
    for code in languages:
        own = [each for each in played if each.language == code]
        if own and run.collections.languages:
            languages[code] |= {"found": float(np.mean([each.answer_found for each in own]))}
            languages[code] |= {"shown": float(np.mean([each.answer_shown for each in own]))}
    return {"languages": languages, **about}


def sampled(run: PlannedRun, runner: Runner, most_tokens: int) -> dict[str, Any]:
    """Samples some episodes with the tiny policy, and in training scores them and learns from them."""
    arguments, method, policy = run.arguments, run.method, run.policy
    asked = method.prompts(run.groups[: 1 if method.samples > 1 else 2]) if run.groups else run.prompts[:TINY_SLOTS]
    about = {"parameters": parameter_count(policy.config), "policy": policy.name}
    started = time.monotonic()
    short = dataclasses.replace(runner, max_tokens=min(most_tokens, runner.max_tokens))
    records = short.run([(each, run.program(each), number) for number, each in enumerate(asked)])
    metrics: dict[str, float] = {
        "episodes": len(records),
        "sampled tokens": sum(each.counts["policy_tokens"] for each in records),
        "seconds of the rollout, compiling included": time.monotonic() - started,
    }
    if not run.groups:
        return about | {"metrics": metrics}
    started = time.monotonic()
    trajectories = method.score(records, 0).trajectories()
    objective, optimizer, critic = (arguments[name] for name in ("objective", "optimizer", "critic"))
    layout = dataclasses.replace(arguments["layout"], rows=1, min_micro_batches=1)
    learned = Learner(policy, objective, optimizer, layout, runner.temperature, critic).learn(trajectories)
    metrics["seconds of the update, compiling included"] = time.monotonic() - started
    metrics["largest difference of log-probabilities, sampler and trainer"] = learned["sampling_training_gap"]
    return about | {"metrics": metrics}


def computed(
    run: PlannedRun, episodes: ScriptedEpisodes, tiny: TinyParts, topology: str, efficiency: float
) -> dict[str, Any]:
    """Returns memory, times and costs on other devices, by formula or by their compiler."""
    accelerator, devices = read_topology(topology)[0], _device_count(topology)
    assert tiny.decoder is not None
    plan = abstract_plan(run.command, tiny.decoder, tiny.platform(devices), run.arguments)
    work = Workload.of(episodes, prompts=run.prompts_per_step, samples=run.samples)
    repeats = {name: run.arguments.get(key, 1) for name, key in REPEATS.items()}
    phases = phases_of(plan, work, **repeats, learns=run.command == "train")
    in_step = run.prompts_per_step * run.samples
    calls = sum(episodes.search.seconds) / len(episodes.played) * in_step if episodes.search.seconds else 0.0
    shared: dict[str, Any] = {"devices": devices, "steps": run.steps}
    memory = memory_of(run.command, plan, run.arguments, topology)
    cases: list[tuple[float | Mapping[str, float], float]] = [*dict.fromkeys([(1.0, 0.0), (1.0, calls)])]
    cases += [(shares, 0.0)] if (shares := compiled_shares(memory)) else []
    cases += [(efficiency, calls)] if efficiency < 1 else []
    runs = [
        run_costs(phases, work, accelerator, efficiency=share, retrieval_seconds=seconds, **shared)
        for share, seconds in cases
    ]
    costs = {
        "device": accelerator.name,
        "devices": devices,
        "mesh": dict(plan.mesh.shape),
        "steps": run.steps,
        "episodes": in_step,
        "reading": READING + (TOO_FEW.format(missing=run.missing) if run.missing else ""),
        "runs": runs,
    }
    return {"memory": memory, "costs": costs}


def _show(rehearsal: Mapping[str, Any], output_dir: pathlib.Path | None, console: Console) -> None:
    shown = tables(rehearsal)
    for table in shown:
        console.print(to_rich(table))
    if output_dir is not None:
        output_dir.mkdir(parents=True, exist_ok=True)
        write_json(output_dir / "rehearsal.json", rehearsal)
        write_text(output_dir / "rehearsal.md", "\n".join(map(to_markdown, shown)))
        console.print(f"written to {output_dir}", highlight=False)
