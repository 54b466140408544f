"""Corpora: files of documents in blocks, and passages."""

import bz2
import gzip
import unicodedata

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.row_files import write_rows

from lcrag.data import corpora
from lcrag.data.corpora import chunks, find_source, unit_of
from lcrag.data.questions import LANGUAGES
from lcrag.data.rows import BadRows
from lcrag.errors import UserError
from lcrag.retrieval.passages import Passage

ROWS = [{"id": str(n), "url": "https://x", "title": f"T{n}", "text": f"text {n}"} for n in range(5)]


def documents(path, bad_rows=None, kind=None):
    found = find_source("fi", str(path), kind)
    bad_rows = bad_rows or BadRows()
    return [document for file in found.files for _, document in found.documents(file, bad_rows)]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.jsonl.bz2", "a.parquet"])
def test_articles_in_every_file_format(tmp_path, name):
    path = tmp_path / name
    if path.suffix == ".parquet":
        parquet.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=2)
    else:
        write_rows(path, *ROWS)
    assert find_source("fi", str(path)).kind == "articles"
    assert documents(path) == [Passage(id=str(n), title=f"T{n}", text=f"text {n}") for n in range(5)]


@pytest.mark.parametrize("ending", ["", ".bz2"])
def test_the_folder_that_wikiextractor_makes_of_a_dump(tmp_path, ending):
    for number, texts in ((10, ["R&amp;D"]), (2, ["&lt;b&gt; 1 &amp;lt; 2\nEnd.", ""])):
        rows = [ROWS[0] | {"id": f"{number}{n}", "revid": "7", "text": text} for n, text in enumerate(texts)]
        (tmp_path / "AA").mkdir(exist_ok=True)
        write_rows(tmp_path / "AA" / f"wiki_{number:02d}{ending}", *rows)
    assert [(article.id, article.text) for article in documents(tmp_path)] == [
        ("20", "<b> 1 &lt; 2\nEnd."),
        ("100", "R&D"),
    ]
    assert documents(write_rows(tmp_path / "a.jsonl", ROWS[0] | {"text": "&amp;"}))[0].text == "&amp;"


def test_damaged_files_are_named(tmp_path):
    for name, content in {
        "cut.jsonl.bz2": bz2.compress(b"{}" * 99)[:-12],
        "cut.jsonl.gz": gzip.compress(b"{}" * 99, mtime=0)[:-12],
        "a.parquet": b"PAR1",
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=name):
            documents(tmp_path / name)


def test_published_passages(tmp_path):
    rows = [
        {"docid": "12#3", "title": "T", "text": " t "},
        {"_id": "d1", "title": "", "text": "t", "metadata": {}},
        {"id": "0", "contents": '"Evan Morris"\nwas a lobbyist.\nmore'},
        {"id": 7, "contents": "Belize\n\nis a country"},
        {"id": "1", "contents": "no title"},
        {"id": "2", "title": "Belize", "contents": "a country"},
        {"id": "3", "title": "Belize", "contents": "Belize\na country"},
        {"id": "4", "title": "Belize", "contents": "a country\nin America"},
    ]
    passages = [(each.id, each.title, each.text) for each in documents(write_rows(tmp_path / "docs-0.jsonl.gz", *rows))]
    assert passages == [
        ("12#3", "T", "t"),
        ("d1", "", "t"),
        ("0", "Evan Morris", "was a lobbyist.\nmore"),
        ("7", "Belize", "is a country"),
        ("1", "", "no title"),
        ("2", "Belize", "a country"),
        ("3", "Belize", "a country"),
        ("4", "Belize", "a country\nin America"),
    ]
    path = tmp_path / "psgs_w100.tsv"  # DPR's
    path.write_text('id\ttext\ttitle\n1\t"Aaron is ""the"" prophet, Moses\'s"\tAaron\n2\t"Two" is\tA"B\n')
    passages = [(each.id, each.title, each.text) for each in documents(path)]
    assert passages == [("1", "Aaron", 'Aaron is "the" prophet, Moses\'s'), ("2", 'A"B', '"Two" is')]


def test_passages_without_a_title_and_under_another_name(tmp_path):
    rows = [{"id": "1", "title": "T", "text": "a"}, {"id": "2", "title": None, "text": "b"}]
    expected = [("1", "T", "a"), ("2", "", "b")]
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    files = (tmp_path / "a.parquet", write_rows(tmp_path / "a.json", *rows), write_rows(tmp_path / "a.json.gz", *rows))
    for path in files:
        source = find_source("en", str(path), "passages")
        assert [(each.id, each.title, each.text) for _, each in source.documents(path, BadRows())] == expected
    rows[0]["contents"] = "a"
    assert find_source("en", str(write_rows(tmp_path / "b.json", rows[0]))).kind == "passages"


def test_several_files_follow_each_other_by_their_numbers(tmp_path):
    for number in (10, 2, 1):
        write_rows(tmp_path / f"part-{number}.jsonl", {"docid": str(number), "text": "x"})
    (tmp_path / "README.md").write_text("not a passage")
    for place in (tmp_path, tmp_path / "part-*.jsonl"):
        assert [document.id for document in documents(place)] == ["1", "2", "10"]


