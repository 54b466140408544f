"""Corpora: dumps and their wikitext as running text, files of documents in blocks, and passages."""

import bz2
import gzip
import io
import json
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mwparserfromhell.parser import ParserError
from prepared_data import prepared

from lcrag.data.corpora import dump
from lcrag.data.corpora.chunking import chunks, passages_of, unit_of
from lcrag.data.corpora.dump import Article, WikiPage, clean, plain_text, read_pages
from lcrag.data.corpora.source import find_source
from lcrag.data.languages import LANGUAGES
from lcrag.data.multilingual import xquad_passages
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.retrieval.passages import Passage

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


@pytest.mark.parametrize("text", ["<html></html>", OPENING + "<page><title>Cut", "", "no XML"])
def test_other_files_are_not_dumps(text):
    with pytest.raises(UserError, match="x.xml"):
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
    with pytest.raises(UserError, match="cut.xml.bz2 cannot be read"):
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
    pages = tuple(WikiPage(id=text[:1], title=text, wikitext=text, hidden_namespaces=HIDDEN) for text in texts)
    articles, [(page, _)] = clean(pages)
    assert (articles, page) == ([Article(id="g", title="good", text="good")], "page b (bad)")


@pytest.mark.parametrize("source", ["[[a|" * 500 + "{{" * 500 + "x", "<b>" * 500 + "x", "{{" * 2000, "''" * 999])
def test_deep_nesting_is_no_trouble(source):
    assert isinstance(plain_text(source), str)


ROWS = [{"id": str(n), "url": "https://x", "title": f"T{n}", "text": f"text {n}"} for n in range(5)]


def documents(path, bad_rows=None, kind=None):
    source = find_source(str(path), kind)
    bad_rows = bad_rows or BadRows()
    return [document for file in source.files for _, document in source.documents(file, bad_rows)]


def write_lines(path, rows):
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    packed = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)(text)
    path.write_bytes(packed)
    return path


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.bz2", "a.parquet"])
def test_articles_in_every_file_format(tmp_path, name):
    path = tmp_path / name
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2)
    else:
        write_lines(path, ROWS)
    assert find_source(str(path)).kind == "articles"
    assert documents(path) == [Article(id=str(n), title=f"T{n}", text=f"text {n}") for n in range(5)]


@pytest.mark.parametrize(
    ("row", "passage"),
    [
        ({"docid": "12#3", "title": "T", "text": " t "}, ("12#3", "T", "t")),
        ({"_id": "d1", "title": "", "text": "t", "metadata": {}}, ("d1", "", "t")),
        (
            {"id": "0", "contents": '"Evan Morris"\nwas a lobbyist.\nmore'},
            ("0", "Evan Morris", "was a lobbyist.\nmore"),
        ),
        ({"id": 7, "contents": "Belize\n\nis a country"}, ("7", "Belize", "is a country")),
        ({"id": "1", "contents": "no title"}, ("1", "", "no title")),
    ],
)
def test_published_passages(tmp_path, row, passage):
    path = write_lines(tmp_path / "docs-0.jsonl.gz", [row])
    identifier, title, text = passage
    assert documents(path) == [Passage(id=identifier, title=title, text=text)]


def test_dpr_is_tab_separated(tmp_path):
    path = tmp_path / "psgs_w100.tsv"
    path.write_text('id\ttext\ttitle\n1\t"Aaron is ""the"" prophet, Moses\'s"\tAaron\n2\ttwo\t"A\tB"\n')
    passages = [(each.id, each.title, each.text) for each in documents(path)]
    assert passages == [("1", "Aaron", 'Aaron is "the" prophet, Moses\'s'), ("2", "A\tB", "two")]


def test_real_passages_of_search_r1_and_of_xquad():
    passages = documents(prepared("flashrag") / "corpus.sample.jsonl")
    assert passages[0].title == "Evan Morris"
    assert passages[0].text.startswith("Evan Morris Evan L. Morris (January 26")
    assert len({passage.id for passage in passages}) == len(passages) == 10
    assert not any('"' in passage.title for passage in passages)
    folder = prepared("xquad")
    assert documents(folder / "xquad.zh.json.gz") == xquad_passages(folder, "zh", BadRows())


