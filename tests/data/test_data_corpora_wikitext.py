"""Wikitext to running text."""

import bz2

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mwparserfromhell.parser import ParserError
from prepared_data import prepared

from lcrag.data.corpora import dump
from lcrag.data.corpora.documents import Article, WikiPage
from lcrag.data.corpora.dump import clean, plain_text, read_pages

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


def test_headings_stay_over_what_is_under_them():
    page = "Lead\n== A ==\n=== B ===\ntext\n== Refs ==\n<references/>\n=== Sub ===\n{{x}}\n== L ==\n* [[Oulu]]\n== Z =="
    assert plain_text(page) == "Lead\nA\nB\ntext\nL\nOulu"


@given(st.text(alphabet="[]{}|'=<>/-*#;:!\n aé文ref&\u00a0", max_size=60))
def test_no_markup_is_too_broken(source):
    text = plain_text(source)
    assert "\n\n" not in text and text == text.strip()


def test_real_pages_leave_no_markup():
    path = prepared("wikidump") / "enwiki-shortened.xml.bz2"
    with bz2.open(path) as file:
        pages = [page for page, _ in zip(read_pages(file, path), range(12), strict=False)]
    articles, problems = clean(tuple(pages))
    assert [article.id for article in articles] == [page.id for page in pages] and not problems
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
    assert len(problems) == 1 and problems[0][0] == "page b (bad)" and "cannot be parsed" in problems[0][1]


@pytest.mark.parametrize("source", ["[[a|" * 500 + "{{" * 500 + "x", "<b>" * 500 + "x", "{{" * 2000, "''" * 999])
def test_deep_nesting_is_no_trouble(source):
    assert isinstance(plain_text(source), str)
