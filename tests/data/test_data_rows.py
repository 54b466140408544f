"""Rows of files, whose errors give file, line and field; questions, demonstrations and judgements in files."""

import codecs
import contextlib
import csv
import gzip
import json
from typing import Annotated

import pyarrow as pa
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prepared_data import prepared
from pyarrow import parquet
from support.row_files import write_rows

from lcrag.data import multilingual
from lcrag.data.constructed import english_vocabulary
from lcrag.data.corpora import find_source
from lcrag.data.demonstrations import read_demonstrations, take_part
from lcrag.data.english import QUESTION_SETS
from lcrag.data.questions import Question, coupled
from lcrag.data.rows import (
    BadRows,
    JudgedQuery,
    Row,
    Text,
    data_file,
    dataset_folder,
    jsonl_questions,
    question_judgements,
    read_rows,
    read_squad,
    read_text,
    read_trec,
)
from lcrag.errors import UserError


class Cells(Row):
    a: str
    b: str


class Pair(Row):
    name: Text
    sizes: list[int]


GOOD = '{"name": " a ", "sizes": [1], "more": null}'


def only_text(path, kind=None):
    [(_, document)] = find_source("en", str(path), kind).documents(path, BadRows())
    return document.text


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize(
    ("name", "content", "reader"),
    [
        ("a.jsonl", GOOD, lambda path: next(read_rows(path, Pair, BadRows()))[1].name),
        ("a.csv", "a,b\na,1", lambda path: next(read_rows(path, Cells, BadRows()))[1].a),
        ("a.tsv", "text\tid\na\t1", only_text),
        ("b.jsonl", '{"text": "a", "docid": 1}', only_text),
        ("a.txt", "a", only_text),
        ("a.json", '{"data": [{"title": "x", "paragraphs": [{"context": "a", "qas": []}]}]}', only_text),
        ("topics", "1\ta", lambda path: read_trec(path, path.with_name("q"), "en", BadRows())[0].text),
        ("qrels", "1 Q0 p 1", lambda path: [*read_trec(path.with_name("t"), path, "en", BadRows())[0].grades][0][:0]),
        ("mgsm_en.tsv", "a\t1", lambda path: multilingual.mgsm_questions(["en"], str(path.parent))[0].text),
        ("words.txt", "abc", lambda path: english_vocabulary(file=str(path))[0][:1]),
    ],
)
def test_a_byte_order_mark_is_no_part_of_any_file(tmp_path, name, content, reader, mark):
    (tmp_path / "t").write_text("1\ta\n")
    (tmp_path / "q").write_text("1 Q0 p 1\n")
    (tmp_path / name).write_bytes(mark + content.encode() + b"\n")
    assert reader(tmp_path / name) == ("" if name == "qrels" else "a")


def test_a_mark_between_joined_files_is_dropped_and_utf_16_is_named(tmp_path):
    path = write_rows(tmp_path / "rows.jsonl", GOOD, f"\ufeff{GOOD}")
    assert [row.name for _, row in read_rows(path, Pair, BadRows())] == ["a", "a"]
    path.write_text(GOOD, encoding="utf-16")
    with pytest.raises(UserError, match="rows.jsonl is UTF-16: save it as UTF-8"):
        list(read_rows(path, Pair, BadRows()))


FIELDS = st.text(alphabet='ab" ,\n\té', max_size=6)


@given(st.lists(st.tuples(FIELDS, FIELDS), min_size=1, max_size=5), st.sampled_from(["excel", "excel-tab"]))
def test_every_row_of_a_table_is_read_exactly_or_bad(tmp_path_factory, rows, dialect):
    """A TSV table holds no tab or line break in a field; what is written as CSV comes back."""
    path = tmp_path_factory.mktemp("table") / ("rows.csv" if dialect == "excel" else "rows.tsv")
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, dialect).writerows([("a", "b"), *rows])
    kept = [row for row in rows if path.suffix == ".csv" or not any(set("\t\n") & set(text) for text in row)]
    bad_rows = BadRows(skip=True)
    with contextlib.suppress(UserError):  # if no row is left
        assert [(row.a, row.b) for _, row in read_rows(path, Cells, bad_rows)] == [
            row for row in kept if path.suffix == ".csv" or any(map(str.strip, row))
        ]
    assert bool(bad_rows.problems) == (len(kept) < len(rows))


