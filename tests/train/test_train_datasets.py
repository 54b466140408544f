"""The data sets in files through gin and the command line: their packaged configurations run."""

import gzip
import json
import shutil

import gin
import pytest
from experiment_parts import json_lines, run
from prepared_data import prepared

import lcrag.composition.commands  # noqa: F401  registers what the files name
from lcrag.commands.curate.translations import translations
from lcrag.composition.collections import xquad_collections
from lcrag.composition.configuration import configure, read_configuration
from lcrag.composition.datasets import mkqa_questions, xor_tydi_questions, xquad_questions
from lcrag.data.questions import Question
from lcrag.errors import UserError

ONE_STEP = ("STEPS=1", "train.evaluation=None")
BROKEN = '{"id": "9", "language": "fi", "question": "Missä?"}'


def own_questions(path, *languages, count=3):
    """Questions whose versions in all languages have one id."""
    rows = [
        {"id": number, "language": code, "question": f"{number}?", "answers": [" Botswana", str(number)]}
        for number in range(count)
        for code in languages
    ]
    for file in (path, path.with_name("held_out.jsonl")):
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def own(path):
    held_out = path.with_name("held_out.jsonl")
    return (f"train/jsonl_questions.files=['{path}']", f"held_out/jsonl_questions.files=['{held_out}']")


def test_one_s_own_questions_train_and_are_evaluated(tiny, tmp_path):
    path = own_questions(tmp_path / "mine.jsonl", "fi", "ja")
    bindings = (*own(path), "STEPS=1", "Evaluation.temperatures={'greedy': 0.0}")
    output = tmp_path / "run"
    assert run("train", tiny, *bindings, gin_files=("data/jsonl.gin",), output=output) == 0
    episodes = json_lines(output / "episodes" / "step_0.jsonl")
    assert [(e["dataset"], e["language"]) for e in episodes] == [("jsonl", "fi"), ("jsonl", "ja")]
    assert len({episode["group"] for episode in episodes}) == 1
    rows = json.loads((output / "evaluation.json").read_text())["rows"]
    assert {row["language"] for row in rows} >= {"fi", "ja"}
    assert {row["dataset"] for row in rows} == {"jsonl"}
    hashes = json.loads((output / "run.json").read_text())["hashes"]
    assert len(hashes["questions"]) == 16


def test_bad_rows_stop_the_command_unless_they_are_skipped(tiny, tmp_path, capsys):
    path = own_questions(tmp_path / "mine.jsonl", "fi", "ja")
    path.write_text(BROKEN + "\n" + path.read_text())
    options = {"gin_files": ("data/jsonl.gin",), "output": tmp_path / "run"}
    assert run("train", tiny, *own(path), *ONE_STEP, **options) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lcrag: error: {path}, line 1, field answers: field required")
    assert error.count("\n") == 1
    assert run("train", tiny, *own(path), *ONE_STEP, words=("--skip_bad_rows",), **options) == 0
    assert f"lcrag: 1 bad row was left out; the first: {path}, line 1, field answers" in capsys.readouterr().err
    assert "BadRows.skip = True" in (tmp_path / "run" / "config.gin").read_text()


def test_only_commands_that_read_data_skip_rows(tiny, capsys):
    assert run("report", tiny, words=("--skip_bad_rows",)) == 2
    assert "lcrag report has no option --skip_bad_rows" in capsys.readouterr().err


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder as LCRAG_DATA names it, without the files."""
    for name in ("mkqa", "xor_tydi", "xquad"):
        (tmp_path / "data" / name).mkdir(parents=True)
    monkeypatch.setenv("LCRAG_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_mkqa_has_coupled_groups_of_the_training_languages(files):
    with pytest.raises(UserError, match="there is no mkqa.jsonl.gz in"):
        mkqa_questions("test")
    shutil.copy(prepared("mkqa_standin/standin_bmlama53_13lang.jsonl.gz"), files / "mkqa" / "mkqa.jsonl.gz")
    assert len(mkqa_questions("test", test=20, train=15, validation=5)) == 20 * 13
    configure(
        read_configuration(
            ("quickstart.gin", "data/mkqa.gin"), ("mkqa_questions.test = 20", "mkqa_questions.validation = 5")
        )
    )
    with gin.config_scope("train"):
        questions = gin.get_configurable("mkqa_questions")(train=15)
    assert {each.language for each in questions} == {"en", "ar", "fi", "fr", "ja", "it", "ru", "zh"}
    assert len({each.id for each in questions}) == 15


def test_too_small_a_file_of_mkqa_is_refused(tiny, tmp_path, files, capsys):
    shutil.copy(prepared("mkqa/test_mkqa.jsonl.gz"), files / "mkqa" / "mkqa.jsonl.gz")
    assert run("train", tiny, *ONE_STEP, gin_files=("data/mkqa.gin",), output=tmp_path / "run") == 2
    assert "there are only 3 usable questions of mkqa for the splits test 2000" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def xor_files(folder):
    """Training rows in the official form, made of the real development rows, and TyDi QA's English one."""
    source = prepared("xor_tydi/xor_dev_full_v1_1.subset.jsonl")
    for name in ("xor_train_full.jsonl", "xor_dev_full_v1_1.jsonl"):
        shutil.copy(source, folder / "xor_tydi" / name)
    shutil.copy(prepared("tydiqa/goldp.en.json"), folder / "xor_tydi" / "tydiqa-goldp-v1.1-train.json")