def test_several_files_follow_each_other_by_their_numbers(tmp_path):
    for number in (10, 2, 1):
        write_lines(tmp_path / f"part-{number}.jsonl", [{"docid": str(number), "text": "x"}])
    (tmp_path / "README.md").write_text("not a passage")
    for place in (tmp_path, tmp_path / "part-*.jsonl"):
        assert [document.id for document in documents(place)] == ["1", "2", "10"]


def test_each_text_file_is_an_article(tmp_path):
    folder = tmp_path / "notes"
    (folder / "more").mkdir(parents=True)
    (folder / "Turku_Castle.txt").write_text("A castle.\nIn Turku.\n", encoding="utf-8-sig")
    (folder / "more" / "aura.md").write_text("# The river Aura\n\nIt flows.")
    (folder / "empty.txt").write_text("\n")
    assert documents(folder) == [
        Article(id="notes/Turku_Castle", title="Turku Castle", text="A castle.\nIn Turku."),
        Article(id="more/aura", title="The river Aura", text="It flows."),
    ]


@pytest.mark.parametrize(
    ("files", "place", "kind", "message"),
    [
        ({}, "", None, "no file at"),
        ({}, "missing.xml.bz2", None, "missing"),
        ({"a.pdf": ""}, "a.pdf", None, "unknown format"),
        ({"a.jsonl": "", "b.parquet": ""}, "", None, "several formats"),
        ({"a.txt": "A castle."}, "", "passages", "kind 'passages'"),
        ({"empty.jsonl": ""}, "", None, "no row"),
        ({"a.jsonl": '{"id": "1", "title": "T", "text": "x"}'}, "", None, "index.kind"),
        ({"a.jsonl": '{"id": "1", "title": "T", "text": "x"}'}, "", "dump", "omit the kind"),
        ({"a.jsonl": '{"id": "1", "title": "T", "text": "x"}'}, "", "squad", "omit the kind"),
        ({"a.jsonl": "no JSON"}, "", None, "a.jsonl"),
    ],
)
def test_files_that_are_no_source(tmp_path, files, place, kind, message):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=message):
        find_source(str(tmp_path / place), kind)


def test_ambiguous_files_need_a_kind(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"id": "1", "title": "T", "text": "x"}])
    assert documents(path, kind="passages") == [Passage(id="1", title="T", text="x")]
    assert documents(path, kind="articles") == [Article(id="1", title="T", text="x")]


@pytest.mark.parametrize(
    ("bad", "place"),
    [
        ({"id": "1", "url": "", "title": "T"}, "line 2, field text: field required"),
        ({"id": "1", "url": "", "title": None, "text": "x"}, "line 2, field title"),
        ({"id": "", "url": "", "title": "T", "text": "x"}, "line 2, field id"),
    ],
)
def test_bad_rows_are_named_or_counted(tmp_path, one_bad_row, bad, place):
    path = write_lines(tmp_path / "a.jsonl", [ROWS[0], bad, ROWS[1]])
    rows = one_bad_row(lambda bad_rows: documents(path, bad_rows), f"a.jsonl, {place}")
    assert [document.id for document in rows] == ["0", "1"]


def test_bad_rows_of_passages_parquet_and_tsv(tmp_path, one_bad_row):
    lines = write_lines(tmp_path / "a.jsonl", [{"docid": "1", "title": "T"}])
    with pytest.raises(UserError, match="line 1.*neither text nor contents"):
        documents(lines)
    parquet.write_table(pa.Table.from_pylist([ROWS[0], ROWS[1] | {"text": None}]), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="a.parquet, line 2, field text"):
        documents(tmp_path / "a.parquet")
    (tmp_path / "a.tsv").write_text("id\ttext\ttitle\n1\tx\ty\n\tx\ty\n")
    with pytest.raises(UserError, match="a.tsv, line 3, field .*id"):
        documents(tmp_path / "a.tsv")
    (tmp_path / "b.tsv").write_bytes(b"id\ttext\ttitle\n1\tx\ry\tT\n2\tx\tT\n")
    rows = one_bad_row(lambda rows: documents(tmp_path / "b.tsv", rows), "b.tsv, line 2: new-line character")
    assert [each.id for each in rows] == ["2"]


