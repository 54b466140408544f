"""The English question sets: real rows in every format, their annotations, and bad rows."""

import gzip
import json

import pytest
from prepared_data import prepared
from support.row_files import write_rows

from lcrag.data.english import QUESTION_SETS, english_questions
from lcrag.data.questions import with_question_mark
from lcrag.data.rows import BadRows, question_judgements
from lcrag.errors import UserError


def read(name, path):
    return QUESTION_SETS[name].read(path, BadRows())


def questions_of(found):
    return [each.question for each in found]


def plain(path):
    with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
        text = file.read()
    return json.loads(text) if text.lstrip().startswith("[") else [json.loads(line) for line in text.splitlines()]


OFFICIAL = [
    ("hotpotqa", "hotpotqa/hotpot_dev_distractor_v1.subset.json.gz"),
    ("2wikimultihopqa", "2wikimultihopqa/2wiki_dev.subset.json.gz"),
]


@pytest.mark.parametrize(("name", "file"), OFFICIAL)
def test_hotpotqa_and_2wikimultihopqa(name, file):
    path = prepared(file)
    rows, found = plain(path), read(name, path)
    assert len(found) == len(rows)
    for row, each in zip(rows, found, strict=True):
        question, extra = each.question, each.question.extra
        assert (question.id, question.dataset, question.language) == (row["_id"], name, "en")
        assert (question.text, question.answers) == (with_question_mark(row["question"]), (row["answer"].strip(),))
        assert (extra["type"], extra["supporting_facts"]) == (row["type"], row["supporting_facts"])
        assert (extra.get("evidences", []), extra.get("level")) == (row.get("evidences", []), row.get("level"))
        assert [passage.title for passage in each.passages] == [title.strip() for title, _ in row["context"]]
        assert set(question_judgements([question], "test").queries[0].grades) == set(extra["supports"])
        by_id = {passage.id: passage for passage in each.passages}
        assert {by_id[support].title for support in extra["supports"]} == {
            title.strip() for title, _ in row["supporting_facts"]
        }


def test_musique(tmp_path):
    path = prepared("musique/musique_ans_v1.0_dev.subset.jsonl.gz")
    rows, found = plain(path), read("musique", path)
    assert len(found) == len(rows) == 150
    for row, each in zip(rows, found, strict=True):
        extra, by_id = each.question.extra, {passage.id: passage for passage in each.passages}
        assert (extra["type"], len(extra["decomposition"])) == (row["id"].split("__")[0], int(extra["type"][0]))
        assert set(each.question.answers) == {row["answer"].strip(), *map(str.strip, row["answer_aliases"])}
        assert len(each.passages) == len(row["paragraphs"])
        for step, official in zip(extra["decomposition"], row["question_decomposition"], strict=True):
            paragraph = row["paragraphs"][official["paragraph_support_idx"]]
            assert by_id[step["support"]].text == paragraph["paragraph_text"].strip()
            assert paragraph["is_supporting"]
            assert (step["question"], step["answer"]) == (official["question"].strip(), official["answer"].strip())
    questions = english_questions("musique", "test", folder=str(path.parent), file=path.name, golden_passages=True)
    for row, question in zip(rows, questions, strict=True):
        expected = [own["paragraph_text"].strip() for own in row["paragraphs"] if own["is_supporting"]]
        assert sorted(question.extra["golden_passages"]) == sorted(expected)
    assert read("musique", write_rows(tmp_path / "m.jsonl", rows[0] | {"answerable": False})) == []


def test_wikihop():
    path = prepared("wikihop/dev.json")
    first, second = read("wikihop", path)
    assert (first.question.text, first.question.answers) == (
        "What is the country of sms braunschweig?",
        ("german empire",),
    )
    assert second.question.text == "What is the member of political party of thomas l. woolwine?"
    assert second.question.extra["relation"] == "member of political party"
    assert "military" in second.question.extra["candidates"]
    assert [passage.title for passage in first.passages] == [""] * 15
    # Its supporting paragraphs are not marked.
    asked = english_questions("wikihop", "test", folder=str(path.parent), golden_passages=True)
    assert asked == [first.question, second.question]


def test_questions_and_their_answers():
    for file, golds in (
        ("nq_open/NQ-open.dev.subset.jsonl", "answer"),
        ("flashrag/nq.test.sample.jsonl", "golden_answers"),
    ):
        path = prepared(file)
        rows, found = plain(path), questions_of(read("nq_open", path))
        assert [question.text for question in found] == [with_question_mark(row["question"]) for row in rows]
        assert [set(question.answers) for question in found] == [set(map(str.strip, row[golds])) for row in rows]
        assert len({question.id for question in found}) == len(rows)
        assert {question.dataset for question in found} == {"nq_open"}
    (each,) = read("triviaqa", prepared("triviaqa/triviaqa_sample.json"))
    assert (each.question.id, each.question.answers[:2]) == ("tc_33", ("Sunset Boulevard", "Sunset Blvd"))
    assert len(each.question.answers) == 5  # the value is one of the aliases


