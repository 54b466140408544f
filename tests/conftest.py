"""Every test runs on the CPU, on eight pretended devices, with shapes and types checked, and leaves gin as it was."""

import ctypes
import gc
import os
import signal
import sys
import types
from pathlib import Path

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "lcrag" / "jax"

# What tests build, on pretended devices that round sums differently, is not what commands of this user shall find.
os.environ["XDG_CACHE_HOME"] = str(CACHE.parent / "tests")

# All of this must be set before JAX is imported.
os.environ["JAX_PLATFORMS"] = "cpu"
# Without the emitters by MLIR, and without LLVM's optimizations below, compiling takes a third of its time: it is half
# of a suite's first run.
for flag, value in {"xla_force_host_platform_device_count": "8", "xla_cpu_use_fusion_emitters": "false"}.items():
    if flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --{flag}={value}".strip()
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # PyTorch, the oracle of some tests, would take every core
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# TensorBoard reads its files without TensorFlow if this module is there: 0.5 GB and some seconds less.
sys.modules["tensorboard.compat.notf"] = types.ModuleType("notf")
if sys.dont_write_bytecode:  # every process of a test would compile the sources again: keep the bytecode elsewhere
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(CACHE.parent / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# A suite that is started by `&` or nohup ignores Ctrl-C, and so would the commands that it tests.
signal.signal(signal.SIGINT, signal.default_int_handler)

import annotation_checks  # noqa: E402
import gin  # noqa: E402
import hypothesis  # noqa: E402
import jax  # noqa: E402
import pytest  # noqa: E402

annotation_checks.install()

# A deadline would measure how busy the machine is.
hypothesis.settings.register_profile("lcrag", deadline=None, derandomize=True, max_examples=50)
hypothesis.settings.load_profile("lcrag")


def pytest_configure(config):
    """Several processes take the files in order, commands first; by number of tests, the longest files came last."""
    config.option.loadscopereorder = False


def pytest_collection_modifyitems(items):
    """Folders with long files come first: as the last ones, these would leave the other processes without work."""
    items.sort(key=lambda item: item.path.parent.name not in ("sampling", "train"))


def pytest_collection_finish(session):
    """Millions of objects of imported libraries stay: looking for cycles among them takes a sixth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


@pytest.fixture(autouse=True)
def forgotten_configuration():
    """Neither bindings nor what was called, which a run writes down, outlast a test."""
    yield
    gin.clear_config()
    if used := sys.modules.get("lcrag.runs.folder"):
        used.expect_used(())


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """A large process forgets its compiled programs, most of which no other file runs: all together are 3 GB."""
    resident, goes_on = Path("/proc/self/statm"), nextitem is not None and nextitem.path == item.path
    if not resident.exists():
        return
    if int(resident.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > (2.2e9 if goes_on else 1.5e9):
        if not goes_on:
            gc.collect()  # of learners and samplers in cycles
        jax.clear_caches()
        if slots := sys.modules.get("lcrag.sampling.slots"):
            slots.compiled_functions.cache_clear()
        ctypes.CDLL(None).malloc_trim(0)  # glibc keeps the many small pieces otherwise


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """A folder with `policy` and `collections`; tests that damage something copy it first."""
    from experiment_parts import build_tiny_collections, save_tiny_policy

    folder = tmp_path_factory.mktemp("tiny")
    save_tiny_policy(folder / "policy")
    build_tiny_collections(folder / "collections")
    return folder


@pytest.fixture(scope="session")
def finished(tiny, tmp_path_factory):
    """The output folder of a whole run, evaluations included; not to be changed."""
    from brief_runs import draw_training_curves
    from experiment_parts import run

    output = tmp_path_factory.mktemp("finished") / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("lcrag.evaluation.plots.draw_training_curves", draw_training_curves)
        assert run("train", tiny, "STEPS=2", "train.checkpoint_every=1", output=output) == 0
    return output
