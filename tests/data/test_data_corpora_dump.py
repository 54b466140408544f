"""Wikimedia dumps: real excerpts against what is known of them, and broken ones."""

import bz2
import io
import json
from pathlib import Path

import pytest
from prepared_data import prepared

from lcrag.data.corpora.dump import read_pages
from lcrag.data.corpora.source import find_source
from lcrag.data.rows import BadRows
from lcrag.errors import UserError

PAGE = "<page><title>{0}</title><ns>{1}</ns><id>{2}</id>{3}<revision><id>9</id>{4}<text>{5}</text></revision></page>"
OPENING = '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" xml:lang="fi">'
SITE = """<siteinfo><namespaces><namespace key="0"/><namespace key="6">Tiedosto</namespace>
<namespace key="14">Luokka</namespace><namespace key="4">Wikipedia</namespace></namespaces></siteinfo>"""


def read(*pages, opening=OPENING, ending="</mediawiki>"):
    text = opening + SITE + "".join(PAGE.format(*page) for page in pages) + ending
    return list(read_pages(io.BytesIO(text.encode()), Path("fiwiki.xml")))


@pytest.mark.parametrize("name", ["enwiki-shortened", "bgwiki-shortened.utf16", "bgwiki-shortened.utf8", "ltgwiki"])
def test_real_dumps_hold_what_is_known_of_them(name):
    path = prepared("wikidump") / f"{name}.xml.bz2"
    known = json.loads((path.parent / "stats.json").read_text())[path.name]
    with bz2.open(path) as file:
        pages = list(read_pages(file, path))
    assert sum(len(page.wikitext) for page in pages) == known["ns0_non_redirect_wikitext_chars"]
    assert len({page.id for page in pages}) == len(pages) <= known["namespaces"]["0"]
    firsts = [
        (row[0], row[1]) for row in known["first_three_id_title_ns_redirect_chars"] if row[2] == "0" and not row[3]
    ]
    assert firsts == [(page.id, page.title) for page in pages[: len(firsts)]]


def test_only_articles_are_read():
    pages = read(
        ("Turku", 0, 1, "", "<model>wikitext</model>", "Kaupunki."),
        ("Åbo", 0, 2, '<redirect title="Turku"/>', "", "#OHJAUS [[Turku]]"),
        ("Wikipedia:Kahvihuone", 4, 3, "", "", "Keskustelu"),
        ("Moduuli", 0, 4, "", "<model>Scribunto</model>", "return {}"),
        ("Tyhjä", 0, 5, "", "", " "),
        ("Pori &amp; Rauma", 0, 6, "", "", "a &lt;b&gt;"),
    )
    assert [(page.id, page.title, page.wikitext) for page in pages] == [
        ("1", "Turku", "Kaupunki."),
        ("6", "Pori & Rauma", "a <b>"),
    ]
    assert pages[0].hidden_namespaces >= {"tiedosto", "luokka", "file", "category"}
    assert "wikipedia" not in pages[0].hidden_namespaces


def test_of_several_revisions_the_last_counts():
    revisions = "<revision><text>old</text></revision>"
    (page,) = read(("Turku", 0, 1, revisions, "", "new"))
    assert page.wikitext == "new"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html></html>", "not a Wikimedia dump: its root is html"),
        (OPENING + "<page><title>Cut", "line 1 of its XML, cannot be read"),
        ("", "cannot be read"),
        ("no XML", "cannot be read"),
    ],
)
def test_what_is_no_dump(text, message):
    with pytest.raises(UserError, match=message):
        list(read_pages(io.BytesIO(text.encode()), Path("x.xml")))


def test_streams_behind_each_other_and_a_cut_file(tmp_path):
    """Multistream dumps are several bz2 streams in one file; a download that was cut off is not taken for whole."""
    page = PAGE.format("Turku", 0, 1, "", "", "Kaupunki. " * 50)
    streams = [bz2.compress(part.encode()) for part in (OPENING + SITE, page, page, "</mediawiki>")]
    whole, cut = tmp_path / "whole.xml.bz2", tmp_path / "cut.xml.bz2"
    whole.write_bytes(b"".join(streams))
    cut.write_bytes(b"".join(streams[:3])[:-10])
    documents = list(find_source(str(whole)).documents(whole, BadRows()))
    assert [document.id for _, document in documents] == ["1", "1"]
    with pytest.raises(UserError, match="cut.xml.bz2 cannot be read.*download it again"):
        list(find_source(str(cut)).documents(cut, BadRows()))
