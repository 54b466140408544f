"""MKQA, XOR-TyDi QA and XQuAD: rows as they are published, their splits, and bad rows."""

import collections
import gzip
import hashlib
import json
import shutil

import pytest
from prepared_data import prepared

from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING, XOR_TYDI_TEST
from lcrag.data.multilingual import (
    mkqa_questions,
    read_mkqa,
    xor_tydi_questions,
    xquad_file,
    xquad_passages,
    xquad_questions,
)
from lcrag.data.rows import BadRows
from lcrag.errors import UserError


def mkqa_row(number, text="Rome", **changes):
    answer = {"type": "entity", "text": text}
    return {
        "example_id": number,
        "query": "where did he die",
        "queries": {"en": "where did he die", "zh_cn": "他在哪里去世？"},
        "answers": {"en": [answer], "zh_cn": [answer | {"aliases": ["罗马", text, None]}]},
    } | changes


@pytest.fixture
def mkqa(tmp_path):
    """`mkqa(*rows)` writes them and returns a function that asks the questions."""

    def write(*rows):
        content = "".join(f"{json.dumps(each)}\n" for each in rows).encode()
        (tmp_path / "mkqa.jsonl.gz").write_bytes(gzip.compress(content))

        def asked(split="all", languages=("en", "zh"), answered_in=("en",), **options):
            return mkqa_questions(split, languages, str(tmp_path), answered_in=answered_in, **options)

        return asked

    return write


def test_rows_of_mkqa_become_questions(mkqa):
    english, chinese = mkqa(mkqa_row(-7449157003522518870))()
    assert (english.id, english.dataset, english.language) == ("-7449157003522518870", "mkqa", "en")
    assert (english.text, chinese.text) == ("where did he die?", "他在哪里去世？")
    assert (english.answers, chinese.answers) == (("Rome",), ("Rome", "罗马"))
    assert (english.extra, english.coupling) == ({"answer_type": "entity"}, chinese.coupling)


def test_ids_are_never_floats(mkqa):
    extremes = (-(2**63), 2**63 - 1, 9222896082688958557)
    found = mkqa(*map(mkqa_row, extremes))(languages=("en",))
    assert {question.id for question in found} == set(map(str, extremes))
    for wrong in (1.0, "1", 2**63, -(2**63) - 1, None):
        with pytest.raises(UserError, match="line 1, field example_id"):
            mkqa(mkqa_row(wrong))()


HOLES = ({"type": "unanswerable", "text": None}, {"type": "long_answer", "text": None}, {"type": "entity", "text": " "})


@pytest.mark.parametrize("answer", [*HOLES, None])
def test_a_question_without_a_short_answer_is_dropped_for_all_languages(mkqa, answer):
    hole = mkqa_row(1)
    hole["answers"]["zh_cn"] = [answer] if answer else []
    asked = mkqa(hole, mkqa_row(2))
    assert {question.id for question in asked()} == {"2"}
    assert {question.id for question in asked(languages=("en",), answered_in=("en", "zh"))} == {"2"}


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        (mkqa_row(1) | {"queries": {"en": "who"}}, ("line 2", "field queries.zh_cn", "required")),
        (mkqa_row(1) | {"answers": {"en": [{"type": "colour", "text": "x"}]}}, ("field answers.en.0.type",)),
        (mkqa_row(0), ("line 2", "field example_id", "0 is already used")),
    ],
)
def test_bad_rows_of_mkqa(mkqa, one_bad_row, wrong, parts):
    asked = mkqa(mkqa_row(0), wrong, mkqa_row(5))
    rows = one_bad_row(lambda _: asked(), "mkqa.jsonl.gz", *parts)
    assert {question.id for question in rows} == {"0", "5"}


@pytest.mark.parametrize(
    "options",
    [{"languages": ("xx",)}, {"languages": ("bn",)}, {"answered_in": ("en", "te")}, {"split": "train"}],
)
def test_unknown_languages_and_splits_too_large(mkqa, options):
    with pytest.raises(UserError, match="language|cannot be split"):
        mkqa(mkqa_row(0))(**options)


def test_mkqa_s_official_test_file():
    path = prepared("mkqa/test_mkqa.jsonl.gz")
    questions = mkqa_questions("all", LCRL_LANGUAGES, str(path.parent), path.name)
    answered = {"36228854473990432", "-7449157003522518870", "7631360939705650347"}  # three of six have a short answer
    assert ({question.id for question in questions}, len(questions)) == (answered, 3 * 13)
    by_key = {(question.id, question.language): question for question in questions}
    assert by_key["7631360939705650347", "en"].answers == ("Ridley Scott", "Sir Ridley Scott")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in map(json.loads, lines):  # read again in the plainest way
            for language in LCRL_LANGUAGES if str(line["example_id"]) in answered else ():
                question = by_key[str(line["example_id"]), language]
                code = "zh_cn" if language == "zh" else language
                golds = line["answers"][code]
                assert set(question.answers) == {t for g in golds for t in [g["text"], *g.get("aliases", [])]}
                assert question.text.rstrip("?؟？") == line["queries"][code].rstrip("?؟？")


