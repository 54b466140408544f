"""Saves and restores the train state with Orbax: in the background, each checkpoint complete or absent.

Orbax restores flipped bits silently. Every checkpoint therefore has a manifest of the digests of its arrays, which are
compared before it is restored. A damaged checkpoint is renamed, and the next older intact one is restored instead.

Orbax also finishes without an error where it has not found its own files. The first checkpoint that a process saves is
therefore looked at, for the file that Orbax writes last, before training goes on.
"""

import contextlib
import dataclasses
import itertools
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jaxtyping import PyTree

from lcrag.errors import UserError, excerpt, exhausted_memory
from lcrag.files import (
    MANIFEST,
    PATTERN,
    AnyPath,
    damage,
    full_disk,
    is_remote,
    read_manifest,
    refused_file,
    remote_path,
    write_manifest,
)

ITEM = "default"  # Orbax's folder for what is saved without a name
UNCOMMITTED = ".orbax-checkpoint-tmp"
MERGED = "manifest.ocdbt"  # of the arrays of all processes, which Orbax writes last


def abstract_state(state: PyTree) -> PyTree:
    """Return shapes, dtypes and shardings of a state, onto which a checkpoint can be restored."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding), state)


@dataclasses.dataclass(frozen=True)
class _LatestAndBest:
    """Orbax's preservation policy: the latest checkpoints and one more."""

    latest: int
    best: Callable[[], int | None]

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        steps = [checkpoint.step for checkpoint in checkpoints]
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
        self._saving: tuple[int, float | None] = (0, None)  # step and validation loss
        self._proven = False  # whether a checkpoint of this process is complete
        self._place: AnyPath = self.folder  # where Orbax finds it
        self._link: tempfile.TemporaryDirectory | None = None
        if not self._remote and (PATTERN.search(str(self.folder)) or ":" in str(self.folder)):
            # Orbax takes the path for a pattern, TensorStore for a part of an address: they get a plain one.
            self._link = tempfile.TemporaryDirectory(prefix="lcrag-")
            if not read_only:
                self.folder.mkdir(parents=True, exist_ok=True)
            link = Path(self._link.name) / "checkpoints"
            link.symlink_to(self.folder)
            self._place = link
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
        handler = ocp.StandardCheckpointHandler()
        self._orbax = ocp.CheckpointManager(self._place, options=self._options, item_handlers=handler)
        self._losses: dict[int, float] = {}
        for step in self._orbax.all_steps():
            with contextlib.suppress(ValueError):
                loss = read_manifest(self.folder / str(step))["loss"]
                self._losses |= {} if loss is None else {step: loss}

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
            self._orbax.save(step, args=ocp.args.StandardSave(state), force=True)
            if not self._proven:
                self._orbax.wait_until_finished()
                folder = self.folder / str(step)
                if not (folder / ITEM / MERGED).exists():
                    if not self._remote and jax.process_index() == 0:
                        (folder / MANIFEST).unlink(missing_ok=True)  # which says that it is intact
                    raise UserError(
                        f"the first checkpoint, {folder}, cannot be read back, as it lacks files: give an --output_dir"
                        " with a plain name, on another disk"
                    )
                self._proven = True

    def latest_step(self) -> int | None:
        """Return the step of the latest complete checkpoint, or None."""
        return self._orbax.latest_step()

    def best_step(self) -> int | None:
        """Return the first step with the lowest validation loss, or None."""
        return min(self._losses, key=lambda step: (self._losses[step], step), default=None)

    def continue_from(self, state: PyTree) -> tuple[int, PyTree]:
        """Return the latest intact step and its state, or 0 and `state`; a replaced `state` is freed.

        Raises:
          UserError: There are only damaged checkpoints, or they are of another model, optimizer or base.
        """
        if self.latest_step() is None:
            return 0, state
        step = self._intact_step()
        wanted = abstract_state(state)
        jax.tree.map(lambda leaf: leaf.delete(), state)  # memory may not suffice for two states
        return step, self._read(step, wanted)

    def restore_params(self, abstract: PyTree, step: int | None = None, *, best: bool = False) -> tuple[int, PyTree]:
        """Return a step and its `params` alone, onto the shardings of `abstract` (see `abstract_state`).

        It is the given step, or the latest intact one; with `best`, the intact one with the lowest validation loss.

        Raises:
          UserError: No such checkpoint, no intact one, or one of another model or base.
        """
        step = self._intact_step(step, best=best)
        return step, self._read(step, {"params": abstract}, partial=True)["params"]

    def _intact_step(self, step: int | None = None, *, best: bool = False) -> int:
        """Choose the step to restore, and rename damaged checkpoints that would have come first.

        With several processes, the first one reads the files, and all return the same step.
        """
        if best:
            self.wait()
        steps = sorted(self._orbax.all_steps(), reverse=True)
        if not steps:
            raise UserError(f"there is no checkpoint in {self.folder}: give the folder of a run that has saved one.")
        if step is not None and step not in steps:
            raise UserError(f"there is no checkpoint of step {step} in {self.folder}: choose one of {steps[::-1]}.")
        if step is not None:
            steps = [step]
        elif best:
            steps = sorted(self._losses.keys() & set(steps), key=lambda step: (self._losses[step], step))

        chosen, problems = -1, {}
        for step in steps if jax.process_index() == 0 else ():
            problem = damage(self.folder / str(step))
            if problem is None:
                chosen = step
                break
            problems[step] = problem
        for step, problem in problems.items() if chosen >= 0 else ():
            place, kept = self.folder / str(step), ""
            if not self._read_only:
                numbered = (self.folder / f"damaged_{step}_{number}" for number in itertools.count(1))
                free = next(path for path in numbered if not path.exists())
                place.rename(free)
                kept = f" and now called {free.name}"
            print(
                f"lcrag: the checkpoint {place} is damaged{kept} ({problem}); that of step {chosen} is restored"
                " instead",
                file=sys.stderr,
            )
        known = np.array([chosen, len(problems)])
        if jax.process_count() > 1:
            known = multihost_utils.broadcast_one_to_all(known)
        agreed, damaged = known.tolist()
        if agreed < 0:
            listed = "; ".join(f"step {step}: {problem}" for step, problem in problems.items())
            raise UserError(
                f"no checkpoint in {self.folder} that could be restored is intact"
                f" ({listed or 'see the first process'}): copy one from elsewhere, choose another step, or begin anew"
                " in another folder."
            )
        if damaged and not self._read_only:  # Orbax remembers the steps that it has found
            self._orbax.close()
            self._open()
        return agreed

    def _read(self, step: int, wanted: PyTree, *, partial: bool = False) -> PyTree:
        """Restore the arrays of a step, or some of its entries, after checking that it is of the same model."""
        folder = self._place / str(step)
        arguments = ocp.args.PyTreeRestore(
            item=wanted,
            restore_args=ocp.checkpoint_utils.construct_restore_args(wanted),
            partial_restore=partial,
        )
        try:
            saved = self._orbax.item_metadata(step)
            if partial and saved is not None:
                saved = {name: saved[name] for name in wanted if name in saved}
            difference = None if saved is None else _difference(saved, wanted)
            base = read_manifest(folder)["base"]
            if not difference and base != self._base:
                difference = f"its frozen weights are {base} there and {self._base} here"
            if not difference:
                with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as reader:
                    return reader.restore(folder / ITEM, args=arguments)
        except UserError:
            raise
        except Exception as error:  # whatever Orbax raises for a checkpoint in object storage, which has no digests
            if exhausted_memory(error) or refused_file(error):
                raise
            raise UserError(
                f"the checkpoint in {folder} cannot be read ({type(error).__name__}: {excerpt(error)}): try again; if"
                " it is damaged, restore that folder from a copy, or delete it to continue from the one before it."
            ) from error
        raise UserError(
            f"the checkpoint in {folder} is of another model or optimizer ({difference}): resume with the configuration"
            " it was trained with (config.gin in that folder), or choose a new folder."
        )

    def wait(self) -> None:
        """Wait until everything saved so far is complete on disk."""
        with self._without_remains():
            self._orbax.wait_until_finished()

    def close(self) -> None:
        """Finish running saves and close the folder."""
        with self._without_remains():
            self._orbax.close()
        if self._link is not None:
            self._link.cleanup()

    def _write_manifest(self) -> None:
        """Complete the checkpoint that is being saved, before Orbax commits it."""
        step, loss = self._saving
        if self._remote:  # saved under its name, and complete when Orbax has written a last file
            write_manifest(self.folder / str(step), (), loss=loss, base=self._base)
        else:
            folder = self.folder / f"{step}{UNCOMMITTED}"
            write_manifest(folder, (folder / ITEM).rglob("*"), loss=loss, base=self._base)

    @contextlib.contextmanager
    def _without_remains(self) -> Iterator[None]:
        """Remove the files of a failed save; name its checkpoint if the disk is full."""
        try:
            yield
        except Exception as error:
            folder = self.folder / str(self._saving[0])
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


def _difference(saved: PyTree, wanted: PyTree) -> str | None:
    """Describe the first array in which the two trees differ."""
    there, here = (
        {
            jax.tree_util.keystr(path, simple=True, separator="/"): (tuple(leaf.shape), str(leaf.dtype))
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda node: hasattr(node, "shape"))
        }
        for tree in (saved, wanted)
    )
    for name in sorted(there.keys() | here.keys()):
        if there.get(name) != here.get(name):
            forms = ["{1}{0}".format(*side[name]) if name in side else "absent" for side in (there, here)]
            return f"{name} is {forms[0]} there and {forms[1]} here"
    return None
