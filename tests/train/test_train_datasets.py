"""Questions of data sets through gin and the command line: packaged configurations run, and ask what they say."""

import gzip
import json
import shutil

import gin
import pytest
from experiment_parts import assert_mistake, json_lines, run
from prepared_data import prepared

from lcrag.commands.curate import translations
from lcrag.data.english import QUESTION_SETS, english_collections, english_questions
from lcrag.data.multilingual import (
    xor_tydi_questions,
    xquad_collections,
    xquad_holders,
    xquad_questions,
)
from lcrag.errors import UserError
from lcrag.evaluation import read_rows

ONE_STEP = ("STEPS=1", "train.evaluation=None")
BROKEN = '{"id": "9", "language": "fi", "question": "Missä?"}'


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name in ("mkqa", "xor_tydi", "xquad", *QUESTION_SETS):
        (tmp_path / "data" / name).mkdir(parents=True)
    monkeypatch.setenv("LCRAG_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data"


def test_one_s_own_questions_train_and_are_evaluated_and_bad_rows_are_skipped_if_asked(tiny, tmp_path, capsys):
    paths = tmp_path / "mine.jsonl", tmp_path / "held_out.jsonl"
    rows = [
        json.dumps({"id": number, "language": code, "question": f"{number}?", "answers": [" Botswana", str(number)]})
        for number in range(3)
        for code in ("fi", "ja")
    ]
    for path in paths:
        path.write_text("\n".join([BROKEN, *rows]) + "\n")
    own = [f"{name}/jsonl_questions.files=['{path}']" for name, path in zip(("train", "held_out"), paths, strict=True)]
    output = tmp_path / "run"
    bindings = (*own, "STEPS=1", "Evaluation.temperatures={'greedy': 0.0}", "Evaluation.allow_overlap=True")
    options = {"gin_files": ("data/jsonl.gin",), "output": output}
    assert run("train", tiny, *bindings, **options) == 2
    assert_mistake(capsys, "line 1, field answers: field required")
    assert run("train", tiny, *bindings, words=("--skip_bad_rows",), **options) == 0
    assert "1 bad row was left out; the first: " in capsys.readouterr().err
    assert "BadRows.skip = True" in (output / "config.gin").read_text()
    episodes = json_lines(output / "episodes" / "step_0.jsonl")
    assert [(e["dataset"], e["language"]) for e in episodes] == [("jsonl", "fi"), ("jsonl", "ja")]
    assert len({episode["group"] for episode in episodes}) == 1
    rows = json.loads((output / "evaluation.json").read_text())["rows"]
    assert {row["language"] for row in rows} >= {"fi", "ja"}
    assert {row["dataset"] for row in rows} == {"jsonl"}


def mirrored(texts, source, target):
    return [text[::-1] for text in texts]


def test_xor_tydi_has_groups_of_one_language_until_it_is_translated(tiny, tmp_path, files, capsys):
    source = prepared("xor_tydi/xor_dev_full_v1_1.subset.jsonl")
    for name in ("xor_train_full.jsonl", "xor_dev_full_v1_1.jsonl"):
        shutil.copy(source, files / "xor_tydi" / name)
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


def test_xquad_brings_its_own_collections(tiny, tmp_path, files, monkeypatch):
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
    kept = sorted((tmp_path / "cache").rglob("vectors*"))
    assert len(kept) == 2
    assert len([path for path in (tmp_path / "cache").rglob("encoder") if not path.is_symlink()]) == 1
    monkeypatch.setattr("lcrag.retrieval.collections.build_collection", None)  # another order embeds nothing again
    again = xquad_collections(("th", "en"), encoder=str(tiny / "collections" / "encoder"))
    assert again.languages == ("en", "th")
    assert again.content_hashes() == opened.content_hashes()


def test_collections_of_xquad_lack_the_paragraphs_that_its_questions_say(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder, encoder = str(prepared("xquad")), str(tiny / "collections" / "encoder")
    held, languages = {"home": 0.9, "en": 0.7, "th": 0.5}, ("en", "th")
    shares = {"en": 0.8, "th": 0.7}  # half of the paragraphs are at home
    opened = xquad_collections(languages, folder, encoder, held)
    questions = xquad_questions("all", languages, folder, held=held)
    for code in languages:
        held_here = {hit.id for hit in opened.search(["x"], [code], k=240)[0]}
        assert len(held_here) / 240 == pytest.approx(shares[code], abs=0.09)  # three standard deviations
        of_code = [question for question in questions if question.language == code]
        assert all((question.extra["passage"] in held_here) == question.extra["native_holds"] for question in of_code)
    both = sum(len(xquad_holders(f"{number}", held)) == 2 for number in range(4000)) / 4000
    assert both == pytest.approx(0.5 * (0.9 * 0.5 + 0.9 * 0.7), abs=0.02)  # drawn independently

    for wrong in ({"home": 0.9, "en": 0.7}, {"home": 0.9, "en": 0.7, "th": 2.0}):
        with pytest.raises(UserError, match="th"):
            xquad_questions("all", languages, folder, held=wrong)
        with pytest.raises(UserError, match="th"):
            xquad_collections(languages, folder, encoder, wrong)


def test_hotpotqa_brings_its_own_paragraphs(tiny, tmp_path, files):
    with gzip.open(prepared("hotpotqa/hotpot_dev_distractor_v1.subset.json.gz"), "rt", encoding="utf-8") as file:
        rows = json.load(file)
    for name, part in (("hotpot_train_v1.1.json", rows[:20]), ("hotpot_dev_distractor_v1.json", rows[20:26])):
        (files / "hotpotqa" / name).write_text(json.dumps(part))
    bindings = (
        *("TRAINED_ON='hotpotqa'", "TESTED_ON='hotpotqa'", "evaluate.collections=@english_collections()"),
        f"english_collections.encoder='{tiny / 'collections' / 'encoder'}'",
        *("Evaluation.temperatures={'greedy': 0.0}", "hierarchical_search.route=@english_only"),
    )
    options = {"gin_files": ("data/english.gin",), "output": tmp_path / "run"}
    assert run("evaluate", tiny, *bindings, **options) == 0
    shown = (tmp_path / "run" / "report.md").read_text()
    assert all(part in shown for part in ("hotpotqa, test", "bridge", "seconds a question")), shown
    assert "training languages" not in shown and "recall" not in shown, "one language, and metrics of an English set"
    rows = read_rows(tmp_path / "run" / "evaluation.json")
    assert {row.dataset for row in rows} == {"hotpotqa"}
    assert {row.split for row in rows} > {"test", "test/bridge"}
    assert {"squad_exact_match", "squad_f1", "squad_accuracy"} <= {row.metric for row in rows}
    hashes = json.loads((tmp_path / "run" / "answers" / "LcRL_run.json").read_text())["hashes"]
    assert "collection/en" in hashes
    gin.clear_config()
    opened = english_collections(("hotpotqa",), ("train", "test"), encoder=str(tiny / "collections" / "encoder"))
    assert opened.content_hashes().items() <= hashes.items()  # found where they were kept
    question = english_questions("hotpotqa", "test")[0]
    (hits,) = opened.search([question.text], ["en"], k=260)
    assert set(question.extra["supports"]) <= {hit.id for hit in hits}
