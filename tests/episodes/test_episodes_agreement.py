"""Of several processes, none goes on alone: they all have the same answers, or all stop."""

import jax
import numpy as np
import pytest
from episode_scripts import hit, lcrl_programs, runner, search, searches_then_answers

from lcrag.episodes import GenerationFailure, RetrievalFailure, TranslationFailure, agreement
from lcrag.episodes.agreement import alone, as_programs_see, check_same_everywhere, exchanged, same_everywhere
from lcrag.episodes.requests import Completion, FoundPassages
from lcrag.errors import UserError


@pytest.fixture
def joined(monkeypatch):
    """Pretends two processes; the second one's state is what the test puts in the list, or the first one's own."""
    other = []

    def gathered(state):
        return np.stack([state, other[0] if other else state])

    monkeypatch.setattr(jax, "process_count", lambda: 2)
    monkeypatch.setattr("lcrag.episodes.agreement._gathered", gathered)
    return other


def test_equal_results_are_returned(joined):
    assert same_everywhere("the search", lambda: [1, 2], lambda result: result) == [1, 2]


def test_another_result_stops_all(joined):
    joined.append(np.full(16, 7, np.uint8))
    with pytest.raises(UserError, match="the search answered processes 0 and 1 differently"):
        same_everywhere("the search", lambda: [1, 2], lambda result: result)


def test_a_failure_elsewhere_stops_this_process(joined):
    joined.append(np.zeros(16, np.uint8))
    with pytest.raises(UserError, match="the search failed in process 1, whose error says why: all 2 stop"):
        same_everywhere("the search", lambda: [1, 2], lambda result: result)


def test_a_failure_here_is_said_here(joined):
    def fails():
        raise UserError("the service is down")

    with pytest.raises(UserError, match="the service is down"):
        same_everywhere("the search", fails, lambda result: result)


def test_scores_and_reasons_may_differ():
    found, queries = [[[hit("Peru", "en")]]], ("Peru",)
    assert as_programs_see(FoundPassages(found, queries)) == [[[("Peru", "Lima is the capital (en)")]]]
    for failure in (GenerationFailure, RetrievalFailure, TranslationFailure):
        assert as_programs_see(failure("at 12:01")) == as_programs_see(failure("at 12:02"))
    completion = Completion(text="Lima", finish_reason="eos", tokens=1)
    assert (as_programs_see(completion), as_programs_see("Lima")) == ("Lima", "Lima")


def test_a_run_stops_where_another_process_is_answered_differently(joined):
    assert len(runner(searches_then_answers).run(lcrl_programs(4))) == 4
    joined.append(np.full(16, 7, np.uint8))
    with pytest.raises(UserError, match="the retrieval service answered processes 0 and 1 differently"):
        runner(searches_then_answers, search=search).run(lcrl_programs(4))


def test_episodes_of_this_process_alone_ask_no_other(joined):
    joined.append(np.full(16, 7, np.uint8))
    with alone():
        assert len(runner(searches_then_answers).run(lcrl_programs(4))) == 4
    with pytest.raises(UserError, match="answered processes 0 and 1 differently"):
        same_everywhere("the search", lambda: 1, repr)


def test_contents_of_unequal_sizes_are_exchanged(monkeypatch, joined):
    """The second process has more to say."""
    other = b"x" * 5000

    def gathered(state):
        if state.dtype == np.int32:
            return np.array([state, [len(other)]], np.int32)
        return np.stack([state, np.frombuffer(other.ljust(len(state), b"?"), np.uint8)])

    monkeypatch.setattr(agreement, "_gathered", gathered)
    assert exchanged("the rollout", b"abc") == [b"abc", other]


def test_a_content_that_failed_elsewhere_stops_this_process(joined):
    joined.append(np.array([-1], np.int32))
    with pytest.raises(UserError, match="the rollout failed in process 1, whose error says why: all 2 stop"):
        exchanged("the rollout", b"abc")


def test_a_content_that_failed_here_is_said_here(joined):
    with pytest.raises(RuntimeError, match="the disk is full"):
        exchanged("the rollout", RuntimeError("the disk is full"))


def test_hosts_with_other_files_are_named(monkeypatch, joined):
    monkeypatch.setattr(agreement, "exchanged", lambda what, content: [content, b'{"questions": "1", "encoder": "2"}'])
    check_same_everywhere({"encoder": "2", "questions": "1"})
    with pytest.raises(UserError, match="process 1 reads another encoder than process 0"):
        check_same_everywhere({"encoder": "3", "questions": "1"})
