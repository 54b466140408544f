"""Stage 5's verdict: SAME, DIFFERENT, or neither."""

import re
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["SAME", "DIFFERENT", "neither"]

_TAGGED = re.compile(r"<verdict>(.*?)</verdict>", re.DOTALL | re.IGNORECASE)
_AROUND = " \t\r\n.!*_`'\""


def verdict_in(said: str) -> Verdict:
    """The verdict in a judge's answer: what stands between its last tags, or all of it where there are none.

    Anything but the one word, whatever its case and the marks around it, is neither.
    """
    tagged = _TAGGED.findall(said)
    match (tagged[-1] if tagged else said).strip(_AROUND).upper():
        case "SAME":
            return "SAME"
        case "DIFFERENT":
            return "DIFFERENT"
    return "neither"
