"""The loop that search programs share: the policy writes and searches until it answers (Search-R1, algorithm 1).

A program opens its episode, then takes one search after the other and shows what each has found:

    turns = SearchTurns(budget, invalid_limit)
    yield Observe(prompt)
    while search := (yield from turns.next_action()):
        found = yield Retrieve((search.query,), languages, passages)
        yield Observe(information(found, style))
    return Outcome(answer=turns.answer, invalid_actions=turns.invalid)
"""

import dataclasses
from collections.abc import Callable, Generator
from typing import Any

from lcrag.episodes.prompts import RETHINK
from lcrag.episodes.requests import Generate, Observe
from lcrag.episodes.tags import ANSWER, SEARCH, Answer, Invalid, SearchAction, answer_in, closing, parse_action


@dataclasses.dataclass
class SearchTurns:
    """The policy's turns in one episode."""

    budget: int  # valid searches allowed; 0 answers without searching
    invalid_limit: int  # invalid actions allowed; they do not count as searches
    stop: tuple[str, ...] = (closing(SEARCH), closing(ANSWER))  # strings that end a turn
    read: Callable[[str], Any] = parse_action  # the action in the text of a turn; others than searches are for tools
    over: bool = False  # set by a program to allow no further action
    searches: int = 0  # valid ones so far
    invalid: int = 0  # actions so far
    texts: list[str] = dataclasses.field(default_factory=list)  # of each turn
    answer: str | None = None  # None until the policy gives one
    in_final_turn: bool = False  # whether the latest turn is the last one, in which the policy can only answer

    def next_action(self) -> Generator[Generate | Observe, Any, Any]:
        """Generates until the policy searches. Returns the `SearchAction`, or None once the episode is over.

        An invalid action is answered with `RETHINK`. After the last search, or one invalid action too many, the policy
        has one last turn to answer.
        """
        while self.searches < self.budget and self.invalid < self.invalid_limit and not self.over:
            self.texts.append((yield Generate(stop=self.stop)))
            match self.read(self.texts[-1]):
                case Answer(answer):
                    self.answer = answer
                    return None
                case Invalid():
                    self.invalid += 1
                    yield Observe(RETHINK)
                case SearchAction() as search:
                    self.searches += 1
                    return search
                case action:
                    return action
        self.texts.append((yield Generate(stop=(closing(ANSWER),))))
        self.in_final_turn = True
        self.answer = answer_in(self.texts[-1])
        self.invalid += self.answer is None
        return None

    def reject(self, reply: str = RETHINK) -> Observe:
        """Counts the latest search as an invalid action instead. Returns the observation with the reply."""
        self.searches -= 1
        self.invalid += 1
        return Observe(reply)
