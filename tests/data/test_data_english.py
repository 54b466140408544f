"""The English question sets: real rows in every format, their annotations, and bad rows."""

import ast
import csv
import gzip
import json

import pytest
from prepared_data import prepared

from lcrag.data.english import QUESTION_SETS, english_questions, first_questions, passages_of, question_set
from lcrag.data.judgements import judged_questions
from lcrag.data.questions import with_question_mark
from lcrag.data.rows import BadRows
from lcrag.errors import UserError


def read(name, path, **options):
    return question_set(name).read(path, BadRows(**options))


def questions_of(found):
    return [each.question for each in found]


def plain(path):
    """A prepared file read in the plainest way."""
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
        by_id = {passage.id: passage for passage in each.passages}
        assert {by_id[support].title for support in extra["supports"]} == {
            title.strip() for title, _ in row["supporting_facts"]
        }
        for title, number in row["supporting_facts"]:
            sentence = dict(row["context"])[title][number].strip()
            assert any(sentence in by_id[support].text for support in extra["supports"])


def test_musique():
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


def test_golden_passages_are_the_paragraphs_that_answer(tmp_path):
    for name, file in (("musique", "musique_ans_v1.0_dev.subset.jsonl.gz"), ("wikihop", "dev.json")):
        path = prepared(f"{name}/{file}")
        options = {"folder": str(path.parent), "file": path.name}
        asked = english_questions(name, "test", **options, golden_passages=True)
        for row, question in zip(plain(path), asked, strict=True):
            if name == "musique":
                expected = [own["paragraph_text"].strip() for own in row["paragraphs"] if own["is_supporting"]]
                assert sorted(question.extra["golden_passages"]) == sorted(expected)
    assert asked == english_questions("wikihop", "test", **options)  # its supporting paragraphs are not marked


def test_wikihop():
    first, second = (each.question for each in read("wikihop", prepared("wikihop/dev.json")))
    assert (first.text, first.answers) == ("What is the country of sms braunschweig?", ("german empire",))
    assert second.text == "What is the member of political party of thomas l. woolwine?"
    assert second.extra["relation"] == "member of political party"
    assert "military" in second.extra["candidates"]
    passages = read("wikihop", prepared("wikihop/dev.json"))[0].passages
    assert len(passages) == 15
    assert not any(passage.title for passage in passages)


@pytest.mark.parametrize(
    ("name", "file", "text", "golds"),
    [
        ("nq_open", "nq_open/NQ-open.dev.subset.jsonl", "question", "answer"),
        ("nq_open", "nq_open/NQ-open.efficientqa.dev.1.1.subset.jsonl", "question", "answer"),
        ("nq_open", "flashrag/nq.test.sample.jsonl", "question", "golden_answers"),
        ("bamboogle", "bamboogle/bamboogle.subset.json", "Question", "answer"),
        ("musique", "musique/musique.subset.json", "Question", "answer"),
        ("2wikimultihopqa", "2wikimultihopqa/2wiki.subset.json", "Question", "answer"),
    ],
)
def test_questions_and_their_answers(name, file, text, golds):
    path = prepared(file)
    rows, found = plain(path), questions_of(read(name, path))
    assert [question.text for question in found] == [with_question_mark(row[text]) for row in rows]
    assert [set(question.answers) for question in found] == [set(map(str.strip, row[golds])) for row in rows]
    assert (len({question.id for question in found}), {q.dataset for q in found}) == (len(rows), {name})


@pytest.mark.parametrize(
    ("name", "file"),
    [("nq_open", "nq_open/dpr.nq.test.subset.txt"), ("triviaqa", "triviaqa/dpr.trivia.dev.subset.txt")],
)
def test_dpr_s_files(name, file):
    path = prepared(file)
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.reader(lines, delimiter="\t"))
    found = questions_of(read(name, path))
    assert [question.text for question in found] == [with_question_mark(text) for text, _ in rows]
    expected = [{answer.strip() for answer in ast.literal_eval(golds)} - {""} for _, golds in rows]
    assert [set(question.answers) for question in found] == expected


