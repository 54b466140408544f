"""Configurable parts, and one function a command."""

import errno
import os
import signal
from typing import Literal

import gin
import jax

CALLS: list[tuple] = []


@gin.configurable
class PretendedSampler:
    def __init__(self, slots: int, temperature: float = 1.0, method: Literal["a", "b"] = "a"):
        self.slots = slots


@gin.configurable
def pretended_train(output_dir, words, *, steps: int, languages: tuple[str, ...] = (), sampler=None, rate: float = 0.1):
    if steps == -15:
        return signal.raise_signal(signal.SIGTERM)
    if steps in (-errno.ENOSPC, -errno.EROFS):
        raise OSError(-steps, os.strerror(-steps), "metrics.jsonl")
    if steps == -errno.ENOMEM:
        jax.numpy.zeros(1 << 46)
    if steps < 0:
        raise KeyboardInterrupt
    CALLS.append((output_dir, words, steps, languages, sampler))
