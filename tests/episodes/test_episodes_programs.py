"""The shared loop of search programs, through a program that does nothing else."""

from contextlib import suppress

import pytest
from program_scripts import drive, stops

from lcrag.episodes import RETHINK, ContextFull, Observe, Outcome, SearchAction, parse_action
from lcrag.episodes.programs import SearchTurns

SEARCH, ANSWER = "<search>Pérou</search>", "<answer> Lima </answer>"
BOTH, LAST = ("</search>", "</answer>"), ("</answer>",)


def program(turns, rejected=()):
    """Shows every query, except for those that it rejects."""
    with suppress(ContextFull):
        while action := (yield from turns.next_action()):
            if not isinstance(action, SearchAction):
                turns.over = action == "stop"
                yield Observe(f"tool {action}")
            elif action.query in rejected:
                yield turns.reject("Again?")
            else:
                yield Observe(f"search {turns.searches}: {action.query}")
    return Outcome(answer=turns.answer, invalid_actions=turns.invalid)


@pytest.mark.parametrize(
    ("texts", "shown", "answer", "invalid", "stopped"),
    [
        ([ANSWER], [], "Lima", 0, [BOTH]),
        ([SEARCH, ANSWER], ["search 1: Pérou"], "Lima", 0, [BOTH] * 2),
        ([SEARCH, SEARCH, ANSWER], ["search 1: Pérou", "search 2: Pérou"], "Lima", 0, [BOTH, BOTH, LAST]),
        ([SEARCH, SEARCH, SEARCH], ["search 1: Pérou", "search 2: Pérou"], None, 1, [BOTH, BOTH, LAST]),
        (["well", "<search> </search>", ANSWER], [RETHINK] * 2, "Lima", 2, [BOTH, BOTH, LAST]),
        (["well", SEARCH, ANSWER], [RETHINK, "search 1: Pérou"], "Lima", 1, [BOTH] * 3),
        (["<search>no</search>", SEARCH, ANSWER], ["Again?", "search 1: Pérou"], "Lima", 1, [BOTH] * 3),
        (["<search>no</search>", "well", "hm"], ["Again?", RETHINK], None, 3, [BOTH, BOTH, LAST]),
    ],
)
def test_turns(texts, shown, answer, invalid, stopped):
    turns = SearchTurns(budget=2, invalid_limit=2)
    outcome, requests = drive(program(turns, rejected=("no",)), texts)
    assert outcome == Outcome(answer=answer, invalid_actions=invalid)
    assert [each.text for each in requests if isinstance(each, Observe)] == shown
    assert stops(requests) == stopped
    assert turns.texts == texts
    assert turns.in_final_turn is (stopped[-1] == LAST)


def test_a_tool_is_no_search_and_may_end_the_loop():
    def read(text):
        return text.strip("[]") if text.startswith("[") else parse_action(text)

    turns = SearchTurns(budget=1, invalid_limit=1, stop=("]",), read=read)
    outcome, requests = drive(program(turns), ["[a]", "[b]", "[stop]", ANSWER])
    assert outcome == Outcome(answer="Lima")
    assert stops(requests) == [("]",)] * 3 + [LAST]
    assert turns.searches == turns.invalid == 0


def test_a_full_context_leaves_the_count_and_no_answer():
    turns = SearchTurns(budget=1, invalid_limit=3)
    started = program(turns)
    next(started), started.send("well")
    with pytest.raises(StopIteration) as stop:
        started.throw(ContextFull())
    assert stop.value.value == Outcome(answer=None, invalid_actions=1)
    assert not turns.in_final_turn
