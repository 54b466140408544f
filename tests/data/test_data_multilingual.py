"""Sets in many languages (MKQA, XOR-TyDi QA, XQuAD, MGSM, Global-MMLU): published rows, splits, bad rows; tiers."""

import collections
import csv
import gzip
import hashlib
import json
import shutil

import pyarrow
import pyarrow.parquet
import pytest
from prepared_data import prepared
from support.row_files import write_rows

from lcrag.data.multilingual import (
    global_mmlu_questions,
    mgsm_questions,
    mkqa_questions,
    xor_tydi_questions,
    xquad_file,
    xquad_questions,
)
from lcrag.data.questions import (
    LCRL_LANGUAGES,
    XOR_TYDI_TEST,
)
from lcrag.data.rows import read_squad
from lcrag.errors import UserError
from lcrag.rewards.domains import mathematics


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
    def write(*rows):
        write_rows(tmp_path / "mkqa.jsonl.gz", *rows)

        def asked(split="all", languages=("en", "zh"), answered_in=("en",), **options):
            return mkqa_questions(split, languages, str(tmp_path), answered_in=answered_in, **options)

        return asked

    return write


def test_rows_of_mkqa_become_questions(mkqa):
    ids = (-7449157003522518870, -(2**63), 2**63 - 1)  # which floats would round
    questions = mkqa(*map(mkqa_row, ids))()
    by_id = {question.id: pair for pair in zip(questions[::2], questions[1::2], strict=True) for question in pair}
    assert set(by_id) == set(map(str, ids))
    english, chinese = by_id[str(ids[0])]
    assert (english.dataset, english.language, chinese.language) == ("mkqa", "en", "zh")
    assert (english.text, chinese.text) == ("where did he die?", "他在哪里去世？")
    assert (english.answers, chinese.answers) == (("Rome",), ("Rome", "罗马"))
    assert (english.extra, english.coupling) == ({"answer_type": "entity"}, chinese.coupling)


HOLES = ({"type": "unanswerable", "text": None}, {"type": "long_answer", "text": None}, {"type": "entity", "text": " "})


@pytest.mark.parametrize("answer", [*HOLES, None])
def test_a_question_without_a_short_answer_is_dropped_for_all_languages(mkqa, answer):
    hole = mkqa_row(1)
    hole["answers"]["zh_cn"] = [answer] if answer else []
    asked = mkqa(hole, mkqa_row(2))
    assert {question.id for question in asked()} == {"2"}
    assert {question.id for question in asked(languages=("en",), answered_in=("en", "zh"))} == {"2"}


def test_mkqa_s_official_test_file():
    path = prepared("mkqa/test_mkqa.jsonl.gz")
    questions = mkqa_questions("all", LCRL_LANGUAGES, str(path.parent), path.name)
    answered = {"36228854473990432", "-7449157003522518870", "7631360939705650347"}  # three of six have a short answer
    assert ({question.id for question in questions}, len(questions)) == (answered, 3 * 13)
    by_key = {(question.id, question.language): question for question in questions}
    assert by_key["7631360939705650347", "en"].answers == ("Ridley Scott", "Sir Ridley Scott")


def test_test_questions_of_mkqa_are_counted_before_those_without_a_short_answer_are_dropped(mkqa):
    hole = {"type": "unanswerable", "text": None}
    rows = [mkqa_row(n) for n in range(60)]
    for row in rows[::3]:
        row["answers"]["en"] = [hole]
    asked = mkqa(*rows)
    ids = {
        split: [q.id for q in asked(split, ("en",), test=30, validation=5, train=10)]
        for split in ("test", "validation", "train")
    }
    assert 10 < len(ids["test"]) < 30  # two thirds of them
    assert (len(ids["validation"]), len(ids["train"])) == (5, 10)
    assert len(set().union(*ids.values())) == len(ids["test"]) + 15
    assert not {str(n) for n in range(0, 60, 3)} & set().union(*ids.values())