def test_triviaqa_simplified_hotpotqa_and_kilt():
    (each,) = read("triviaqa", prepared("triviaqa/triviaqa_sample.json"))
    assert (each.question.id, each.question.answers[:2]) == ("tc_33", ("Sunset Boulevard", "Sunset Blvd"))
    assert len(each.question.answers) == 5  # the value is one of the aliases
    path = prepared("hotpotqa/hotpot_dev_v1_simplified.subset.json")
    found = questions_of(read("hotpotqa", path))
    assert [question.extra["type"] for question in found] == [row["type"] for row in plain(path)]
    kilt = questions_of(read("hotpotqa", prepared("kilt/hotpotqa-dev-kilt.sample.jsonl")))
    assert (kilt[0].answers, kilt[0].extra["pages"]) == (("yes",), ["Scott Derrickson", "Ed Wood"])
    with pytest.raises(UserError, match="line 1, field input"):  # until KILT's script adds them
        read("triviaqa", prepared("kilt/triviaqa-dev_id-kilt.sample.jsonl"))


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
    assert question_set("bamboogle").file(tmp_path, "test") == table
    (question,) = questions_of(read("bamboogle", table))
    assert (question.id, question.text, question.answers) == ("2", "Who, if anyone?", ("Ada",))


FLASHRAG = {"id": "dev_0", "question": "who?", "golden_answers": ["x", " "]}
CONTEXT = {"title": ["A", "B"], "sentences": [["One. ", " Two."], ["Three."]]}
SUPPORT = {"title": "A", "paragraph_text": "One. Two."}


def test_flashrag_s_metadata(tmp_path):
    facts = {"title": ["B", "A"], "sent_id": [0, 1]}
    hotpot = {"type": "bridge", "level": "hard", "context": CONTEXT, "supporting_facts": facts}
    steps = [{"id": 1, "question": "A >> b", "answer": "c", "support_paragraph": SUPPORT}]
    rows = [
        FLASHRAG | {"metadata": hotpot},
        FLASHRAG | {"id": "1", "metadata": {"question_decomposition": steps, "answerable": True}},
        FLASHRAG | {"id": "2", "metadata": {"type": 3, "context": "elsewhere", "prop": "occupation"}},
        FLASHRAG | {"id": "3", "metadata": None},
    ]
    path = tmp_path / "dev.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    first, second, third, fourth = read("hotpotqa", path)
    assert (first.question.answers, first.question.text) == (("x",), "who?")
    assert (first.question.extra["supporting_facts"], first.question.extra["type"]) == ([["B", 0], ["A", 1]], "bridge")
    assert [(each.title, each.text) for each in first.passages] == [("A", "One. Two."), ("B", "Three.")]
    assert first.question.extra["supports"] == [each.id for each in first.passages]
    (step,) = second.question.extra["decomposition"]
    assert step == {"question": "A >> b", "answer": "c", "support": first.passages[0].id}
    assert (second.passages, second.question.extra["supports"]) == (first.passages[:1], [first.passages[0].id])
    assert (third.question.extra, fourth.question.extra) == ({"type": "occupation"}, {})
    assert [each.id for each in passages_of([first, second])] == [each.id for each in first.passages]


HOTPOT = {
    "_id": "a",
    "question": "who",
    "answer": "x",
    "type": "bridge",
    "level": "hard",
    "context": [["A", ["One."]]],
    "supporting_facts": [["A", 0]],
}


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        (HOTPOT | {"context": [["A"]]}, ("element 1, field context.0", "required")),
        (HOTPOT | {"answer": 3}, ("element 1, field answer", "valid string")),
        ({"_id": "b"}, ("element 1, field question", "required")),
        (["_id"], ("element 1:", "object")),
        (HOTPOT, ("element 1, field id", "a is already used")),
    ],
)
def test_bad_rows_of_a_list(tmp_path, one_bad_row, wrong, parts):
    path = tmp_path / "dev.json"
    path.write_text(json.dumps([HOTPOT, wrong, HOTPOT | {"_id": "c"}]))
    rows = one_bad_row(lambda bad_rows: QUESTION_SETS["hotpotqa"].read(path, bad_rows), str(path), *parts)
    assert [each.question.id for each in rows] == ["a", "c"]