def test_splits_are_the_same_questions_in_every_language():
    path = prepared("mkqa_standin/standin_bmlama53_13lang.jsonl.gz")

    def asked(split, languages, train=100, **options):
        sizes = {"test": 200, "validation": 50, "train": train}
        return mkqa_questions(split, languages, str(path.parent), path.name, **sizes, **options)

    ids = {}
    for split, languages in (("train", LCRL_TRAINING), ("test", LCRL_LANGUAGES), ("validation", ("fi",))):
        questions = asked(split, languages)
        by_language = {code: [q.id for q in questions if q.language == code] for code in languages}
        assert len({tuple(found) for found in by_language.values()}) == 1
        ids[split] = by_language[languages[0]]
        # asking in fewer languages takes the same questions
        assert [q.id for q in asked(split, languages[:1])] == ids[split]
    assert ([len(found) for found in ids.values()], len(set().union(*ids.values()))) == ([100, 200, 50], 350)
    assert [question.id for question in asked("train", ("en",), train=25)] == ids["train"][:25]
    assert ids["test"] != [q.id for q in asked("test", ("en",), seed=1)]


def test_the_whole_official_file_of_mkqa():
    path = prepared("mkqa/mkqa.jsonl.gz")
    expected = json.loads(prepared("mkqa/full_file_stats.json").read_text())
    rows = read_mkqa(path, LCRL_LANGUAGES, BadRows())
    assert len(rows) == expected["examples"]
    joined = "".join(f"{number}\n" for number in sorted(map(int, rows)))
    digest = hashlib.sha256(joined.encode()).hexdigest()
    assert digest == expected["sha256_of_sorted_ids_newline_joined_with_final_newline"]
    kept = mkqa_questions("all", ("en",), str(path.parent))
    assert len(kept) == expected["kept_after_dropping_unanswerable_and_long_answer"]


def xor_row(number, language, **changes):
    return {"id": str(number), "question": "missä", "answers": ["täällä", "täällä"], "lang": language} | changes


@pytest.fixture
def xor(tmp_path):
    """`xor(*rows)` writes training rows and returns a function that asks questions of the folder."""

    def write(*rows):
        text = "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in rows)
        (tmp_path / "xor_train_full.jsonl").write_text(text)
        return lambda split, languages, **options: xor_tydi_questions(split, languages, str(tmp_path), **options)

    return write


def test_training_takes_as_many_of_each_language(xor):
    rows = [xor_row(100 * n + place, language) for n, language in enumerate(("fi", "ja", "bn")) for place in range(20)]
    asked = xor(*rows)
    questions = asked("train", ("ja", "fi"), train=5)
    assert [question.language for question in questions] == ["ja"] * 5 + ["fi"] * 5
    names = {(question.dataset, question.text, question.answers) for question in questions}
    assert names == {("xor_tydi", "missä?", ("täällä",))}
    assert asked("train", ("fi",), train=5) == questions[5:]  # whichever other languages are taken
    assert asked("train", ("fi",), train=3) == questions[5:8]
    assert asked("train", ("fi",), train=5, seed=1) != questions[5:]
    assert len(asked("train", ("fi", "bn"), train=None)) == 40
    with pytest.raises(UserError, match="20 usable training questions of xor_tydi in fi"):
        asked("train", ("fi",), train=21)


def test_rows_without_an_answer_are_left_out_and_one_answer_may_stand_alone(xor):
    asked = xor(xor_row(1, "fi", answers=[]), xor_row(2, "fi", answers=[" "]), xor_row(3, "fi", answers="yksi"))
    [question] = asked("train", ("fi",), train=None)
    assert (question.id, question.answers) == ("3", ("yksi",))


@pytest.mark.parametrize(
    ("wrong", "parts"),
    [
        (xor_row(1, "fi"), ("field id", "1 is already used")),
        (xor_row(2, "fi", answers=[3]), ("field answers.0", "string")),
    ],
)
def test_bad_rows_of_xor_tydi(xor, one_bad_row, wrong, parts):
    asked = xor(xor_row(1, "fi"), wrong)
    assert len(one_bad_row(lambda _: asked("train", ("fi",), train=None), "full.jsonl, line 2", *parts)) == 1


def test_english_comes_from_tydi_qa(tmp_path):
    shutil.copy(prepared("tydiqa/goldp.en.json"), tmp_path / "tydiqa-goldp-v1.1-train.json")
    [question] = xor_tydi_questions("train", ("en",), str(tmp_path), train=1)
    assert (question.language, question.answers) == ("en", ("Wound care",))
    shutil.copy(prepared("tydiqa/goldp.fi.json"), tmp_path / "tydiqa-goldp-v1.1-dev.json")
    assert xor_tydi_questions("test", ("en",), str(tmp_path)) == []  # the file's questions are Finnish
    for split, language, part in (("train", "fi", "xor_train_full"), ("dev", "fi", "split"), ("test", "th", "'th'")):
        with pytest.raises(UserError, match=part):
            xor_tydi_questions(split, (language,), str(tmp_path))


