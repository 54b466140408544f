"""Collections: atomic builds, damage, and batched search."""

import concurrent.futures
import shutil
import subprocess
import sys

import numpy as np
import pytest
from support import tiny_tokenizer

from lcrag.errors import UserError
from lcrag.retrieval import (
    EncoderSettings,
    Passage,
    add_passages,
    build_collection,
    initialise_encoder,
    load_collections,
    rebuild_index,
)
from lcrag.retrieval import index as index_module
from lcrag.retrieval.building import passage_text

QUERIES = ["Text of number 7919", "Title 3", "something else"]


@pytest.fixture
def folder(tmp_path, encoder, passages):
    build_collection(passages, encoder, tmp_path / "c", language="en")
    build_collection(passages[:5], encoder, tmp_path / "c", language="fr")
    return tmp_path / "c"


def test_search_is_exact_nearest_neighbours(folder, encoder, passages):
    hits = load_collections(folder).search(QUERIES, ["en"] * 3, 4)
    scores = encoder.encode(QUERIES) @ encoder.encode([passage_text(each) for each in passages], "passage").T
    for row, found in enumerate(hits):
        assert [hit.id for hit in found] == [passages[index].id for index in np.argsort(-scores[row])[:4]]
        np.testing.assert_allclose([hit.score for hit in found], np.sort(scores[row])[::-1][:4], atol=1e-5)
        assert {hit.language for hit in found} == {"en"}
        assert all(Passage(id=hit.id, title=hit.title, text=hit.text) in passages for hit in found)


def test_pairs_are_answered_in_order(folder):
    collections = load_collections(folder)
    queries, languages = [QUERIES[0], QUERIES[1], QUERIES[0], QUERIES[0]], ["fr", "en", "en", "fr"]
    together = collections.search(queries, languages, 3)
    alone = [collections.search([query], [language], 3)[0] for query, language in zip(queries, languages, strict=True)]
    assert [[hit.id for hit in hits] for hits in together] == [[hit.id for hit in hits] for hits in alone]
    assert collections.search([], [], 3) == []
    assert collections.languages == ("en", "fr")


def test_each_distinct_query_is_encoded_once(folder, encoder, monkeypatch):
    calls = []
    original = encoder.encode
    monkeypatch.setattr(encoder, "encode", lambda texts, kind: calls.append(list(texts)) or original(texts, kind))
    load_collections(folder, encoder).search(["a", "b", "a"], ["en", "en", "fr"], 1)
    assert calls == [["a", "b"]]


def test_mistakes_in_a_search(folder):
    collections = load_collections(folder)
    with pytest.raises(UserError, match="'ja'.*en, fr"):
        collections.search(["x", "y"], ["en", "ja"], 2)
    with pytest.raises(UserError, match="at least one"):
        collections.search(["x"], ["en"], 0)


def test_threads_share_collections(folder):
    collections = load_collections(folder)
    numbers = [1 + row % 3 for row in range(24)]
    expected = [collections.search(QUERIES, ["en", "fr", "en"], k) for k in numbers]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda k: collections.search(QUERIES, ["en", "fr", "en"], k), numbers)) == expected


def test_a_folder_may_be_named_after_its_language(tmp_path, encoder, passages):
    build_collection(passages, encoder, tmp_path / "ko")
    for folder in (tmp_path, tmp_path / "ko"):
        assert load_collections(folder).languages == ("ko",)
    with pytest.raises(UserError, match="language code"):
        build_collection(passages, encoder, tmp_path / "my collection")


def test_no_collections(tmp_path):
    with pytest.raises(UserError, match=str(tmp_path)):
        load_collections(tmp_path)
    with pytest.raises(UserError, match="nowhere"):
        load_collections(tmp_path / "nowhere")


def test_another_encoder_is_refused(folder, config, passages):
    other = initialise_encoder(config, EncoderSettings(max_tokens=32), tiny_tokenizer().backend, seed=7)
    with pytest.raises(UserError, match=f"{folder}.*own encoder"):
        load_collections(folder, other)
    with pytest.raises(UserError, match="another encoder"):
        build_collection(passages, other, folder, language="de")


def test_rebuilding_replaces(folder, encoder, passages):
    build_collection(passages[10:13], encoder, folder, language="en")
    collections = load_collections(folder)
    assert len(collections.collection("en").corpus) == 3
    assert len(collections.collection("fr").corpus) == 5


def test_a_failed_build_keeps_what_was_there(folder, encoder, passages):
    def broken():
        yield passages[0]
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        build_collection(broken(), encoder, folder, language="en")
    assert len(load_collections(folder).collection("en").corpus) == 20


