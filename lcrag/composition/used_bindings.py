"""Marks bindings as used that `describe` reads without building what they configure."""

from gin import config as gin_config

from lcrag.runs.configuration import check_used  # noqa: F401


def mark_used(name: str, *only: str) -> None:
    """Marks the bindings of a configurable, or of some of its parameters, as used, although gin does not call it."""
    bound = gin_config.get_bindings(name, resolve_references=False)
    bound = {parameter: value for parameter, value in bound.items() if not only or parameter in only}
    selector = gin_config._REGISTRY.get_match(name).selector
    gin_config._OPERATIVE_CONFIG.setdefault((gin_config.current_scope_str(), selector), {}).update(bound)
