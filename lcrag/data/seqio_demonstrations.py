"""The examples of a seqio task as demonstrations: `inputs` opens the dialogue, `targets` is what the policy says.

They are taken as text, because the policy has its own tokenizer and chat template; the task's packing, lengths and
mixing rates play no part.
"""

import itertools
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import seqio

from lcrag.data.demonstrations import DemonstratedTurn, Demonstration
from lcrag.data.rows import BadRows
from lcrag.errors import UserError

FEATURES = ("inputs", "targets")


def demonstrations_of_task(name: str, split: str, bad_rows: BadRows, limit: int | None = None) -> list[Demonstration]:
    """The examples of a task, or of all tasks of a mixture, task after task.

    Args:
      name: Of the task or mixture.
      split: Of the task.
      bad_rows: What becomes of examples without a text.
      limit: At most this many of each task.

    Raises:
      UserError: there is no such task, it has no such split, or one of its examples lacks a text.
    """
    return [
        row
        for task in _tasks(name)
        for row in _demonstrations(task, split, bad_rows, itertools.count() if limit is None else range(limit))
    ]


def _tasks(name: str) -> list[seqio.Task]:
    if name in seqio.MixtureRegistry.names():
        return list(seqio.MixtureRegistry.get(name).tasks)
    if name in seqio.TaskRegistry.names():
        return [seqio.TaskRegistry.get(name)]
    known = " ".join(sorted(seqio.MixtureRegistry.names()))
    raise UserError(
        f"there is no seqio task or mixture {name!r}: add `import MODULE` of the module that registers it to the gin"
        f" file, or use one of {known}"
    )


def _demonstrations(task: seqio.Task, split: str, bad_rows: BadRows, numbers: Any) -> Iterator[Demonstration]:
    if split not in task.splits:
        raise UserError(f"the seqio task {task.name} has no split {split!r}: it has {', '.join(task.splits)}")
    if missing := sorted(set(FEATURES) - set(task.output_features)):
        raise UserError(
            f"the seqio task {task.name} has no feature {missing[0]}: its examples cannot be demonstrations"
        )
    path = pathlib.Path(f"seqio task {task.name}")
    examples = task.get_dataset(sequence_length=None, split=split, shuffle=False).as_numpy_iterator()
    for number, example in zip(numbers, examples, strict=False):
        texts = {feature: _text(example, feature, task) for feature in FEATURES}
        if empty := [feature for feature, text in texts.items() if not text]:
            bad_rows.add(path, number + 1, empty[0], "it has no text")
            continue
        yield Demonstration(
            opening=texts["inputs"],
            turns=(DemonstratedTurn(by="policy", text=texts["targets"], learn=True),),
            topic=texts["inputs"],
            path=path,
            line=number + 1,
        )


def _text(example: Mapping[str, Any], feature: str, task: seqio.Task) -> str:
    """A feature as it was before the task made tokens of it, or decoded by its vocabulary where that is not kept."""
    value = example.get(f"{feature}_pretokenized", example[feature])
    if isinstance(value, bytes):
        return value.decode()
    vocabulary = task.output_features[feature].vocabulary
    return vocabulary.decode([index for index in np.asarray(value).tolist() if index != vocabulary.eos_id])