def test_a_bad_first_row_does_not_hide_what_a_file_holds(tmp_path, one_bad_row):
    path = tmp_path / "a.jsonl"
    path.write_text('oops\n{"docid": "1", "title": "T", "text": "x"}\n')
    [row] = one_bad_row(lambda bad_rows: documents(path, bad_rows), "a.jsonl, line 1: invalid JSON")
    assert row.id == "1"


@pytest.mark.parametrize(
    ("name", "content"),
    [("a.jsonl.gz", gzip.compress(b"{}" * 99, mtime=0)[:-12]), ("a.parquet", b"PAR1")],
    ids=["gzip", "parquet"],
)
def test_damaged_files_are_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=f"{name}"):
        documents(tmp_path / name)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5])
def test_blocks_hold_every_document_once(tmp_path, count):
    path = write_lines(tmp_path / "a.jsonl", ROWS[:count])
    found = list(find_source(str(path), "articles", documents_per_block=2).blocks(0, BadRows()))
    assert [document.id for block in found for document in block.documents] == [str(n) for n in range(count)]
    assert [block.name for block in found] == [f"00000-{number:07d}" for number in range(len(found))]
    assert all(len(block.documents) == 2 for block in found[:-1])
    assert found[-1].documents or count == 0
    assert [block.bytes_read for block in found] == sorted(block.bytes_read for block in found)
    assert found[-1].bytes_read == path.stat().st_size


TEXTS = st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp"))), max_size=5)
# White space as Unicode defines it and Python splits at it, in which tensorflow-text agrees.
SPACED = st.lists(st.text(alphabet="aé文\u0e01\u0e48 \t\n\u3000\u00a0", max_size=40), max_size=5)


def words_by_hand(text, length):
    words = text.split()
    return [" ".join(words[start : start + length]) for start in range(0, len(words), length)]


@given(SPACED, st.integers(1, 5))
def test_words_as_by_hand(texts, length):
    assert chunks(texts, "words", length) == [words_by_hand(text, length) for text in texts]


@given(TEXTS, st.integers(1, 5))
def test_characters_are_all_there_in_order(texts, length):
    for text, pieces in zip(texts, chunks(texts, "characters", length), strict=True):
        assert "".join(pieces).replace(" ", "") == "".join(text.split())
        for number, piece in enumerate(pieces):
            own = [character for character in piece if not unicodedata.category(character).startswith("M")]
            assert len(own) <= length or number == 0
            assert piece == piece.strip()
            assert piece


@pytest.mark.parametrize(
    ("text", "length", "pieces"),
    [
        ("กินข้าวที่บ้าน", 3, ["กิน", "ข้า", "วที่", "บ้า", "น"]),  # marks stay with their characters
        ("東京は日本の首都", 3, ["東京は", "日本の", "首都"]),
        ("𠀀𠀁𠀂", 2, ["𠀀𠀁", "𠀂"]),
    ],
)
def test_characters_of_real_scripts(text, length, pieces):
    assert chunks([text], "characters", length) == [pieces]


def test_the_units_of_the_languages_are_the_languages_own():
    for code, language in LANGUAGES.items():
        assert unit_of(code) == ("words" if language.spaces else "characters"), code
    assert {unit_of(code) for code in ("zh-yue", "km", "lo", "my", "bo", "zh_classical")} == {"characters"}
    assert {unit_of(code) for code in ("sw", "bn", "te", "hi", "ltg", "bat-smg", "xx")} == {"words"}


def test_passages_have_the_title_and_stable_ids():
    articles = [Article(id="7", title="A", text="one two three"), Article(id="9", title="B", text="four")]
    passages = [(each.id, each.title, each.text) for each in passages_of(articles, "words", 2)]
    assert passages == [("7#0", "A", "one two"), ("7#1", "A", "three"), ("9#0", "B", "four")]
    assert list(passages_of([], "words")) == []
    with pytest.raises(UserError, match="at least one"):
        chunks(["x"], "words", 0)
