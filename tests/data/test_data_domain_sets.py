"""MGSM on real rows, and Global-MMLU in the three forms of its files, on rows in the form of its data card."""

import collections
import csv
import json

import pyarrow
import pyarrow.parquet
import pytest
from prepared_data import prepared

from lcrag.data.domain_sets import (
    GLOBAL_MMLU_LANGUAGES,
    GLOBAL_MMLU_TIERS,
    MGSM_LANGUAGES,
    MGSM_TIERS,
    global_mmlu_questions,
    mgsm_questions,
)
from lcrag.data.languages import LANGUAGES
from lcrag.errors import UserError
from lcrag.rewards.domains import mathematics

HERE = ("de", "en", "es", "fr", "ja", "ru", "th", "zh")


def write_mgsm(folder, language, *lines):
    (folder / f"mgsm_{language}.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def test_every_language_of_mgsm_has_the_same_problems():
    folder = prepared("mgsm")
    questions = mgsm_questions(HERE, str(folder))
    assert len(questions) == 200 * len(HERE)
    for place in range(0, len(questions), len(HERE)):
        versions = questions[place : place + len(HERE)]
        assert (tuple(each.language for each in versions), len({each.coupling for each in versions})) == (HERE, 1)
        assert len({each.answers for each in versions}) == 1
    plain = (folder / "mgsm_th.tsv").read_text(encoding="utf-8").splitlines()
    thai = [each for each in questions if each.language == "th"]
    assert [f"{each.text}\t{each.answers[-1]}" for each in thai] == plain
    assert {(each.domain, each.tier) for each in questions} == {("mathematics", "high")}
    boxed = [rf"\boxed{{{question.answers[-1]}}}" for question in questions]
    assert mathematics(boxed, [question.answers[:1] for question in questions]).all()


def test_separators_are_left_out_and_remain_an_alias(tmp_path):
    write_mgsm(tmp_path, "sw", "Ngapi?\t114,200", "Na?\t-3.5")
    questions = mgsm_questions(("sw",), str(tmp_path))
    assert [each.answers for each in questions] == [("114200", "114,200"), ("-3.5",)]
    assert [(each.id, each.tier) for each in questions] == [("1", "low"), ("2", "low")]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("How many?", "line 2: expected a problem, a tab and its answer"),
        ("How many?\tten", "line 2, field answer: expected a number, not 'ten'"),
        ("How\tmany?\t10", "line 2: expected a problem"),
        ("\t10", "line 2: expected a problem"),
        ("How many?\t1,00", "line 2, field answer: expected a number"),
    ],
)
def test_a_bad_row_of_mgsm(tmp_path, one_bad_row, line, problem):
    write_mgsm(tmp_path, "en", "One?\t1", line)
    write_mgsm(tmp_path, "de", "Eins?\t1", "Zwei?\t2")
    rows = one_bad_row(lambda _: mgsm_questions(("en", "de"), str(tmp_path)), problem)
    assert [each.id for each in rows] == ["1", "1"]


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
        (place / f"{name}.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")


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


def test_languages_tiers_and_splits(tmp_path):
    assert ({code for own in MGSM_TIERS.values() for code in own}, len(MGSM_LANGUAGES)) == (set(MGSM_LANGUAGES), 11)
    assert len(GLOBAL_MMLU_LANGUAGES) == 42
    assert set(GLOBAL_MMLU_LANGUAGES) <= set(LANGUAGES)
    assert not set(GLOBAL_MMLU_TIERS["high"]) & set(GLOBAL_MMLU_TIERS["low"])
    write_mmlu(tmp_path, "en", [mmlu_row(1)], "csv", "dev")
    assert len(mmlu(tmp_path, ("en",), "dev")) == 1
    write_mgsm(tmp_path, "te", "", "")
    for read, part in (
        (lambda: mmlu(tmp_path, ("en",), "train"), "no split 'train'"),
        (lambda: mmlu(tmp_path, ("fi",)), "'fi'"),
        (lambda: mmlu(tmp_path, ("en",)), "no test-00000-of-00001.parquet in .*en: download"),
        (lambda: mgsm_questions(("ha",), str(tmp_path)), "'ha'"),
        (lambda: mgsm_questions(("en",), str(tmp_path), {"low": ("sw",)}), "no tier of low"),
        (lambda: mgsm_questions(("en",), str(tmp_path)), "no mgsm_en.tsv in .*: download"),
        (lambda: mgsm_questions(("te",), str(tmp_path)), "empty"),
    ):
        with pytest.raises(UserError, match=part):
            read()


def test_damaged_and_useless_files(tmp_path):
    (tmp_path / "en").mkdir()
    (tmp_path / "en" / "test-00000-of-00001.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match="cannot be read"):
        mmlu(tmp_path, ("en",))
    write_mmlu(tmp_path, "en", [mmlu_row(0, answer="?")])
    with pytest.raises(UserError, match="field answer"):
        mmlu(tmp_path, ("en",))
