"""A bad row of any file is named by file, place and field; if it is skipped, the others are read as without it."""

import pytest
from support.row_files import write_rows

from lcrag.data.corpora import find_source
from lcrag.data.demonstrations import read_demonstrations
from lcrag.data.english import QUESTION_SETS
from lcrag.data.multilingual import mgsm_questions, mkqa_questions, xor_tydi_questions
from lcrag.data.rows import BadRows, Row, Text, jsonl_questions, read_rows, read_squad, read_trec


class Pair(Row):
    name: Text
    sizes: list[int]


class Cells(Row):
    a: str
    b: str


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


def squad_question(number, **changes):
    return {"id": str(number), "question": f"What {number}?", "answers": [{"text": "some"}]} | changes


def trec(path, bad_rows):
    """Reads a file of topics or of judgements with a good other one."""
    topics, qrels = path.with_name("t.tsv"), path.with_name("q.tsv")
    write_rows(*((topics, "0\tz", "1\ta") if path == qrels else (qrels, "0 Q0 p 1")))
    return read_trec(topics, qrels, "en", bad_rows)


ENTITY = {"type": "entity", "text": "Rome"}
POLICY, ENVIRONMENT = {"by": "policy", "text": "<search> Chad</search>"}, {"by": "environment", "text": "a"}
TAUGHT = ENVIRONMENT | {"learn": True}
SHOWN = {"prompt": "Where is Chad?\n", "turns": [POLICY, ENVIRONMENT, POLICY]}
USER, ASSISTANT = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
OWN = {"id": "1", "language": "en", "question": "Where is Chad?", "answers": ["in Africa"]}
ARTICLE = {"id": "1", "url": "https://x", "title": "T", "text": "text"}
PASSAGE = {"docid": "1", "text": "x"}
GOOD = '{"name": " a ", "sizes": [1], "more": null}'


def a_list(path, *rows):
    return write_rows(path, list(rows))


def qas(path, *rows):
    return write_rows(path, {"data": [{"paragraphs": [{"context": "Some text.", "qas": list(rows)}]}]})


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
        lambda path, _: mkqa_questions("all", ("en",), str(path.parent), answered_in=("en",)),
    ),
    "xor_tydi": (
        *("xor_train_full.jsonl", write_rows, [{"id": "1", "question": "a", "answers": ["b"], "lang": "fi"}], []),
        lambda path, _: xor_tydi_questions("train", ("fi",), str(path.parent), train=None),
    ),
    "mgsm": (
        *("mgsm_en.tsv", write_rows, ["One?\t1"], ["Three?\t3"]),
        lambda path, _: [question.text for question in mgsm_questions(("en",), str(path.parent))],
    ),
    "hotpotqa": ("dev.json", a_list, [hotpot_row("a")], [hotpot_row("c")], QUESTION_SETS["hotpotqa"].read),
    "musique": ("musique.jsonl", write_rows, [musique_row(7)], [musique_row(7, 8)], QUESTION_SETS["musique"].read),
    "nq_open": ("nq.jsonl", write_rows, [{"question": "who", "answer": ["a"]}], [], QUESTION_SETS["nq_open"].read),
    "squad": ("squad.json", qas, [squad_question(0)], [squad_question(2)], read_squad),
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
    ("rows", '{"name": "a", "sizes": [], "more": "\\udc00"}', "line 2: invalid JSON: a surrogate"),
    ("rows", '{"name": "a", "name": "b", "sizes": []}', "line 2: invalid JSON: the key 'name' occurs twice"),
    ("rows", '{"name": "a", "sizes": [], "more": {"x": 1, "x": 1}}', "line 2: invalid JSON: the key 'x' occurs twice"),
    ("rows", f"{GOOD} {GOOD}", f"line 2: invalid JSON: Extra data at column {len(GOOD) + 2}"),
    ("rows", f"{GOOD},", "line 2: invalid JSON: Extra data"),
    ("rows", '{"name": "a", "sizes": [], "more": NaN}', "line 2: invalid JSON: NaN"),
    ("rows", '{"name": "a", "sizes": [], "more": -Infinity}', "line 2: invalid JSON: -Infinity"),
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
    ("hotpotqa", ["_id"], "element 1: input should be an object"),
    ("hotpotqa", hotpot_row("a"), "element 1, field id: a is already used"),
    ("musique", musique_row(0), "line 2: question_decomposition: there is no paragraph 7"),
    ("musique", musique_row(7, 7), "line 2: paragraphs: two have the same idx"),
    ("nq_open", {"question": "who", "answer": [" "]}, "line 2: every answer is blank"),
    ("squad", squad_question(1, answers=[{"text": 3}]), "data.0.paragraphs.0.qas.1, field answers.0.text"),
    ("squad", squad_question(0), "data.0.paragraphs.0.qas.1, field id: 0 is already used"),
    ("squad", squad_question(1, question=" "), "data.0.paragraphs.0.qas.1, field question"),
    ("squad", {"ID": "2", "question": "a", "answers": []}, "data.0.paragraphs.0.qas.1, field id: field required"),
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
