r"""The last `\boxed{...}` of an answer."""

import re

_BOXED = re.compile(r"\\boxed\s*\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # a brace behind a backslash opens and closes nothing


def boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds, braces inside it balanced; None if there is none, or it is never closed."""
    opened = list(_BOXED.finditer(text))
    if not opened:
        return None
    begin, depth = opened[-1].end(), 1
    for brace in _BRACE.finditer(text, begin):
        depth += (brace[0] == "{") - (brace[0] == "}")
        if depth == 0:
            return text[begin : brace.start()].strip()
    return None