def test_lines_of_a_table_are_counted_and_its_columns_have_names(tmp_path):
    path = write_rows(tmp_path / "rows.csv", "a,b", '3,"3\n3"', "4,4")
    assert [(line, row.b) for line, row in read_rows(path, Cells, BadRows())] == [(2, "3\n3"), (4, "4")]
    with pytest.raises(UserError, match="two columns are called a"):
        list(read_rows(write_rows(path, "a,a", "1,2"), Cells, BadRows()))


def test_skipped_rows_are_counted_over_files_and_a_file_without_a_row_is_refused(tmp_path):
    bad_rows = BadRows(skip=True)
    assert bad_rows.summary() == ""
    for name in ("a.jsonl", "b.jsonl"):
        list(read_rows(write_rows(tmp_path / name, "{}", GOOD, "[]"), Pair, bad_rows))
    assert bad_rows.summary().startswith(f"4 bad rows were left out; the first: {tmp_path / 'a.jsonl'}, line 1")
    for lines, part in (((), "empty"), (("{}", "[]"), "line 1, field name")):
        with pytest.raises(UserError, match=part):
            list(read_rows(write_rows(tmp_path / "rows.jsonl", *lines), Pair, BadRows(skip=True)))


def test_files_that_cannot_be_read(tmp_path):
    whole = gzip.compress(f"{GOOD}\n".encode() * 2000)
    (tmp_path / "cut.jsonl.gz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "plain.jsonl.gz").write_text(GOOD)
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("cut.jsonl.gz", "plain.jsonl.gz", "gone.jsonl", "folder.jsonl"):
        with pytest.raises(UserError, match=name):
            list(read_rows(tmp_path / name, Pair, BadRows()))
    (tmp_path / "latin.json").write_bytes("é".encode("latin-1"))
    with pytest.raises(UserError, match="latin.json cannot be read .*UTF-8"):
        read_text(tmp_path / "latin.json")


def test_folders_and_files_are_named_with_their_source(tmp_path, monkeypatch):
    monkeypatch.delenv("LCRAG_DATA", raising=False)
    with pytest.raises(UserError, match="LCRAG_DATA .*mkqa_questions.folder"):
        dataset_folder("mkqa")
    monkeypatch.setenv("LCRAG_DATA", str(tmp_path))
    with pytest.raises(UserError, match="no folder .*mkqa"):
        dataset_folder("mkqa")
    assert dataset_folder("mkqa", tmp_path) == tmp_path
    with pytest.raises(UserError, match="no a.json in .*https://example.org/a.json"):
        data_file(tmp_path, ("a.json", "b.json"), "https://example.org/a.json")
    for name in ("b.json.gz", "b.json", "a.json.gz"):  # the official name first, plain before gzipped
        (tmp_path / name).touch()
        assert data_file(tmp_path, ("a.json", "b.json"), "").name == name


SQUAD_QUESTIONS = [
    {"id": "1", "question": "\ufeffWhat?", "answers": [{"text": "text"}, {"text": "text"}]},
    {"id": "2", "question": "How much?", "answers": [{"text": "some"}]},
]
SQUAD = {"data": [{"title": "A_title", "paragraphs": [{"context": "\ufeff Some text. ", "qas": SQUAD_QUESTIONS}]}]}


def test_squad_s_paragraphs_with_questions_and_without_regard_to_them(tmp_path):
    [(_, questions)] = read_squad(write_rows(tmp_path / "squad.json", SQUAD))
    assert [(q.id, q.question, q.texts) for q in questions] == [
        ("1", "What?", ("text",)),
        ("2", "How much?", ("some",)),
    ]
    unanswerable = {"id": "3", "question": "When?", "answers": [], "is_impossible": True, "plausible_answers": []}
    articles = [
        SQUAD["data"][0],
        {"title": None, "paragraphs": [{"context": "b", "qas": [unanswerable]}]},
        {"paragraphs": [{"context": "c"}]},
    ]
    path = write_rows(tmp_path / "squad.json", {"version": "v2.0", "data": articles})
    passages = [passage for passage, _ in read_squad(path)]
    assert [(each.id, each.title, each.text) for each in passages] == [
        ("A title/0", "A title", "Some text."),
        ("1/0", "", "b"),
        ("2/0", "", "c"),
    ]
    assert [each for _, each in find_source("en", str(path)).documents(path, BadRows())] == passages
    assert [len(questions) for _, questions in read_squad(path)] == [2, 0, 0]


class _Nullable(Row):
    name: Annotated[str, pydantic.Field(validation_alias=pydantic.AliasChoices("title", "name"))] = "default"
    sizes: list[int] = []


def test_null_is_as_an_absent_field(tmp_path):
    rows = [{"name": None, "sizes": [1]}, {"title": None, "name": "n", "sizes": None}, {}]
    path = tmp_path / "rows.parquet"
    parquet.write_table(pa.Table.from_pylist(rows), path)
    lines = write_rows(tmp_path / "rows.jsonl", *rows)
    for each in (path, lines):
        read = [(row.name, row.sizes) for _, row in read_rows(each, _Nullable, BadRows())]
        assert read == [("default", [1]), ("n", []), ("default", [])]


def test_squad_files_that_are_something_else(tmp_path):
    for text in ('{"data": [\n}', '{"rows": []}', '{"data": []} {}'):
        with pytest.raises(UserError, match="squad.json"):
            read_squad(write_rows(tmp_path / "squad.json", text))
    path = write_rows(tmp_path / "squad.json", '{"data": [{"title": "x"}, {"title": "y", "paragraphs": [[]]}]}')
    with pytest.raises(UserError, match="squad.json has a mistake in data.0.paragraphs"):
        read_squad(path)


ROWS = (
    {"id": 1, "language": "fi", "question": "Missä on Tšad?", "answers": ["Afrikassa", "Afrikassa "]},
    {"id": "1", "language": "en", "question": "Where is Chad?", "answers": ["in Africa"], "extra": {"hard": False}},
    {"id": "2", "language": "en", "question": "Name a colour", "answers": ["red"]},
)


def test_own_questions_are_read_as_they_are_and_the_same_id_is_a_group(tmp_path):
    file, more = write_rows(tmp_path / "mine.jsonl", *ROWS), tmp_path / "more.jsonl.gz"
    questions = jsonl_questions([file], "mine")
    assert [(q.id, q.dataset, q.language, q.text) for q in questions] == [
        ("1", "mine", "fi", "Missä on Tšad?"),
        ("1", "mine", "en", "Where is Chad?"),
        ("2", "mine", "en", "Name a colour"),
    ]
    assert (questions[0].answers, questions[1].extra) == (("Afrikassa",), {"hard": False})
    assert list(map(len, coupled(questions))) == [2, 1]
    more.write_bytes(gzip.compress(json.dumps(ROWS[2] | {"language": "th"}).encode()))
    assert [q.language for q in jsonl_questions([file, more], languages=("fi", "th"))] == ["fi", "th"]
    for files, languages in (((file, file), None), ((file,), ("sv",)), ((), None)):
        with pytest.raises(UserError):
            jsonl_questions(files, "mine", languages)


SHOWN = {
    "prompt": "Where is Chad?\n",
    "turns": [
        {"by": "policy", "text": "<search> Chad</search>"},
        {"by": "environment", "text": "<information>\n</information>\n"},
        {"by": "policy", "text": "<answer> in Africa</answer>"},
    ],
}


def test_a_demonstration_says_who_wrote_what_and_what_is_learned(tmp_path):
    pair = {**SHOWN, "turns": [{**SHOWN["turns"][0], "learn": False}, *SHOWN["turns"][1:]]}
    episode = {**SHOWN, "question_id": 7, "dataset": "mkqa", "answer": "in Africa", "rewards": {"total": 1.0}}
    chat = {**SHOWN, "prompt": "<user>Where?<model>Passages", "opening": ["Where?", "Passages"]}
    rows = read_demonstrations([write_rows(tmp_path / "rows.jsonl", SHOWN, "", pair, episode, chat)], BadRows())
    learned = [True, False, True]
    assert [[turn.learn for turn in row.turns] for row in rows] == [
        learned, [False, False, True], learned, [False, *learned],
    ]  # fmt: skip
    assert [row.line for row in rows] == [1, 3, 4, 5]
    assert rows[0].opening == rows[0].topic == "Where is Chad?\n"
    assert rows[2].topic == "mkqa/7"
    # The texts before the chat template was applied stand in for the prompt.
    assert (rows[0].in_template, rows[3].in_template, rows[3].opening) == (True, False, "Where?")
    assert (rows[3].turns[0].by, rows[3].turns[0].text) == ("environment", "Passages")


def test_messages_are_turns(tmp_path):
    roles = ("system", "user", "assistant", "tool", "assistant", "user", "assistant")
    messages = [{"role": role, "content": f"{number}"} for number, role in enumerate(roles)]
    messages[2]["weight"] = 0
    [read] = read_demonstrations([write_rows(tmp_path / "rows.jsonl", {"messages": messages})], BadRows())
    assert (read.system, read.opening, read.topic, read.in_template) == ("0", "1", "1", False)
    assert "".join(turn.text for turn in read.turns) == "23456"
    assert [turn.by == "policy" for turn in read.turns] == [True, False, True, False, True]
    assert [turn.learn for turn in read.turns] == [False, False, True, False, True]


@given(
    topics=st.lists(st.integers(0, 8), min_size=2, max_size=30).filter(lambda topics: len(set(topics)) > 1),
    share=st.floats(0.05, 0.6),
    seed=st.integers(0, 3),
)
def test_files_by_pattern_and_a_topic_is_on_one_side(tmp_path_factory, topics, share, seed):
    rows = [{**SHOWN, "question_id": topic, "prompt": f"{topic}, {number}"} for number, topic in enumerate(topics)]
    folder = tmp_path_factory.mktemp("split")
    write_rows(folder / "step_0.jsonl", *rows[:1]), write_rows(folder / "step_10.jsonl", *rows[1:])
    everything = read_demonstrations([folder / "step_*.jsonl"], BadRows())
    assert [row.opening for row in everything] == [row["prompt"] for row in rows]
    sides = {part: take_part(everything, part, share, seed) for part in ("train", "validation")}
    assert sorted(row.opening for side in sides.values() for row in side) == sorted(row["prompt"] for row in rows)
    assert not {row.topic for row in sides["train"]} & {row.topic for row in sides["validation"]}
    assert all(sides.values())
    assert take_part(everything, "all", share, seed) == everything


def test_missing_demonstrations_and_impossible_splits(tmp_path):
    for files in ((), (tmp_path / "*.gz",), (tmp_path / "none.jsonl",)):
        with pytest.raises(UserError):
            read_demonstrations(files, BadRows())
    rows = read_demonstrations([write_rows(tmp_path / "rows.jsonl", SHOWN)], BadRows())
    for part, share in (("test", 0.1), ("train", 1.0), ("train", 0.1)):
        with pytest.raises(UserError):
            take_part(rows, part, share, 0)


def test_real_judgements_of_miracl_and_mr_tydi():
    topics, qrels = (prepared("miracl") / f"{kind}.miracl-v1.0-ar-dev.tsv" for kind in ("topics", "qrels"))
    queries = read_trec(topics, qrels, "ar", BadRows())
    assert (len(queries), {query.language for query in queries}) == (60, {"ar"})
    assert sum(len(query.grades) for query in queries) == len(qrels.read_text().splitlines())
    assert all(1 in query.grades.values() for query in queries)
    folder = prepared("mrtydi")
    topics, qrels = folder / "topics.mrtydi-v1.1-en.test.txt.gz", folder / "qrels.mrtydi-v1.1-en.test.txt"
    queries = read_trec(topics, qrels, "en", BadRows())
    first = JudgedQuery(id="4476", language="en", text="Who developed Trastuzumab?", grades={"614750#27": 1})
    assert (len(queries), queries[0]) == (40, first)


def test_questions_of_xquad_name_their_paragraph():
    folder = prepared("xquad")
    judged = question_judgements(multilingual.xquad_questions("all", ("en", "zh"), str(folder)), "all")
    assert (judged.dataset, judged.split, len(judged.queries)) == ("xquad", "all", 2 * 1190)
    passages = {passage.id for passage, _ in read_squad(multilingual.xquad_file(folder, "zh"))}
    assert {passage for query in judged.queries for passage in query.grades} == passages
    question = Question(id="1", dataset="own", language="en", text="x?", answers=("y",))
    for questions in ([question], []):
        with pytest.raises(UserError):
            question_judgements(questions, "test")


def test_judgements_that_repeat_and_files_without_any(tmp_path):
    paths = tmp_path / "t.tsv", tmp_path / "q.tsv"
    for empty in (0, 1):
        paths[0].write_text("1\ta\n"), paths[1].write_text("1 Q0 p 1\n"), paths[empty].write_text("\n")
        with pytest.raises(UserError, match="can be used" if empty else "t.tsv"):
            read_trec(*paths, "en", BadRows(skip=True))
    write_rows(paths[0], "1\ta", "1\ta")
    write_rows(paths[1], "1\t0\tp\t-1", "1\t0\tq\t2", "1\t0\tq\t2")
    assert read_trec(*paths, "en", BadRows())[0].grades == {"p": -1, "q": 2}  # grades below zero are read
    write_rows(paths[0], "1\t\ufeffa\r\n")
    assert read_trec(*paths, "en", BadRows())[0].text == "a"


# --- A bad row of any file is named by file, place and field; if it is skipped, the others are read ---


def rows_of(schema):
    return lambda path, bad_rows: [row for _, row in read_rows(path, schema, bad_rows)]


def documents(path, bad_rows):
    return [document for _, document in find_source("fi", str(path)).documents(path, bad_rows)]


def mkqa_row(number, **changes):
    return {"example_id": number, "queries": {"en": f"who {number}"}, "answers": {"en": [ENTITY]}} | changes


def hotpot_row(number, **changes):
    answers = {"_id": str(number), "question": "who", "answer": f"x{number}", "type": "bridge"}
    return answers | {"context": [["A", ["One."]]], "supporting_facts": [["A", 0]]} | changes


def musique_row(*paragraphs):
    steps = [{"question": "a", "answer": "b", "paragraph_support_idx": 7}]
    texts = [{"idx": number, "title": "A", "paragraph_text": "One."} for number in paragraphs]
    row = {"id": f"2hop__{paragraphs}", "question": "who", "answer": "x"}
    return row | {"paragraphs": texts, "question_decomposition": steps}


def trec(path, bad_rows):
    """Reads a file of topics or of judgements with a good other one."""
    topics, qrels = path.with_name("t.tsv"), path.with_name("q.tsv")
    write_rows(*((topics, "0\tz", "1\ta") if path == qrels else (qrels, "0 Q0 p 1")))
    return read_trec(topics, qrels, "en", bad_rows)


ENTITY = {"type": "entity", "text": "Rome"}
POLICY, ENVIRONMENT = {"by": "policy", "text": "<search> Chad</search>"}, {"by": "environment", "text": "a"}
TAUGHT = ENVIRONMENT | {"learn": True}
USER, ASSISTANT = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
OWN = {"id": "1", "language": "en", "question": "Where is Chad?", "answers": ["in Africa"]}
ARTICLE = {"id": "1", "url": "https://x", "title": "T", "text": "text"}
PASSAGE = {"docid": "1", "text": "x"}


def a_list(path, *rows):
    return write_rows(path, list(rows))


# Reader -> file, how it is written, rows before the bad one, rows after it, and what is read without places.
READERS = {
    "rows": ("rows.jsonl", write_rows, [GOOD], [GOOD], rows_of(Pair)),
    "table": ("rows.csv", write_rows, ["a,b", "0,0"], ["2,2", '3,"3\n3"', "4,4"], rows_of(Cells)),
    "questions": ("own.jsonl", write_rows, [OWN], [OWN | {"language": "fi"}], lambda path, _: jsonl_questions([path])),
    "demonstrations": (
        *("rows.jsonl", write_rows, [SHOWN], [SHOWN]),
        lambda path, bad_rows: [row.turns for row in read_demonstrations([path], bad_rows)],
    ),
    "mkqa": (
        *("mkqa.jsonl.gz", write_rows, [mkqa_row(0)], [mkqa_row(5)]),
        lambda path, _: multilingual.mkqa_questions("all", ("en",), str(path.parent), answered_in=("en",)),
    ),
    "xor_tydi": (
        *("xor_train_full.jsonl", write_rows, [{"id": "1", "question": "a", "answers": ["b"], "lang": "fi"}], []),
        lambda path, _: multilingual.xor_tydi_questions("train", ("fi",), str(path.parent), train=None),
    ),
    "mgsm": (
        *("mgsm_en.tsv", write_rows, ["One?\t1"], ["Three?\t3"]),
        lambda path, _: [question.text for question in multilingual.mgsm_questions(("en",), str(path.parent))],
    ),
    "hotpotqa": ("dev.json", a_list, [hotpot_row("a")], [hotpot_row("c")], QUESTION_SETS["hotpotqa"].read),
    "musique": ("musique.jsonl", write_rows, [musique_row(7)], [musique_row(7, 8)], QUESTION_SETS["musique"].read),
    "nq_open": ("nq.jsonl", write_rows, [{"question": "who", "answer": ["a"]}], [], QUESTION_SETS["nq_open"].read),
    "topics": ("t.tsv", write_rows, ["0\tz"], [], trec),
    "qrels": ("q.tsv", write_rows, ["0 Q0 p 1"], [], trec),
    "articles": ("a.jsonl", write_rows, [ARTICLE], [ARTICLE], documents),
    "passages": ("a.jsonl", write_rows, [PASSAGE], [PASSAGE], documents),
    "passages.tsv": ("a.tsv", write_rows, ["id\ttitle\ttext", "0\tT\tx"], ["2\tT\ty", '3\tT\t"z"'], documents),
}
CASES = [
    ("rows", '{"name": "a", "sizes": [1, "2"]}', "line 2, field sizes.1"),
    ("rows", '{"name": "a", "sizes": [1.0]}', "line 2, field sizes.0"),
    ("rows", '{"name": "a"}', "line 2, field sizes: field required"),
    ("rows", '{"name": "  ", "sizes": []}', "line 2, field name"),
    ("rows", '{"name": "a\\u0000", "sizes": []}', "line 2, field name: the text holds the control character U+0000"),
    ("rows", '{"name": "a", "sizes": [1]', "line 2: invalid JSON"),
    ("rows", '["a"]', "line 2: input should be an object"),
    ("rows", '{"name": "\\ud800", "sizes": []}', "line 2"),
    ("rows", '{"name": "a", "sizes": [], "more": "\\udc00"}', "line 2: invalid JSON"),
    ("rows", f"{GOOD} {GOOD}", f"line 2: invalid JSON: trailing characters at column {len(GOOD) + 2}"),
    ("rows", '{"name": "a", "sizes": [], "more": ' + "[" * 100_000, "line 2: invalid JSON"),
    ("rows", '{"name": "a", "sizes": [' + "1" * 5000 + "]}", "line 2: invalid JSON"),
    ("rows", b'{"name": "\xe9", "sizes": []}', "line 2: the line is not UTF-8"),
    ("table", '1,"a', "line 3: "),
    ("table", '1,"a" b', "line 3: ',' expected"),
    ("table", "1", "line 3: the row has 1 columns"),
    ("questions", OWN | {"id": "2", "anwsers": []}, "line 2, field anwsers"),
    ("questions", OWN | {"id": "2", "answers": []}, "line 2, field answers"),
    ("questions", OWN | {"language": "xx"}, "line 2, field language"),
    ("questions", OWN, "line 2, field id: 1 in en is also at"),
    ("questions", OWN | {"id": "2", "extra": {"type": 3}}, "line 2, field extra: "),
    ("questions", OWN | {"id": "2", "extra": {"domain": ["a"]}}, "line 2, field extra: "),
    ("demonstrations", {"messages": [ASSISTANT, USER]}, "line 2:"),
    ("demonstrations", {"messages": [USER]}, "line 2, field turns:"),
    ("demonstrations", {"messages": [USER, ASSISTANT | {"weight": 0.5}]}, "line 2, field messages.1.weight:"),
    ("demonstrations", SHOWN | {"prompt": ""}, "line 2, field prompt:"),
    ("demonstrations", SHOWN | {"turns": [{"by": "user", "text": "a"}]}, "line 2, field turns.0.by:"),
    ("demonstrations", SHOWN | {"turns": [{"by": "policy", "text": ""}]}, "line 2, field turns:"),
    ("demonstrations", SHOWN | {"turns": [ENVIRONMENT]}, "line 2, field turns:"),
    ("demonstrations", SHOWN | {"turns": [POLICY, TAUGHT]}, "line 2, field turns.1.learn:"),
    ("demonstrations", SHOWN | {"opening": []}, "line 2, field opening:"),
    ("mkqa", mkqa_row(1, queries={"fi": "kuka"}), "line 2, field queries.en: field required"),
    ("mkqa", mkqa_row(1, answers={"en": [ENTITY | {"type": "colour"}]}), "line 2, field answers.en.0.type"),
    ("mkqa", mkqa_row(1, answers={"en": [ENTITY | {"text": "\u200e"}]}), "line 2, field answers.en.0.text: the text"),
    ("mkqa", mkqa_row(0), "line 2, field example_id: 0 is already used"),
    ("mkqa", mkqa_row(1.0), "line 2, field example_id"),
    ("mkqa", mkqa_row(2**63), "line 2, field example_id"),
    ("xor_tydi", {"id": "1", "question": "c", "answers": ["d"], "lang": "fi"}, "line 2, field id: 1 is already used"),
    ("mgsm", "How many?", "line 2:"),
    ("mgsm", "How many?\tten", "line 2, field answer"),
    ("mgsm", "How\tmany?\t10", "line 2:"),
    ("mgsm", "\t10", "line 2:"),
    ("mgsm", "How many?\t1,00", "line 2, field answer"),
    ("hotpotqa", hotpot_row("b", context=[["A"]]), "element 1, field context.0"),
    ("hotpotqa", hotpot_row("b", answer=3), "element 1, field answer"),
    ("hotpotqa", hotpot_row("a"), "element 1, field id: a is already used"),
    ("musique", musique_row(0), "line 2: question_decomposition: there is no paragraph 7"),
    ("musique", musique_row(7, 7), "line 2: paragraphs: two have the same idx"),
    ("nq_open", {"question": "who", "answer": [" "]}, "line 2: every answer is blank"),
    ("topics", "1 no tab", "line 2, field query"),
    ("topics", "1\t ", "line 2, field query"),
    ("topics", "1\ta\tb", "line 2, field query"),
    ("topics", "1\t\u200e", "line 2, field query: the text has no visible character"),
    ("topics", "0\tb", "line 2, field query id"),
    ("qrels", "1 Q0 p", "line 2"),
    ("qrels", "1 Q0 p yes", "line 2"),
    ("qrels", "1 Q0 p --1", "line 2"),
    ("qrels", "1 Q0 p 1.0", "line 2"),
    ("qrels", "0 Q0 p 0", "line 2, field grade"),
    ("qrels", "9 Q0 p 1", "line 2, field query id: t.tsv has no query 9"),
    ("articles", {"id": "1", "url": "", "title": "T"}, "line 2, field text"),
    ("articles", ARTICLE | {"title": None}, "line 2, field title"),
    ("passages", {"docid": "1", "title": "T"}, "line 2"),
    ("passages", PASSAGE | {"text": "\u200e \u3164"}, "line 2: "),
    ("passages.tsv", "\tT\tx", "line 3, field"),
    ("passages.tsv", "1\tT\tx\ry", "line 3: the row holds a carriage return"),
    ("passages.tsv", '1\tT\t"x', "line 3: column 3 begins"),
    ("passages.tsv", '1\t"T\tU"\tx', "line 3: column 2 begins"),
    ("passages.tsv", "1\tT\tx\ty", "line 3: the row has 4 columns"),
]


@pytest.mark.parametrize(("reader", "bad", "place"), CASES, ids=lambda value: str(value)[:40])
def test_a_bad_row_is_named_and_the_others_are_read(tmp_path, one_bad_row, reader, bad, place):
    name, write, before, after, read = READERS[reader]
    path = tmp_path / name
    good = read(write(path, *before, *after), BadRows())
    write(path, *before, bad, *after)
    assert one_bad_row(lambda bad_rows: read(path, bad_rows), f"{path}, {place}") == good