def xor_row(number, language, **changes):
    return {"id": str(number), "question": "missä", "answers": ["täällä", "täällä"], "lang": language} | changes


def test_training_takes_as_many_of_each_language(tmp_path):
    def asked(split, languages, **options):
        return xor_tydi_questions(split, languages, str(tmp_path), **options)

    rows = [xor_row(100 * n + place, language) for n, language in enumerate(("fi", "ja", "bn")) for place in range(20)]
    write_rows(tmp_path / "xor_train_full.jsonl", *rows)
    questions = asked("train", ("ja", "fi"), train=5)
    assert [question.language for question in questions] == ["ja"] * 5 + ["fi"] * 5
    assert {(q.dataset, q.text, q.answers) for q in questions} == {("xor_tydi", "missä?", ("täällä",))}
    assert asked("train", ("fi",), train=5) == questions[5:]  # whichever other languages are taken
    assert asked("train", ("fi",), train=3) == questions[5:8]
    assert asked("train", ("fi",), train=5, seed=1) != questions[5:]
    assert len(asked("train", ("fi", "bn"), train=None)) == 40
    for split, languages in (("train", ("fi",)), ("train", ("th",)), ("dev", ("fi",)), ("train", ("en",))):
        with pytest.raises(UserError):
            asked(split, languages, train=21)
    # One answer may stand alone, and rows without any are left out.
    rows = xor_row(1, "fi", answers=[]), xor_row(2, "fi", answers=[" "]), xor_row(3, "fi", answers="yksi")
    write_rows(tmp_path / "xor_train_full.jsonl", *rows)
    [question] = asked("train", ("fi",), train=None)
    assert (question.id, question.answers) == ("3", ("yksi",))


def test_english_comes_from_tydi_qa(tmp_path):
    shutil.copy(prepared("tydiqa/goldp.en.json"), tmp_path / "tydiqa-goldp-v1.1-train.json")
    [question] = xor_tydi_questions("train", ("en",), str(tmp_path), train=1)
    assert (question.language, question.answers) == ("en", ("Wound care",))
    shutil.copy(prepared("tydiqa/goldp.fi.json"), tmp_path / "tydiqa-goldp-v1.1-dev.json")
    assert xor_tydi_questions("test", ("en",), str(tmp_path)) == []  # the file's questions are Finnish


def test_the_official_development_rows(tmp_path):
    source = prepared("xor_tydi/xor_dev_full_v1_1.subset.jsonl")
    shutil.copy(source, tmp_path / "xor_dev_full_v1_1.jsonl")
    questions = xor_tydi_questions("test", XOR_TYDI_TEST, str(tmp_path))
    assert collections.Counter(question.language for question in questions) == dict.fromkeys(XOR_TYDI_TEST, 43)
    rows = {each["id"]: each for each in map(json.loads, source.read_text().splitlines())}
    assert all(set(question.answers) == set(rows[question.id]["answers"]) for question in questions)
    limited = [each.language for each in xor_tydi_questions("test", ("fi", "ja"), str(tmp_path), limit=3)]
    assert limited == ["fi"] * 3 + ["ja"] * 3


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


@pytest.mark.parametrize("language", ["en", "ar", "zh"])
def test_a_question_s_passage_holds_its_answer(language):
    folder = prepared("xquad")
    passages = {passage.id: passage for passage, _ in read_squad(xquad_file(folder, language))}
    questions = xquad("all", (language,))
    assert (len(passages), len(questions)) == (240, 1190)
    assert all(question.answers[0] in passages[question.extra["passage"]].text for question in questions)
    assert not any(passage.text.startswith("\ufeff") for passage in passages.values())


def test_splits_of_xquad_share_no_article():
    training, test = (articles(xquad(split, ("en", "th"))) for split in ("train", "test"))
    assert (len(training), len(test), training & test) == (36, 12, set())
    fewer = articles(xquad("test", ("en",), test_articles=3))
    assert len(fewer) == 3
    assert fewer < test
    limited = xquad("test", ("en", "th"), limit=4)
    assert ([each.language for each in limited], len({each.id for each in limited})) == (["en", "th"] * 4, 4)
    assert xquad_questions("test", ("en", "ar", "zh"), str(prepared("xquad_r"))) == xquad("test", ("en", "ar", "zh"))