def mirrored(texts, source, target):
    """A translator without mistakes."""
    return [text[::-1] for text in texts]


def test_xor_tydi_has_groups_of_one_language_until_it_is_translated(tiny, tmp_path, files, capsys):
    xor_files(files)
    sizes = ("TRAINING_LANGUAGES=('fi', 'ja')", "train/xor_tydi_questions.train=4", *ONE_STEP)
    options = {"output": tmp_path / "run"}
    assert run("train", tiny, *sizes, gin_files=("data/xor_tydi.gin",), **options) == 2
    assert "groups of one have no baseline to learn from" in capsys.readouterr().err
    gin.clear_config()
    questions = xor_tydi_questions("train", ("fi", "ja"), train=4)
    parts = {"questions": questions, "languages": ("fi", "ja"), "exact": dict.fromkeys(("fi", "ja"), mirrored)}
    translations(tmp_path / "made", places=len(questions), together=True, **parts)
    made = f"train/jsonl_questions.files=['{tmp_path / 'made' / 'questions.jsonl'}']"
    found = json_lines(tmp_path / "made" / "questions.jsonl")
    assert len(found) == 16
    assert all(row["id"] == found[0]["id"] for row in found[:2])
    assert run("train", tiny, *sizes, made, gin_files=("data/xor_tydi.gin", "data/jsonl_training.gin"), **options) == 0
    episodes = json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl")
    assert [e["language"] for e in episodes] == ["fi", "ja"]
    assert len({e["question_id"] for e in episodes}) == 1


def test_english_is_one_of_xor_tydi_s_training_languages(files):
    xor_files(files)
    found = xor_tydi_questions("train", ("en",), train=1)
    assert [type(each) for each in found] == [Question]
    assert found[0].language == "en"


def test_a_number_of_questions_of_each_language(files):
    xor_files(files)
    for split in ("train", "test"):
        found = xor_tydi_questions(split, ("fi", "ja"), train=6, limit=3)
        assert [each.language for each in found] == ["fi"] * 3 + ["ja"] * 3
    for language in ("en", "th"):
        shutil.copy(prepared(f"xquad/xquad.{language}.json.gz"), files / "xquad" / f"xquad.{language}.json.gz")
    found = xquad_questions("test", ("en", "th"), limit=4)
    assert [each.language for each in found] == ["en", "th"] * 4
    assert len({each.id for each in found}) == 4


def test_xquad_brings_its_own_collections(tiny, tmp_path, files, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for language in ("en", "th"):  # the first three articles are enough
        with gzip.open(prepared(f"xquad/xquad.{language}.json.gz"), "rt") as file:
            content = json.load(file)
        content["data"] = content["data"][:3]
        (files / "xquad" / f"xquad.{language}.json").write_text(json.dumps(content))
    encoder = f"xquad_collections.encoder='{tiny / 'collections' / 'encoder'}'"
    small = ("LANGUAGES=('en', 'th')", encoder, "xquad_questions.test_articles=1", "Runner.max_tokens=4")
    collections = (f"{name}.collections=@xquad_collections()" for name in ("train", "evaluate", "sample"))
    options = {"gin_files": ("data/xquad.gin",), "output": tmp_path / "run"}
    assert run("train", tiny, *small, *collections, *ONE_STEP, **options) == 0
    hashes = json.loads((tmp_path / "run" / "run.json").read_text())["hashes"]
    assert {"collection/en", "collection/th"} <= hashes.keys()
    gin.clear_config()
    opened = xquad_collections(("en", "th"), encoder=str(tiny / "collections" / "encoder"))
    assert opened.content_hashes().items() <= hashes.items()  # found where they were kept
    [[hit]] = opened.search(["Panthers"], ["th"], k=1)
    assert hit.language == "th"
    assert hit.id.split("/")[0] in ("Super Bowl 50", "Warsaw", "Normans")
