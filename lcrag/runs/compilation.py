"""JAX's compilations: the persistent cache in the user's cache folder, and a watch of running compilations.

The first call of a shape may compile for minutes, which a progress display should show.
"""

import hashlib
import os
import platform
import threading
import time
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

FOLDER = "JAX_COMPILATION_CACHE_DIR"
SWITCH = "JAX_ENABLE_COMPILATION_CACHE"
SETTINGS = {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
LOWERED = "/jax/core/compile/jaxpr_to_mlir_module_duration"  # reported when a compilation begins
COMPILED = "/jax/core/compile/backend_compile_duration"  # also reported when a program is read from the cache


def set_compilation_cache(environment: MutableMapping[str, str], *, enabled: bool) -> None:
    """Turns the cache on or off by environment variables, which must happen before JAX is imported.

    The folder is `$XDG_CACHE_HOME/lcrag/compiled/<kind of processor>`, because programs for one CPU may crash on
    another that shares the home folder. JAX's own variables, if set, take precedence.
    """
    if not enabled:
        environment[SWITCH] = "false"
        return
    if FOLDER in environment:
        return
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = [platform.processor()]
    kind = sorted({line for line in lines if line.startswith(("model name", "flags", "Features"))}) or lines[:1]
    processor = f"{platform.machine()}-{hashlib.sha256(os.linesep.join(kind).encode()).hexdigest()[:8]}"
    caches = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    environment[FOLDER] = str(caches / "lcrag" / "compiled" / processor)
    for name, value in SETTINGS.items():
        environment.setdefault(name, value)


class CompilationWatch:
    """Follows the compilations of all threads of this process while its block runs.

    Attributes:
      seconds: Total duration of the finished compilations.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._running: dict[int, tuple[str, float]] = {}

    def __enter__(self) -> "CompilationWatch":
        from jax import monitoring  # here, because displays are also made without JAX

        monitoring.register_event_duration_secs_listener(self._record)
        return self

    def __exit__(self, *exception: object) -> None:
        from jax import monitoring

        monitoring.unregister_event_duration_listener(self._record)

    def current(self) -> tuple[str, float] | None:
        """Returns (program, seconds) of the longest running compilation, or None."""
        running = sorted(self._running.values(), key=lambda compilation: compilation[1])
        return (running[0][0], time.monotonic() - running[0][1]) if running else None

    def _record(self, event: str, seconds: float, **about: Any) -> None:
        thread = threading.get_ident()
        if event == LOWERED:
            name = str(about.get("fun_name", "a program"))
            self._running[thread] = name.removeprefix("jit(").removesuffix(")"), time.monotonic()
        elif event == COMPILED:
            self._running.pop(thread, None)
            self.seconds += seconds
