"""Saves and restores the train state with Orbax: in the background, each checkpoint complete or absent.

Every checkpoint contains the digests of its files, which are compared before it is restored. A damaged checkpoint is
renamed, and the next older intact one is restored instead.
"""

import contextlib
import dataclasses
import itertools
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from lcrag.errors import UserError
from lcrag.files import full_disk, is_remote, remote_path
from lcrag.learning.checkpoint_manifest import MARK, first_intact, validation_losses, write_manifest

ITEM = "default"  # Orbax's folder for what is saved without a name
UNCOMMITTED = ".orbax-checkpoint-tmp"


def abstract_state(state: PyTree) -> PyTree:
    """Return shapes, dtypes and shardings of a state, onto which a checkpoint can be restored."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), state)


def _difference(saved: PyTree, wanted: PyTree) -> str | None:
    """Describe the first array in which the two trees differ."""
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


def _report_one_error() -> None:
    """Suppress the tracebacks of reads and writes that outlive a failed one.

    Orbax processes all arrays concurrently and gives up at the first failure. The others then find its event loop
    closed, in TensorStore's threads, whose exceptions only `sys.unraisablehook` can suppress.
    """
    hook = sys.unraisablehook

    def without_late_calls(unraisable):
        if "Event loop is closed" not in str(unraisable.exc_value):
            hook(unraisable)

    if getattr(hook, "__qualname__", "") != without_late_calls.__qualname__:
        sys.unraisablehook = without_late_calls


@dataclasses.dataclass(frozen=True)
class _LatestAndBest:
    """Orbax's preservation policy: the latest checkpoints and one more."""

    latest: int
    best: Callable[[], int | None]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        steps = [each.step for each in checkpoints]
        return [step in steps[-self.latest :] or step == self.best() for step in steps]


