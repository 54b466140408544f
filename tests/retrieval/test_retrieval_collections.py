"""Collections: passages on disk, indexes against exact search, atomic and continued builds, damage, batched search."""

import concurrent.futures
import gc
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny_tokenizer

from lcrag.errors import UserError
from lcrag.files import readable_folder, replacing_folder
from lcrag.retrieval import Corpus, EncoderSettings, Passage, build_collection, initialise_encoder, load_collections
from lcrag.retrieval import collections as stored
from lcrag.retrieval.passages import passage_text

QUERIES = ["Text of number 7919", "Title 3", "something else"]
PASSAGES = st.builds(Passage, id=st.text(), title=st.text(), text=st.text())


def _made(*texts):
    return [Passage(id=text, title="", text=text) for text in texts]


@settings(max_examples=20)
@given(st.lists(PASSAGES, min_size=1, max_size=8, unique_by=lambda passage: passage.id))
def test_any_unicode_is_read_back(passages):
    with tempfile.TemporaryDirectory() as folder:
        count, _ = stored.write_passages(passages, pathlib.Path(folder) / stored.PASSAGES_FILE)
        corpus = Corpus(folder)
        assert count == len(corpus) == len(passages)
        assert list(corpus) == passages == [corpus[row] for row in range(len(corpus))]
        assert corpus[-1] == passages[-1]


@pytest.mark.parametrize("count", [stored.ROWS_PER_BATCH - 1, stored.ROWS_PER_BATCH, stored.ROWS_PER_BATCH + 1])
def test_rows_are_found_across_batches(tmp_path, count):
    passages = _made(*map(str, range(count)))
    stored.write_passages(iter(passages), tmp_path / stored.PASSAGES_FILE)
    corpus = Corpus(tmp_path)
    assert len(corpus) == count
    for row in (0, stored.ROWS_PER_BATCH - 2, count - 1):
        assert corpus[row] == passages[row]
    with pytest.raises(IndexError):
        corpus[count]


def test_fingerprints_tell_contents_apart_and_bad_passages_are_named(tmp_path):
    one, other = (
        stored.write_passages(passages, tmp_path / stored.PASSAGES_FILE)[1] for passages in (_made("a"), _made("b"))
    )
    assert one == stored.write_passages(_made("a"), tmp_path / stored.PASSAGES_FILE)[1] != other
    for passages, named in (
        (_made("a", "\ud800"), "Unicode"),
        (_made("a", "b", "c", "b"), "'b'"),
        ([], "at least one"),
    ):
        with pytest.raises(UserError, match=named):
            stored.write_passages(passages, tmp_path / stored.PASSAGES_FILE)


# --- Indexes ---


