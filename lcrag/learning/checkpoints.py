"""Saves and restores the train state with Orbax: in the background, each checkpoint complete or absent."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import orbax.checkpoint as ocp
from jaxtyping import PyTree
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, BestN, LatestN

from lcrag.errors import UserError

ITEM = "default"  # Orbax's folder for what is saved without a name


def abstract_state(state: PyTree) -> PyTree:
    """Return shapes, dtypes and shardings of a state, onto which a checkpoint can be restored."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), state)


def _difference(saved: PyTree, wanted: PyTree) -> str | None:
    """Name the first array that the two trees do not share."""
    found, expected = (
        {
            "/".join(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path): (
                tuple(leaf.shape),
                str(leaf.dtype),
            )
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: hasattr(node, "shape"))
        }
        for tree in (saved, wanted)
    )
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            there, here = (str(side[name][0]) if name in side else "absent" for side in (found, expected))
            return f"{name} is {there} there and {here} here"
    return None


@contextlib.contextmanager
def _one_error() -> Iterator[None]:
    """Suppress the tracebacks of reads that outlive a failed restore.

    Orbax reads all arrays at once and gives up at the first failure; the others then find its event loop closed, in
    threads of TensorStore that only the interpreter's hook reaches. After a failure the hook stays.
    """
    hook = sys.unraisablehook

    def without_late_reads(unraisable):
        if "Event loop is closed" not in str(unraisable.exc_value):
            hook(unraisable)

    sys.unraisablehook = without_late_reads
    yield
    sys.unraisablehook = hook


class Checkpoints:
    """Checkpoints `<folder>/<step>/` of one run; a killed save leaves the one before it intact.

    Args:
      folder: Of the checkpoints, created if missing.
      keep: How many of the latest are kept, in addition to the one with the lowest validation loss.
      base: Fingerprint of the frozen parameters that the saved ones belong to, which are not saved themselves; None
        if nothing is frozen.
    """

    def __init__(self, folder: str | Path, keep: int = 3, base: str | None = None):
        self.folder, self._base = Path(folder).absolute(), base
        best = BestN(
            get_metric_fn=lambda metrics: (metrics["loss"], metrics["step"]),
            reverse=True,
            n=1,
            keep_checkpoints_without_metrics=False,
        )
        options = ocp.CheckpointManagerOptions(
            preservation_policy=AnyPreservationPolicy([LatestN(keep), best]),
            best_fn=lambda metrics: metrics["loss"],  # without one Orbax forgets the metrics when it closes
            best_mode="min",
            enable_async_checkpointing=True,
            create=True,
        )
        self._orbax = ocp.CheckpointManager(self.folder, options=options, item_handlers=ocp.StandardCheckpointHandler())
        saved = {step: self._orbax.metrics(step) for step in self._orbax.all_steps()}
        self._losses: dict[int, float] = {step: metrics["loss"] for step, metrics in saved.items() if metrics}

    def save(self, step: int, state: PyTree, validation_loss: float | None = None) -> None:
        """Copy the state off the devices, then write it in the background; waits for the save before this one."""
        if validation_loss is not None:
            self._losses[step] = validation_loss
        self._orbax.save(
            step,
            args=ocp.args.StandardSave(state),
            metrics=None if validation_loss is None else {"loss": validation_loss, "step": step},
            force=True,
            custom_metadata={"base": self._base},
        )

    def latest_step(self) -> int | None:
        """Return the step of the latest complete checkpoint, or None."""
        return self._orbax.latest_step()

    def best_step(self) -> int | None:
        """Return the first step with the lowest validation loss, or None."""
        return min(self._losses, key=lambda step: (self._losses[step], step), default=None)

    def restore(self, abstract: PyTree, step: int | None = None) -> PyTree:
        """Read a checkpoint, by default the latest, onto the shardings of `abstract` (see `abstract_state`).

        Raises:
          UserError: No such checkpoint, one that cannot be read, or one of another architecture, optimizer or base.
        """
        arguments = ocp.args.StandardRestore(abstract)
        return self._read(abstract, step, lambda step: self._orbax.restore(step, args=arguments))

    def continue_from(self, state: PyTree) -> tuple[int, PyTree]:
        """Return the latest step and the state saved then, or 0 and `state`; frees the memory of a replaced `state`."""
        step = self.latest_step()
        if step is None:
            return 0, state
        wanted = abstract_state(state)
        jax.tree.map(lambda leaf: leaf.delete(), state)  # one state has room, two may not
        return step, self.restore(wanted, step)

    def restore_params(self, abstract: PyTree, step: int | None = None) -> PyTree:
        """Read only `params` of a checkpoint, onto the shardings of `abstract`; see `restore`."""
        wanted = {"params": abstract}
        arguments = ocp.args.PyTreeRestore(
            item=wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=True
        )

        def read(step: int) -> PyTree:
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
                return reader.restore(self.folder / str(step) / ITEM, args=arguments)["params"]

        return self._read(wanted, step, read)

    def _read(self, abstract: PyTree, step: int | None, read: Callable[[int], PyTree]) -> PyTree:
        """Return what `read` returns for a step, after checking that its arrays are those of `abstract`."""
        steps = sorted(self._orbax.all_steps())
        if not steps:
            raise UserError(f"there is no checkpoint in {self.folder}: give the folder of a run that has saved one.")
        step = steps[-1] if step is None else step
        if step not in steps:
            raise UserError(f"there is no checkpoint of step {step} in {self.folder}: choose one of {steps}.")
        try:
            with _one_error():
                saved = self._orbax.item_metadata(step)
                if isinstance(abstract, dict) and saved is not None:  # only some entries are wanted
                    saved = {name: saved[name] for name in abstract if name in saved}
                difference = None if saved is None else _difference(saved, abstract) or self._other_base(step)
                state = None if difference else read(step)
        except (ValueError, OSError, KeyError, TypeError) as error:
            others = f"or resume from step {steps[-2]}" if len(steps) > 1 else "or begin the run anew"
            raise UserError(
                f"the checkpoint in {self.folder / str(step)} cannot be read ({type(error).__name__}), so it is "
                f"damaged or incomplete: restore that folder from a copy, {others} by deleting it."
            ) from error
        if difference:
            raise UserError(
                f"the checkpoint in {self.folder / str(step)} is of another model or optimizer ({difference}): "
                "resume with the configuration it was trained with (config.gin in that folder), or choose a new folder."
            )
        return state

    def _other_base(self, step: int) -> str | None:
        there = (self._orbax.metadata(step).custom_metadata or {}).get("base")
        return None if there == self._base else f"its frozen weights are {there} there and {self._base} here"

    def wait(self) -> None:
        """Return when everything saved so far is complete on disk."""
        self._orbax.wait_until_finished()

    def close(self) -> None:
        """Finish the saves under way and let go of the folder."""
        self._orbax.close()

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception) -> None:
        self.close()
