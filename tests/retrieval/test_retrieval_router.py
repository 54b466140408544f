"""Several hosts as one: parts, replicas, hosts that go away, and hosts that do not fit together."""

import contextlib

import httpx2
import pytest
from support.local_server import served
from support.pretended_collections import PretendedCollections

from lcrag.errors import UserError
from lcrag.retrieval import IndexSettings, add_passages, build_collection, load_collections, rebuild_index
from lcrag.retrieval.remote import (
    LcragService,
    Patience,
    RemoteCollections,
    RoutedCollections,
    ServiceRefusal,
    ServiceUnavailable,
)
from lcrag.retrieval.service import make_application

HASTE = Patience(attempts=2, first_wait_seconds=0.0, longest_wait_seconds=0.0)
QUERIES = ["Text of number 7919", "Title 3", "something else"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, encoder, many):
    """English in three parts with an addition, Finnish in one."""
    root = tmp_path_factory.mktemp("routed")
    build_collection(many[:17], encoder, root, language="en")
    rebuild_index(root / "en", IndexSettings(), parts=3)
    add_passages(many[17:], encoder, root, "en")
    build_collection(many[:5], encoder, root, language="fi")
    return root


@contextlib.contextmanager
def hosts(*everything):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(served(make_application(each))) for each in everything]


def routed(urls, **options):
    return RoutedCollections(urls, patience=HASTE, **options)


def ids(results):
    return [[hit.id for hit in hits] for hits in results]


def test_parts_on_several_hosts_are_searched_as_on_one(folder, encoder):
    whole = load_collections(folder, encoder)
    shares = (
        load_collections(folder, encoder, languages=["en"], parts=[0]),
        load_collections(folder, encoder, languages=["en"], parts=[1, 2]),
        load_collections(folder, encoder, languages=["fi"]),
    )
    queries, languages = [*QUERIES, *QUERIES], ["en", "fi", "en", "en", "en", "fi"]
    with hosts(*shares) as urls:
        router = routed(urls)
        found = router.search(queries, languages, 4)
        hashes = router.content_hashes()
    wanted = whole.search(queries, languages, 4)
    assert ids(found) == ids(wanted)
    assert [[hit.score for hit in hits] for hits in found] == [
        pytest.approx([hit.score for hit in hits], abs=1e-6) for hits in wanted
    ]
    assert hashes == whole.content_hashes()


def test_a_router_is_served_at_one_address(folder, encoder):
    shares = [load_collections(folder, encoder, parts=parts) for parts in ([0], [1, 2])]
    with hosts(*shares) as urls, hosts(routed(urls)) as [address]:
        client = RemoteCollections(LcragService(address, patience=HASTE))
        health = httpx2.get(f"{address}/healthz").json()
        assert ids(client.search(QUERIES, ["en"] * 3, 2)) == ids(
            load_collections(folder, encoder).search(QUERIES, ["en"] * 3, 2)
        )
    assert client.content_hashes() == load_collections(folder, encoder).content_hashes()
    assert health["hosts"] == dict.fromkeys(urls, "ok")


def test_replicas_take_turns_and_stand_in_for_each_other():
    one, other = PretendedCollections(), PretendedCollections()
    now = [0.0]
    with hosts(one) as [first]:
        with hosts(other) as [second]:
            router = routed([first, second], clock=lambda: now[0])
            for number in range(4):
                router.search([f"query {number}"], ["fi"], 1)
            assert (len(one.calls), len(other.calls)) == (2, 2)
        for number in range(4, 8):
            router.search([f"query {number}"], ["fi"], 1)
        assert (len(one.calls), len(other.calls)) == (6, 2)
        assert router.health()[first] == "ok"
        assert "does not answer" in router.health()[second]
    with pytest.raises(ServiceUnavailable, match=f"no host answers searches in fi.*{first}.*{second}"):
        router.search(["query 9"], ["fi"], 1)


def test_a_host_that_comes_back_is_asked_again():
    one, now = PretendedCollections(), [0.0]
    with hosts(one) as [first]:
        with hosts(PretendedCollections()) as [second]:
            router = routed([first, second], clock=lambda: now[0], rest_seconds=10.0)
            port = int(second.rpartition(":")[2])
        for number in range(2):
            router.search([f"query {number}"], ["fi"], 1)
        again = PretendedCollections()
        with served(make_application(again), port=port):
            router.search(["soon"], ["fi"], 1)
            router.search(["sooner"], ["fi"], 1)
            assert not again.calls
            now[0] = 11.0
            for number in range(2):
                router.search([f"later {number}"], ["fi"], 1)
    assert len(again.calls) == 1


def test_clients_of_a_router_are_told_to_come_back_while_no_host_answers():
    with hosts(PretendedCollections()) as urls:
        router = routed(urls)
    with hosts(router) as [address]:
        answer = httpx2.post(f"{address}/retrieve", json={"queries": ["a"], "languages": ["fi"]})
    assert answer.status_code == 503
    assert "no host answers searches in fi" in answer.json()["detail"]
    assert answer.headers["retry-after"] == "1"


def test_a_refused_request_fails_alone():
    def search(queries, languages, k):
        raise RuntimeError("this query is poison")

    poisoned = PretendedCollections()
    poisoned.search = search
    with hosts(poisoned) as urls, pytest.raises(ServiceRefusal, match="poison"):
        routed(urls).search(["a"], ["fi"], 1)


class Described(PretendedCollections):
    """Collections with the given hashes."""

    def __init__(self, hashes, encoder="e"):
        super().__init__({name.partition("/")[0] for name in hashes})
        self.hashes = {"encoder": encoder} | {f"collection/{name}": value for name, value in hashes.items()}

    def content_hashes(self):
        return self.hashes


@pytest.mark.parametrize(
    ("described", "languages", "sentence"),
    [
        ([{"en": "a"}, {"en": "b"}], None, "different content of en"),
        ([{"en/part0/2": "a"}], None, "no host serves part1 of en, which has 2"),
        ([{"en/part0/2": "a"}, {"en/part0/2": "a", "en/part1/2": "b"}], None, "the parts of en overlap"),
        ([{"en": "a"}, {"en/part0/2": "a"}], None, "different content of en"),
        ([{"en": "a"}], ["en", "ja"], "routed_collections.languages: no host has 'ja'"),
    ],
)
def test_hosts_that_do_not_fit_together_are_named(described, languages, sentence):
    with hosts(*(Described(hashes) for hashes in described)) as urls, pytest.raises(UserError, match=sentence):
        routed(urls, languages=languages)


def test_hosts_with_other_encoders_are_named():
    other = Described({"fi": "a"}, encoder="another")
    with hosts(Described({"en": "a"}), other) as urls, pytest.raises(UserError, match="different encoders"):
        routed(urls)


def test_hosts_that_are_away_at_the_start():
    nobody = "http://127.0.0.1:9"
    with pytest.raises(UserError, match="must name each host once"):
        routed([])
    with pytest.raises(UserError, match="127.0.0.1:9 does not answer"):
        routed([nobody])
    with hosts(Described({"en": "a"})) as urls:
        with pytest.raises(UserError, match="127.0.0.1:9 does not answer"):
            routed([*urls, nobody])
        assert routed([*urls, nobody], languages=["en"]).languages == ("en",)


def test_a_part_is_not_mistaken_for_the_whole(folder, encoder):
    with hosts(load_collections(folder, encoder, languages=["en"], parts=[1])) as [url]:
        with pytest.raises(UserError, match="only some parts of en: search through a router"):
            LcragService(url, patience=HASTE)
