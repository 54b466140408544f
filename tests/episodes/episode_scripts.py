"""Scripted policies, searches and programs that the tests of the runner share."""

import dataclasses
import random
import time

import numpy as np
from support import tiny_tokenizer
from support.scripted_sampler import ScriptedSampler

from lcrag.data.questions import Question
from lcrag.episodes import Generate, Observe, Outcome, Runner
from lcrag.episodes.chat import ContextTokenizer
from lcrag.episodes.running_episode import RunningEpisode
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.policy import ChatTemplate, Tokenizer
from lcrag.retrieval.passages import Hit
from lcrag.sampling import Sampled, SamplingParameters

LANGUAGES = ("ar", "en", "fr", "ja")
TEMPLATE = (
    "{% for message in messages %}<eos>[{{ message.role }}]{{ message.content }}<eos>{% endfor %}[assistant]"
    "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)


def question(number: int = 0, language: str = "en", text: str = "Capital of Peru?") -> Question:
    return Question(id=str(number), dataset="d", language=language, text=text, answers=("Lima",))


def hit(query: str, language: str, text: str = "Lima is the capital") -> Hit:
    return Hit(id=f"{language}-{query}", title=query[:20], text=f"{text} ({language})", score=0.5, language=language)


def search(queries: list[str], languages: list[str], passages: int) -> list[list[Hit]]:
    return [[hit(query, language)] * passages for query, language in zip(queries, languages, strict=True)]


def slow(seconds: float):
    def searching(queries, languages, passages):
        time.sleep(seconds)
        return search(queries, languages, passages)

    return searching


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


def noisy(context: str, generation: SamplingParameters) -> str:
    """Depends on everything that a device's text may depend on."""
    return f"{len(context) % 7} {np.random.default_rng((generation.seed, generation.episode)).integers(1000)}"


def searches_then_answers(context: str, generation: SamplingParameters) -> str:
    return "<answer>Lima</answer>" if "</information>" in context else "<search>Peru</search>"


def lcrl_programs(count: int, **arguments) -> list:
    arguments = {"prompt": "atlas", "style": "atlas", "budget": 3} | arguments
    languages = [LANGUAGES[number % 4] for number in range(count)]
    asked = [question(number // 8, language) for number, language in enumerate(languages)]
    return [(each, hierarchical_search(each, LANGUAGES, **arguments), number) for number, each in enumerate(asked)]


def answering(asked):
    yield Observe(asked.text)
    return Outcome(answer=(yield Generate(stop=())))


def played(tokenizer: Tokenizer, context: ContextTokenizer, system: str, turns, **generates):
    """Plays turns (the policy's text, whether its end is sampled, the text shown); returns the episode and what its
    program read."""
    read = []

    def dialogue():
        yield Observe("Where is Turku?", system=system)
        for *_, shown in turns:
            read.append((yield Generate(stop=("</search>",), **generates)))
            yield Observe(shown)
        return Outcome(answer=(yield Generate(stop=())))

    episode = RunningEpisode(question(), dialogue(), 0, context, 4000, 16)
    episode.start()
    for text, ended, _ in turns:
        ids = [*tokenizer.encode_ordinary(text, continues=True), *tokenizer.eos_ids[:ended]]
        scores = np.full(len(ids), -1, np.float32)
        episode.take_generation()
        episode.sampled(Sampled(np.array(ids, np.int32), scores, text, "eos" if ended else "stop"))
    return episode, read


def chat_tokenizer(source: str = TEMPLATE) -> Tokenizer:
    return dataclasses.replace(tiny_tokenizer(), chat_template=ChatTemplate(source))


def runner(script, *, slots: int = 4, context: int = 600, block: int = 8, tokenizer: Tokenizer | None = None, **own):
    tokenizer = tokenizer or tiny_tokenizer()
    sampler = ScriptedSampler(tokenizer, script, slots=slots, context=context, block=block)
    return Runner(sampler=sampler, tokenizer=tokenizer, **({"search": search, "max_tokens": 40} | own))


def run_alone(program, script=noisy, asked: Question | None = None, **own):
    [record] = runner(script, **own).run([(asked or question(), program, 0)])
    return record


def assert_same(records, others) -> None:
    """Two lists of records agree in everything but wall-clock times."""
    for one, other in zip(records, others, strict=True):
        for field in (each for each in dataclasses.fields(one) if each.compare):
            np.testing.assert_equal(getattr(one, field.name), getattr(other, field.name))
