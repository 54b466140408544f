"""The files of a corpus, their kinds, and their documents in blocks."""

import bz2
import gzip
import json

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from prepared_data import prepared

from lcrag.data.corpora.documents import Article
from lcrag.data.corpora.source import find_source
from lcrag.data.rows import BadRows
from lcrag.data.xquad import xquad_passages
from lcrag.errors import UserError
from lcrag.retrieval.passages import Passage

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


def test_real_passages_of_search_r1():
    passages = documents(prepared("flashrag") / "corpus.sample.jsonl")
    assert passages[0].title == "Evan Morris"
    assert passages[0].text.startswith("Evan Morris Evan L. Morris (January 26")
    assert len({passage.id for passage in passages}) == len(passages) == 10
    assert not any('"' in passage.title for passage in passages)


def test_real_paragraphs_of_xquad_are_those_of_its_questions():
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


def test_text_files_hold_no_passages(tmp_path):
    (tmp_path / "a.txt").write_text("A castle.")
    with pytest.raises(UserError, match="does not have the format of kind 'passages'"):
        find_source(str(tmp_path), "passages")


@pytest.mark.parametrize(
    ("names", "place", "message"),
    [
        ((), "", "no file at"),
        ((), "missing.xml.bz2", "no file at .*missing"),
        (("a.pdf",), "a.pdf", "a.pdf has an unknown format"),
        (("a.jsonl", "b.parquet"), "", "several formats .*.jsonl, .parquet"),
    ],
)
def test_files_that_are_no_source(tmp_path, names, place, message):
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(UserError, match=message):
        find_source(str(tmp_path / place))


def test_ambiguous_files_need_a_kind(tmp_path):
    with pytest.raises(UserError, match="holds no row"):
        find_source(str(write_lines(tmp_path / "empty.jsonl", [])))
    path = write_lines(tmp_path / "a.jsonl", [{"id": "1", "title": "T", "text": "x"}])
    with pytest.raises(UserError, match="index.kind"):
        find_source(str(path))
    assert documents(path, kind="passages") == [Passage(id="1", title="T", text="x")]
    assert documents(path, kind="articles") == [Article(id="1", title="T", text="x")]
    for kind in ("dump", "squad"):
        with pytest.raises(UserError, match="omit the kind"):
            find_source(str(path), kind)


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
