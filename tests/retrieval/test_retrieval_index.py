"""Indexes against exact search in NumPy."""

import concurrent.futures
import gc
import shutil
import sys

import numpy as np
import pytest

from lcrag.retrieval import index as index_module
from lcrag.retrieval.index import VECTORS, IndexSettings, exact_search, index_bytes, read_index, write_index


def _unit(rows, width=16, seed=0, clusters=40):
    """Clustered unit vectors; the clusters are the same for every seed."""
    generator = np.random.default_rng(seed)
    centres = np.random.default_rng(clusters).normal(size=(clusters, width))
    vectors = centres[generator.integers(0, clusters, rows)]
    vectors = vectors + 0.5 * generator.normal(size=(rows, width))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def _written(folder, vectors):
    np.save(folder / VECTORS, vectors)
    return write_index(folder)


@pytest.mark.parametrize("count", [1, 7, 200])
@pytest.mark.parametrize("queries", [1, 100])
def test_small_collections_are_exact(tmp_path, count, queries):
    vectors, asked = _unit(count), _unit(queries, seed=1)
    facts = _written(tmp_path, vectors)
    rows, scores = read_index(tmp_path, facts).search(asked, 5)
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
            opened = list(pool.map(lambda _: read_index(tmp_path, facts), range(40)))
    finally:
        gc.callbacks.remove(collected)
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
    assert [index.count for index in opened] == [3] * 40


def test_more_wanted_than_there_is(tmp_path):
    rows, scores = read_index(tmp_path, _written(tmp_path, _unit(3))).search(_unit(2, seed=1), 10)
    assert rows.shape == scores.shape == (2, 3)
    assert all(set(row) == {0, 1, 2} for row in rows.tolist())
    rows, scores = read_index(tmp_path, _written(tmp_path, _unit(3))).search(np.empty((0, 16), np.float32), 2)
    assert rows.shape == scores.shape == (0, 2)


@pytest.fixture
def small_trees(monkeypatch):
    monkeypatch.setattr(index_module, "LARGEST_EXACT", 1000)


def test_trees_reach_their_recall_and_say_so(tmp_path, small_trees, capfd):
    vectors, asked = _unit(4000), _unit(200, seed=1)
    facts = _written(tmp_path, vectors)
    assert capfd.readouterr() == ("", ""), "ScaNN reports what it builds"
    rows, scores = read_index(tmp_path, facts).search(asked, 10)
    expected = np.argsort(-(asked @ vectors.T), axis=1)[:, :10]
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows.tolist(), expected.tolist(), strict=True)])
    assert facts.kind == "tree"
    assert facts.recall >= IndexSettings().recall
    assert recall >= 0.9
    found = rows >= 0
    np.testing.assert_allclose(scores[found], (vectors[rows] * asked[:, None]).sum(-1)[found], atol=1e-5)


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """Indexes of the same vectors by the type of their re-ranking vectors: (facts, index, memory, folder)."""
    vectors, built = _unit(3000), {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "LARGEST_EXACT", 1000)
        for quantize in ("none", "bfloat16", "int8"):
            folder = tmp_path_factory.mktemp(quantize)
            np.save(folder / VECTORS, vectors)
            facts = write_index(folder, IndexSettings(quantize=quantize))
            built[quantize] = facts, read_index(folder, facts), index_bytes(folder, facts), folder
    return built


@pytest.mark.parametrize("quantize", ["none", "bfloat16", "int8"])
def test_smaller_vectors_reach_the_recall_too(trees, quantize):
    facts, index, *_ = trees[quantize]
    asked = _unit(100, seed=1)
    rows, scores = index.search(asked, 5)
    assert (facts.quantize, facts.kind) == (quantize, "tree")
    assert facts.recall >= 0.95
    exact = (asked[:, None] * _unit(3000)[rows]).sum(-1)
    np.testing.assert_allclose(scores, exact, atol={"none": 1e-5, "bfloat16": 1e-2, "int8": 2e-2}[quantize])


def test_smaller_vectors_take_less_memory(trees):
    none, bfloat16, int8 = (trees[quantize][2] for quantize in ("none", "bfloat16", "int8"))
    vectors = 3000 * 16
    assert none - bfloat16 == pytest.approx(2 * vectors, abs=2000)
    assert none - int8 == pytest.approx(3 * vectors, abs=2000)


@pytest.mark.parametrize("together", [2, 7, 100])
def test_a_query_finds_the_same_in_any_batch(trees, together):
    index, asked = trees["none"][1], _unit(100, seed=1)
    alone = [index.search(query[None], 4) for query in asked]
    for start in range(0, 100, together):
        rows, scores = index.search(asked[start : start + together], 4)
        np.testing.assert_array_equal(rows, np.vstack([each[0] for each in alone[start : start + together]]))
        np.testing.assert_array_equal(scores, np.vstack([each[1] for each in alone[start : start + together]]))


def test_the_least_work_is_chosen_and_all_that_was_tried_recorded(trees):
    facts = trees["none"][0]
    chosen = facts.tried[0]
    assert (chosen["leaves_to_search"], chosen["reordered"]) == (facts.leaves_to_search, facts.reordered)
    assert chosen["kilobytes"] == min(trial["kilobytes"] for trial in facts.tried)
    assert len({trial["reordered"] for trial in facts.tried}) == len(facts.tried) > 1


def test_more_recall_takes_more_work(tmp_path, small_trees):
    np.save(tmp_path / VECTORS, _unit(2000))
    low, high = (write_index(tmp_path_of(tmp_path, recall), IndexSettings(recall=recall)) for recall in (0.5, 0.99))
    assert 0.5 <= low.recall < high.recall
    assert low.tried[0]["kilobytes"] < high.tried[0]["kilobytes"]


def tmp_path_of(folder, recall):
    """A copy of the vectors in a folder of their own."""
    copy = folder / str(recall)
    copy.mkdir()
    shutil.copy(folder / VECTORS, copy / VECTORS)
    return copy


def test_trees_do_not_copy_the_vectors_and_may_be_moved(trees, tmp_path):
    facts, index, _, folder = trees["none"]
    moved = shutil.copytree(folder, tmp_path / "moved")
    asked = _unit(5, seed=1)
    np.testing.assert_array_equal(read_index(moved, facts).search(asked, 4)[0], index.search(asked, 4)[0])
    size = sum(path.stat().st_size for path in (moved / "index").iterdir())
    assert size < (moved / VECTORS).stat().st_size


def test_pickles_are_never_opened(trees, tmp_path):
    copy = shutil.copytree(trees["none"][3], tmp_path / "copy")
    (copy / "index" / "scann_docids.pkl").write_bytes(b"")
    with pytest.raises(ValueError, match="pickle"):
        read_index(copy, trees["none"][0])


def test_exact_search_over_several_blocks(monkeypatch):
    vectors, asked = _unit(70_000, width=4), _unit(3, width=4, seed=1)
    expected = np.argsort(-(asked @ vectors.T), axis=1)[:, :20]
    np.testing.assert_array_equal(exact_search(vectors, asked, 20), expected)
