"""A service that restarts while episodes search it costs retries; one that does not come back ends the run."""

import concurrent.futures
import contextlib
import threading
import urllib.parse

import pytest
from support import tiny_tokenizer
from support.local_server import refuses, served, wait_until
from support.pretended_collections import PretendedCollections
from support.scripted_sampler import ScriptedSampler

from lcrag.data.questions import Question
from lcrag.episodes import Observe, Outcome, Retrieve, Runner
from lcrag.errors import UserError
from lcrag.retrieval import remote
from lcrag.retrieval.remote import LcragService, Patience, RemoteCollections
from lcrag.retrieval.service import make_application

PERSISTENT = Patience(attempts=10_000, first_wait_seconds=0.001, longest_wait_seconds=0.01)
BRIEF = Patience(attempts=3, first_wait_seconds=0.001)


def search_twice(question):
    """An episode whose second search needs the first one's passages."""
    yield Observe(f"{question.text}\n")
    [[[first]]] = yield Retrieve((question.text,), ("en",), 1)
    [[[second]]] = yield Retrieve((first.title,), ("fi",), 1)
    return Outcome(answer=second.text)


def run(search):
    """The records of eight episodes."""
    tokenizer = tiny_tokenizer()
    sampler = ScriptedSampler(tokenizer, script=lambda context, generation: "", slots=8)
    questions = [Question(id=f"{n}", dataset="d", language="en", text=f"Who {n}?", answers=()) for n in range(8)]
    runner = Runner(sampler=sampler, tokenizer=tokenizer, search=search)
    return runner.run([(question, search_twice(question), 0) for question in questions])


@pytest.fixture
def failures(monkeypatch):
    """Is set when an attempt of a request has failed."""
    failed, attempt = threading.Event(), remote.HttpService._once

    def observed(self, *arguments):
        try:
            return attempt(self, *arguments)
        except remote._TemporaryFailure:
            failed.set()
            raise

    monkeypatch.setattr(remote.HttpService, "_once", observed)
    return failed


@contextlib.contextmanager
def stopped_while_searching(patience, pool):
    """Gives the records to come of a run whose service stops after its first searches, and the service's port."""
    collections = PretendedCollections()
    collections.gate.clear()
    with contextlib.ExitStack() as service:
        url = service.enter_context(served(make_application(collections)))
        there = RemoteCollections(LcragService(url, patience=patience))
        records = pool.submit(run, there.search)
        wait_until(lambda: collections.calls)
        stopping = pool.submit(service.close)
        port = urllib.parse.urlsplit(url).port
        wait_until(lambda: refuses("127.0.0.1", port))
        collections.gate.set()
        stopping.result()
    yield records, port


def test_a_restart_costs_retries_and_no_episode(failures):
    with concurrent.futures.ThreadPoolExecutor() as pool, stopped_while_searching(PERSISTENT, pool) as (records, port):
        assert failures.wait(20.0)
        with served(make_application(PretendedCollections()), port=port):
            found = records.result(timeout=20.0)
    expected = run(PretendedCollections().search)
    assert [record.outcome for record in found] == [record.outcome for record in expected]
    assert [record.outcome.answer for record in found][0] == 'About "Who 0?" in fi,\n0'


def test_a_service_that_does_not_come_back_ends_the_run():
    with concurrent.futures.ThreadPoolExecutor() as pool, stopped_while_searching(BRIEF, pool) as (records, port):
        with pytest.raises(UserError) as raised:
            records.result(timeout=20.0)
    sentence = str(raised.value)
    assert sentence.startswith(f"the retrieval service at http://127.0.0.1:{port} does not answer after 3 attempts (")
    assert sentence.endswith("): start it, or correct its address")
    assert "\n" not in sentence
