"""What rules reach on the atlas's held-out questions with perfect retrieval; a minute on one core.

    python benchmarks/atlas_ceilings.py

Every search finds the passage in which a collection states the fact, if it has one. The rules know names and labels in
all languages, but no facts: `Oracle` prefers entries of the present, `RandomSearcher` searches and trusts at random.
Prints c3 recall of all questions, of those whose native collection holds the fact right, and of the others.
"""

from collections.abc import Callable, Sequence

import numpy as np

from lcrag.atlas import World, build_world, render_passage
from lcrag.atlas.facts import section_of
from lcrag.atlas.oracle import Oracle, RandomSearcher
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.data.questions import Question
from lcrag.rewards import c3_recall_bergen

Route = Callable[[str], Sequence[str]]  # the question's language -> languages that a search goes to


def native(own: str) -> Sequence[str]:
    return (own,)


def all_others(own: str) -> Sequence[str]:
    return [language for language in LCRL_LANGUAGES if language != own]


def english(own: str) -> Sequence[str]:
    return ("en",)


PLAYERS: dict[str, tuple[Oracle | RandomSearcher, Sequence[Route]]] = {
    "native, then all others": (Oracle(budget=2), (native, all_others)),
    "English only": (Oracle(budget=1), (english,)),
    "native only": (Oracle(budget=1), (native,)),
    "random searches": (RandomSearcher(budget=2), (native, all_others)),
}


def answer(player: Oracle | RandomSearcher, question: Question, routes: Sequence[Route], lines, section: str) -> str:
    """Plays one episode and returns its answer."""
    turns: list[tuple[str, str]] = []
    for route in routes:
        if "</answer>" in (text := player.next_text(question, turns)):
            return answer_in(text)
        found = [lines[id] for code in route(question.language) if (id := f"{code}/{section}") in lines]
        turns += [("policy", text), ("environment", "\n ".join(("<information>", *found)) + "\n</information>")]
    return answer_in(player.next_text(question, turns))


def answer_in(text: str) -> str:
    """Returns what stands between the tags of the answer."""
    return text.partition("<answer> ")[2].partition("</answer>")[0]


def main(world: World) -> None:
    questions = world.questions("held_out")
    lines = {each.id: render_passage(each) for code in LCRL_LANGUAGES for each in world.passages(code)}
    held = np.array([question.extra["native_holds"] for question in questions])
    print(f"{len(questions)} questions, {held.mean():.3f} of them held right by the native collection")
    for name, (player, routes) in PLAYERS.items():
        sections = (section_of(world.last_facts[question.id]) for question in questions)
        answers = [
            answer(player, each, routes, lines, section) for each, section in zip(questions, sections, strict=True)
        ]
        recall = np.asarray(c3_recall_bergen(answers, [list(question.answers) for question in questions]))
        print(f"{name:24} {recall.mean():.3f}  held {recall[held].mean():.3f}  missing {recall[~held].mean():.3f}")


if __name__ == "__main__":
    main(build_world())
