"""Of several processes, none goes on alone: they all have the same answers, or all stop."""

import jax
import numpy as np
import pytest
from episode_scripts import hit, lcrl_programs, runner, searches_then_answers

from lcrag.episodes import GenerationFailure, RetrievalFailure, TranslationFailure, agreement
from lcrag.episodes.agreement import allgather_bytes, check_same_everywhere, compare_across_processes
from lcrag.episodes.requests import Completion, FoundPassages
from lcrag.episodes.runner import _as_programs_see
from lcrag.errors import UserError


@pytest.fixture
def other(monkeypatch):
    """Pretends two processes; the second one's bytes, or None if it fails, are in the list; else they are equal."""
    contents = []

    def allgather(state):
        if not contents:
            return np.stack([state, state])
        content = contents[0]
        if state.dtype == np.int32:
            return np.array([state, [-1 if content is None else len(content)]], np.int32)
        return np.stack([state, np.frombuffer(content.ljust(len(state), b"?"), np.uint8)])

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr(agreement, "_allgather", allgather)
    return contents


def compared():
    return compare_across_processes("the search", lambda: [1, 2], lambda result: result)


@pytest.mark.parametrize(("content", "message"), [(b"7" * 32, "0 and 1 differently"), (None, "failed in process 1")])
def test_another_result_or_a_failure_elsewhere_stops_all(other, content, message):
    assert compared() == [1, 2]
    other.append(content)
    with pytest.raises(UserError, match=message):
        compared()
    other[0] = b"x" * 5000
    assert allgather_bytes("the rollout", b"abc") == [b"abc", other[0]]


def test_a_failure_here_is_said_here(other):
    with pytest.raises(ZeroDivisionError):
        compare_across_processes("the search", lambda: 1 / 0, repr)
    with pytest.raises(RuntimeError, match="full"):
        allgather_bytes("the rollout", RuntimeError("the disk is full"))


def test_scores_and_reasons_may_differ():
    found, queries = [[[hit("Peru", "en")]]], ("Peru",)
    assert _as_programs_see(FoundPassages(found, queries)) == [[[("Peru", "Lima is the capital (en)")]]]
    for failure in (GenerationFailure, RetrievalFailure, TranslationFailure):
        assert _as_programs_see(failure("at 12:01")) == _as_programs_see(failure("at 12:02"))
    completion = Completion(text="Lima", finish_reason="eos", tokens=1)
    assert (_as_programs_see(completion), _as_programs_see("Lima")) == ("Lima", "Lima")


def test_a_run_stops_where_another_process_is_answered_differently(other):
    assert len(runner(searches_then_answers).run(lcrl_programs(4))) == 4
    other.append(b"7" * 32)
    with pytest.raises(UserError, match="the retrieval service answered"):
        runner(searches_then_answers).run(lcrl_programs(4))
    with agreement.without_collectives():
        assert len(runner(searches_then_answers).run(lcrl_programs(4))) == 4


def test_hosts_with_other_files_are_named(other):
    other.append(b'{"questions": "1", "encoder": "2"}')
    check_same_everywhere({"encoder": "2", "questions": "1"})
    with pytest.raises(UserError, match="process 1 reads another encoder"):
        check_same_everywhere({"encoder": "3", "questions": "1"})
