"""`lcrag export`: a checkpoint of a run as a Hugging Face folder, which `transformers` opens."""

import pathlib
from collections.abc import Sequence

import jax
from rich.console import Console

from lcrag.app.runs.folder import CHECKPOINTS
from lcrag.app.runs.saving import save_policy
from lcrag.errors import UserError
from lcrag.learning.checkpoints import Checkpoints, abstract_state
from lcrag.policy import Policy, join, split_trainable
from lcrag.policy.config import ComputeDtype
from lcrag.policy.fingerprint import parameter_fingerprint

USAGE = "lcrag export RUN [STEP] --output_dir=FOLDER"


def export(
    output_dir: pathlib.Path | None,
    words: Sequence[str],
    *,
    policy: Policy,
    dtype: ComputeDtype | None = None,
) -> None:
    """Writes the policy of a checkpoint with its tokenizer and chat template; adapters are merged.

    Args:
      output_dir: Where to write; it must not hold anything yet.
      words: The run's folder and, unless the latest is wanted, the step.
      policy: What the run started from, as its configuration says.
      dtype: Of the tensors in the files; None: float32, in which weights are trained, and with adapters that of the
        folder that the run started from.

    Raises:
      UserError: no folder to write to or one that is not empty, no such run or step, or a checkpoint that cannot be
        read or belongs to other frozen weights.
    """
    if output_dir is None:
        raise UserError(f"lcrag export needs a folder to write to: {USAGE}")
    if output_dir.exists() and any(output_dir.iterdir()):
        raise UserError(f"{output_dir} is not empty: choose another --output_dir, so that nothing in it is lost")
    run, step = _run_and_step(words)
    learned, frozen = split_trainable(policy.config, policy.params)
    wanted = abstract_state(learned)
    base = parameter_fingerprint(frozen) if frozen else None
    jax.tree.map(lambda leaf: leaf.delete(), learned)  # one set of parameters has room, two may not
    with Checkpoints(run / CHECKPOINTS, base=base) as checkpoints:
        step = checkpoints.latest_step() if step is None else step
        params = checkpoints.restore_params(wanted, step)
    save_policy(output_dir, policy, join(params, frozen), dtype)
    Console().print(f"step {step} of {run} is in {output_dir}", soft_wrap=True, markup=False, highlight=False)


def _run_and_step(words: Sequence[str]) -> tuple[pathlib.Path, int | None]:
    if not 1 <= len(words) <= 2:
        raise UserError(f"lcrag export takes a run's folder and perhaps a step: {USAGE}")
    run = pathlib.Path(words[0])
    if not (run / CHECKPOINTS).is_dir():
        raise UserError(f"there are no checkpoints in {run}: name the --output_dir of lcrag train or sft")
    if len(words) == 2 and not words[1].isdecimal():
        raise UserError(f"the step {words[1]!r} is not a number: {USAGE}")
    return run, int(words[1]) if len(words) == 2 else None