POPQA = (
    "id\tsubj\tprop\tobj\ts_pop\tquestion\tpossible_answers\n"
    '42\tAda\toccupation\twriter\t142\tWhat is Ada\'s occupation?\t"[""writer"", ""author""]"\n'
)


def test_popqa_and_bamboogle_as_their_tables(tmp_path):
    (tmp_path / "popQA.tsv").write_text(POPQA)
    (question,) = questions_of(read("popqa", tmp_path / "popQA.tsv"))
    assert (question.id, question.answers) == ("42", ("writer", "author"))
    assert question.extra == {"type": "occupation", "popularity": 142}
    table = tmp_path / "Bamboogle Prerelease - Sheet1.csv"
    table.write_text('\ufeffQuestion,Answer,Date\n"Who, if anyone?",Ada,x\n')
    assert QUESTION_SETS["bamboogle"].file(tmp_path, "test") == table
    (question,) = questions_of(read("bamboogle", table))
    assert (question.id, question.text, question.answers) == ("2", "Who, if anyone?", ("Ada",))


FLASHRAG = {"id": "dev_0", "question": "who?", "golden_answers": ["x", " "]}


def test_flashrag_s_metadata(tmp_path):
    rows = [
        FLASHRAG | {"metadata": {"type": "bridge", "level": "hard", "context": {"title": ["A"]}}},
        FLASHRAG | {"id": "2", "metadata": {"type": 3, "prop": "occupation"}},
        FLASHRAG | {"id": "3", "metadata": None},
        FLASHRAG | {"id": "4", "metadata": {"prop": "occupation", "s_pop": 142}},
        FLASHRAG | {"id": "5", "metadata": {"s_pop": "142", "type": None}},
    ]
    path = write_rows(tmp_path / "dev.jsonl", *rows)
    first, second, third, *popular = questions_of(read("hotpotqa", path))
    assert [each.extra["popularity"] for each in popular] == [142, 142]
    assert (first.answers, first.text, first.extra) == (("x",), "who?", {"type": "bridge", "level": "hard"})
    assert (second.extra, third.extra) == ({"type": "occupation"}, {})


def test_a_list_may_also_be_json_lines_of_the_same_name(tmp_path):
    rows = [HOTPOT, HOTPOT | {"_id": "b"}]
    path = write_rows(tmp_path / "hotpot_dev_distractor_v1.json", *rows)
    lines = read("hotpotqa", path)
    write_rows(path, rows)
    assert lines == read("hotpotqa", path)
    with pytest.raises(UserError, match="line 2, field answer"):
        read("hotpotqa", write_rows(path, HOTPOT, HOTPOT | {"answer": 3}))


HOTPOT = {
    "_id": "a",
    "question": "who",
    "answer": "x",
    "type": "bridge",
    "context": [["A", ["One."]]],
    "supporting_facts": [["A", 0]],
}


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("popqa", POPQA.replace("[", "("), "line 2, field .*answers"),
        ("popqa", POPQA.replace("142", "many"), "line 2, field s_pop"),
        ("popqa", "id\tquestion\n1\twho\n", "line 2"),
        ("bamboogle", "Question,Answer\n", "no row"),
        ("hotpotqa", '[{"_id": "a",\n', "not JSON"),
        ("hotpotqa", '{"_id": "a"}', "no list"),
        ("triviaqa", '{"Version": [{"Data": 1}]}', "no list under Data"),
        ("popqa", '[{"id": 1}]', "no known format of popqa"),
        ("musique", "id\tquestion\n", "no known format of musique"),
    ],
)
def test_unreadable_files(tmp_path, name, text, place):
    path = tmp_path / f"file{'.csv' if name == 'bamboogle' else '.tsv' if name == 'popqa' else '.json'}"
    path.write_text(text)
    with pytest.raises(UserError, match=place):
        read(name, path)


def test_files_and_splits_by_name(tmp_path):
    chosen = QUESTION_SETS["nq_open"]
    (tmp_path / "test.jsonl").touch()
    assert chosen.file(tmp_path, "test") == chosen.file(tmp_path, "train", "test.jsonl") == tmp_path / "test.jsonl"
    with pytest.raises(UserError, match="no NQ-open.train.jsonl in .*https://github.com/google"):
        chosen.file(tmp_path, "train")
    for name, split in (("bamboogle", "train"), ("nq", "test")):
        with pytest.raises(UserError):
            english_questions(name, split, str(tmp_path))


def test_the_types_of_questions_that_are_kept():
    file = {"folder": str(prepared("hotpotqa")), "file": "hotpot_dev_distractor_v1.subset.json.gz"}
    every, kept = (english_questions("hotpotqa", "test", **file, limit=60, types=t) for t in (None, ("comparison",)))
    assert 0 < len(kept) < len(every) == 60
    assert kept == [question for question in every if question.extra["type"] == "comparison"]
    with pytest.raises(UserError, match="no type .* 'comparsion': choose one of .*comparison"):
        english_questions("hotpotqa", "test", **file, types=("comparsion",))
