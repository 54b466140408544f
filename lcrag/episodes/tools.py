"""Searches as a model's own tool calls (`Chat.tools`): how its chat template writes them, and what programs read.

Programs speak of searches in tags. Here a call becomes the tags that a program reads, tags become a call where a
demonstration is taught, and instructions that speak of tags speak of the tool.
"""

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from lcrag.episodes.tags import TAG, SearchAction, parse_action, without_surrogates
from lcrag.errors import UserError
from lcrag.rewards.text import is_visible

# Writes the queries of several calls in one turn as the content of one search.
Join: TypeAlias = Callable[[Sequence[str]], str]

SEARCH_TOOL = "search"  # its name
QUERY = "query"  # its argument
ARGUMENTS = {"arguments", "parameters"}  # names of the field of a call that holds them
DESCRIPTION = "Searches a collection of texts and returns the passages that match best."
SCHEMA: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": SEARCH_TOOL,
        "description": DESCRIPTION,
        "parameters": {
            "type": "object",
            "properties": {QUERY: {"type": "string", "description": "What to search for."}},
            "required": [QUERY],
        },
    },
}
# A message from whose rendering `form_of` reads how calls are written.
_THOUGHT, _ASKED = "A thought.", "Turku"
PROBE = {
    "role": "assistant",
    "content": _THOUGHT,
    "tool_calls": [{"type": "function", "function": {"name": SEARCH_TOOL, "arguments": {QUERY: _ASKED}}}],
}
# How Qwen's templates describe tools (Apache-2.0), for templates that describe none.
OFFER = (
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are provided with function"
    f" signatures within <tools></tools> XML tags:\n<tools>\n{json.dumps(SCHEMA, ensure_ascii=False)}\n</tools>\n\n"
    "For each function call, return a json"
    " object with function name and arguments within <tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\n</tool_call>'
)

# What instructions say of a search in tags -> what they say of the tool.
_REWORDED = (
    (r"by <search> *query_1, *query_2 *</search>", 'through one or more calls of the tool "search"'),
    (r"by <search>[^<]*</search>", 'through the tool "search"'),
    (r", <search>,", ', call of the tool "search",'),
    (r"write <search>[^<]*</search>", 'call the tool "search"'),
    (
        r"(?:give|put|provide) (a|the)( specific)? query (?:between|enclosed in|inside) <search> and </search>",
        r'call the tool "search" with \1\2 query',
    ),
)
_EXAMPLE = re.compile(r"<search>(?!\s*and\s*<)\s*([^<]*?)\s*</search>")
_SEARCH_TAG = re.compile("<(/?search)>")


def speaks_of_searches(text: str) -> bool:
    """Returns whether instructions tell the policy to search in tags."""
    return _SEARCH_TAG.search(text) is not None


@dataclasses.dataclass(frozen=True)
class CallForm:
    """How a chat template writes tool calls: JSON objects, each between two texts, at the end of the model's turn.

    The defaults are the form of Qwen's templates, for a template that writes none.
    """

    before: str = "<tool_call>\n"  # empty in Llama 3, where a call begins a line
    after: str = "\n</tool_call>"
    arguments: str = "arguments"  # name of a call's field: "parameters" in Llama 3
    in_template: bool = False  # whether the template writes tools and calls; otherwise a call is text of a message
    with_text: bool = True  # whether the template writes a message's text before its calls

    def stops(self, stop: tuple[str, ...], join: Join | None) -> tuple[str, ...]:
        """Returns the stop strings of a generation: the end of a call in place of the closing tag of a search.

        Where no text ends a call, or several may follow each other (`join`), the model ends its turn by itself.
        """
        end = self.after.strip()
        kept = (end if text == "</search>" else text for text in stop)
        return tuple(dict.fromkeys(text for text in kept if text and not (join and text == end)))

    def written(self, *queries: str) -> str:
        """Returns the calls for queries, as the template writes them."""
        calls = ({"name": SEARCH_TOOL, self.arguments: {QUERY: query}} for query in queries)
        return "\n".join(f"{self.before}{json.dumps(call, ensure_ascii=False)}{self.after}" for call in calls)

    def as_call(self, text: str) -> str:
        """Returns a text of the policy with a call in place of the tags of the search that ends it."""
        action = parse_action(text)
        if not isinstance(action, SearchAction):
            return text
        said = text[: text.rindex("<search>")]
        return said + "\n" * (bool(said) and not said.endswith("\n")) + self.written(action.query)

    def as_tags(self, text: str, join: Join | None = None) -> str:
        """Returns the policy's text of one generation as programs read it: its calls are one search in tags.

        A malformed call stays as it is, as do calls of other tools, and several calls without `join`. Tags of a search
        that the policy wrote are bracketed, because only a call is a search.
        """
        said, queries = self.split(text)
        if not queries or (len(queries) > 1 and join is None):
            return _SEARCH_TAG.sub(r"[\1]", text)
        content = join(queries) if join and len(queries) > 1 else queries[0]
        return _SEARCH_TAG.sub(r"[\1]", said) + f"<search> {content} </search>"

    def message(self, text: str) -> dict[str, Any]:
        """Returns the policy's text of one turn as a message of `apply_chat_template`."""
        said, queries = self.split(text)
        if not queries or not self.in_template:
            return {"role": "assistant", "content": text}
        calls = [
            {"type": "function", "function": {"name": SEARCH_TOOL, "arguments": {QUERY: query}}} for query in queries
        ]
        return {"role": "assistant", "content": said.removesuffix("\n"), "tool_calls": calls}

    def split(self, text: str) -> tuple[str, list[str]]:
        """Splits a turn into text and the queries of the calls that end it; if one is malformed, all is text."""
        for said, calls in self._ending_calls(text):
            queries = [query_of(call) for call in calls]
            if queries and None not in queries:
                return said, [query for query in queries if query is not None]
        return text, []

    def _ending_calls(self, text: str) -> Iterator[tuple[str, list[Any]]]:
        """Yields what may be the text before the calls that end a turn, and their JSON values."""
        begin, end = self.before.strip(), self.after.strip()
        if not begin:
            text = _unfenced(text)
            for start in re.finditer(r"(?:^[ \t]*|<\|python_tag\|>\s*)(?={)", text, re.MULTILINE):
                with contextlib.suppress(ValueError, RecursionError):
                    yield text[: start.start()], _json_values(text[start.end() :])
            return
        said, calls = text, list[Any]()
        while (rest := said.rstrip()).endswith(end):
            said, begun, content = rest.removesuffix(end).rpartition(begin)
            try:
                call = json.loads(_unfenced(content)) if begun else None
            except (ValueError, RecursionError):
                return
            calls = [*(call if isinstance(call, list) else [call]), *calls]  # SmolLM2's models are taught a list
        if end not in said:
            yield said, calls