def test_added_passages_are_searched_with_the_rest(folder, encoder, passages):
    before = load_collections(folder)
    add_passages(passages[5:12], encoder, folder, "fr")
    add_passages(passages[12:], encoder, folder, "fr")
    collections = load_collections(folder)
    found, whole = (
        collections.search(QUERIES * 2, ["fr"] * 3 + ["en"] * 3, 4)[:3],
        before.search(QUERIES, ["en"] * 3, 4),
    )
    assert [[hit.id for hit in hits] for hits in found] == [[hit.id for hit in hits] for hits in whole]
    assert list(collections.collection("fr").corpus) == passages
    assert collections.collection("fr").corpus[13:15] == passages[13:15]
    assert collections.content_hashes()["collection/fr"] != before.content_hashes()["collection/fr"]
    assert rebuild_index(folder / "fr").count == 20
    assert load_collections(folder).content_hashes()["collection/fr"] == before.content_hashes()["collection/en"]


def test_passages_that_cannot_be_added(folder, encoder, passages):
    with pytest.raises(UserError, match="two passages have the id 'p3'"):
        add_passages(passages[3:4], encoder, folder, "fr")
    with pytest.raises(UserError, match="no collection .*ja to add to"):
        add_passages(passages[:1], encoder, folder, "ja")
    assert len(load_collections(folder).collection("fr").corpus) == 5


def test_a_rebuild_in_parts_finds_the_same(folder):
    before = load_collections(folder)
    meta = rebuild_index(folder / "en", parts=3)
    after = load_collections(folder)
    assert (meta.count, meta.parts) == (20, 3)
    queries, languages = QUERIES, ["en"] * 3
    assert [[hit.id for hit in hits] for hits in after.search(queries, languages, 6)] == [
        [hit.id for hit in hits] for hits in before.search(queries, languages, 6)
    ]
    assert rebuild_index(folder / "en", parts=1).fingerprint == before.content_hashes()["collection/en"]


def test_only_some_languages_and_parts_are_opened(folder):
    rebuild_index(folder / "en", parts=2)
    assert load_collections(folder, languages=["fr"]).languages == ("fr",)
    assert len(load_collections(folder, parts=[1]).collection("en").corpus) == 10
    with pytest.raises(UserError, match="load_collections.languages: no collection 'ja'"):
        load_collections(folder, languages=["ja"])
    for parts, wrong in (([2], 2), ([], "none")):
        with pytest.raises(UserError, match=f"load_collections.parts: .*/en has parts 0 to 1, not {wrong}"):
            load_collections(folder, parts=parts)


def test_too_little_memory_is_said_before_anything_is_read(folder, monkeypatch):
    monkeypatch.setattr("lcrag.retrieval.collections.memory_bytes", lambda: 1000)
    monkeypatch.setattr("lcrag.retrieval.collection.read_index", None)
    with pytest.raises(UserError, match="need .* GiB of memory, and this machine has .*load_collections.languages"):
        load_collections(folder)


def test_much_memory_is_stated(folder, monkeypatch, caplog):
    monkeypatch.setattr("lcrag.retrieval.collections.collection_bytes", lambda folder, parts: 3 << 30)
    monkeypatch.setattr("lcrag.retrieval.collections.memory_bytes", lambda: 8 << 30)
    load_collections(folder)
    assert "6.0 GiB of this machine's 8.0 GiB of memory" in caplog.text


@pytest.fixture(scope="module")
def tree(tmp_path_factory, encoder):
    """A collection with an index that is a tree."""
    many = [Passage(id=str(row), title="", text=str(row)) for row in range(300)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_module, "LARGEST_EXACT", 100)
        build_collection(many, encoder, tmp_path_factory.mktemp("tree"), language="en")
    return next(tmp_path_factory.getbasetemp().glob("tree*"))


@pytest.mark.parametrize("name", ["passages.arrow", "vectors.npy", "meta.json", "index/hashed_dataset.npy"])
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped"])
def test_damage_is_reported_with_its_remedy(tmp_path, tree, monkeypatch, name, damage):
    monkeypatch.setattr(index_module, "LARGEST_EXACT", 100)
    shutil.copytree(tree, tmp_path, dirs_exist_ok=True)
    _damage(tmp_path / "en" / name, damage)
    with pytest.raises(UserError, match=f"{tmp_path}/en.*build") as raised:
        load_collections(tmp_path)
    assert ("rebuild_index" in str(raised.value)) == name.startswith("index/")
    if name.startswith("index/"):
        rebuild_index(tmp_path / "en")
        assert len(load_collections(tmp_path).search(["7"], ["en"], 3)[0]) == 3
    else:
        with pytest.raises(UserError, match="build the collection again"):
            rebuild_index(tmp_path / "en")


def _damage(path, damage):
    content = bytearray(path.read_bytes())
    path.unlink()
    content[len(content) // 2] ^= 0xFF
    if damage != "missing":
        path.write_bytes(content if damage == "flipped" else content[:-10])


def test_searching_imports_no_tensorflow(folder):
    script = f"""
import sys
import lcrag.retrieval
assert not {{"jax", "pyarrow", "scann"}} & set(sys.modules), "the room's names must be cheap to import"
lcrag.retrieval.load_collections({str(folder)!r}).search(["x"], ["en"], 1)
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)
