"""A model that judges: greedy first, sampled when it is asked again."""

import pytest

from lcrag.episodes.requests import Completion
from lcrag.errors import UserError
from lcrag.models.completers import CompletionJudge


def test_the_first_attempt_is_greedy_and_later_ones_differ():
    seen = []

    def model(requests):
        seen.append([generation for _, generation in requests])
        return [Completion(text=prompt.upper(), finish_reason="eos", tokens=1) for prompt, _ in requests]

    judge = CompletionJudge(model, max_tokens=7, seed=3)
    assert judge(["a", "b"]) == ["A", "B"] and judge(["a"], 2) == ["A"] and judge([]) == []
    (first, second), (again,) = seen
    assert (first.temperature, first.max_tokens, again.temperature) == (0.0, 7, 0.7)
    assert len({(each.seed, each.episode) for each in (first, second, again)}) == 3


def test_a_judge_without_randomness_would_say_the_same_again():
    with pytest.raises(UserError, match="CompletionJudge.temperature is 0: later attempts need one above 0"):
        CompletionJudge(lambda requests: [], temperature=0)
