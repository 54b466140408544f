"""Wikimedia XML dumps (`*-pages-articles.xml.bz2`), read as a stream.

The format: https://www.mediawiki.org/wiki/Help:Export. A dump is never held in memory, whatever its size.
"""

import io
import pathlib
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

from lcrag.data.corpora.documents import WikiPage
from lcrag.errors import UserError

# Keys of the namespaces whose links show no text (Media, File, Category), and names they have in every wiki.
_HIDDEN_KEYS = ("-2", "6", "14")
_HIDDEN_EVERYWHERE = ("media", "file", "image", "category")


def read_pages(file: io.BufferedIOBase, path: pathlib.Path) -> Iterator[WikiPage]:
    """The articles of a dump: pages of the main namespace that are wikitext and no redirects, in their order.

    Args:
      file: The XML, decompressed, in any encoding that it declares.
      path: What to call it in a message.

    Raises:
      UserError: it is not such a dump, or damaged.
    """
    hidden = frozenset(_HIDDEN_EVERYWHERE)
    events = _events(file, path)
    _, root = next(events)
    prefix, _, name = root.tag.rpartition("mediawiki")
    if name or root.tag != f"{prefix}mediawiki":
        raise UserError(f"{path} is no Wikimedia dump: its root is {root.tag}, not mediawiki")
    for event, element in events:
        if event == "end" and element.tag == f"{prefix}siteinfo":
            hidden |= _hidden_namespaces(element, prefix)
        elif event == "end" and element.tag == f"{prefix}page":
            page = _article(element, prefix, hidden)
            root.clear()
            if page is not None:
                yield page


def _events(file: io.BufferedIOBase, path: pathlib.Path) -> Iterator[tuple[str, ElementTree.Element]]:
    try:
        yield from ElementTree.iterparse(file, events=("start", "end"))
    except ElementTree.ParseError as error:
        line = error.position[0]
        raise UserError(f"{path}, line {line} of its XML, cannot be read ({error}): download it again") from error


def _hidden_namespaces(siteinfo: ElementTree.Element, prefix: str) -> frozenset[str]:
    names = siteinfo.findall(f"{prefix}namespaces/{prefix}namespace")
    return frozenset(name.text.lower() for name in names if name.get("key") in _HIDDEN_KEYS and name.text)


def _article(page: ElementTree.Element, prefix: str, hidden: frozenset[str]) -> WikiPage | None:
    """The page with its last revision, None if it is no article."""
    revision = page.findall(f"{prefix}revision")[-1:]
    if page.findtext(f"{prefix}ns", "0") != "0" or page.find(f"{prefix}redirect") is not None or not revision:
        return None
    text = revision[0].findtext(f"{prefix}text") or ""
    if revision[0].findtext(f"{prefix}model", "wikitext") != "wikitext" or not text.strip():
        return None
    return WikiPage(
        id=page.findtext(f"{prefix}id", ""),
        title=page.findtext(f"{prefix}title", ""),
        wikitext=text,
        hidden_namespaces=hidden,
    )
