"""Describes the learning of a command: rewards, objective with its normaliser, and the learning rate schedule."""

from collections.abc import Mapping
from typing import Any

from lcrag.commands.describe.run_plan import plain
from lcrag.composition.bound_values import BoundValues
from lcrag.composition.gin_files import Reference
from lcrag.composition.stand_ins import Composition
from lcrag.train.method import Method

# The normaliser of each aggregation of a loss; see `lcrag.learning.losses`.
NORMALISERS = {
    "sequence_mean": "each episode's sum / its policy tokens, then / the episodes of the mini-batch",
    "token_mean": "sum over all policy tokens of the mini-batch / their number",
    "constant": "sum over all policy tokens of the mini-batch / (its episodes x {constant_length} tokens)",
}


def rewards(command: str, bound: BoundValues) -> dict[str, Any]:
    """Returns the reward of a command's method with its settings, including those of objects that it refers to."""
    method = bound.value(f"{command}.method")
    return _expanded(bound, bound.value(f"{method.name}.reward"), method.name, depth=3)


def _expanded(bound: BoundValues, value: Any, called_in: str, depth: int) -> Any:
    """Replaces a reference by its name and settings, `depth` references deep; `called_in` names the caller."""
    if not isinstance(value, Reference) or not value.evaluated or not depth:
        return str(value) if isinstance(value, Reference) else plain(value)
    scope = called_in.rpartition("/")[0]
    name = f"{scope}/{value.name}" if scope and "/" not in value.name else value.name
    settings = bound.settings(Reference(name, True))
    return {
        value.name: {each: _expanded(bound, given, name, depth - 1) for each, given in settings.items()},
    }


def learning(composition: Composition, bound: BoundValues, episodes: int | None) -> dict[str, Any]:
    """Returns steps, updates, objective and learning rates of a training; None for commands that do not learn."""
    arguments = composition.arguments
    if composition.command == "sft":
        return {
            "steps": arguments["steps"],
            "updates_per_step": 1,
            "rows": {name: plain(arguments[name]) for name in ("rows", "validation_rows", "rows_per_step")},
            "objective": {"name": "supervised", **_aggregated(arguments["objective"])},
            "learning_rate": _rate(bound, "sft.optimizer"),
        }
    if composition.command != "train":
        return {"steps": None, "updates_per_step": None, "objective": None, "learning_rate": None}
    updates = arguments["updates_per_rollout"] * arguments["passes_per_rollout"]
    critic = arguments["critic"]
    return {
        "steps": arguments["steps"],
        "updates_per_step": updates,
        "episodes_per_update": episodes and episodes / arguments["updates_per_rollout"],
        "max_rollouts": arguments["max_rollouts"],
        "objective": _objective(arguments["objective"], arguments["method"], critic),
        "learning_rate": _rate(bound, "train.optimizer"),
        "critic": critic
        and {name: getattr(critic, name) for name in ("discount", "trace", "value_clip", "kl_in_reward", "whiten")}
        | {"learning_rate": _rate(bound, "Critic.optimizer")},
    }


def _objective(objective: Any, method: Method, critic: Any) -> dict[str, Any]:
    clips = {name: getattr(objective, name) for name in ("ratio", "clip_low", "clip_high", "importance_cap")}
    kl = {name: getattr(objective, name) for name in ("kl_coefficient", "kl_estimator")}
    return {
        "name": "PPO" if critic else "GSPO" if objective.ratio == "sequence" else "GRPO",
        **_aggregated(objective),
        **clips,
        **kl,
        "advantages": _advantages(method, critic),
    }


def _aggregated(objective: Any) -> dict[str, Any]:
    normaliser = NORMALISERS[objective.aggregation].format_map(vars(objective))
    return {"aggregation": objective.aggregation, "normaliser": normaliser}


def _advantages(method: Method, critic: Any) -> str:
    """How advantages come from rewards."""
    if critic is not None:
        return f"of a critic, generalised with discount {critic.discount:g} and trace {critic.trace:g}"
    alone = method.coupling == "independent" or method.baseline == "prompt"
    group = "the samples of one prompt" if alone else "all episodes of a coupled question"
    if not method.normalise_std:
        return f"reward - mean over {group}"
    floor = f", at least {method.min_std:g}" if method.min_std else ""
    return f"(reward - mean) / standard deviation{floor} over {group}"


def _rate(bound: BoundValues, optimizer: str) -> Mapping[str, Any]:
    """The schedule of an optimizer's learning rate, in training steps."""
    settings = bound.settings(bound.value(optimizer))
    steps, share = settings["steps"], settings["warmup_share"]
    warm = f"linear warm-up over the first {round(steps * share):,} of {steps:,} steps, then " if share else ""
    after = {"constant": "constant", "cosine": "a cosine to 0"}.get(settings["decay"], settings["decay"])
    return {
        "peak": settings["learning_rate"],
        "warmup_steps": round(steps * share),
        "steps": steps,
        "decay": settings["decay"],
        "weight_decay": settings["weight_decay"],
        "gradient_clip": settings["gradient_clip"],
        "schedule": f"{warm}{after}",
    }