def test_a_question_that_one_language_lacks_is_dropped_for_all(tmp_path):
    for language in ("en", "de"):
        with gzip.open(xquad_file(prepared("xquad"), language), "rt", encoding="utf-8") as file:
            content = json.load(file)
        if language == "de":
            del content["data"][0]["paragraphs"][0]["qas"][0]
        (tmp_path / f"xquad.{language}.json").write_text(json.dumps(content))
    assert len(xquad_questions("all", ("en", "de"), str(tmp_path))) == 2 * 1189
    for split, language in (("all", "fi"), ("all", "ro"), ("dev", "en")):
        with pytest.raises(UserError):
            xquad_questions(split, (language,), str(tmp_path))


def test_every_language_of_mgsm_has_the_same_problems():
    folder, codes = prepared("mgsm"), ("de", "en", "es", "fr", "ja", "ru", "th", "zh")
    questions = mgsm_questions(codes, str(folder))
    assert len(questions) == 200 * len(codes)
    for place in range(0, len(questions), len(codes)):
        versions = questions[place : place + len(codes)]
        assert (tuple(each.language for each in versions), len({each.coupling for each in versions})) == (codes, 1)
        assert len({each.answers for each in versions}) == 1
    plain = (folder / "mgsm_th.tsv").read_text(encoding="utf-8").splitlines()
    thai = [each for each in questions if each.language == "th"]
    assert [f"{each.text}\t{each.answers[-1]}" for each in thai] == plain
    boxed = [rf"\boxed{{{question.answers[-1]}}}" for question in questions]
    assert mathematics(boxed, [question.answers[:1] for question in questions]).all()


def test_mgsm_is_divided_into_splits_of_problems():
    folder, sizes = str(prepared("mgsm")), {"train": 150, "test": 50}
    every, *parts = (mgsm_questions(("de", "en"), folder, split, sizes) for split in ("all", "train", "test"))
    assert [len(part) for part in parts] == [300, 100]
    assert sorted(question.key for part in parts for question in part) == sorted(question.key for question in every)
    assert not {question.coupling for question in parts[0]} & {question.coupling for question in parts[1]}
    with pytest.raises(UserError, match="no split 'train' of the problems of mgsm"):
        mgsm_questions(("en",), folder, "train")


def test_numbers_of_mgsm(tmp_path):
    """Thousands separators are left out, and remain in an alias; a problem that one language lacks is dropped."""
    write_rows(tmp_path / "mgsm_sw.tsv", "Ngapi?\t114,200", "Na?\t-3.5", "Tatu?\t3")
    write_rows(tmp_path / "mgsm_de.tsv", "Eins?\t1", "Zwei?\t2")
    questions = mgsm_questions(("sw", "de"), str(tmp_path))
    assert [each.answers for each in questions[::2]] == [("114200", "114,200"), ("-3.5",)]
    assert [(each.id, each.tier) for each in questions] == [("1", "low"), ("1", "high"), ("2", "low"), ("2", "high")]


def mmlu_row(number, language="en", **changed):
    return {
        "sample_id": f"abstract_algebra/test/{number}",
        "subject": "abstract_algebra",
        "subject_category": "STEM",
        "question": f"{language}: what is {number} + 1?",
        **{f"option_{letter}": str(number + place) for place, letter in enumerate("abcd")},
        "answer": "B",
        "culture": "[]",
        "is_annotated": True,
    } | changed


