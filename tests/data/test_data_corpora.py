"""Corpora: dumps and their wikitext as running text, files of documents in blocks, and passages."""

import bz2
import concurrent.futures.process
import gzip
import io
import json
import re
import unicodedata
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mwparserfromhell.parser import ParserError
from prepared_data import prepared

from lcrag.data import corpora
from lcrag.data.corpora import (
    Article,
    Block,
    WikiPage,
    chunks,
    find_source,
    plain_text,
    read_pages,
    unit_of,
)
from lcrag.data.multilingual import xquad_passages
from lcrag.data.questions import LANGUAGES
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
        ("Turun kaupunki", 0, 7, "", "", "#OHJAUS [[Turku]]\n{{x}} [[Luokka:Kaupungit]]"),
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


def test_multistream_dumps_and_files_that_are_damaged_or_no_dump(tmp_path):
    """Multistream dumps are several bz2 streams in one file; a download that was cut off is detected."""
    page = PAGE.format("Turku", 0, 1, "", "", "Kaupunki. " * 50)
    streams = [bz2.compress(part.encode()) for part in (OPENING + SITE, page, page, "</mediawiki>")]
    whole = tmp_path / "whole.xml.bz2"
    whole.write_bytes(b"".join(streams))
    assert [document.id for document in documents(whole)] == ["1", "1"]
    for name, content in {
        "cut.xml.bz2": b"".join(streams[:3])[:-10],
        "cut.jsonl.gz": gzip.compress(b"{}" * 99, mtime=0)[:-12],
        "a.parquet": b"PAR1",
        "html.xml": b"<html></html>",
        "open.xml": f"{OPENING}<page><title>Cut".encode(),
        "empty.xml": b"",
        "plain.xml": b"no XML",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            documents(tmp_path / name)


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
        ("{{Infobox|name=x}}Text {{unknown|5|km}}, end", "Text, end"),
        ("Ada ({{IPA|fr|x}}; 1815–1852) was", "Ada (1815–1852) was"),
        ("Ada ({{x}}) was （；） there", "Ada was there"),
        ("{|\n! a\n|-\n| b\n|}\nbelow", "below"),
        ("<gallery>a.jpg|b</gallery><math>x^2</math>t<!-- no -->", "t"),
        ("a<br>b<br />c", "a\nb\nc"),
        ("* one\n* two\n# three\n; four : five", "one\ntwo\nthree\nfour\nfive"),
        ("R&amp;D &nbsp;x &#8211; y", "R&D x – y"),
        ("__NOTOC__ __notoc__ __目录__ __KEIN_INHALTSVERZEICHNIS__ __विषय_सूची_नहीं__ __init__", "__init__"),
        ("It is {{convert|100|km|mi|0|abbr=on}} long, or {{cvt|5|to|10|km2}}", "It is 100 km long, or 5 to 10 km²"),
        ("{{convert|6|ft|2|in|m}}, {{Convert|2|-|3|C}}, {{convert|2|x|3|m}}", "6 ft 2 in, 2–3 °C, 2 × 3 m"),
        ("of {{formatnum:1234567}} people, {{formatnum:{{val|12}}}}, {{FORMATNUM: 9|R}}", "of 1234567 people, 12, 9"),
        (
            "{{val|1.5|0.2|e=6|u=m}}, {{frac|1|2}}, {{frac|3|1|2}}, {{unité|12|km}}",
            "1.5 ± 0.2 × 10^6 m, 1/2, 3 1/2, 12 km",
        ),
        ("{{lang|fr|chat}}, {{lang-fi|kissa}}, {{transl|ja|neko}}, {{nowrap|a b}}", "chat, kissa, neko, a b"),
        ("{{langx|ja|猫|neko}} (born {{birth date|1815|12|10|df=y}}), {{circa|1900}}", "猫 (born 1815-12-10), c. 1900"),
        ("{{convert <!-- c -->|5|km}}, {{fraction|1|2}}, {{nts|9}}, {{US$|5}}", "5 km, 1/2, 9, US$5"),
        ("{{convert|{{#expr:1+1}}|km}}x {{color|red|b}} {{ruby|東|とう}} Hawai{{okina}}i{{'s}}", "x b 東 Hawaiʻi's"),
        ("<ul><li>a</ul>b<h2>c</h2>d", "a\nb\nc\nd"),
        ('a<ref name="x" b', "a b"),
        ("{{nihongo|Tower|東京タワー|tawā}}, {{nihongo||東京}}", "Tower (東京タワー, tawā), 東京"),
        ("'''{{PAGENAME}}''' 1{{ndash}}2", "Turku 1–2"),
        ('a<li>b <span style="{{x}}">c</b> d<ref>e <ref name=x>f</div>g', "a\nb c de f\ng"),
        ("<table><tr><td>[[x]]" * 60 + "</table>" * 60 + "a", "a"),
        ("<td>[[x]]" * 50, "\n".join("x" * 50)),
        ("a [[35&nbsp;mm film]]", "a 35 mm film"),
        ("a <b and c> d <- e", "a <b and c> d <- e"),
        ("a <!-- b\nc", "a"),
        ("{|\n! head\n|-\n| cell || more\nbelow", "below"),
        ("{{Infobox\n| name = x\ntext", "text"),
        ("|}\n|- style=x\n|} after", "after"),
        ("<gallery>\nFile:a.jpg|b\nc", "c"),
        ("&lt;li&gt; is <nowiki><ref> ''[[x]]''</nowiki> {&#124;", "<li> is <ref> ''[[x]]'' {|"),
        ("[[Kuva:a.jpg]] [[ملف:b.PNG|thumb]] [[:File:c.jpg]] x", "File:c.jpg x"),
        ("<nowiki>[[not a link]]</nowiki>", "[[not a link]]"),
        ("-{zh-hans:计算机; zh-hant:電腦;}-是-{机器}-", "计算机是机器"),
        ("-{zh-tw:電腦; zh-hk:電腦二}-", "電腦"),
        ("1 < 2, a <unknown>kept</unknown>", "1 < 2, a kept"),
        ("''unclosed and [[half a link", "unclosed and [[half a link"),
        ("", ""),
    ],
)
def test_what_a_reader_sees(source, shown):
    assert plain_text(source, HIDDEN, "Turku") == shown


