"""Collections in Qdrant, by the client's own search and by a stand-in that fails."""

import sys
from importlib.util import find_spec

import numpy as np
import pytest
from support import tiny_tokenizer
from support.local_server import scripted

from lcrag.errors import UserError
from lcrag.retries import Patience, ServiceUnavailable
from lcrag.retrieval import EncoderSettings, build_collection, initialise_encoder, load_collections
from lcrag.retrieval.qdrant import Qdrant, QdrantBackend
from lcrag.retrieval.remote import RemoteCollections

QUERIES = ["Text of number 7919", "Title 3", "something else"]
HASTE = Patience(attempts=2, first_wait_seconds=0.0, longest_wait_seconds=0.0)

# Not imported here: that takes seconds of every process that collects tests.
pytestmark = pytest.mark.skipif(find_spec("qdrant_client") is None, reason="qdrant-client is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory, encoder, many):
    root = tmp_path_factory.mktemp("stored")
    build_collection(many, encoder, root, language="en")
    build_collection(many[:5], encoder, root, language="fi")
    return root


@pytest.fixture
def engine(folder):
    engine = Qdrant(":memory:")
    for language in ("en", "fi"):
        engine.store(folder / language)
    return engine


def test_what_is_stored_is_found_as_in_the_collections(folder, encoder, engine):
    stored, whole = RemoteCollections(QdrantBackend(engine, encoder)), load_collections(folder, encoder)
    queries, languages = [*QUERIES, *QUERIES], ["en", "fi", "en", "en", "en", "fi"]
    found, wanted = stored.search(queries, languages, 4), whole.search(queries, languages, 4)
    assert [[(hit.id, hit.title, hit.text, hit.language) for hit in hits] for hits in found] == [
        [(hit.id, hit.title, hit.text, hit.language) for hit in hits] for hits in wanted
    ]
    scores = [[hit.score for hits in searched for hit in hits] for searched in (found, wanted)]
    np.testing.assert_allclose(*scores, atol=1e-5)
    assert stored.languages == ("en", "fi")
    assert stored.content_hashes() == whole.content_hashes()


def test_storing_goes_on_where_it_was_interrupted(folder, encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("lcrag.retrieval.qdrant._POINTS_PER_REQUEST", 6)

    def stop(done, total):
        raise KeyboardInterrupt

    engine = Qdrant(str(tmp_path / "qdrant"))
    with pytest.raises(KeyboardInterrupt):
        engine.store(folder / "en", stop)
    with pytest.raises(UserError, match="6 of the 20 passages of en.*lcrag index"):
        QdrantBackend(engine, encoder)
    engine._client.close()
    engine = Qdrant(str(tmp_path / "qdrant"))
    assert engine.store(folder / "en") == 14
    assert engine.store(folder / "en") == 0
    assert len(RemoteCollections(QdrantBackend(engine, encoder)).search(["x"], ["en"], 20)[0]) == 20


def test_collections_that_cannot_be_searched_are_named(engine, encoder, config, many, tmp_path):
    build_collection(many[:3], encoder, tmp_path, language="fi")
    with pytest.raises(UserError, match="other content in lcrag-fi"):
        engine.store(tmp_path / "fi")
    other = initialise_encoder(config, EncoderSettings(max_tokens=32), tiny_tokenizer().backend, seed=7)
    for opened, asked, languages, named in (
        (engine, encoder, ["ja"], "no collection of ja"),
        (engine, other, None, f"not of {other.fingerprint()}"),
        (Qdrant(":memory:"), encoder, None, "no collection of any language"),
    ):
        with pytest.raises(UserError, match=named):
            QdrantBackend(opened, asked, languages)


@pytest.mark.parametrize(
    ("status", "after", "error", "sentence"),
    [
        (403, "", UserError, "status 403: .*Qdrant.key_variable"),
        (503, "", ServiceUnavailable, "status 503"),
        (400, "", RuntimeError, "status 400"),
        (429, "3600", ServiceUnavailable, "http.*: .*run the same .*in 3,600 seconds"),
        (429, "0", ServiceUnavailable, "http.*: .*run the same .*later"),
        (429, "Sat, 1 Jan 2050", ServiceUnavailable, "http.*: .*run the same .*later"),
    ],
)
def test_refusals_of_the_engine(status, after, error, sentence):
    with scripted((status, {"retry-after": after}, {"status": {"error": "no"}})) as (url, _):
        with pytest.raises(error, match=sentence):
            Qdrant(url, patience=HASTE).described()


def test_an_engine_or_a_client_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="http://10.0.0.9:6333"):
        Qdrant("10.0.0.9:6333")
    with pytest.raises(ServiceUnavailable, match="http://127.0.0.1:9 does not answer after 2 attempts"):
        Qdrant("http://127.0.0.1:9", patience=HASTE).described()
    monkeypatch.setitem(sys.modules, "qdrant_client", None)
    with pytest.raises(UserError, match="pip install"):
        Qdrant(":memory:")
