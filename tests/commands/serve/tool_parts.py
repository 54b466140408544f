"""A search tool without a model: a scripted policy over made-up collections."""

import functools
import threading

from support import tiny_tokenizer
from support.pretended_collections import PretendedCollections
from support.scripted_sampler import ScriptedSampler

from lcrag.commands.serve import SearchTool
from lcrag.episodes import Retries, Runner
from lcrag.methods.lcrl.program import hierarchical_search

LANGUAGES = ("en", "fi", "zh")
LCRL = functools.partial(hierarchical_search, prompt="atlas", style="atlas", budget=2, passages=2)


def script(context, generation):
    """Searches for the question, then answers with it."""
    question = context.partition("?")[0]
    return f"<answer> {question}! </answer>" if "<information>" in context else f"<search> {question} </search>"


class CountingRunner(Runner):
    """Writes down how many questions each run had; waits at its gate first."""

    def run(self, programs, **options):
        self.runs.append(len(programs))
        assert self.gate.wait(20.0)
        return super().run(programs, **options)


def scripted_tool(program=LCRL, *, languages=LANGUAGES, default_language=None, slots=4, context=400, retries=1):
    """The tool; its runner is a `CountingRunner`, its collections are pretended ones."""
    collections, tokenizer = PretendedCollections(languages), tiny_tokenizer()
    runner = CountingRunner(
        sampler=ScriptedSampler(tokenizer, script, slots=slots, context=context),
        tokenizer=tokenizer,
        search=collections.search,
        max_tokens=60,
        retries=Retries(attempts=retries, backoff_seconds=0.0),
    )
    runner.runs, runner.gate = [], threading.Event()
    runner.gate.set()
    return SearchTool(
        runner=runner,
        program=lambda question: program(question, collections.languages),
        collections=collections,
        default_language=default_language,
    )
