"""Collections: atomic and continued builds, damage, and batched search."""

import concurrent.futures
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
from support import tiny_tokenizer

from lcrag.errors import UserError
from lcrag.retrieval import (
    EncoderSettings,
    Passage,
    build_collection,
    initialise_encoder,
    load_collections,
)
from lcrag.retrieval import collection as collection_module
from lcrag.retrieval import index as index_module
from lcrag.retrieval.folders import readable, replacing
from lcrag.retrieval.passages import passage_text

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


def test_only_some_languages_are_opened(folder):
    assert load_collections(folder, languages=["fr"]).languages == ("fr",)
    with pytest.raises(UserError, match="no collection 'ja'"):
        load_collections(folder, languages=["ja"])


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


def test_too_little_memory_is_said_before_anything_is_read(folder, monkeypatch):
    monkeypatch.setattr("lcrag.retrieval.collections.memory_bytes", lambda: 1000)
    monkeypatch.setattr("lcrag.retrieval.collection.read_index", None)
    with pytest.raises(UserError, match="need .* GiB of memory, and this machine has .*load_collections.languages"):
        load_collections(folder)


def test_much_memory_is_stated(folder, monkeypatch, caplog):
    monkeypatch.setattr("lcrag.retrieval.collections.collection_bytes", lambda folder: 3 << 30)
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
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_damage_is_reported_with_its_remedy(tmp_path, tree, name, damage):
    shutil.copytree(tree, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "en" / name
    content = path.read_bytes()
    path.unlink()
    if damage == "truncated":
        path.write_bytes(content[:-10])
    with pytest.raises(UserError, match=f"{tmp_path}.*build"):
        load_collections(tmp_path)


class Interrupted(Exception):
    """Ends a build half-way, as a kill does."""


def test_an_interrupted_build_continues(tmp_path, encoder, many, monkeypatch):
    """Passages are read once, and none is encoded twice; the vectors are those of an undisturbed build."""
    monkeypatch.setattr(collection_module, "_PASSAGES_PER_CALL", 8)
    whole = build_collection(many, encoder, tmp_path / "whole", "en", source="s")
    read, encoded = [], []
    original = encoder.encode

    def dying(texts, kind):
        encoded.append(len(texts))
        if len(encoded) == 2:
            raise Interrupted
        return original(texts, kind)

    def noted():
        for passage in many:
            read.append(passage.id)
            yield passage

    monkeypatch.setattr(encoder, "encode", dying)
    with pytest.raises(Interrupted):
        build_collection(noted(), encoder, tmp_path / "c", "en", source="s")
    with pytest.raises(UserError, match="unfinished"):
        build_collection(noted(), encoder, tmp_path / "c", "en", source="another")
    assert build_collection(noted(), encoder, tmp_path / "c", "en", source="s") == whole
    assert (len(read), encoded) == (len(many), [8, 8, 8, 4])
    name = "en/vectors.npy"
    assert (tmp_path / "c" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert sorted(path.name for path in (tmp_path / "c").iterdir()) == ["en", "encoder"]


def test_vectors_from_elsewhere(tmp_path, encoder, many):
    texts = [passage_text(passage) for passage in many]
    blocks = [encoder.encode(texts[:7], "passage"), encoder.encode(texts[7:], "passage")]
    build_collection(many, encoder, tmp_path / "a", "en")
    build_collection(many, encoder, tmp_path / "b", "en", source="s", vectors=iter(blocks))
    found, wanted = (load_collections(tmp_path / name).search(QUERIES, ["en"] * 3, 5) for name in ("b", "a"))
    assert [[hit.id for hit in hits] for hits in found] == [[hit.id for hit in hits] for hits in wanted]


def test_searching_imports_no_tensorflow(folder):
    script = f"""
import sys
import lcrag.retrieval
assert not {{"jax", "pyarrow", "scann"}} & set(sys.modules), "the room's names must be cheap to import"
lcrag.retrieval.load_collections({str(folder)!r}).search(["x"], ["en"], 1)
assert "tensorflow" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def _write(folder, text):
    with replacing(folder) as temporary:
        (temporary / "file").write_text(text)


def _content(folder):
    return (readable(folder) / "file").read_text()


def test_replacing_leaves_no_other_folder(tmp_path):
    for text in ("one", "two"):
        _write(tmp_path / "a", text)
        assert _content(tmp_path / "a") == text
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_error_leaves_the_old_content(tmp_path):
    _write(tmp_path / "a", "old")
    with pytest.raises(RuntimeError), replacing(tmp_path / "a") as temporary:
        (temporary / "file").write_text("half")
        raise RuntimeError
    assert _content(tmp_path / "a") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("dies_before", ["write", "first rename", "second rename", "removal"])
def test_killed_at_any_moment_something_whole_is_readable(tmp_path, dies_before):
    _write(tmp_path / "a", "old")
    command = [sys.executable, "-c", _DYING_WRITER, tmp_path / "a", dies_before]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert _content(tmp_path / "a") == ("new" if dies_before == "removal" else "old")
    _write(tmp_path / "a", "newest")
    assert _content(tmp_path / "a") == "newest"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


_DYING_WRITER = """
import os, pathlib, signal, sys
from lcrag.retrieval import folders

folder, moment = pathlib.Path(sys.argv[1]), sys.argv[2]
original = pathlib.Path.rename

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

def rename(path, target):
    is_second = path.name.endswith(".building")
    return kill() if is_second == (moment == "second rename") else original(path, target)

if moment.endswith("rename"):
    pathlib.Path.rename = rename
with folders.replacing(folder) as temporary:
    (temporary / "file").write_text("half" if moment == "write" else "new")
    if moment == "write":
        kill()
    if moment == "removal":
        folders.shutil.rmtree = kill
"""


def test_two_writers_at_once_are_refused(tmp_path):
    with replacing(tmp_path / "a") as temporary:
        (temporary / "file").write_text("first")
        with pytest.raises(UserError, match="another process"), replacing(tmp_path / "a"):
            pass
    assert _content(tmp_path / "a") == "first"
