"""`lcrag export`: a checkpoint as a Hugging Face folder, or with `--to=FORMAT` the episodes of a run.

Episodes become ATIF trajectories, or messages for fine-tuning. ATIF is Harbor's Agent Trajectory Interchange Format
(`rfcs/0001-trajectory-format.md` of harbor-framework/harbor), here in version 1.8. Its models forbid further fields, so
whatever they do not know is in `extra`, and nothing is lost.
"""

import importlib.metadata
import itertools
import json
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gin
import jax

from lcrag.commands.command_line import Arguments
from lcrag.errors import UserError
from lcrag.files import replacing_folder, write_json_lines
from lcrag.learning.checkpoints import Checkpoints, abstract_state
from lcrag.learning.learners import frozen_fingerprint
from lcrag.policy import Policy, join, save_policy, split_trainable
from lcrag.policy.config import ComputeDtype
from lcrag.runs import check_used
from lcrag.runs.folder import CHECKPOINTS

FORMATS = ("atif", "messages")
USAGE = "lcrag export RUN [STEP] [--to=FORMAT] --output_dir=FOLDER"
VERSION = "ATIF-v1.8"
IN_STEPS = ("prompt", "turns", "tokens")  # keys of a row whose values are stored in the steps
KEPT = ("question_id", "dataset", "language", "answer", "rewards")  # keys of a row that its messages keep

Row = Mapping[str, Any]


@gin.configurable
def export(
    output_dir: pathlib.Path | None, words: Sequence[str], *, policy: Policy, dtype: ComputeDtype | None = None
) -> None:
    """Writes the policy of a checkpoint with its tokenizer and chat template; adapters are merged.

    Args:
      words: The run's folder and optionally the step; default: the latest that is intact.
      policy: The policy that the run started from, as its configuration names it.
      dtype: Dtype of the stored tensors; None: float32, or with adapters that of the folder that the run started from.
    """
    output_dir, run, wanted = _checked(output_dir, words)
    if not (run / CHECKPOINTS).is_dir():
        raise UserError(f"there are no checkpoints in {run}: name the --output_dir of lcrag train or sft")
    if wanted is not None and not wanted.isdecimal():
        raise UserError(f"the step {wanted!r} is not a number: {USAGE}")
    check_used()
    learned, frozen = split_trainable(policy.config, policy.params)
    shapes = abstract_state(learned)
    base = frozen_fingerprint(policy)
    jax.tree.map(lambda leaf: leaf.delete(), learned)  # two sets of parameters may not fit
    with Checkpoints(run / CHECKPOINTS, base=base, read_only=True) as checkpoints:
        step, params = checkpoints.restore_params(shapes, None if wanted is None else int(wanted))
    save_policy(output_dir, policy, join(params, frozen), dtype)
    print(f"step {step} of {run} is in {output_dir}")


def _checked(output: pathlib.Path | None, words: Sequence[str]) -> tuple[pathlib.Path, pathlib.Path, str | None]:
    """Returns the folder to write to, which must be missing or empty, the run's folder, and the step or file wanted."""
    if output is None or not 1 <= len(words) <= 2:
        raise UserError(f"lcrag export takes a run's folder, optionally a step, and a folder to write to: {USAGE}")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError(f"{output} is not empty: choose another --output_dir")
    return output, pathlib.Path(words[0]), words[1] if len(words) == 2 else None


# --- Episodes.


def export_episodes(arguments: Arguments) -> None:
    """Writes a run's episodes in another format: all, one step, or one file of `episodes/` (its name in `words`)."""
    name = arguments.options["--to"]
    if name not in FORMATS:
        raise UserError(f"there is no format {name}: use {' or '.join(FORMATS)}, or no --to for a Hugging Face folder")
    if arguments.gin_files or arguments.bindings:
        raise UserError("lcrag export --to takes no configuration: leave out --gin_file and --gin.")
    output, run, wanted = _checked(arguments.output_dir, arguments.words)
    files = sorted((run / "episodes").glob("[!.]*.jsonl"), key=lambda path: (len(path.stem), path.stem))
    if not files:
        raise UserError(f"{run} holds no episodes/*.jsonl: name the --output_dir of another command")
    if wanted is not None:
        wanted, known = f"step_{wanted}" if wanted.isdecimal() else wanted, [path.stem for path in files]
        if wanted not in known:
            raise UserError(f"{run}/episodes holds no {wanted}.jsonl; there are {', '.join(known)}")
        files = [files[known.index(wanted)]]
    with replacing_folder(output) as made:  # a damaged row leaves no half of an export
        for path in files:
            write_json_lines(made / path.name, converted(path, name, run.resolve().name))
    print(f"{len(files)} {'file' if len(files) == 1 else 'files'} of {run} as {name} in {output}")


