"""Writes the page: the template, its style and scripts, and the data as JSON in non-executable elements.

Texts of episodes are hostile: they reach the page only as JSON without `<`, and the scripts show them only as text. The
page's Content-Security-Policy, with the hashes of its style and script, allows no other script and no network.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

TEMPLATE = Path(__file__).parent / "template"
SCRIPTS = ("data.js", "pieces.js", "views.js", "page.js")  # joined, in this order, to one module
_ESCAPED = re.compile("[<\u2028\u2029\ud800-\udfff]")


def render_page(runs: Iterable[Mapping[str, Any]]) -> str:
    """Returns the page as one HTML text.

    Args:
      runs: The result of `read_runs`.
    """
    index, parts = [], {}
    for number, run in enumerate(runs):
        index.append(dict(run, parts=[]))
        for place, part in enumerate(run["parts"]):
            name, rows = f"part-{number}-{place}", part["rows"]
            parts[name] = script_json({"texts": rows.texts, "episodes": rows.episodes})
            about = {key: value for key, value in part.items() if key != "rows"}
            index[-1]["parts"].append({"id": name, "run": number, "episodes": len(rows.episodes), **about})
    style = (TEMPLATE / "page.css").read_text(encoding="utf-8")
    script = "\n".join((TEMPLATE / name).read_text(encoding="utf-8") for name in SCRIPTS)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string((TEMPLATE / "page.html").read_text(encoding="utf-8")).render(
        title=", ".join(run["name"] for run in index),
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        index=script_json(index),
        parts=parts,
    )


def script_json(value: Any) -> Markup:
    r"""Returns JSON that is safe in a `<script type="application/json">`, whatever its texts.

    `<` is written as `\u003c`, so no text can end the element or begin a comment. Lone surrogates, which UTF-8 cannot
    encode, U+2028 and U+2029 are also escaped.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(_ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text))


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
