"""`lcrag export`: writes a checkpoint of a run as a Hugging Face folder, which `transformers` opens."""

import pathlib
from collections.abc import Sequence

import gin
import jax
from rich.console import Console

from lcrag.errors import UserError
from lcrag.learning.checkpoints import Checkpoints, abstract_state
from lcrag.learning.learners import frozen_fingerprint
from lcrag.policy import Policy, join, split_trainable
from lcrag.policy.config import ComputeDtype
from lcrag.runs import check_used
from lcrag.runs.folder import CHECKPOINTS
from lcrag.train.setup import save_policy

USAGE = "lcrag export RUN [STEP] --output_dir=FOLDER"


@gin.configurable
def export(
    output_dir: pathlib.Path | None, words: Sequence[str], *, policy: Policy, dtype: ComputeDtype | None = None
) -> None:
    """Writes the policy of a checkpoint with its tokenizer and chat template; adapters are merged.

    Args:
      output_dir: Folder to write to, missing or empty.
      words: The run's folder and optionally the step; default: the latest that is intact.
      policy: The policy that the run started from, as its configuration names it.
      dtype: Dtype of the stored tensors; None: float32, in which weights are trained, or with adapters the dtype of the
        folder that the run started from.
    """
    if output_dir is None or not 1 <= len(words) <= 2:
        raise UserError(f"lcrag export takes a run's folder, optionally a step, and a folder to write to: {USAGE}")
    if output_dir.exists() and any(output_dir.iterdir()):
        raise UserError(f"{output_dir} is not empty: choose another --output_dir")
    run, wanted = pathlib.Path(words[0]), words[1] if len(words) == 2 else None
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
    Console().print(f"step {step} of {run} is in {output_dir}", soft_wrap=True, markup=False, highlight=False)