def write_mmlu(folder, language, rows, form="parquet", name="test"):
    place = folder / language
    place.mkdir(exist_ok=True)
    if form == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), place / f"{name}-00000-of-00001.parquet")
    elif form == "csv":
        with (place / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            table = csv.DictWriter(file, rows[0])
            table.writeheader()
            table.writerows(rows)
    else:
        write_rows(place / f"{name}.jsonl", *rows)


def mmlu(folder, languages=("en", "ha"), split="test", **options):
    return global_mmlu_questions(split, languages, str(folder), **options)


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
def test_all_forms_say_the_same(tmp_path, form):
    for language in ("en", "ha"):
        write_mmlu(tmp_path, language, [mmlu_row(number, language) for number in range(3)], form)
    questions = mmlu(tmp_path)
    name = "abstract_algebra/test/0"
    assert [(each.id, each.language) for each in questions[:2]] == [(name, "en"), (name, "ha")]
    assert len(questions) == 6
    assert (questions[2].text, questions[2].answers) == ("en: what is 1 + 1?\nA. 1\nB. 2\nC. 3\nD. 4", ("B",))
    extra = {"domain": "multiple_choice", "tier": "low", "subject": "abstract_algebra", "type": "STEM"}
    assert questions[3].extra == extra


def test_the_first_revision_and_the_hubs_parquet_export(tmp_path):
    """Without categories, cultural labels and annotations, and a folder for each split."""
    columns = ("subject", "question", "option_a", "option_b", "option_c", "option_d", "answer", "sample_id")
    (tmp_path / "en" / "test").mkdir(parents=True)
    table = pyarrow.Table.from_pylist([{name: mmlu_row(0)[name] for name in columns}])
    pyarrow.parquet.write_table(table, tmp_path / "en" / "test" / "0000.parquet")
    [question] = mmlu(tmp_path, ("en",))
    assert question.extra == {"domain": "multiple_choice", "tier": "high", "subject": "abstract_algebra"}
    assert question.text.splitlines()[-1] == "D. 3"


def test_fewer_are_the_same_in_every_language(tmp_path):
    write_mmlu(tmp_path, "en", [mmlu_row(number) for number in range(40)])
    write_mmlu(tmp_path, "ha", [mmlu_row(number, "ha") for number in reversed(range(30))], "jsonl")
    few, more = (mmlu(tmp_path, limit=limit) for limit in (5, 9))
    assert (len(few), len(mmlu(tmp_path))) == (10, 60)
    assert [each.id for each in few[::2]] == [each.id for each in few[1::2]]
    assert {each.id for each in few} < {each.id for each in more}
    assert {each.id for each in few} != {each.id for each in mmlu(tmp_path, limit=5, seed=1)}
    assert collections.Counter(each.tier for each in few) == {"high": 5, "low": 5}


@pytest.mark.parametrize("form", ["parquet", "csv", "jsonl"])
@pytest.mark.parametrize(
    "changed", [{"answer": "E"}, {"option_c": None}, {"question": " "}, {"sample_id": "abstract_algebra/test/0"}]
)
def test_a_bad_row_of_global_mmlu(tmp_path, one_bad_row, form, changed):
    write_mmlu(tmp_path, "en", [mmlu_row(0), mmlu_row(1, **changed), mmlu_row(2)], form)
    assert len(one_bad_row(lambda _: mmlu(tmp_path, ("en",)), "en/test", f", field {min(changed)}: ")) == 2


def test_sets_that_cannot_be_read(tmp_path):
    write_mmlu(tmp_path, "en", [mmlu_row(1)], "csv", "dev")
    assert len(mmlu(tmp_path, ("en",), "dev")) == 1
    write_rows(tmp_path / "mgsm_te.tsv", "", "")
    for read in (
        lambda: mmlu(tmp_path, ("en",), "train"),
        lambda: mmlu(tmp_path, ("fi",)),
        lambda: mmlu(tmp_path, ("en",)),
        lambda: mgsm_questions(("ha",), str(tmp_path)),
        lambda: mgsm_questions(("en",), str(tmp_path)),
        lambda: mgsm_questions(("te",), str(tmp_path)),
    ):
        with pytest.raises(UserError):
            read()
    (tmp_path / "en" / "test-00000-of-00001.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match="test-00000-of-00001.parquet"):
        mmlu(tmp_path, ("en",))