def _unit(rows, width=16, seed=0, clusters=40):
    """Clustered unit vectors; the clusters are the same for every seed."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(clusters).normal(size=(clusters, width))
    vectors = centres[generator.integers(0, clusters, rows)]
    vectors = vectors + 0.5 * generator.normal(size=(rows, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def _written(folder, vectors):
    np.save(folder / stored.VECTORS, vectors)
    return stored.write_index(folder)


@pytest.mark.parametrize(("count", "queries"), [(1, 1), (3, 0), (7, 100), (200, 1), (200, 100)])
def test_small_collections_are_exact(tmp_path, count, queries):
    vectors, asked = _unit(count), _unit(queries, seed=1)
    facts = _written(tmp_path, vectors)
    rows, scores = stored.read_index(tmp_path, facts).search(asked, 5)
    expected = np.argsort(-(asked @ vectors.T), axis=1)[:, :5]
    assert facts.kind == "exact"
    assert facts.recall == 1.0
    np.testing.assert_array_equal(rows, expected)
    np.testing.assert_allclose(scores, np.take_along_axis(asked @ vectors.T, expected, 1), atol=1e-6)


def test_indexes_open_on_several_threads(tmp_path):
    """CPython before 3.11.8 fails when two threads parse at once and the garbage collector runs Python code."""
    facts, interval, threshold = _written(tmp_path, _unit(3)), sys.getswitchinterval(), gc.get_threshold()

    def collected(phase, facts):
        return [*range(100)]

    gc.callbacks.append(collected)
    gc.set_threshold(5)
    sys.setswitchinterval(1e-6)
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            opened = list(pool.map(lambda _: stored.read_index(tmp_path, facts), range(40)))
    finally:
        gc.callbacks.remove(collected)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
    assert [index.count for index in opened] == [3] * 40


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """Indexes of the same vectors by the type of their re-ranking vectors, and one of low recall: facts and folder."""
    built = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "LARGEST_EXACT", 1000)
        patch.setattr(stored, "_MEASURED_QUERIES", 256)
        for name, settings in {
            **{quantize: stored.IndexSettings(quantize=quantize) for quantize in ("none", "bfloat16", "int8")},
            "low": stored.IndexSettings(recall=0.5),
        }.items():
            folder = tmp_path_factory.mktemp(name)
            np.save(folder / stored.VECTORS, _unit(3000))
            built[name] = stored.write_index(folder, settings), folder
    return built


@pytest.mark.parametrize("quantize", ["none", "bfloat16", "int8"])
def test_trees_reach_their_recall_and_say_so(trees, quantize):
    (facts, folder), vectors, asked = trees[quantize], _unit(3000), _unit(200, seed=1)
    rows, scores = stored.read_index(folder, facts).search(asked, 10)
    expected = np.argsort(-(asked @ vectors.T), axis=1)[:, :10]
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows.tolist(), expected.tolist(), strict=True)])
    assert (facts.quantize, facts.kind) == (quantize, "tree")
    assert facts.recall >= stored.IndexSettings().recall
    assert recall >= 0.9
    exact, found = (vectors[rows] * asked[:, None]).sum(-1), rows >= 0
    tolerance = {"none": 1e-5, "bfloat16": 1e-2, "int8": 2e-2}[quantize]
    np.testing.assert_allclose(scores[found], exact[found], atol=tolerance)


def test_building_a_tree_prints_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(stored, "LARGEST_EXACT", 100)
    _written(tmp_path, _unit(200))
    assert capfd.readouterr() == ("", "")


def test_smaller_vectors_take_less_memory(trees):
    none, bfloat16, int8 = (stored.index_bytes(folder, facts) for facts, folder in list(trees.values())[:3])
    vectors = 3000 * 16
    assert none - bfloat16 == pytest.approx(2 * vectors, abs=2000)
    assert none - int8 == pytest.approx(3 * vectors, abs=2000)


@pytest.mark.parametrize("together", [2, 7, 100])
def test_a_query_finds_the_same_in_any_batch(trees, together):
    facts, folder = trees["none"]
    index, asked = stored.read_index(folder, facts), _unit(100, seed=1)
    alone = [np.vstack(results) for results in zip(*(index.search(query[None], 4) for query in asked), strict=True)]
    for start in range(0, 100, together):
        for found, expected in zip(index.search(asked[start : start + together], 4), alone, strict=True):
            np.testing.assert_array_equal(found, expected[start : start + together])


def test_the_least_work_is_chosen_and_more_recall_takes_more(trees):
    facts, (low, _) = trees["none"][0], trees["low"]
    chosen = facts.tried[0]
    assert (chosen["leaves_to_search"], chosen["reordered"]) == (facts.leaves_to_search, facts.reordered)
    assert chosen["kilobytes"] == min(trial["kilobytes"] for trial in facts.tried)
    assert len({trial["reordered"] for trial in facts.tried}) == len(facts.tried) > 1
    assert 0.5 <= low.recall < facts.recall
    assert low.tried[0]["kilobytes"] < chosen["kilobytes"]


def test_trees_do_not_copy_the_vectors_and_may_be_moved(trees, tmp_path):
    facts, folder = trees["none"]
    moved, asked = shutil.copytree(folder, tmp_path / "moved"), _unit(5, seed=1)
    found, expected = (stored.read_index(place, facts).search(asked, 4)[0] for place in (moved, folder))
    np.testing.assert_array_equal(found, expected)
    assert sum(path.stat().st_size for path in (moved / "index").iterdir()) < (moved / stored.VECTORS).stat().st_size


def test_pickles_are_never_opened(trees, tmp_path):
    copy = shutil.copytree(trees["none"][1], tmp_path / "copy")
    (copy / "index" / "scann_docids.pkl").write_bytes(b"")
    with pytest.raises(ValueError, match="pickle"):
        stored.read_index(copy, trees["none"][0])


def test_exact_search_over_several_blocks(monkeypatch):
    monkeypatch.setattr(stored, "_BLOCK", 300)
    vectors, asked = _unit(1000, width=4), _unit(3, width=4, seed=1)
    expected = np.argsort(-(asked @ vectors.T), axis=1)[:, :20]
    np.testing.assert_array_equal(stored.exact_search(vectors, asked, 20), expected)


# --- Collections ---


@pytest.fixture(scope="module")
def built(tmp_path_factory, encoder, many):
    folder = tmp_path_factory.mktemp("built") / "c"
    build_collection(many, encoder, folder, language="en")
    build_collection(many[:5], encoder, folder, language="fr")
    return folder


@pytest.fixture
def folder(tmp_path, built):
    return shutil.copytree(built, tmp_path / "c")


def test_search_is_exact_nearest_neighbours(built, encoder, many):
    hits = load_collections(built).search(QUERIES, ["en"] * 3, 4)
    scores = encoder.encode(QUERIES) @ encoder.encode([passage_text(passage) for passage in many], "passage").T
    for row, found in enumerate(hits):
        assert [hit.id for hit in found] == [many[index].id for index in np.argsort(-scores[row])[:4]]
        np.testing.assert_allclose([hit.score for hit in found], np.sort(scores[row])[::-1][:4], atol=1e-5)
        assert {hit.language for hit in found} == {"en"}
        assert all(Passage(id=hit.id, title=hit.title, text=hit.text) in many for hit in found)


def test_pairs_are_answered_in_order_and_each_query_is_encoded_once(built, encoder, monkeypatch):
    collections, calls, original = load_collections(built, encoder), [], encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda texts, kind: calls.append(list(texts)) or original(texts, kind))
    queries, languages = [QUERIES[0], QUERIES[1], QUERIES[0], QUERIES[0]], ["fr", "en", "en", "fr"]
    together = collections.search(queries, languages, 3)
    assert calls == [QUERIES[:2]]
    alone = [collections.search([query], [language], 3)[0] for query, language in zip(queries, languages, strict=True)]
    assert [[hit.id for hit in hits] for hits in together] == [[hit.id for hit in hits] for hits in alone]
    assert collections.search([], [], 3) == []
    assert collections.languages == ("en", "fr")
    for language, k, named in (("ja", 2, "'ja'.*en, fr"), ("en", 0, "at least one")):
        with pytest.raises(UserError, match=named):
            collections.search(["x", "y"], ["en", language], k)


def test_threads_share_collections(built):
    collections = load_collections(built)
    numbers = [1 + row % 3 for row in range(24)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda k: collections.search(QUERIES, ["en", "fr", "en"], k), numbers))
    assert found == [collections.search(QUERIES, ["en", "fr", "en"], k) for k in numbers]


def test_what_is_opened(built, tmp_path):
    assert load_collections(built / "fr").languages == ("fr",) == load_collections(built, languages=["fr"]).languages
    for folder, languages, named in ((built, ["ja"], "'ja'"), (tmp_path, None, str(tmp_path)), ("no", None, "/no:")):
        with pytest.raises(UserError, match=named):
            load_collections(folder, languages=languages)


def test_one_of_those_who_need_collections_builds_them_and_the_others_wait(tmp_path, encoder, passages):
    begun, built_by = threading.Barrier(3, timeout=60), []

    def slowly(language):
        built_by.append(language)
        time.sleep(0.3)  # the others find it half built
        return passages

    def opened():
        begun.wait()
        return stored.kept_collections(tmp_path / "cache", encoder, ("en",), slowly).languages

    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert {future.result() for future in [pool.submit(opened) for _ in range(3)]} == {("en",)}
    assert built_by == ["en"]


def test_another_encoder_is_refused(folder, config, passages):
    other = initialise_encoder(config, EncoderSettings(max_tokens=32), tiny_tokenizer().backend, seed=7)
    with pytest.raises(UserError, match=f"{folder}.*own encoder"):
        load_collections(folder, other)
    with pytest.raises(UserError, match="another encoder"):
        build_collection(passages, other, folder, language="de")


def test_rebuilding_replaces_and_a_failed_build_does_not(folder, encoder, passages):
    def broken():
        yield passages[0]
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        build_collection(broken(), encoder, folder, language="en")
    assert len(load_collections(folder).collection("en").corpus) == 20
    build_collection(passages[10:13], encoder, folder, language="en")
    collections = load_collections(folder)
    assert [len(collections.collection(language).corpus) for language in ("en", "fr")] == [3, 5]
    with pytest.raises(UserError, match="language code"):
        build_collection(passages, encoder, folder / "my collection")


def test_the_memory_is_stated_and_too_little_is_said_before_anything_is_read(built, monkeypatch, caplog):
    monkeypatch.setattr(stored, "index_bytes", lambda folder, facts: 3 << 30)
    monkeypatch.setattr(stored, "memory_bytes", lambda: 8 << 30)
    load_collections(built)
    assert "6.0 GiB of this machine's 8.0 GiB of memory" in caplog.text
    monkeypatch.setattr(stored, "memory_bytes", lambda: 5 << 30)
    monkeypatch.setattr(stored, "read_index", None)
    with pytest.raises(UserError, match="load_collections.languages"):
        load_collections(built)


@pytest.fixture(scope="module")
def tree(tmp_path_factory, encoder):
    folder = tmp_path_factory.mktemp("tree")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stored, "LARGEST_EXACT", 100)
        build_collection(_made(*map(str, range(10, 310))), encoder, folder, language="en")
    return folder


@pytest.mark.parametrize(
    "name",
    [
        *("passages.arrow", "vectors.npy", "meta.json", "manifest.json", "index/hashed_dataset.npy"),
        *("../encoder/model.safetensors", "../encoder/tokenizer.json", "../encoder/1_Pooling/config.json"),
    ],
)
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_damage_is_reported_with_its_remedy(tmp_path, tree, name, damage):
    shutil.copytree(tree, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "en" / name
    content = path.read_bytes()
    path.unlink()
    if (name, damage) == ("manifest.json", "missing"):  # as in collections of earlier versions
        load_collections(tmp_path)
        return
    if damage == "truncated":
        path.write_bytes(content[:-10])
    if damage == "flipped":
        middle = len(content) // 2
        path.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
    with pytest.raises(UserError, match=f"{tmp_path}.*build"):
        load_collections(tmp_path)


def test_a_collection_that_cannot_be_opened_replaces_none(tmp_path, encoder, passages, monkeypatch):
    build_collection(passages, encoder, tmp_path, language="en")
    before = stored.read_meta(tmp_path / "en")
    with monkeypatch.context() as patch:
        patch.setattr(stored, "read_index", mock.Mock(side_effect=RuntimeError("no index")))
        with pytest.raises(UserError, match="cannot be opened"):
            build_collection(passages[:1], encoder, tmp_path, language="en")
    assert stored.read_meta(tmp_path / "en") == before
    load_collections(tmp_path)


def test_an_interrupted_build_continues(tmp_path, encoder, many, monkeypatch):
    monkeypatch.setattr(stored, "_PASSAGES_PER_CALL", 8)
    whole = build_collection(many, encoder, tmp_path / "whole", "en", source="s")
    read, encoded = [], []
    original = encoder.encode

    def dying(texts, kind):
        encoded.append(len(texts))
        if len(encoded) == 2:
            shutil.copytree(tmp_path / "running", tmp_path / "c")  # what SIGKILL leaves at this moment
            raise KeyboardInterrupt
        return original(texts, kind)

    def noted():
        for passage in many:
            read.append(passage.id)
            yield passage

    monkeypatch.setattr(encoder, "encode", dying)
    with pytest.raises(KeyboardInterrupt):
        build_collection(noted(), encoder, tmp_path / "running", "en", source="s")
    with pytest.raises(UserError, match="unfinished"):
        build_collection(noted(), encoder, tmp_path / "c", "en", source="another")
    assert build_collection(noted(), encoder, tmp_path / "c", "en", source="s") == whole
    assert (len(read), encoded) == (len(many), [8, 8, 8, 4])
    vectors = "en/vectors.npy"
    assert (tmp_path / "c" / vectors).read_bytes() == (tmp_path / "whole" / vectors).read_bytes()
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["en", "encoder"]


def test_vectors_from_elsewhere(tmp_path, built, encoder, many):
    texts = [passage_text(passage) for passage in many]
    blocks = [encoder.encode(texts[:7], "passage"), encoder.encode(texts[7:], "passage")]
    build_collection(many, encoder, tmp_path, "en", source="s", vectors=iter(blocks))
    found, wanted = (load_collections(folder).search(QUERIES, ["en"] * 3, 5) for folder in (tmp_path, built))
    assert [[hit.id for hit in hits] for hits in found] == [[hit.id for hit in hits] for hits in wanted]


@pytest.mark.parametrize(
    "damage",
    [
        lambda vectors: np.where(np.arange(len(vectors))[:, None] == 3, np.nan, vectors),
        lambda vectors: vectors * np.float32(np.inf),
        lambda vectors: vectors[:, :8],
        lambda vectors: vectors[0],
        lambda vectors: vectors[:-1],
        lambda vectors: np.tile(vectors, (2, 1)),
    ],
)
def test_vectors_that_do_not_fit_are_refused_and_leave_what_is_there(tmp_path, encoder, many, damage):
    vectors = encoder.encode([passage_text(passage) for passage in many], "passage")
    build_collection(many, encoder, tmp_path, "en")
    with pytest.raises(UserError, match="vectors"):
        build_collection(many, encoder, tmp_path, "en", source="s", vectors=iter([damage(vectors)]))
    assert len(load_collections(tmp_path).search(["a"], ["en"], 5)[0]) == 5


def _write(folder, text):
    with replacing_folder(folder) as temporary:
        (temporary / "file").write_text(text)


def _content(folder):
    """The content of a folder, next to which there is no other."""
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    return (folder / "file").read_text()


def test_replacing_is_whole_or_nothing(tmp_path):
    folder = tmp_path / "a"
    for text in ("one", "two"):
        _write(folder, text)
        assert _content(folder) == text
    with pytest.raises(RuntimeError), replacing_folder(folder) as temporary:
        (temporary / "file").write_text("half")
        raise RuntimeError
    assert _content(folder) == "two"
    (tmp_path / "b").write_text("mine")
    with pytest.raises(UserError, match="b is a file"):
        _write(tmp_path / "b", "four")
    assert (tmp_path / "b").read_text() == "mine"


@pytest.mark.parametrize("dies_before", ["write", "first rename", "second rename", "removal"])
def test_killed_at_any_moment_something_whole_is_readable(tmp_path, dies_before):
    folder = tmp_path / "a"
    _write(folder, "old")
    assert subprocess.run([sys.executable, "-c", _DYING_WRITER, folder, dies_before]).returncode == -signal.SIGKILL
    assert (readable_folder(folder) / "file").read_text() == ("new" if dies_before == "removal" else "old")
    _write(folder, "newest")
    assert _content(folder) == "newest"


_DYING_WRITER = """
import os, pathlib, signal, sys
from lcrag import files

folder, moment = pathlib.Path(sys.argv[1]), sys.argv[2]
original = pathlib.Path.rename

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def rename(path, target):
    is_second = path.name.endswith(".building")
    return kill() if is_second == (moment == "second rename") else original(path, target)

if moment.endswith("rename"):
    pathlib.Path.rename = rename
with files.replacing_folder(folder) as temporary:
    (temporary / "file").write_text("half" if moment == "write" else "new")
    if moment == "write":
        kill()
    if moment == "removal":
        files.shutil.rmtree = kill
"""