def test_the_official_development_rows(tmp_path):
    source = prepared("xor_tydi/xor_dev_full_v1_1.subset.jsonl")
    shutil.copy(source, tmp_path / "xor_dev_full_v1_1.jsonl")
    questions = xor_tydi_questions("test", XOR_TYDI_TEST, str(tmp_path))
    assert collections.Counter(question.language for question in questions) == dict.fromkeys(XOR_TYDI_TEST, 43)
    rows = {each["id"]: each for each in map(json.loads, source.read_text().splitlines())}
    assert all(set(question.answers) == set(rows[question.id]["answers"]) for question in questions)
    assert all(question.text.startswith(rows[question.id]["question"].strip()[:-1]) for question in questions)
    limited = [each.language for each in xor_tydi_questions("test", ("fi", "ja"), str(tmp_path), limit=3)]
    assert limited == ["fi"] * 3 + ["ja"] * 3
    shutil.copy(prepared("xor_tydi/xor_test_full_q_only.sample.jsonl"), tmp_path / "xor_dev_full_v1_1.jsonl")
    with pytest.raises(UserError, match="line 1, field answers"):
        xor_tydi_questions("test", ("te",), str(tmp_path))


HERE = ("en", "ar", "de", "es", "ru", "th", "vi", "zh")


def xquad(split, languages, **options):
    return xquad_questions(split, languages, str(prepared("xquad")), **options)


def articles(questions):
    return {question.extra["passage"].split("/")[0] for question in questions}


def test_every_language_has_the_same_questions():
    expected = json.loads((prepared("xquad") / "stats_all_12.json").read_text())
    questions = xquad("all", HERE)
    assert len(questions) == 1190 * len(HERE)
    ids = [question.id for question in questions[:: len(HERE)]]
    assert hashlib.sha256("\n".join(ids).encode()).hexdigest() == expected["sha256_of_ids_newline_joined"]
    for place in range(0, len(questions), len(HERE)):
        versions = questions[place : place + len(HERE)]
        assert tuple(version.language for version in versions) == HERE
        assert len({(version.id, version.extra["passage"]) for version in versions}) == 1


@pytest.mark.parametrize("language", HERE)
def test_a_question_s_passage_holds_its_answer(language):
    folder = prepared("xquad")
    passages = {passage.id: passage for passage in xquad_passages(folder, language, BadRows())}
    questions = xquad("all", (language,))
    assert (len(passages), len(questions)) == (240, 1190)
    assert all(question.answers[0] in passages[question.extra["passage"]].text for question in questions)
    assert not any(passage.text.startswith("\ufeff") for passage in passages.values())
    with gzip.open(xquad_file(folder, language), "rt", encoding="utf-8") as file:
        plain = [article["paragraphs"] for article in json.load(file)["data"]]
    texts = [paragraph["context"].lstrip("\ufeff").strip() for article in plain for paragraph in article]
    assert [passage.text for passage in passages.values()] == texts


def test_splits_of_xquad_share_no_article():
    training, test = (articles(xquad(split, ("en", "th"))) for split in ("train", "test"))
    assert (len(training), len(test), training & test) == (36, 12, set())
    fewer = articles(xquad("test", ("en",), test_articles=3))
    assert len(fewer) == 3
    assert fewer < test
    limited = xquad("test", ("en", "th"), limit=4)
    assert ([each.language for each in limited], len({each.id for each in limited})) == (["en", "th"] * 4, 4)
    assert xquad_questions("test", ("en", "ar", "zh"), str(prepared("xquad_r"))) == xquad("test", ("en", "ar", "zh"))
    with pytest.raises(UserError, match="no split"):
        xquad("dev", ("en",))


def test_a_question_that_one_language_lacks_is_dropped_for_all(tmp_path, one_bad_row):
    for language in ("en", "de"):
        with gzip.open(xquad_file(prepared("xquad"), language), "rt", encoding="utf-8") as file:
            content = json.load(file)
        if language == "de":
            del content["data"][0]["paragraphs"][0]["qas"][0]["question"]
        (tmp_path / f"xquad.{language}.json").write_text(json.dumps(content))
    place = "xquad.de.json, data.0.paragraphs.0.qas.0, field question"
    assert len(one_bad_row(lambda _: xquad_questions("all", ("en", "de"), str(tmp_path)), place)) == 2 * 1189
    for language, part in (("fi", "'fi'"), ("ro", "no xquad.ro.json in .*: download")):
        with pytest.raises(UserError, match=part):
            xquad_questions("all", (language,), str(tmp_path))
