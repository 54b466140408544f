"""`lcrag index`: from files to collections, whatever happens in between."""

import gzip
import itertools
import json
import shutil
import sys

import gin
import pytest
from experiment_parts import assert_mistake
from prepared_data import prepared

from lcrag import data, main
from lcrag.commands import index as indexing
from lcrag.data.rows import JudgedQuery, Judgements
from lcrag.evaluation import read_rows
from lcrag.files import WEIGHTS
from lcrag.retrieval import Hit, collections, load_collections
from lcrag.retrieval.collections import read_meta
from lcrag.retrieval.encoder import Encoder, configured_encoder

PASSAGES = 64


def test_equal_scores_are_in_the_order_of_trec_eval_and_not_of_the_lines():
    class InOrder:
        languages = ("en",)

        def __init__(self, ids):
            self.scores = {"best": 0.9} | {name: 0.5 - 1e-9 * n for n, name in enumerate(ids)}

        def content_hashes(self):
            return {}

        def search(self, queries, languages, k):
            scores = self.scores.items()
            hits = [Hit(id=name, title="", text="", score=score, language="en") for name, score in scores]
            return [hits] * len(queries)

    queries = (JudgedQuery(id="1", language="en", text="?", grades={"é": 1, "a": 1}),)
    judged = Judgements(dataset="d", split="s", queries=queries)
    results = []
    for ids in (["a", "b", "é"], ["é", "a", "b"]):
        rows = indexing.judge(InOrder(ids), judged, "m")
        results.append({row.metric: row.value for row in rows})
    assert results[0] == results[1]
    assert results[0]["mrr@10"] == 0.5  # best, then é, b, a


def test_judgements_may_be_in_anserini_s_folders(tmp_path):
    files = {"topics/t.en.tsv": "7\tWhat?\n", "qrels/q.en.tsv.gz": gzip.compress(b"7\tQ0\ta\t1\n")}
    for name, content in files.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    named = {"topics": "t.{language}.tsv", "qrels": "q.{language}.tsv", "languages": ("en",), "source": "x"}
    judged = indexing.trec_judgements("d", "s", folder=str(tmp_path), **named)
    assert [dict(query.grades) for query in judged.queries] == [{"a": 1}]


@pytest.fixture
def passages(tmp_path):
    """A file of MIRACL's format."""
    path = tmp_path / "docs.jsonl"
    rows = [{"docid": f"{n // 4}#{n % 4}", "title": f"T{n // 4}", "text": f"number {n * n}"} for n in range(PASSAGES)]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


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
    output = tmp_path / "out"
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


def test_collections_are_stored_in_an_engine(tiny, tmp_path, passages, capsys):
    pytest.importorskip("qdrant_client")
    engine = ("index.engine=@Qdrant()", f"Qdrant.url='{tmp_path / 'engine'}'")
    assert index(tiny, tmp_path / "out", {"fi": passages}, *engine) == 0
    assert "fi: stored in Qdrant at " in capsys.readouterr().out


class Killed(BaseException):
    """Ends a command whose folder has been copied."""


def test_a_kill_costs_no_finished_vectors(tiny, tmp_path, passages, monkeypatch):
    whole, running, killed = tmp_path / "whole", tmp_path / "running", tmp_path / "killed"
    assert index(tiny, whole, {"fi": passages}) == 0
    monkeypatch.setattr(collections, "_PASSAGES_PER_CALL", 8)
    calls, encode = itertools.count(1), Encoder.encode

    def dying(*arguments, **options):
        if next(calls) == 4:
            shutil.copytree(running, killed)  # what SIGKILL leaves at this moment
            raise Killed
        return encode(*arguments, **options)

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(Encoder, "encode", dying)
        index(tiny, running, {"fi": passages})
    embedded = []
    load = indexing.configured_encoder

    def counting(folder):
        """An encoder that notes how many passages it was given."""
        encoder = load(folder)
        encode = encoder.encode
        encoder.encode = lambda texts, kind="query": embedded.append(len(texts)) or encode(texts, kind)
        return encoder

    monkeypatch.setattr(indexing, "configured_encoder", counting)
    assert index(tiny, killed, {"fi": passages}) == 0
    assert sum(embedded) == PASSAGES - 24
    assert fingerprint(killed) == fingerprint(whole)
    assert sorted(path.name for path in killed.iterdir()) == ["encoder", "fi"]
    assert len(load_collections(killed).search(["number 49"], ["fi"], 3)[0]) == 3


def test_articles_are_cut_and_found(tiny, tmp_path):
    text = " ".join(map(str, range(250)))
    rows = [{"id": "558", "url": "", "title": "Luvut", "text": text}, {"id": "7", "url": "", "title": "T", "text": ""}]
    (tmp_path / "wiki_00").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert index(tiny, tmp_path / "out", {"bg": tmp_path / "wiki_00"}) == 0
    corpus = load_collections(tmp_path / "out").collection("bg").corpus
    assert [corpus[n].id for n in range(len(corpus))] == ["558#0", "558#1", "558#2"]
    assert (corpus[0].title, len(corpus[0].text.split()), corpus[2].text[:7]) == ("Luvut", 100, "200 201")


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


@pytest.mark.parametrize(
    ("binding", "part"),
    [
        ("index.kind='passages'", "no document contains text"),
        ("index.kind='squad'", "kind"),
        ("index.encoder='nowhere'", "nowhere"),
    ],
)
def test_mistakes_are_one_line(tiny, tmp_path, passages, capsys, binding, part):
    passages.write_text("\n")
    assert index(tiny, tmp_path / "out", {"fi": passages}, "index.kind='passages'", binding) == 2
    assert part in capsys.readouterr().err.splitlines()[-1]


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


def test_gin_overrides_what_an_encoders_folder_says():
    gin.parse_config(["load_encoder.pooling = 'cls'", "load_encoder.query_prefix = 'ask: '"])
    changed = configured_encoder(WEIGHTS / "encoder").settings
    assert (changed.pooling, changed.query_prefix) == ("cls", "ask: ")
    gin.clear_config()
    plain = configured_encoder(WEIGHTS / "encoder").settings
    assert (plain.pooling, plain.passage_prefix) == ("mean", changed.passage_prefix)
