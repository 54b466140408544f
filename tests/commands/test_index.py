"""`lcrag index`: from files to collections, whatever happens in between."""

import json
import sys
from unittest import mock

import gin
import pytest
from experiment_parts import assert_mistake
from prepared_data import prepared
from support.row_files import write_rows

from lcrag import data, main
from lcrag.commands import index as indexing
from lcrag.data.rows import JudgedQuery, Judgements
from lcrag.evaluation import read_rows
from lcrag.retrieval import Hit, SearchableCollections, load_collections
from lcrag.retrieval.collections import read_meta

PASSAGES = 64


def test_equal_scores_are_in_the_order_of_trec_eval_and_not_of_the_lines():
    queries = (JudgedQuery(id="1", language="en", text="?", grades={"é": 1, "a": 1}),)
    judged = Judgements(dataset="d", split="s", queries=queries)
    for ids in (["a", "b", "é"], ["é", "a", "b"]):
        scores = {"best": 0.9} | {name: 0.5 - 1e-9 * n for n, name in enumerate(ids)}
        hits = [Hit(id=name, title="", text="", score=score, language="en") for name, score in scores.items()]
        collections = mock.Mock(spec=SearchableCollections, **{"search.return_value": [hits]})
        values = {row.metric: row.value for row in indexing.judge(collections, judged, "m")}
        assert values["mrr@10"] == 0.5  # best, then é, b, a


def test_judgements_may_be_in_anserini_s_folders(tmp_path):
    write_rows(tmp_path / "topics" / "t.en.tsv", "7\tWhat?")
    write_rows(tmp_path / "qrels" / "q.en.tsv.gz", "7\tQ0\ta\t1")
    named = {"topics": "t.{language}.tsv", "qrels": "q.{language}.tsv", "languages": ("en",), "source": "x"}
    judged = indexing.trec_judgements("d", "s", folder=str(tmp_path), **named)
    assert [dict(query.grades) for query in judged.queries] == [{"a": 1}]


@pytest.fixture
def passages(tmp_path):
    rows = [{"docid": f"{n // 4}#{n % 4}", "title": f"T{n // 4}", "text": f"number {n * n}"} for n in range(PASSAGES)]
    return write_rows(tmp_path / "docs.jsonl", *rows)


def words_of(tiny, output, sources, *bindings, words=()):
    encoder = tiny / "collections" / "encoder"
    named = {language: str(place) for language, place in sources.items()}
    own = (f"index.sources={named!r}", f"index.encoder='{encoder}'", "load_encoder.max_tokens=32", *bindings)
    return ["index", *words, "--gin_file=index.gin", *(f"--gin.{binding}" for binding in own), f"--output_dir={output}"]


def index(*arguments, **options):
    gin.clear_config()
    return main.run(words_of(*arguments, **options))


def fingerprint(folder, language="fi"):
    return read_meta(folder / language).fingerprint


def test_builds_once_and_goes_on(tiny, tmp_path, passages, capsys, monkeypatch):
    output, empty = tmp_path / "out", tmp_path / "empty.jsonl"
    empty.write_text("\n")
    assert index(tiny, tmp_path / "none", {"fi": empty}, "index.kind='passages'") == 2
    assert "no document contains text" in capsys.readouterr().err
    assert index(tiny, output, {"fi": passages, "en": passages}, words=["fi"]) == 0
    assert f"fi: {PASSAGES} passages; exact index, recall@10 1.000" in capsys.readouterr().out
    assert load_collections(output).languages == ("fi",)
    assert sorted(path.name for path in output.iterdir()) == ["encoder", "fi"]
    assert "index.encoder" in (output / "fi" / "config.gin").read_text()
    record = json.loads((output / "fi" / "run.json").read_text())
    assert record["hashes"]["source"] == read_meta(output / "fi").source
    assert index(tiny, output, {"fi": passages, "en": passages}) == 0
    assert load_collections(output).languages == ("en", "fi")
    monkeypatch.setattr(indexing, "build_collection", None)  # what is there is not built again
    assert index(tiny, output, {"fi": passages, "en": passages}) == 0
    passages.write_text(passages.read_text() + '{"docid": "new", "text": "x"}\n')
    assert index(tiny, output, {"fi": passages, "en": passages}) == 2
    assert "a collection of another source" in capsys.readouterr().err


def test_a_tree_of_another_precision_is_refused(tiny, tmp_path, passages, monkeypatch, capsys):
    monkeypatch.setattr("lcrag.retrieval.collections.LARGEST_EXACT", PASSAGES - 1)
    precision = "index.settings=@IndexSettings()", "IndexSettings.quantize='int8'"
    for bindings, status in (((), 0), ((), 0), (precision, 2)):
        assert index(tiny, tmp_path / "out", {"fi": passages}, *bindings) == status
    assert_mistake(capsys, "quantize 'none', not 'int8'")


