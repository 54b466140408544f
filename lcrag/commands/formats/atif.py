"""Lossless conversion of episodes to and from ATIF 1.7, Harbor's Agent Trajectory Interchange Format.

Harbor's RFC 0001 (`rfcs/0001-trajectory-format.md` of harbor-framework/harbor) and its pydantic models
`harbor.models.trajectories` define the format. The models forbid additional fields, so all other data is in `extra`.

The prompt is a user step, each turn of the policy an agent step, and the environment's text after a turn is the
observation of that step. There are no tool calls, because programs parse searches from the policy's text.
"""

import importlib.metadata
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

VERSION = "ATIF-v1.7"
IN_STEPS = ("prompt", "turns", "tokens")  # keys of a row whose values are stored in the steps
_TOKENS = ("ids", "log_probabilities", "pieces")


def trajectory_of(row: Mapping[str, Any], *, session_id: str, trajectory_id: str) -> dict[str, Any]:
    """Converts the row of an episode to a trajectory.

    Args:
      row: A line of `episodes/*.jsonl`; see `lcrag.episodes.episode_json`.
      session_id: Name of the run.
      trajectory_id: Name of the episode in the run.

    Raises:
      ValueError: the row has no tokens, its turns and tokens disagree, or they have unknown keys.
    """
    if "tokens" not in row:
        raise ValueError(
            "it holds no token ids, as in runs of older versions: ATIF keeps tokens; run again, or export messages"
        )
    steps = list(_steps(row))
    metrics = [step["metrics"] for step in steps if "metrics" in step]
    return {
        "schema_version": VERSION,
        "session_id": session_id,
        "trajectory_id": trajectory_id,
        "agent": {"name": "lcrag", "version": importlib.metadata.version("lcrag")},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "final_metrics": {
            "total_prompt_tokens": sum(each["prompt_tokens"] for each in metrics),
            "total_completion_tokens": sum(each["completion_tokens"] for each in metrics),
            "total_steps": len(steps),
        },
        "extra": {key: value for key, value in row.items() if key not in IN_STEPS} | {"lcrag": {"keys": list(row)}},
    }


def _steps(row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the steps without their numbers."""
    shared = {key: row.get(key) for key in ("policy_version", "advantage", "language")}
    context: list[int] = []
    step: dict[str, Any] = {}
    for turn, ids, scores in _turns(row):
        if turn["by"] == "policy":
            yield from filter(None, [step])
            step = _agent_step(turn, context, ids, scores) | {"extra": {"by": "policy", "mask": 1, **shared}}
        elif "metrics" in step:
            results = step.setdefault("observation", {"results": []})["results"]
            results.append({"content": turn["text"], "extra": _environment(ids)})
        else:
            yield from filter(None, [step])
            step = {"source": "user", "message": turn["text"], "extra": _environment(ids)}
        context += ids
    yield step


def _environment(ids: list[int]) -> dict[str, Any]:
    return {"by": "environment", "mask": 0, "token_ids": ids}


def _agent_step(
    turn: Mapping[str, Any], context: list[int], ids: list[int], scores: list[float | None]
) -> dict[str, Any]:
    metrics: dict[str, Any] = {
        "prompt_tokens": len(context),
        "completion_tokens": len(ids),
        "prompt_token_ids": list(context),
        "completion_token_ids": ids,
    }
    # In a row, null stands for NaN and infinity; the format allows no null in log-probabilities.
    metrics |= {"extra": {"logprobs": scores}} if None in scores else {"logprobs": scores}
    return {"source": "agent", "message": turn["text"], "llm_call_count": 1, "metrics": metrics}


def _turns(row: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], list[int], list[float | None]]]:
    """Yields the prompt and the turns, each with its token ids and, for the policy's turns, log-probabilities."""
    turns = [{"by": "environment", "text": row["prompt"]}, *row["turns"]]
    tokens = row["tokens"]
    if any(set(turn) != {"by", "text"} for turn in turns) or set(tokens) != set(_TOKENS):
        raise ValueError("its turns or tokens have keys that this version does not know")
    lengths = dict(map(tuple, tokens["pieces"]))
    written = [lengths.get(number, 0) if turn["by"] == "policy" else 0 for number, turn in enumerate(turns, start=-1)]
    ordered = [[number, lengths[number]] for number in range(-1, len(row["turns"])) if number in lengths]
    whole = (sum(lengths.values()), sum(written)) == (len(tokens["ids"]), len(tokens["log_probabilities"]))
    if ordered != tokens["pieces"] or not whole:
        raise ValueError("the pieces of its tokens do not add up to its turns, ids and log-probabilities")
    ids, scores = iter(tokens["ids"]), iter(tokens["log_probabilities"])
    for number, (turn, count) in enumerate(zip(turns, written, strict=True), start=-1):
        yield turn, list(itertools.islice(ids, lengths.get(number, 0))), list(itertools.islice(scores, count))


def row_of(trajectory: Mapping[str, Any]) -> dict[str, Any]:
    """Converts a trajectory of `trajectory_of` back to the row, with its keys in the original order.

    Raises:
      ValueError: the trajectory was not exported by lcrag, or its tokens were changed inconsistently.
    """
    if trajectory.get("schema_version") != VERSION:
        raise ValueError(f"its schema_version is {trajectory.get('schema_version')!r}, not {VERSION!r}")
    extra = trajectory.get("extra") or {}
    if "lcrag" not in extra:
        raise ValueError("it was not exported by lcrag: its extra has no 'lcrag'")
    steps = trajectory["steps"]
    turns = [*_written(steps)]
    if not turns or turns[0][0]["by"] == "policy":
        raise ValueError("its first step is not the prompt")
    row = dict(extra) | {
        "prompt": turns[0][0]["text"],
        "turns": [turn for turn, _, _ in turns[1:]],
        "tokens": _tokens((ids, scores) for _, ids, scores in turns),
    }
    return {key: row[key] for key in extra["lcrag"]["keys"]}


def _written(steps: Iterable[Mapping[str, Any]]) -> Iterator[tuple[dict[str, str], list[int], list[float | None]]]:
    """Yields the turns that the steps contain, in the form of `_turns`."""
    context: list[int] = []
    for step in steps:
        if step["source"] == "agent":
            metrics = step["metrics"]
            if metrics["prompt_token_ids"] != context:
                raise ValueError(f"the prompt_token_ids of step {step['step_id']} are not the tokens before it")
            scores = metrics["logprobs"] if "logprobs" in metrics else metrics["extra"]["logprobs"]
            texts = [("policy", step["message"], metrics["completion_token_ids"], scores)]
        else:
            texts = [("environment", step["message"], step["extra"]["token_ids"], [])]
        for result in (step.get("observation") or {"results": ()})["results"]:
            texts.append(("environment", result["content"], result["extra"]["token_ids"], []))
        for by, text, ids, scores in texts:
            context += ids
            yield {"by": by, "text": text}, ids, scores


def _tokens(written: Iterable[tuple[list[int], list[float | None]]]) -> dict[str, Any]:
    parts = list(written)
    return {
        "ids": [each for ids, _ in parts for each in ids],
        "log_probabilities": [each for _, scores in parts for each in scores],
        "pieces": [[number, len(ids)] for number, (ids, _) in enumerate(parts, start=-1) if ids],
    }
