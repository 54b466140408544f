"""D-RAG: an argument from each language's passages, then an answer that weighs them."""

from collections.abc import Sequence

from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.episodes.observation import information, statements
from lcrag.episodes.requests import Complete, Program, RetrievalFailure, Retrieve
from lcrag.episodes.routing import Route, all_at_once
from lcrag.errors import choose
from lcrag.methods.baselines.prompts import D_RAG_ANSWER, D_RAG_ARGUMENT, answer_from, titles_of


def d_rag(
    question: Question,
    collections: Sequence[str],
    *,
    passages: int = 3,
    route: Route = all_at_once,
    wording: str = "full",
    observation_tokens: int = 600,
) -> Program:
    """Dialectic argumentation over multilingual passages (Ranaldi et al., 2025b, section 3).

    Extraction and explanation: for each language that found something, a fresh context argues from its passages; these
    run in parallel. Dialectic and answer: in the episode's own context the policy compares the arguments, resolves
    their conflicts, and answers. The paper writes all four parts in one prompt, where each argument knows the others.
    `observation_tokens` limits the passages of each argument, and the arguments together.
    """
    argue, weigh = (choose(step, wording, "wording") for step in (D_RAG_ARGUMENT, D_RAG_ANSWER))
    languages = route(1, question.language, collections)
    found = yield Retrieve((question.text,), languages, passages)
    hits = {} if isinstance(found, RetrievalFailure) else dict(zip(languages, found[0], strict=True))
    sides = {language_of(code).name: each for code, each in hits.items() if each}
    blocks = {language: information([[each]], argue.style, observation_tokens) for language, each in sides.items()}
    argued = yield tuple(
        Complete(prompt=argue.around(block, question, language=language), stop=argue.stop)
        for language, block in blocks.items()
    )
    arguments = [
        argue.show(completion.text, language=language, titles=titles_of([[sides[language]]]))
        for language, completion in zip(sides, argued, strict=True)
    ]
    prompt = weigh.around(statements(arguments, weigh.style, observation_tokens), question)
    return (yield from answer_from(weigh, prompt))