def test_languages_that_are_judged_one_after_the_other_are_all_kept(tiny, tmp_path, passages):
    write_rows(tmp_path / "topics", "7\tnumber 4")
    write_rows(tmp_path / "qrels", "7\tQ0\t0#2\t1")
    named = dict(dataset="d", split="s", folder=str(tmp_path), topics="topics", qrels="qrels", source="x")
    own = [f"trec_judgements.{name}={value!r}" for name, value in named.items()]
    for code in ("en", "fi", "fi"):
        asked = ("index.judgements=(@trec_judgements(),)", f"trec_judgements.languages=('{code}',)")
        assert index(tiny, tmp_path / "out", {"en": passages, "fi": passages}, *own, *asked) == 0
    languages = [row.language for row in read_rows(tmp_path / "out" / "evaluation.json") if row.metric == "mrr@10"]
    assert languages == ["en", "fi"]


def test_collections_are_stored_in_an_engine(tiny, tmp_path, passages, capsys):
    pytest.importorskip("qdrant_client")
    engine = ("index.engine=@Qdrant()", f"Qdrant.url='{tmp_path / 'engine'}'")
    assert index(tiny, tmp_path / "out", {"fi": passages}, *engine) == 0
    assert "fi: stored in Qdrant at " in capsys.readouterr().out


def test_retrieval_is_judged_by_xquad(tiny, tmp_path, monkeypatch, capsys):
    folder = prepared("xquad")
    monkeypatch.setenv("LCRAG_DATA", str(folder.parent))
    sources = {language: folder / f"xquad.{language}.json.gz" for language in ("en", "es")}
    fewer = (
        "index.judgements=(@xquad/question_judgements(),)",
        "judged/xquad_questions.languages=('en', 'es')",
        "judged/xquad_questions.split='test'",
    )
    assert index(tiny, tmp_path, sources, *fewer) == 0
    rows = {(row.language, row.metric): row for row in read_rows(tmp_path / "evaluation.json")}
    assert rows["all", "recall@100"].count == 2 * rows["es", "recall@1"].count > 400
    assert 0 < rows["es", "recall@3"].value < rows["es", "recall@100"].value < 1
    assert "recall@10" in capsys.readouterr().out
    assert index(tiny, tmp_path, sources, *fewer) == 0  # and replaces the rows
    assert len(read_rows(tmp_path / "evaluation.json")) == len(rows)


def test_judgements_of_other_passages_are_a_mistake(tiny, tmp_path, passages, monkeypatch, capsys):
    monkeypatch.setenv("LCRAG_DATA", str(prepared("miracl").parent))
    only = ("index.judgements=(@miracl/trec_judgements(),)", "miracl/trec_judgements.languages=('fi',)")
    assert index(tiny, tmp_path / "out", {"fi": passages}, *only) == 2
    assert "no passage that miracl judges relevant" in capsys.readouterr().err


@pytest.mark.parametrize("bindings", [(), ("index.beam=()",)], ids=["here", "beam"])
def test_bad_rows_are_named_or_skipped_and_counted(tiny, tmp_path, passages, capsys, bindings):
    if bindings:
        pytest.importorskip("apache_beam", reason="needs lcrag[beam]")
    passages.write_text(passages.read_text() + '{"docid": 5.5, "text": "x"}\n')
    assert index(tiny, tmp_path / "out", {"fi": passages}, *bindings) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(f"lcrag: error: {passages}, line 65")
    gin.clear_config()
    assert main.run([*words_of(tiny, tmp_path / "out", {"fi": passages}, *bindings), "--skip_bad_rows"]) == 0
    assert "1 bad row was left out" in capsys.readouterr().err


def test_beam_makes_the_same_collection(tiny, tmp_path, passages):
    pytest.importorskip("apache_beam", reason="needs lcrag[beam]")
    for name, bindings in (("here", ()), ("beam", ("index.beam=('--runner=DirectRunner',)",))):
        assert index(tiny, tmp_path / name, {"fi": passages}, *bindings) == 0
    assert fingerprint(tmp_path / "beam") == fingerprint(tmp_path / "here")
    assert sorted(path.name for path in (tmp_path / "beam").iterdir()) == ["encoder", "fi"]


def test_without_beam_the_mend_is_named(tiny, tmp_path, passages, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    monkeypatch.delitem(sys.modules, "lcrag.data.beam", raising=False)
    monkeypatch.delattr(data, "beam", raising=False)
    assert index(tiny, tmp_path / "out", {"fi": passages}, "index.beam=()") == 2
    assert_mistake(capsys, "pip install 'lcrag[beam]'")
