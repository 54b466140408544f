"""Commands run briefly here; see `brief_runs`."""

from brief_runs import brief  # noqa: F401