@pytest.mark.parametrize(
    "word", ["REDIRECT", "Redirect", "OHJAUS", "تحويل", "перенаправление", "重定向", "넘겨주기", "đổi", "yönlendirme"]
)
def test_redirects_without_their_mark_are_no_articles(word):
    for text in (
        f"#{word} [[X]]",
        f"\ufeff<!-- x -->\n#{word}: [[X#y|z]]\nAn old article.",
        f"＃{word}[[X]] {{{{R from move}}}}",
    ):
        assert read(("X", 0, 1, "", "", text)) == []
    [page] = read(("X", 0, 1, "", "", f"#{word} is no link\n#[[X]]"), ("Y", 0, 2, "", "", "#unknown [[X]] {{x}}"))
    assert page.id == "1"


def test_categories_are_hidden_without_a_list_of_namespaces():
    [page] = read_pages(
        io.BytesIO((OPENING + PAGE.format("X", 0, 1, "", "", CATEGORIES) + "</mediawiki>").encode()), Path("x")
    )
    assert plain_text(page.wikitext, page.hidden_namespaces) == "text"


CATEGORIES = "[[Luokka:A]] [[Категория:Б]] [[분류:가]] [[تصنيف:ا]] [[หมวดหมู่:ก]] [[Thể loại:a]] [[分类:甲|甲]] text"


def test_headings_of_non_empty_sections_are_kept():
    page = "Lead\n== A ==\n=== B ===\ntext\n== Refs ==\n<references/>\n=== Sub ===\n{{x}}\n== L ==\n* [[Oulu]]\n== Z =="
    assert plain_text(page) == "Lead\nA\nB\ntext\nL\nOulu"


@given(st.text(alphabet="[]{}|'=<>/-*#;:!\n aé文ref&\u00a0", max_size=60))
@example("[[a|" * 500 + "{{" * 500 + "x")
@example("<b>" * 500 + "x")
@example("{{" * 2000)
@example("''" * 999)
def test_no_markup_is_too_broken_or_too_deep(text):
    shown = plain_text(text)
    assert "\n\n" not in shown
    assert shown == shown.strip()


PIECES = ("<li>", "</P>", "<td style='{{x}}'>", "<span>", "</div>", "<ref name=a>", "</ref>", "<br/>", "<!--", "word")
PIECES += ("\n{|", "\n|-", "\n| cell", "\n! head", "\n|}", "\n* ", "\n")