def converted(path: pathlib.Path, name: str, run: str) -> Iterator[dict[str, Any]]:
    """Yields each row of a file of episodes in the format `name`."""
    for line, text in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(text)
            if name == "messages":
                yield messages_of(row)
            else:
                yield trajectory_of(row, session_id=run, trajectory_id=f"{run}/{path.stem}/{line}")
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise UserError(f"{path}, line {line}, cannot be exported ({reason}): remove that line") from error


def messages_of(row: Row) -> dict[str, Any]:
    """Converts the row of an episode or a demonstration to chat messages, which `lcrag.data.demonstrations` reads.

    The policy's texts have the role "assistant"; as in OpenAI's fine-tuning files, `"weight": 0` marks one that is not
    learned. The environment's are "user": "tool" would require calls with ids, but searches are the policy's text.
    """
    messages = [{"role": "system", "content": row["system"]}] if row.get("system") else []
    messages += [{"role": "user", "content": text} for text in row.get("opening") or [row["prompt"]]]
    for turn in row["turns"]:
        unlearned = {"weight": 0} if turn["by"] == "policy" and turn.get("learn") is False else {}
        role = "assistant" if turn["by"] == "policy" else "user"
        messages.append({"role": role, "content": turn["text"], **unlearned})
    return {"messages": messages} | {key: row[key] for key in KEPT if key in row}


def trajectory_of(row: Row, *, session_id: str, trajectory_id: str) -> dict[str, Any]:
    """Converts a line of `episodes/*.jsonl` to an ATIF trajectory, without loss.

    The prompt is a user step, each turn of the policy an agent step, and the environment's text after a turn is the
    observation of that step. There are no tool calls, because programs parse searches from the policy's text.

    Raises:
      ValueError: the row has no tokens, its turns and tokens disagree, or they have unknown keys.
    """
    # --- The prompt and the turns, each with its token ids and, for the policy's turns, log-probabilities.
    if "tokens" not in row:
        raise ValueError("it holds no token ids, as in runs of older versions: export messages instead")
    turns, tokens = [{"by": "environment", "text": row["prompt"]}, *row["turns"]], row["tokens"]
    if any(set(turn) != {"by", "text"} for turn in turns) or set(tokens) != {"ids", "log_probabilities", "pieces"}:
        raise ValueError("its turns or tokens have keys that this version does not know")
    lengths = dict(map(tuple, tokens["pieces"]))  # number of a turn (-1: the prompt) -> of its tokens
    written = [lengths.get(number, 0) if turn["by"] == "policy" else 0 for number, turn in enumerate(turns, start=-1)]
    ordered = [[number, lengths[number]] for number in range(-1, len(row["turns"])) if number in lengths]
    whole = (sum(lengths.values()), sum(written)) == (len(tokens["ids"]), len(tokens["log_probabilities"]))
    if ordered != tokens["pieces"] or not whole:
        raise ValueError("the pieces of its tokens do not add up to its turns, ids and log-probabilities")
    all_ids, all_scores = iter(tokens["ids"]), iter(tokens["log_probabilities"])

    # --- The steps.
    shared = {key: row.get(key) for key in ("policy_version", "advantage", "language")}
    steps: list[dict[str, Any]] = []
    context: list[int] = []  # the tokens before a turn
    for number, (turn, count) in enumerate(zip(turns, written, strict=True), start=-1):
        ids, scores = list(itertools.islice(all_ids, lengths.get(number, 0))), list(itertools.islice(all_scores, count))
        environment = {"by": "environment", "mask": 0, "token_ids": ids}
        if turn["by"] == "policy":
            metrics: dict[str, Any] = {"prompt_tokens": len(context), "completion_tokens": len(ids)}
            metrics |= {"prompt_token_ids": list(context), "completion_token_ids": ids}
            # In a row, null stands for NaN and infinity; the format allows no null in log-probabilities.
            metrics |= {"extra": {"logprobs": scores}} if None in scores else {"logprobs": scores}
            step = {"source": "agent", "message": turn["text"], "llm_call_count": 1, "metrics": metrics}
            steps.append(step | {"extra": {"by": "policy", "mask": 1, **shared}})
        elif steps and "metrics" in steps[-1]:
            results = steps[-1].setdefault("observation", {"results": []})["results"]
            results.append({"content": turn["text"], "extra": environment})
        else:
            steps.append({"source": "user", "message": turn["text"], "extra": environment})
        context += ids
    sampled = [step["metrics"] for step in steps if "metrics" in step]
    return {
        "schema_version": VERSION,
        "session_id": session_id,
        "trajectory_id": trajectory_id,
        "agent": {"name": "lcrag", "version": importlib.metadata.version("lcrag")},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, start=1)],
        "final_metrics": {
            "total_prompt_tokens": sum(metrics["prompt_tokens"] for metrics in sampled),
            "total_completion_tokens": sum(metrics["completion_tokens"] for metrics in sampled),
            "total_steps": len(steps),
        },
        "extra": {key: value for key, value in row.items() if key not in IN_STEPS} | {"lcrag": {"keys": list(row)}},
    }
