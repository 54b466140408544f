"""Wikimedia dumps, real excerpts and broken ones, and their wikitext as running text."""

import bz2
import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mwparserfromhell.parser import ParserError
from prepared_data import prepared

from lcrag.data.corpora import dump
from lcrag.data.corpora.documents import Article, WikiPage
from lcrag.data.corpora.dump import clean, plain_text, read_pages
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
def test_real_dumps_have_the_recorded_pages(name):
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


def test_only_the_last_revisions_of_articles_are_read():
    pages = read(
        ("Turku", 0, 1, "<revision><text>old</text></revision>", "<model>wikitext</model>", "Kaupunki."),
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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<html></html>", "not a Wikimedia dump: its root is html"),
        (OPENING + "<page><title>Cut", "line 1 of its XML, cannot be read"),
        ("", "cannot be read"),
        ("no XML", "cannot be read"),
    ],
)
def test_other_files_are_not_dumps(text, message):
    with pytest.raises(UserError, match=message):
        list(read_pages(io.BytesIO(text.encode()), Path("x.xml")))


def test_multistream_and_truncated_dumps(tmp_path):
    """Multistream dumps are several bz2 streams in one file; a download that was cut off is detected."""
    page = PAGE.format("Turku", 0, 1, "", "", "Kaupunki. " * 50)
    streams = [bz2.compress(part.encode()) for part in (OPENING + SITE, page, page, "</mediawiki>")]
    whole, cut = tmp_path / "whole.xml.bz2", tmp_path / "cut.xml.bz2"
    whole.write_bytes(b"".join(streams))
    cut.write_bytes(b"".join(streams[:3])[:-10])
    documents = list(find_source(str(whole)).documents(whole, BadRows()))
    assert [document.id for _, document in documents] == ["1", "1"]
    with pytest.raises(UserError, match="cut.xml.bz2 cannot be read.*download it again"):
        list(find_source(str(cut)).documents(cut, BadRows()))


HIDDEN = frozenset(("file", "category", "luokka"))


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("'''Turku''' on ''kaupunki''.", "Turku on kaupunki."),
        ("[[Suomi|Suomessa]], [[Oulu]]ssa, [[:Luokka:Kaupungit]]", "Suomessa, Oulussa, Luokka:Kaupungit"),
        ("[[Luokka:Kaupungit]] [[File:a.jpg|thumb|A [[harbour]]]] x", "x"),
        ("[[Bild:a.jpg|thumb|100px|under an old name]] y", "y"),
        ("[[de:Turku]] [[zh-min-nan:Turku]] [[bat-smg:]] z", "z"),
        ("A[http://a.example text] [http://b.example] https://c.example", "Atext"),
        ("Born<ref>a source</ref> in 1900<ref name=b/>.", "Born in 1900."),
        ("{{Infobox|name=x}}Text {{convert|5|km}}, end", "Text, end"),
        ("Ada ({{lang|fr|x}}; 1815–1852) was", "Ada (1815–1852) was"),
        ("Ada ({{x}}) was （；） there", "Ada was there"),
        ("{|\n! a\n|-\n| b\n|}\nbelow", "below"),
        ("<gallery>a.jpg|b</gallery><math>x^2</math>t<!-- no -->", "t"),
        ("a<br>b<br />c", "a\nb\nc"),
        ("* one\n* two\n# three\n; four : five", "one\ntwo\nthree\nfour\nfive"),
        ("R&amp;D &nbsp;x &#8211; y", "R&D x – y"),
        ("__NOTOC__ __目录__ x", "x"),
        ("<nowiki>[[not a link]]</nowiki>", "[[not a link]]"),
        ("-{zh-hans:计算机; zh-hant:電腦;}-是-{机器}-", "计算机是机器"),
        ("-{zh-tw:電腦; zh-hk:電腦二}-", "電腦"),
        ("1 < 2, a <unknown>kept</unknown>", "1 < 2, a kept"),
        ("''unclosed and [[half a link", "unclosed and [[half a link"),
        ("", ""),
    ],
)
def test_what_a_reader_sees(source, shown):
    assert plain_text(source, HIDDEN) == shown


def test_headings_of_non_empty_sections_are_kept():
    page = "Lead\n== A ==\n=== B ===\ntext\n== Refs ==\n<references/>\n=== Sub ===\n{{x}}\n== L ==\n* [[Oulu]]\n== Z =="
    assert plain_text(page) == "Lead\nA\nB\ntext\nL\nOulu"


@given(st.text(alphabet="[]{}|'=<>/-*#;:!\n aé文ref&\u00a0", max_size=60))
def test_no_markup_is_too_broken(source):
    text = plain_text(source)
    assert "\n\n" not in text
    assert text == text.strip()


def test_real_pages_leave_no_markup():
    path = prepared("wikidump") / "enwiki-shortened.xml.bz2"
    with bz2.open(path) as file:
        pages = [page for page, _ in zip(read_pages(file, path), range(12), strict=False)]
    articles, problems = clean(tuple(pages))
    assert [article.id for article in articles] == [page.id for page in pages]
    assert not problems
    for article in articles:
        assert not [
            mark for mark in ("[[", "]]", "{{", "}}", "<ref", "'''", "Category:", "\x1d") if mark in article.text
        ]
    anarchism = articles[0].text
    assert anarchism.startswith("Anarchism is a political philosophy that advocates self-governed societies based on")
    assert "References\n" not in anarchism


def test_pages_that_cannot_be_parsed_are_named(monkeypatch):
    def parse(text, **_):
        if "bad" in text:
            raise ParserError("lost")
        return original(text, skip_style_tags=True)

    original = dump.mwparserfromhell.parse
    monkeypatch.setattr(dump.mwparserfromhell, "parse", parse)
    texts = ("good", "bad", "{{only a template}}")
    pages = [WikiPage(id=text[:1], title=text, wikitext=text, hidden_namespaces=HIDDEN) for text in texts]
    articles, problems = clean(tuple(pages))
    assert articles == [Article(id="g", title="good", text="good")]
    assert len(problems) == 1
    assert problems[0][0] == "page b (bad)"
    assert "cannot be parsed" in problems[0][1]


@pytest.mark.parametrize("source", ["[[a|" * 500 + "{{" * 500 + "x", "<b>" * 500 + "x", "{{" * 2000, "''" * 999])
def test_deep_nesting_is_no_trouble(source):
    assert isinstance(plain_text(source), str)