@given(st.lists(st.sampled_from(PIECES), max_size=12))
def test_what_is_not_closed_leaves_no_markup(pieces):
    shown = plain_text("".join(pieces))
    assert not re.search(r"</?[a-z]|<!--|^(?:\||\{\|)", shown, re.MULTILINE | re.IGNORECASE), shown


def test_real_pages_leave_no_markup_and_pages_that_cannot_be_parsed_are_named(monkeypatch):
    path = prepared("wikidump") / "enwiki-shortened.xml.bz2"
    with bz2.open(path) as file:
        pages = [page for page, _ in zip(read_pages(file, path), range(12), strict=False)]
    block = Block(file=0, path=path, number=0, documents=tuple(pages), bytes_read=0)
    articles = block.cleaned().documents
    assert [article.id for article in articles] == [page.id for page in pages]
    for mark in ("[[", "]]", "{{", "}}", "<ref", "'''", "Category:", "\x1d"):
        assert not any(mark in article.text for article in articles)
    anarchism = articles[0].text
    assert anarchism.startswith("Anarchism is a political philosophy that advocates self-governed societies based on")
    assert "References\n" not in anarchism

    def parse(text, **_):
        if "bad" in text:
            raise ParserError("lost")
        return original(text, skip_style_tags=True)

    original = corpora.mwparserfromhell.parse
    monkeypatch.setattr(corpora.mwparserfromhell, "parse", parse)
    texts = ("good", "bad", "{{only a template}}")
    pages = tuple(WikiPage(id=text[:1], title=text, wikitext=text, hidden_namespaces=HIDDEN) for text in texts)
    cleaned = Block(file=0, path=path, number=0, documents=pages, bytes_read=0).cleaned()
    assert cleaned.documents == (Article(id="g", title="good", text="good"),)
    assert [page for page, _ in cleaned.problems] == ["page b (bad)"]


ROWS = [{"id": str(n), "url": "https://x", "title": f"T{n}", "text": f"text {n}"} for n in range(5)]


def documents(path, bad_rows=None, kind=None):
    found = find_source("fi", str(path), kind)
    bad_rows = bad_rows or BadRows()
    return [document for file in found.files for _, document in found.documents(file, bad_rows)]


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
    assert find_source("fi", str(path)).kind == "articles"
    assert documents(path) == [Article(id=str(n), title=f"T{n}", text=f"text {n}") for n in range(5)]


def test_published_passages(tmp_path):
    rows = [
        {"docid": "12#3", "title": "T", "text": " t "},
        {"_id": "d1", "title": "", "text": "t", "metadata": {}},
        {"id": "0", "contents": '"Evan Morris"\nwas a lobbyist.\nmore'},
        {"id": 7, "contents": "Belize\n\nis a country"},
        {"id": "1", "contents": "no title"},
    ]
    passages = [(each.id, each.title, each.text) for each in documents(write_lines(tmp_path / "docs-0.jsonl.gz", rows))]
    assert passages == [
        ("12#3", "T", "t"),
        ("d1", "", "t"),
        ("0", "Evan Morris", "was a lobbyist.\nmore"),
        ("7", "Belize", "is a country"),
        ("1", "", "no title"),
    ]
    path = tmp_path / "psgs_w100.tsv"  # DPR's
    path.write_text('id\ttext\ttitle\n1\t"Aaron is ""the"" prophet, Moses\'s"\tAaron\n2\t"Two" is\tA"B\n')
    passages = [(each.id, each.title, each.text) for each in documents(path)]
    assert passages == [("1", "Aaron", 'Aaron is "the" prophet, Moses\'s'), ("2", 'A"B', '"Two" is')]


def test_passages_without_a_title_and_under_another_name(tmp_path):
    rows = [{"id": "1", "title": "T", "text": "a"}, {"id": "2", "title": None, "text": "b"}]
    expected = [("1", "T", "a"), ("2", "", "b")]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    files = (tmp_path / "a.parquet", write_lines(tmp_path / "a.json", rows), write_lines(tmp_path / "a.json.gz", rows))
    for path in files:
        source = find_source("en", str(path), "passages")
        assert [(each.id, each.title, each.text) for _, each in source.documents(path, BadRows())] == expected
    rows[0]["contents"] = "a"
    assert find_source("en", str(write_lines(tmp_path / "b.json", rows[:1]))).kind == "passages"


