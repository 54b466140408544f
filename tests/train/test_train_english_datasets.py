"""The English question sets through gin and the command line."""

import gzip
import json
import shutil

import gin
import pytest
from experiment_parts import SIZES, run
from prepared_data import prepared

from lcrag.composition.collections import english_collections
from lcrag.composition.commands import open_search_tool
from lcrag.composition.datasets import english_questions, several_questions
from lcrag.composition.gin_files import read_file
from lcrag.data.english.sets import QUESTION_SETS
from lcrag.errors import UserError
from lcrag.evaluation import read_rows

HOTPOTQA = ("TRAINED_ON='hotpotqa'", "TESTED_ON='hotpotqa'")


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder as LCRAG_DATA names it, with the development rows of HotpotQA standing for its training rows too."""
    folder = tmp_path / "data"
    for name in QUESTION_SETS:
        (folder / name).mkdir(parents=True)
    with gzip.open(prepared("hotpotqa/hotpot_dev_distractor_v1.subset.json.gz"), "rt", encoding="utf-8") as file:
        rows = json.load(file)
    for name, part in (("hotpot_train_v1.1.json", rows[:20]), ("hotpot_dev_distractor_v1.json", rows[20:26])):
        (folder / "hotpotqa" / name).write_text(json.dumps(part))
    shutil.copy(prepared("nq_open/NQ-open.dev.subset.jsonl"), folder / "nq_open" / "NQ-open.dev.jsonl")
    monkeypatch.setenv("LCRAG_DATA", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def small(tiny):
    encoder = f"english_collections.encoder='{tiny / 'collections' / 'encoder'}'"
    return (
        *HOTPOTQA,
        encoder,
        *(f"{name}.collections=@english_collections()" for name in ("train", "evaluate", "sample")),
    )


def test_hotpotqa_brings_its_own_paragraphs(tiny, tmp_path, files, capsys):
    bindings = (*small(tiny), "Evaluation.temperatures={'greedy': 0.0}", "hierarchical_search.route=@english_only")
    options = {"gin_files": ("data/english.gin",), "output": tmp_path / "run"}
    assert run("evaluate", tiny, *bindings, **options) == 0
    shown = capsys.readouterr().out
    assert all(part in shown for part in ("hotpotqa, test", "all languages", "bridge", "seconds a question")), shown
    assert "trained on" not in shown, "one language, and the metrics of an English set"
    assert "recall" not in shown, "one language, and the metrics of an English set"
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


def test_a_tool_searches_the_paragraphs(tiny, files):
    bindings = [*SIZES, f"policy.folder='{tiny / 'policy'}'", *small(tiny), "search_tool.warm_up=False"]
    tool = open_search_tool("quickstart.gin", "data/english.gin", bindings=bindings)
    assert tool.languages == ["en"]
    assert len(tool(["Which magazine was first?"])) == 1


def test_several_sets_are_joined_and_limited(files):
    one, two = english_questions("hotpotqa", "train", limit=5), english_questions("nq_open", "test", limit=7)
    assert [question.dataset for question in several_questions([one, two])] == ["hotpotqa"] * 5 + ["nq_open"] * 7
    assert set(one[0].extra) >= {"type", "supports"}
    assert english_questions("nq_open", "test", limit=7, seed=1) != two


def test_what_is_missing_is_a_sentence(files, monkeypatch):
    with pytest.raises(UserError, match="nq_open comes without paragraphs in test: search Wikipedia"):
        english_collections(("nq_open",), encoder="atlas/encoder")
    with pytest.raises(UserError, match="no popQA.tsv in .*popqa: download https://github.com/AlexTMallen"):
        english_questions("popqa", "test")
    monkeypatch.delenv("LCRAG_DATA")
    with pytest.raises(UserError, match="holds the folder popqa, or bind english_questions.folder"):
        english_questions("popqa", "test")


@pytest.mark.parametrize(("name", "count"), [("multi_hop", 5), ("seven_sets", 7)])
def test_files_of_several_sets_name_known_ones(name, count):
    bound = [each for each in read_file(f"data/{name}.gin") if getattr(each, "parameter", "") in ("dataset", "split")]
    named = {each.scope: {} for each in bound if each.selector == "english_questions"}
    for each in bound:
        if each.scope in named:
            named[each.scope][each.parameter] = each.value
    assert all(each["split"] in QUESTION_SETS[each["dataset"]].files for each in named.values())
    tested = {each["dataset"] for scope, each in named.items() if scope.startswith("held_out")}
    assert len(tested) == count
