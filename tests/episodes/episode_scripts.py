"""Scripted policies, searches and programs that the tests of the runner share."""

import random
import time

from lcrag.data.questions import Question
from lcrag.episodes import Runner
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.retrieval.passages import Hit
from lcrag.sampling import SamplingParameters
from lcrag.testing import tiny_tokenizer
from lcrag.testing.scripted_sampler import ScriptedSampler

LANGUAGES = ("ar", "en", "fr", "ja")


def question(number: int = 0, language: str = "en", text: str = "Capital of Peru?") -> Question:
    return Question(id=str(number), dataset="d", language=language, text=text, answers=("Lima",))


def hit(query: str, language: str, text: str = "Lima is the capital") -> Hit:
    return Hit(id=f"{language}-{query}", title=query[:20], text=f"{text} ({language})", score=0.5, language=language)


def search(queries: list[str], languages: list[str], passages: int) -> list[list[Hit]]:
    return [[hit(query, language)] * passages for query, language in zip(queries, languages, strict=True)]


def fickle(context: str, generation: SamplingParameters) -> str:
    """Searches, answers, rambles or stops, as the episode's own random stream says."""
    choose = random.Random(f"{generation.seed} {generation.episode} {context}")
    return choose.choice(
        [
            "<think>hm</think><search>capital of Peru</search>",
            f"<search>q{choose.randrange(3)}</search>",
            "<answer>Lima</answer>",
            "what? " * choose.randrange(20),
            "",
        ]
    )


def lcrl_programs(count: int, **arguments) -> list:
    arguments = {"prompt": "atlas", "style": "atlas", "budget": 3} | arguments
    languages = [LANGUAGES[number % 4] for number in range(count)]
    asked = [question(number // 8, language) for number, language in enumerate(languages)]
    return [(each, hierarchical_search(each, LANGUAGES, **arguments), number) for number, each in enumerate(asked)]


def runner(script, *, slots: int = 4, context: int = 600, block: int = 8, answer: str | None = None, **arguments):
    """A runner over a scripted sampler; `sampler` keyword arguments first, the rest are the runner's."""
    tokenizer = tiny_tokenizer()
    sampler = ScriptedSampler(tokenizer, script, slots=slots, context=context, block=block)
    defaults = {"search": search, "max_tokens": 40}
    return Runner(sampler=sampler, tokenizer=tokenizer, **(defaults | arguments))


def slow(seconds: float):
    """A search that takes a while."""

    def searching(queries, languages, passages):
        time.sleep(seconds)
        return search(queries, languages, passages)

    return searching