@pytest.mark.parametrize(
    "error", [OSError(30, "Read-only file system"), ImportError("no SemLock"), NotImplementedError]
)
def test_wikitext_is_cleaned_here_where_processes_cannot_be_made(error, monkeypatch, capsys):
    def refuse(*_, **__):
        raise error

    source = find_source("en", str(prepared("wikidump") / "enwiki-shortened.xml.bz2"))
    here = list(source.passages(BadRows(), workers=0))
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", refuse)
    assert list(source.passages(BadRows(), workers=2)) == here
    assert "one process" in capsys.readouterr().err


def test_a_process_that_is_killed_is_named(monkeypatch):
    class Broken(concurrent.futures.ThreadPoolExecutor):
        def __init__(self, workers, *_, **__):
            super().__init__(workers)

        def submit(self, *_):
            raise concurrent.futures.process.BrokenProcessPool

    source = find_source("en", str(prepared("wikidump") / "enwiki-shortened.xml.bz2"))
    monkeypatch.setattr(concurrent.futures, "ProcessPoolExecutor", Broken)
    with pytest.raises(UserError, match="index.workers lower than 2"):
        list(source.passages(BadRows(), workers=2))


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


AMBIGUOUS = '{"id": "1", "title": "T", "text": "x"}'


@pytest.mark.parametrize(
    ("files", "place", "kind"),
    [
        ({}, "", None),
        ({}, "missing.xml.bz2", None),
        ({"a.pdf": ""}, "a.pdf", None),
        ({"a.jsonl": "", "b.parquet": ""}, "", None),
        ({"a.txt": "A castle."}, "", "passages"),
        ({"empty.jsonl": ""}, "", None),
        ({"a.jsonl": AMBIGUOUS}, "", None),
        ({"a.jsonl": AMBIGUOUS}, "", "dump"),
        ({"a.jsonl": AMBIGUOUS}, "", "squad"),
        ({"a.jsonl": "no JSON"}, "", None),
    ],
)
def test_files_that_are_no_source(tmp_path, files, place, kind):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError):
        find_source("fi", str(tmp_path / place), kind)


def test_ambiguous_files_need_a_kind(tmp_path):
    (tmp_path / "a.jsonl").write_text(AMBIGUOUS)
    for kind, made in (("passages", Passage), ("articles", Article)):
        assert documents(tmp_path, kind=kind) == [made(id="1", title="T", text="x")]


@pytest.mark.parametrize(
    ("name", "content", "place", "ids"),
    [
        ("a.jsonl", [ROWS[0], {"id": "1", "url": "", "title": "T"}, ROWS[1]], "line 2, field text", ["0", "1"]),
        ("a.jsonl", [ROWS[0], ROWS[1] | {"title": None}, ROWS[2]], "line 2, field title", ["0", "2"]),
        ("a.jsonl", [{"docid": "1", "title": "T"}, {"docid": "2", "text": "x"}], "line 1", ["2"]),
        ("a.jsonl", b'oops\n{"docid": "1", "title": "T", "text": "x"}\n', "line 1: invalid JSON", ["1"]),
        ("a.parquet", [ROWS[0], ROWS[1] | {"text": None}], "line 2, field text", ["0"]),
        ("a.tsv", b"id\ttext\ttitle\n1\tx\ty\n\tx\ty\n", "line 3, field", ["1"]),
        ("a.tsv", b"id\ttext\ttitle\n1\tx\ry\tT\n2\tx\tT\n", "line 2: the row holds a carriage return", ["2"]),
        ("a.tsv", b'id\ttitle\ttext\n1\tT\t"x\n2\tT\ty\n3\tT\t"z"\n', "line 2: column 3 begins", ["2", "3"]),
        ("a.tsv", b'id\ttitle\ttext\n1\t"T\tU"\tx\n2\tT\ty\n', "line 2: column 2 begins", ["2"]),
        ("a.tsv", b"id\ttitle\ttext\n1\tT\tx\ty\n2\tT\ty\n", "line 2: the row has 4 columns", ["2"]),
        ("a.jsonl", [{"docid": "1", "text": "\u200e \u3164"}, {"docid": "2", "text": "x"}], "line 1: ", ["2"]),
        ("a.jsonl", b'{"docid": "1", "text": "x", "text": "y"}\n{"docid": "2", "text": "x"}\n', "line 1", ["2"]),
    ],
)
def test_bad_rows_are_named_or_counted(tmp_path, one_bad_row, name, content, place, ids):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif name == "a.parquet":
        parquet.write_table(pa.Table.from_pylist(content), path)
    else:
        write_lines(path, content)
    rows = one_bad_row(lambda bad_rows: documents(path, bad_rows), f"{path}, {place}")
    assert [document.id for document in rows] == ids