@pytest.mark.parametrize(
    ("name", "text", "sentence"),
    [
        ("nq_open", '{"question": "who", "answer": [" "]}\n', "line 1: every answer is blank"),
        ("nq_open", '{"question": " ", "answer": ["x"]}\n', "line 1, field question: .*at least 1 character"),
        ("nq_open", "who\tx\n", "line 1, field answers: .*expected a list"),
        ("popqa", POPQA.replace("[", "("), "line 2, field .*answers: .*expected a list"),
        ("popqa", POPQA.replace("142", "many"), "line 2, field s_pop"),
        ("popqa", "id\tquestion\n1\twho\n", "line 2: every answer is blank"),
        ("bamboogle", "Question,Answer\n", "no row of .* can be used"),
        ("wikihop", "[" + json.dumps({"id": "1", "query": "country"}) + "]", "element 0, field answer: field required"),
        ("hotpotqa", "[]", "no row of .* can be used"),
        ("hotpotqa", '[{"_id": "a",\n', "line 2: not JSON"),
        ("hotpotqa", '{"_id": "a"}', "holds no list"),
        ("triviaqa", '{"Version": [{"Data": 1}]}', "holds no list under Data"),
        ("popqa", '[{"id": 1}]', "no known format of popqa"),
        ("musique", "id\tquestion\n", "no known format of musique"),
    ],
)
def test_unreadable_files(tmp_path, name, text, sentence):
    path = tmp_path / "file.txt"
    path.write_text(text)
    with pytest.raises(UserError, match=sentence):
        read(name, path)


def test_a_step_without_its_paragraph(tmp_path, one_bad_row):
    row = {
        "id": "2hop__1_2",
        "question": "who",
        "answer": "x",
        "paragraphs": [{"idx": 0, "title": "A", "paragraph_text": "One."}],
        "question_decomposition": [{"question": "a", "answer": "b", "paragraph_support_idx": 7}],
    }
    path = tmp_path / "musique.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in (row, row | {"answerable": False, "id": "x"})))
    problem = "line 1: question_decomposition: there is no paragraph 7"
    assert one_bad_row(lambda bad_rows: question_set("musique").read(path, bad_rows), problem) == []


def test_files_and_splits_by_name(tmp_path):
    chosen = question_set("nq_open")
    for name in ("nq-test.qa.csv.gz", "test.jsonl", "NQ-open.dev.jsonl"):  # the official one first
        (tmp_path / name).touch()
        assert chosen.file(tmp_path, "test").name == name
    assert chosen.file(tmp_path, "train", "test.jsonl").name == "test.jsonl"
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b"x" * 99)[:20])
    for call, part in (
        (lambda: chosen.file(tmp_path, "train"), "no NQ-open.train.jsonl in .*: download https://github.com/google"),
        (lambda: question_set("bamboogle").file(tmp_path, "train"), "split 'train'"),
        (lambda: question_set("nq"), "'nq'"),
        (lambda: read("nq_open", tmp_path / "cut.jsonl.gz"), "cut.jsonl.gz cannot be read"),
    ):
        with pytest.raises(UserError, match=part):
            call()


def test_some_questions_are_chosen_whatever_else_is_there():
    found = read("nq_open", prepared("nq_open/NQ-open.dev.subset.jsonl"))
    ten, fifty = (first_questions(found, limit, 0) for limit in (10, 50))
    assert len(ten) == 10
    assert set(map(id, ten)) < set(map(id, fifty))
    assert first_questions(found, None, 0) == found
    places = [found.index(each) for each in fifty]
    assert places == sorted(places)
    assert places != list(range(50))
    assert first_questions(found, 10, 1) != ten


def test_retrieval_is_judged_by_the_supporting_paragraphs():
    found = read("hotpotqa", prepared("hotpotqa/hotpot_dev_distractor_v1.subset.json.gz"))
    judgements = judged_questions(questions_of(found), "test")
    assert judgements.dataset == "hotpotqa"
    assert [set(query.grades) for query in judgements.queries] == [set(e.question.extra["supports"]) for e in found]
    known = {passage.id for passage in passages_of(found)}
    assert all(set(query.grades) <= known for query in judgements.queries)
