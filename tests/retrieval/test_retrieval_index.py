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


@pytest.mark.parametrize(("count", "queries"), [(1, 1), (7, 100), (200, 1), (200, 100)])
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
    index = read_index(tmp_path, _written(tmp_path, _unit(3)))
    rows, scores = index.search(_unit(2, seed=1), 10)
    assert rows.shape == scores.shape == (2, 3)
    assert all(set(row) == {0, 1, 2} for row in rows.tolist())
    rows, scores = index.search(np.empty((0, 16), np.float32), 2)
    assert rows.shape == scores.shape == (0, 2)


@pytest.fixture(scope="module")
def trees(tmp_path_factory):
    """Indexes of the same vectors by the type of their re-ranking vectors, and one of low recall: facts and folder."""
    built = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "LARGEST_EXACT", 1000)
        patch.setattr(index_module, "_MEASURED_QUERIES", 256)
        for name, settings in {
            **{quantize: IndexSettings(quantize=quantize) for quantize in ("none", "bfloat16", "int8")},
            "low": IndexSettings(recall=0.5),
        }.items():
            folder = tmp_path_factory.mktemp(name)
            np.save(folder / VECTORS, _unit(3000))
            built[name] = write_index(folder, settings), folder
    return built


@pytest.mark.parametrize("quantize", ["none", "bfloat16", "int8"])
def test_trees_reach_their_recall_and_say_so(trees, quantize):
    (facts, folder), vectors, asked = trees[quantize], _unit(3000), _unit(200, seed=1)
    rows, scores = read_index(folder, facts).search(asked, 10)
    expected = np.argsort(-(asked @ vectors.T), axis=1)[:, :10]
    recall = np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows.tolist(), expected.tolist(), strict=True)])
    assert (facts.quantize, facts.kind) == (quantize, "tree")
    assert facts.recall >= IndexSettings().recall
    assert recall >= 0.9
    exact, found = (vectors[rows] * asked[:, None]).sum(-1), rows >= 0
    tolerance = {"none": 1e-5, "bfloat16": 1e-2, "int8": 2e-2}[quantize]
    np.testing.assert_allclose(scores[found], exact[found], atol=tolerance)


def test_building_a_tree_prints_nothing(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(index_module, "LARGEST_EXACT", 100)
    _written(tmp_path, _unit(200))
    assert capfd.readouterr() == ("", "")


def test_smaller_vectors_take_less_memory(trees):
    none, bfloat16, int8 = (index_bytes(folder, facts) for facts, folder in list(trees.values())[:3])
    vectors = 3000 * 16
    assert none - bfloat16 == pytest.approx(2 * vectors, abs=2000)
    assert none - int8 == pytest.approx(3 * vectors, abs=2000)


@pytest.mark.parametrize("together", [2, 7, 100])
def test_a_query_finds_the_same_in_any_batch(trees, together):
    facts, folder = trees["none"]
    index, asked = read_index(folder, facts), _unit(100, seed=1)
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
    found, expected = (read_index(place, facts).search(asked, 4)[0] for place in (moved, folder))
    np.testing.assert_array_equal(found, expected)
    assert sum(path.stat().st_size for path in (moved / "index").iterdir()) < (moved / VECTORS).stat().st_size


def test_pickles_are_never_opened(trees, tmp_path):
    copy = shutil.copytree(trees["none"][1], tmp_path / "copy")
    (copy / "index" / "scann_docids.pkl").write_bytes(b"")
    with pytest.raises(ValueError, match="pickle"):
        read_index(copy, trees["none"][0])


def test_exact_search_over_several_blocks(monkeypatch):
    monkeypatch.setattr(index_module, "_BLOCK", 300)
    vectors, asked = _unit(1000, width=4), _unit(3, width=4, seed=1)
    expected = np.argsort(-(asked @ vectors.T), axis=1)[:, :20]
    np.testing.assert_array_equal(exact_search(vectors, asked, 20), expected)
