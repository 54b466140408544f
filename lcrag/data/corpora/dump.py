"""Reads the articles of a Wikipedia dump and removes wiki markup from their text."""

import dataclasses
import io
import pathlib
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

import mwparserfromhell
from mwparserfromhell import nodes
from mwparserfromhell.wikicode import Wikicode

from lcrag.errors import UserError


@dataclasses.dataclass(frozen=True, kw_only=True)
class WikiPage:
    """A page of a Wikimedia dump."""

    id: str  # its number in the wiki
    title: str
    wikitext: str  # of its last revision
    hidden_namespaces: frozenset[str]  # lower-case names of those whose links show no text: files, categories


@dataclasses.dataclass(frozen=True, kw_only=True)
class Article:
    """An article in plain text, to be cut into passages."""

    id: str
    title: str
    text: str


# Elements whose content is not running text.
_HIDDEN_TAGS = frozenset(
    "ref references table gallery math chem ce score timeline imagemap inputbox categorytree graph mapframe maplink"
    " templatedata templatestyles syntaxhighlight source section indicator hiero style script includeonly".split()
)
_BREAKING_TAGS = frozenset("br p div li dd dt hr center blockquote poem".split())
# Links to the same article in another language, as dumps had them before Wikidata.
_INTERLANGUAGE = re.compile(r"(?:[a-z]{2,3}|simple)(?:-[a-z]+)*:(?!\s)")
_MAGIC_WORD = re.compile(r"__[^\W\d_a-z]{2,}__")
_QUOTES = re.compile(r"'{5}|'''|''")
# Chinese: -{zh-hans:计算机; zh-hant:電腦}- and -{word}-.
_VARIANTS = re.compile(r"-\{(?:[^{}|]*\|)?([^{}]*)\}-")
_WANTED_VARIANT = re.compile(r"zh-(?:hans|cn)\s*:\s*([^;]*)")
_FIRST_VARIANT = re.compile(r"\s*[a-z]{2,3}(?:-[a-z]+)+\s*:\s*([^;]*)")
# Left over when templates are removed: "( ; 1815)", "()", " ,".
_LEADING_SEPARATORS = re.compile(r"([(（])[\s,;:，；、]+")
_EMPTY_BRACKETS = re.compile(r"\s*[(（][\s,;:，；、]*[)）]")
_SPACE_BEFORE = re.compile(r"[ \t]+([,;.،。，、])(?=\s|$)", re.MULTILINE)
_SPACES = re.compile(r"[ \t\xa0]+")
# Marks headings, repeated once per level; XML cannot contain it.
_HEADING = "\x1d"


def plain_text(wikitext: str, hidden_namespaces: frozenset[str] = frozenset()) -> str:
    """Returns the running text of a page: one line per paragraph, list item, and heading of a non-empty section.

    Args:
      hidden_namespaces: Lower-case names of the namespaces whose links show no text.
    """
    parsed = mwparserfromhell.parse(wikitext, skip_style_tags=True)
    text = "".join(_shown(parsed, hidden_namespaces))

    def variant(word: re.Match) -> str:
        """Chooses the mainland variant of a word given in several Chinese variants, else the first."""
        chosen = _WANTED_VARIANT.search(word[1]) or _FIRST_VARIANT.match(word[1])
        return chosen[1].strip() if chosen else word[1]

    text = _QUOTES.sub("", _MAGIC_WORD.sub("", _VARIANTS.sub(variant, text)))
    text = _EMPTY_BRACKETS.sub("", _LEADING_SEPARATORS.sub(r"\1", text))
    text = _SPACE_BEFORE.sub(r"\1", _SPACES.sub(" ", text))
    lines = [line.strip(" \t") for line in text.split("\n") if any(map(str.isalnum, line))]
    # Headings, such as that of references, go if their sections have become empty.
    kept: list[str] = []
    level_below = 1  # level of the following line: a heading's, or 7 for running text; 1 at the end of the page
    for line in reversed(lines):
        level = len(line) - len(line.lstrip(_HEADING))
        if not level:
            kept.append(line)
            level_below = 7
        elif level < level_below:
            kept.append(line.lstrip(_HEADING).strip())
            level_below = level
    return "\n".join(kept[::-1])


def _shown(code: Wikicode, hidden: frozenset[str]) -> Iterator[str]:
    """Yields the text of every visible node."""
    for node in code.nodes:
        match node:
            case nodes.Text():
                yield node.value
            case nodes.HTMLEntity():
                yield node.normalize()
            case nodes.Wikilink(title=link, text=text):
                title = str(link).strip()
                namespace, colon, _ = title.partition(":")
                # Of no text to a reader: categories, files (also under a namespace's old name, where the link has
                # several parts), and links to the same article in another language.
                if colon and namespace.strip().lower() in hidden:
                    continue
                if text is None:
                    yield "" if colon and _INTERLANGUAGE.match(title) else title.removeprefix(":")
                elif not colon or "|" not in str(text):
                    yield from _shown(text, hidden)
            case nodes.ExternalLink():
                yield "".join(_shown(node.title, hidden)) if node.title else ""
            case nodes.Heading():
                yield f"\n{_HEADING * node.level}{''.join(_shown(node.title, hidden))}\n"
            case nodes.Tag():
                name = str(node.tag).strip().lower()
                if name in _BREAKING_TAGS:
                    yield "\n"
                if name not in _HIDDEN_TAGS and node.contents is not None:
                    yield from _shown(node.contents, hidden)


# Keys of the namespaces whose links show no text (Media, File, Category), and names they have in every wiki.
_HIDDEN_KEYS = ("-2", "6", "14")
_HIDDEN_EVERYWHERE = ("media", "file", "image", "category")


def read_pages(file: io.BufferedIOBase, path: pathlib.Path) -> Iterator[WikiPage]:
    """Yields the articles of a dump, in order: wikitext pages of the main namespace that are not redirects.

    Args:
      file: The decompressed XML, in any declared encoding.
      path: Its path for messages.
    """
    hidden = frozenset(_HIDDEN_EVERYWHERE)
    try:
        events = ElementTree.iterparse(file, events=("start", "end"))
        _, root = next(events)
        prefix, _, suffix = root.tag.rpartition("mediawiki")
        if suffix or root.tag != f"{prefix}mediawiki":
            raise UserError(f"{path} is not a Wikimedia dump: its root is {root.tag}, not mediawiki")
        for event, element in events:
            if event == "end" and element.tag == f"{prefix}siteinfo":
                names = element.findall(f"{prefix}namespaces/{prefix}namespace")
                hidden |= {name.text.lower() for name in names if name.get("key") in _HIDDEN_KEYS and name.text}
            elif event == "end" and element.tag == f"{prefix}page":
                last = element.findall(f"{prefix}revision")[-1:]
                text = last[0].findtext(f"{prefix}text", "") if last else ""
                is_article = element.findtext(f"{prefix}ns", "0") == "0" and element.find(f"{prefix}redirect") is None
                if is_article and text.strip() and last[0].findtext(f"{prefix}model", "wikitext") == "wikitext":
                    number, title = element.findtext(f"{prefix}id", ""), element.findtext(f"{prefix}title", "")
                    yield WikiPage(id=number, title=title, wikitext=text, hidden_namespaces=hidden)
                root.clear()  # else the whole dump stays in memory
    except ElementTree.ParseError as error:
        line = error.position[0]
        raise UserError(f"{path}, line {line} of its XML, cannot be read ({error}): download it again") from error