def test_each_text_file_is_an_article(tmp_path):
    folder = tmp_path / "notes"
    (folder / "more").mkdir(parents=True)
    (folder / "Turku_Castle.txt").write_text("A castle.\nIn Turku.\n", encoding="utf-8-sig")
    (folder / "more" / "aura.md").write_text("# The river Aura\n\nIt flows.")
    (folder / "empty.txt").write_text("\n")
    for name in ("more/aura/aura.md", "report.2023.txt", "report.2024.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("Dry.")
    assert documents(folder) == [
        Passage(id="notes/Turku_Castle", title="Turku Castle", text="A castle.\nIn Turku."),
        Passage(id="notes/more/aura", title="The river Aura", text="It flows."),
        Passage(id="notes/more/aura/aura", title="aura", text="Dry."),
        *(Passage(id=f"notes/report.{year}", title=f"report.{year}", text="Dry.") for year in (2023, 2024)),
    ]


AMBIGUOUS = '{"id": "1", "title": "T", "text": "x"}'


@pytest.mark.parametrize(
    ("files", "place", "kind"),
    [
        ({}, "", None),
        ({}, "missing.jsonl.bz2", None),
        ({"wiki.xml.bz2": ""}, "", None),
        ({"a.pdf": ""}, "a.pdf", None),
        ({"a.jsonl": "", "b.parquet": ""}, "", None),
        ({"a.txt": "A castle."}, "", "passages"),
        ({"empty.jsonl": ""}, "", None),
        ({"a.jsonl": AMBIGUOUS}, "", None),
        ({"a.jsonl": AMBIGUOUS}, "", "squad"),
        ({"a.jsonl": "no JSON"}, "", None),
    ],
)
def test_files_that_are_no_source(tmp_path, files, place, kind):
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(UserError):
        find_source("fi", str(tmp_path / place), kind)


@pytest.mark.parametrize(
    ("rows", "place", "ids"),
    [
        ([{"docid": "1", "title": "T"}, {"docid": "2", "text": "x"}], "line 1", ["2"]),
        (["oops", {"docid": "1", "title": "T", "text": "x"}], "line 1: invalid JSON", ["1"]),
    ],
)
def test_the_first_row_may_be_bad(tmp_path, one_bad_row, rows, place, ids):
    path = write_rows(tmp_path / "a.jsonl", *rows)
    found = one_bad_row(lambda bad_rows: documents(path, bad_rows), f"{path}, {place}")
    assert [document.id for document in found] == ids


def test_a_bad_row_of_parquet(tmp_path, one_bad_row):
    parquet.write_table(pa.Table.from_pylist([ROWS[0], ROWS[1] | {"text": None}]), path := tmp_path / "a.parquet")
    [article] = one_bad_row(lambda bad_rows: documents(path, bad_rows), f"{path}, line 2, field text")
    assert article.id == "0"


@pytest.mark.parametrize("count", [0, 3, 4])
def test_blocks_hold_every_document_once(tmp_path, monkeypatch, count):
    monkeypatch.setattr(corpora, "DOCUMENTS_PER_BLOCK", 2)
    path = write_rows(tmp_path / "a.jsonl", *ROWS[:count])
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
    assert [chunks(text, "words", length) for text in spaced] == by_hand
    for text, pieces in ((text, chunks(text, "characters", length)) for text in texts):
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
        assert chunks(text, "characters", length) == pieces


def test_the_units_of_the_languages_are_the_languages_own():
    assert {code for code in LANGUAGES if unit_of(code) == "characters"} == {"ja", "zh", "th", "km"}
    assert {unit_of(code) for code in ("zh-yue", "km", "lo", "my", "bo", "zh_classical")} == {"characters"}
    assert {unit_of(code) for code in ("sw", "bn", "te", "hi", "ltg", "bat-smg", "xx", "zh-min-nan", "ko")} == {"words"}


@pytest.mark.parametrize("language", ["zh-min-nan", "xx"])
def test_a_language_of_unknown_or_several_scripts_is_cut_by_each_article(tmp_path, language):
    path = write_rows(tmp_path / "a.jsonl", ROWS[0] | {"text": "Tâi-oân sī tó"}, ROWS[1] | {"text": "臺灣是島"})
    passages = find_source(language, str(path), length=2).passages(BadRows())
    assert [each.text for each in passages] == ["Tâi-oân sī", "tó", "臺灣", "是島"]


def test_passages_have_the_title_and_stable_ids(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", ROWS[0] | {"text": "one two three"}, ROWS[1] | {"text": "four"})
    passages = find_source("fi", str(path), length=2).passages(BadRows())
    assert [(each.id, each.title, each.text) for each in passages] == [
        ("0#0", "T0", "one two"),
        ("0#1", "T0", "three"),
        ("1#0", "T1", "four"),
    ]
    with pytest.raises(UserError):
        chunks("x", "words", 0)
