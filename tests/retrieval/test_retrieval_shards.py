"""Shards: written atomically, and joined to the collection that `build_collection` makes."""

import pathlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.errors import UserError
from lcrag.retrieval import build_collection, load_collections
from lcrag.retrieval.building import build_from_rows, keep_encoder
from lcrag.retrieval.collection import read_meta
from lcrag.retrieval.shards import PLAN, Rows, open_shards, remove_shards, split_rows

PLAN_A = {"source": "a", "länge": 100}


def test_shards_make_the_collection_of_one_go(tmp_path, encoder, passages):
    with open_shards(tmp_path, "fi", PLAN_A) as shards:
        shards.write("b", passages[6:], encoder, {"is_last": True})
        shards.write("a", passages[:6], encoder, {})
        shards.write("ab", [], encoder, {})
        assert {name: record.passages for name, record in shards.finished().items()} == {"a": 6, "ab": 0, "b": 14}
        assert shards.finished()["b"].notes == {"is_last": True}
        keep_encoder(tmp_path, encoder)
        meta = build_from_rows(shards.rows(), encoder, tmp_path, "fi", "source", {"note.txt": "how"})
    whole = build_collection(passages, encoder, tmp_path, language="en")
    assert (meta.fingerprint, meta.count, meta.source) == (whole.fingerprint, 20, "source")
    assert read_meta(tmp_path / "fi") == meta
    assert (tmp_path / "fi" / "note.txt").read_text() == "how"
    vectors = [np.load(tmp_path / language / "vectors.npy") for language in ("fi", "en")]
    np.testing.assert_allclose(*vectors, atol=1e-6)
    collections = load_collections(tmp_path)
    assert collections.languages == ("en", "fi")  # the shards are no collection
    found, wanted = collections.search(["Text of number 7919"] * 2, ["fi", "en"], 3)
    assert [hit.id for hit in found] == [hit.id for hit in wanted]


def test_shards_are_found_again_and_removed(tmp_path, encoder, passages):
    with open_shards(tmp_path, "fi", PLAN_A) as shards:
        shards.write("a", passages, encoder, {})
    with open_shards(tmp_path, "fi", PLAN_A) as shards:
        assert list(shards.finished()) == ["a"]
        assert [each for rows in shards.rows() for each in rows.passages()] == passages
    remove_shards(tmp_path, "fi")
    assert not list(tmp_path.iterdir())
    remove_shards(tmp_path, "fi")


def test_shards_of_something_else_are_refused(tmp_path, encoder, passages):
    with open_shards(tmp_path, "fi", PLAN_A):
        pass
    with open_shards(tmp_path, "fi", PLAN_A | {"source": "b"}) as shards:  # nothing of the other is lost
        shards.write("a", passages, encoder, {})
    with pytest.raises(UserError, match=f".fi.shards is the unfinished work.*{PLAN}"):
        with open_shards(tmp_path, "fi", PLAN_A):
            pass


@pytest.mark.parametrize("name", ["passages.arrow", "vectors.npy", "shard.json"])
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_shards_that_did_not_reach_the_disk_are_made_again(tmp_path, encoder, passages, name, damage):
    with open_shards(tmp_path, "fi", PLAN_A) as shards:
        for shard in ("a", "b"):
            shards.write(shard, passages, encoder, {})
        path = shards.folder / "a" / name
        content = path.read_bytes()
        path.unlink()
        if damage == "truncated":
            path.write_bytes(content[: len(content) // 2])
        assert list(shards.finished()) == ["b"]
        shards.write("a", passages, encoder, {})
        assert list(shards.finished()) == ["a", "b"]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(1, 6))
def test_rows_are_split_evenly_and_in_order(sizes, parts):
    rows = [Rows(pathlib.Path(str(number)), 0, size) for number, size in enumerate(sizes)]
    split = split_rows(rows, parts)
    spread = [(each.folder, row) for part in split for each in part for row in range(each.start, each.stop)]
    assert spread == [(each.folder, row) for each in rows for row in range(each.stop)]
    lengths = [sum(each.stop - each.start for each in part) for part in split]
    assert len(split) == parts
    assert max(lengths) - min(lengths) <= 1