@pytest.mark.parametrize("count", [0, 3, 4])
def test_blocks_hold_every_document_once(tmp_path, monkeypatch, count):
    monkeypatch.setattr(corpora, "DOCUMENTS_PER_BLOCK", 2)
    path = write_lines(tmp_path / "a.jsonl", ROWS[:count])
    blocks = list(find_source("fi", str(path), "articles").blocks(0, BadRows()))
    assert [document.id for block in blocks for document in block.documents] == [str(n) for n in range(count)]
    assert [block.name for block in blocks] == [f"00000-{number:07d}" for number in range(len(blocks))]
    assert [len(block.documents) for block in blocks] == {0: [0], 3: [2, 1], 4: [2, 2]}[count]
    assert [block.bytes_read for block in blocks] == sorted(block.bytes_read for block in blocks)
    assert blocks[-1].bytes_read == path.stat().st_size


TEXTS = st.lists(st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp"))), max_size=5)
SPACED = st.lists(st.text(alphabet="aé文\u0e01\u0e48 \t\n\u3000\u00a0", max_size=40), max_size=5)


@given(SPACED, TEXTS, st.integers(1, 5))
def test_words_are_cut_as_by_hand_and_characters_are_all_there_in_order(spaced, texts, length):
    words = [text.split() for text in spaced]
    by_hand = [[" ".join(row[start : start + length]) for start in range(0, len(row), length)] for row in words]
    assert chunks(spaced, "words", length) == by_hand
    for text, pieces in zip(texts, chunks(texts, "characters", length), strict=True):
        assert "".join(pieces).replace(" ", "") == "".join(text.split())
        for number, piece in enumerate(pieces):
            bases = [character for character in piece if not unicodedata.category(character).startswith("M")]
            assert len(bases) <= length or number == 0
            assert piece
            assert piece == piece.strip()


def test_characters_of_real_scripts():
    for text, length, pieces in (
        ("กินข้าวที่บ้าน", 3, ["กิน", "ข้า", "วที่", "บ้า", "น"]),  # marks stay with their characters
        ("東京は日本の首都", 3, ["東京は", "日本の", "首都"]),
        ("𠀀𠀁𠀂", 2, ["𠀀𠀁", "𠀂"]),
    ):
        assert chunks([text], "characters", length) == [pieces]


def test_the_units_of_the_languages_are_the_languages_own():
    assert {code for code in LANGUAGES if unit_of(code) == "characters"} == {"ja", "zh", "th", "km"}
    assert {unit_of(code) for code in ("zh-yue", "km", "lo", "my", "bo", "zh_classical")} == {"characters"}
    assert {unit_of(code) for code in ("sw", "bn", "te", "hi", "ltg", "bat-smg", "xx", "zh-min-nan", "ko")} == {"words"}


@pytest.mark.parametrize("language", ["zh-min-nan", "xx"])
def test_a_language_of_unknown_or_several_scripts_is_cut_by_each_article(tmp_path, language):
    path = write_lines(tmp_path / "a.jsonl", [ROWS[0] | {"text": "Tâi-oân sī tó"}, ROWS[1] | {"text": "臺灣是島"}])
    passages = find_source(language, str(path), length=2).passages(BadRows())
    assert [each.text for each in passages] == ["Tâi-oân sī", "tó", "臺灣", "是島"]


def test_passages_have_the_title_and_stable_ids(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [ROWS[0] | {"text": "one two three"}, ROWS[1] | {"text": "four"}])
    passages = find_source("fi", str(path), length=2).passages(BadRows())
    assert [(each.id, each.title, each.text) for each in passages] == [
        ("0#0", "T0", "one two"),
        ("0#1", "T0", "three"),
        ("1#0", "T1", "four"),
    ]
    with pytest.raises(UserError):
        chunks(["x"], "words", 0)
