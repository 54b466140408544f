"""MKQA: the official test file's real rows, a stand-in of 500 rows, and bad rows."""

import gzip
import hashlib
import json

import pytest
from prepared_data import prepared

from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.data.mkqa import mkqa_questions, read_mkqa
from lcrag.data.rows import BadRows
from lcrag.errors import UserError


def row(number, text="Rome", **changes):
    answer = {"type": "entity", "text": text}
    return {
        "example_id": number,
        "query": "where did he die",
        "queries": {"en": "where did he die", "zh_cn": "他在哪里去世？"},
        "answers": {"en": [answer], "zh_cn": [answer | {"aliases": ["罗马", text, None]}]},
    } | changes


def asked(path, split="all", languages=("en", "zh"), **options):
    options = {"answered_in": ("en",), "bad_rows": BadRows()} | options
    return mkqa_questions(path, split, languages, **options)


@pytest.fixture
def write(tmp_path):
    def writes(*rows):
        path = tmp_path / "mkqa.jsonl.gz"
        path.write_bytes(gzip.compress("".join(f"{json.dumps(each)}\n" for each in rows).encode()))
        return path

    return writes


def test_rows_become_questions(write):
    english, chinese = asked(write(row(-7449157003522518870)))
    assert (english.id, english.dataset, english.language) == ("-7449157003522518870", "mkqa", "en")
    assert (english.text, chinese.text) == ("where did he die?", "他在哪里去世？")
    assert (english.answers, chinese.answers) == (("Rome",), ("Rome", "罗马"))
    assert (english.extra, english.coupling) == ({"answer_type": "entity"}, chinese.coupling)


def test_ids_are_never_floats(write):
    extremes = (-(2**63), 2**63 - 1, 9222896082688958557)
    found = asked(write(*map(row, extremes)), languages=("en",))
    assert {question.id for question in found} == set(map(str, extremes))
    for wrong in (1.0, "1", 2**63, -(2**63) - 1, None):
        with pytest.raises(UserError, match="line 1, field example_id"):
            asked(write(row(wrong)))


HOLES = ({"type": "unanswerable", "text": None}, {"type": "long_answer", "text": None}, {"type": "entity", "text": " "})


@pytest.mark.parametrize("answer", [*HOLES, None])
def test_a_question_without_a_short_answer_is_dropped_for_all_languages(write, answer):
    hole = row(1)
    hole["answers"]["zh_cn"] = [answer] if answer else []
    path = write(hole, row(2))
    assert {question.id for question in asked(path)} == {"2"}
    assert {question.id for question in asked(path, languages=("en",), answered_in=("en", "zh"))} == {"2"}


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        (row(1) | {"queries": {"en": "who"}}, ("line 2", "field queries.zh_cn", "required")),
        (row(1) | {"answers": {"en": [{"type": "colour", "text": "x"}]}}, ("field answers.en.0.type", "'binary'")),
        (row(0), ("line 2", "field example_id", "0 is already used in line 1")),
    ],
)
def test_bad_rows(write, one_bad_row, wrong, parts):
    path = write(row(0), wrong, row(5))
    rows = one_bad_row(lambda bad_rows: asked(path, bad_rows=bad_rows), "mkqa.jsonl.gz", *parts)
    assert {question.id for question in rows} == {"0", "5"}


def test_unknown_languages_and_splits(write):
    path = write(row(0))
    with pytest.raises(UserError, match="unknown language 'xx'"):
        asked(path, languages=("xx",))
    for options in ({"languages": ("bn",)}, {"answered_in": ("en", "te")}):  # languages, but not of MKQA
        with pytest.raises(UserError, match="unknown language '(bn|te)': use one of en ar"):
            asked(path, **options)
    with pytest.raises(
        UserError, match="only 1 usable questions of mkqa for the splits test 2000, validation 500, train 1000"
    ):
        asked(path, "train")


def test_the_official_test_file():
    path = prepared("mkqa/test_mkqa.jsonl.gz")
    questions = mkqa_questions(path, "all", LCRL_LANGUAGES, bad_rows=BadRows())
    answered = {"36228854473990432", "-7449157003522518870", "7631360939705650347"}  # three of six have a short answer
    assert ({question.id for question in questions}, len(questions)) == (answered, 3 * 13)
    by_key = {(question.id, question.language): question for question in questions}
    assert by_key["7631360939705650347", "en"].answers == ("Ridley Scott", "Sir Ridley Scott")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):  # read again in the plainest way
            for language in LCRL_LANGUAGES if str(line["example_id"]) in answered else ():
                question = by_key[str(line["example_id"]), language]
                golds = line["answers"]["zh_cn" if language == "zh" else language]
                assert set(question.answers) == {t for g in golds for t in [g["text"], *g.get("aliases", [])]}
                assert question.text.rstrip("?؟？") == line["queries"][
                    "zh_cn" if language == "zh" else language
                ].rstrip("?؟？")


def test_splits_are_the_same_questions_in_every_language():
    path = prepared("mkqa_standin/standin_bmlama53_13lang.jsonl.gz")
    sizes = {"test": 200, "validation": 50, "train": 100, "bad_rows": BadRows()}
    ids = {}
    for split, languages in (("train", LCRL_TRAINING), ("test", LCRL_LANGUAGES), ("validation", ("fi",))):
        questions = mkqa_questions(path, split, languages, **sizes)
        by_language = {code: [q.id for q in questions if q.language == code] for code in languages}
        assert len({tuple(found) for found in by_language.values()}) == 1
        ids[split] = by_language[languages[0]]
        # asking in fewer languages takes the same questions
        assert [q.id for q in mkqa_questions(path, split, languages[:1], **sizes)] == ids[split]
    assert ([len(found) for found in ids.values()], len(set().union(*ids.values()))) == ([100, 200, 50], 350)
    quarter = mkqa_questions(path, "train", ("en",), **sizes | {"train": 25})
    assert [question.id for question in quarter] == ids["train"][:25]
    assert ids["test"] != [q.id for q in mkqa_questions(path, "test", ("en",), **sizes, seed=1)]


def test_the_whole_official_file():
    path = prepared("mkqa/mkqa.jsonl.gz")
    expected = json.loads(prepared("mkqa/full_file_stats.json").read_text())
    rows = read_mkqa(path, LCRL_LANGUAGES, BadRows())
    assert len(rows) == expected["examples"]
    joined = "".join(f"{number}\n" for number in sorted(map(int, rows)))
    assert (
        hashlib.sha256(joined.encode()).hexdigest()
        == expected["sha256_of_sorted_ids_newline_joined_with_final_newline"]
    )
    kept = mkqa_questions(path, "all", ("en",), bad_rows=BadRows())
    assert len(kept) == expected["kept_after_dropping_unanswerable_and_long_answer"]