class Checkpoints:
    """Checkpoints `<folder>/<step>/` of one run; a killed save leaves the previous one intact.

    Args:
      folder: Folder of the checkpoints, created if missing. It may be in object storage, `gs://bucket/folder`, which
        has its own checksums; manifests there contain no digests.
      keep: Number of latest checkpoints to keep, in addition to the one with the lowest validation loss.
      base: Fingerprint of the frozen parameters, which are not saved, but belong to the saved ones; None if nothing is
        frozen.
      read_only: Change nothing in the folder, to which a run may be writing.
    """

    def __init__(self, folder: str | Path, keep: int = 3, base: str | None = None, *, read_only: bool = False):
        self._remote, self._base, self._read_only = is_remote(folder), base, read_only
        self.folder = remote_path(folder) if self._remote else Path(folder).absolute()
        self._saving: tuple[int, float | None] = (0, None)
        self._options = ocp.CheckpointManagerOptions(
            preservation_policy=_LatestAndBest(keep, self.best_step),
            enable_async_checkpointing=True,
            async_options=ocp.options.AsyncOptions(post_finalization_callback=self._write_manifest),
            lightweight_initialize=True,  # no file of a checkpoint is read before it is verified
            create=True,
            read_only=read_only,
        )
        self._open()

    def _open(self) -> None:
        if not self._read_only and not self._remote and jax.process_index() == 0:
            for killed in self.folder.glob(f"*{UNCOMMITTED}"):
                shutil.rmtree(killed)
        _report_one_error()
        handler = ocp.StandardCheckpointHandler()
        try:
            self._orbax = ocp.CheckpointManager(self.folder, options=self._options, item_handlers=handler)
        except ImportError as error:
            raise UserError(f"checkpoints in {self.folder} need a client: pip install 'lcrag[gcs]'") from error
        self._losses = validation_losses(self.folder, self._orbax.all_steps())

    def save(self, step: int, state: PyTree, validation_loss: float | None = None) -> None:
        """Copy the state from the devices, then write it in the background; waits for the previous save.

        Raises:
          OSError: The disk is full; `wait` and `close` raise it too.
        """
        with self._without_remains():
            self._orbax.wait_until_finished()
            self._saving = step, validation_loss
            if validation_loss is not None:
                self._losses[step] = validation_loss
            metadata = {"base": self._base, **MARK}
            self._orbax.save(step, args=ocp.args.StandardSave(state), force=True, custom_metadata=metadata)

    def latest_step(self) -> int | None:
        """Return the step of the latest complete checkpoint, or None."""
        return self._orbax.latest_step()

    def best_step(self) -> int | None:
        """Return the first step with the lowest validation loss, or None."""
        return min(self._losses, key=lambda step: (self._losses[step], step), default=None)

    def restore(self, abstract: PyTree, step: int | None = None) -> PyTree:
        """Read a checkpoint, by default the latest intact one, onto the shardings of `abstract` (see `abstract_state`).

        Raises:
          UserError: No such checkpoint, no intact one, or one of another architecture, optimizer or base.
        """
        return self._restored(abstract, self._chosen(step))

    def continue_from(self, state: PyTree) -> tuple[int, PyTree]:
        """Return the latest intact step and its state, or 0 and `state`; a replaced `state` is freed.

        Raises:
          UserError: There are only damaged checkpoints, or they belong to another run; see `restore`.
        """
        if self.latest_step() is None:
            return 0, state
        step = self._chosen()
        wanted = abstract_state(state)
        jax.tree.map(lambda leaf: leaf.delete(), state)  # memory may not suffice for two states
        return step, self._restored(wanted, step)

    def restore_params(self, abstract: PyTree, step: int | None = None) -> tuple[int, PyTree]:
        """Return a step and its `params` alone, onto the shardings of `abstract`; see `restore`."""
        step = self._chosen(step)
        return step, self._restored_params(abstract, step)

    def restore_best_params(self, abstract: PyTree) -> tuple[int, PyTree]:
        """Return the step of the lowest validation loss among the intact checkpoints, and its `params`."""
        self.wait()
        saved = [step for step in self._losses if step in self._orbax.all_steps()]
        step = self._first_intact(sorted(saved, key=lambda step: (self._losses[step], step)))
        return step, self._restored_params(abstract, step)

    def _restored(self, abstract: PyTree, step: int) -> PyTree:
        arguments = ocp.args.StandardRestore(abstract)
        return self._read(abstract, step, lambda: self._orbax.restore(step, args=arguments))

    def _restored_params(self, abstract: PyTree, step: int) -> PyTree:
        wanted = {"params": abstract}
        arguments = ocp.args.PyTreeRestore(
            item=wanted, restore_args=ocp.checkpoint_utils.construct_restore_args(wanted), partial_restore=True
        )

        def read() -> PyTree:
            with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
                return reader.restore(self.folder / str(step) / ITEM, args=arguments)["params"]

        return self._read(wanted, step, read)

    def _chosen(self, step: int | None = None) -> int:
        """Return a step with an intact checkpoint, by default the latest."""
        steps = sorted(self._orbax.all_steps())
        if not steps:
            raise UserError(f"there is no checkpoint in {self.folder}: give the folder of a run that has saved one.")
        if step is None:
            return self._first_intact(steps[::-1])
        if step not in steps:
            raise UserError(f"there is no checkpoint of step {step} in {self.folder}: choose one of {steps}.")
        return self._first_intact([step])

    def _first_intact(self, steps: Iterable[int]) -> int:
        """Return the first intact one of these steps, and rename the damaged ones before it.

        With several processes, the first one reads the files, and all return the same step.
        """
        chosen, problems = first_intact(self.folder, steps) if jax.process_index() == 0 else (None, {})
        if chosen is not None:
            for step, problem in problems.items():
                self._set_aside(step, problem, chosen)
        known = np.array([-1 if chosen is None else chosen, len(problems)])
        if jax.process_count() > 1:
            known = multihost_utils.broadcast_one_to_all(known)
        agreed, damaged = known.tolist()
        if agreed < 0:
            found = "; ".join(f"step {step}: {problem}" for step, problem in problems.items())
            raise UserError(
                f"no checkpoint in {self.folder} that could be restored is intact ({found or 'see the first process'}):"
                " copy one from elsewhere, choose another step, or begin anew in another folder."
            )
        if damaged and not self._read_only:
            self._orbax.close()
            self._open()
        return agreed

    def _set_aside(self, step: int, problem: str, chosen: int) -> None:
        place, kept = self.folder / str(step), ""
        if not self._read_only:
            numbered = (self.folder / f"damaged_{step}_{number}" for number in itertools.count(1))
            free = next(each for each in numbered if not each.exists())
            place.rename(free)
            kept = f" and now called {free.name}"
        print(
            f"lcrag: the checkpoint {place} is damaged{kept} ({problem}); that of step {chosen} is restored instead",
            file=sys.stderr,
        )

    def _read(self, abstract: PyTree, step: int, read: Callable[[], PyTree]) -> PyTree:
        """Return the result of `read`, after checking that the arrays of a step match `abstract`."""
        try:
            saved = self._orbax.item_metadata(step)
            if isinstance(abstract, dict) and saved is not None:  # only some entries are wanted
                saved = {name: saved[name] for name in abstract if name in saved}
            difference = None if saved is None else _difference(saved, abstract) or self._other_base(step)
            state = None if difference else read()
        except Exception as error:  # whatever Orbax raises for damaged files of a checkpoint without a manifest
            raise UserError(
                f"the checkpoint in {self.folder / str(step)} cannot be read ({type(error).__name__}), so it is"
                " damaged: restore that folder from a copy, or delete it to continue from the checkpoint before it."
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
        """Wait until everything saved so far is complete on disk."""
        with self._without_remains():
            self._orbax.wait_until_finished()

    def close(self) -> None:
        """Finish running saves and close the folder."""
        with self._without_remains():
            self._orbax.close()

    def _write_manifest(self) -> None:
        """Complete the checkpoint that is being saved, before Orbax commits it."""
        step, loss = self._saving
        if self._remote:  # saved under its name, and complete when Orbax has written a last file
            write_manifest(self.folder / str(step), loss, digests=False)
        else:
            write_manifest(self.folder / f"{step}{UNCOMMITTED}", loss)

    @contextlib.contextmanager
    def _without_remains(self) -> Iterator[None]:
        """Remove the files of a failed save; name its checkpoint if the disk is full."""
        try:
            yield
        except Exception as error:
            step, _ = self._saving
            folder = self.folder / str(step)
            if not self._remote:
                shutil.rmtree(folder.with_name(folder.name + UNCOMMITTED), ignore_errors=True)
            full = full_disk(error)
            if full is None:
                raise
            raise OSError(full.errno, full.strerror, str(folder)) from error

    def __enter__(self) -> "Checkpoints":
        return self

    def __exit__(self, *exception) -> None:
        self.close()