def reworded(text: str, form: CallForm) -> str:
    """Returns instructions that speak of the tool in place of the tags of a search; an example becomes a call."""
    if speaks_of_searches(text):
        for pattern, words in _REWORDED:
            text = re.sub(pattern, words, text)
        text = _EXAMPLE.sub(lambda example: form.written(example[1]), text)
    return text


def reworded_instructions(text: str, form: CallForm) -> str:
    """Returns `reworded` instructions of an opening; raises a UserError if they still speak of tags."""
    text = reworded(text, form)
    if match := _SEARCH_TAG.search(text):
        said = " ".join(text[max(0, match.start() - 40) : match.end() + 40].split())
        raise UserError(
            f"Chat.tools has the policy call a tool, but its instructions speak of tags: {said!r}; write 'by <search>"
            " query </search>', which becomes 'through the tool \"search\"', or no tags"
        )
    return text


def _json_values(text: str) -> list[Any]:
    """Returns the JSON values of which a text consists, separated by white space or semicolons."""
    decoder, values = json.JSONDecoder(), []
    while text := text.lstrip(" \t\n\r;"):
        value, end = decoder.raw_decode(text)
        values.append(value)
        text = text[end:]
    return values


def _unfenced(text: str) -> str:
    """Returns a text without the fence of Markdown around its end, such as a call."""
    return re.sub(r"^[ \t]*```\w{0,12}\s?((?:(?!```).)*)```\s*\Z", r"\1", text, flags=re.DOTALL | re.MULTILINE)


def query_of(call: Any) -> str | None:
    """Returns the query of a call; None unless it is the search with its one argument, and nothing else.

    As models write calls, there may be an id and the type "function", name and arguments may be in the field
    "function", and the arguments may be a string of JSON. A query must have a visible character and no dialogue tag.
    """
    if isinstance(call, dict) and isinstance(inner := call.get("function"), dict):
        call = {name: value for name, value in call.items() if name != "function"} | inner
    if not isinstance(call, dict) or call.get("name") != SEARCH_TOOL or call.get("type", "function") != "function":
        return None
    names = call.keys() - {"name", "type", "id"}
    if len(names) != 1 or not names < ARGUMENTS:
        return None
    given = call[names.pop()]
    if isinstance(given, str):
        with contextlib.suppress(ValueError, RecursionError):
            given = json.loads(given)
    if not isinstance(given, dict) or set(given) != {QUERY} or not isinstance(query := given[QUERY], str):
        return None
    return without_surrogates(query).strip() if is_visible(query) and not TAG.search(query) else None


def form_of(turn: str) -> CallForm:
    """Returns how a template writes calls, given the turn that it makes of `PROBE`."""
    for brace in re.finditer("{", turn):
        with contextlib.suppress(ValueError):
            call, end = json.JSONDecoder().raw_decode(turn, brace.start())
            before, after = turn[: brace.start()], turn[end:]
            names = [name for name in call if name in ARGUMENTS and query_of(call) == _ASKED]
            with_text = before.startswith(_THOUGHT)
            before = before.removeprefix(_THOUGHT).removeprefix("\n") if with_text else before
            if names and bool(before.strip()) == bool(after.strip()):
                return CallForm(before, after, names[0], in_template=True, with_text=with_text)
    raise UserError(
        f"Chat.tools is set, but the model's chat template writes a call as {turn[:80]!r}: supported are JSON objects"
        " with a name and arguments; set Chat.tools = False"
    )
