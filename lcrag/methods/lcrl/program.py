"""LcRL's rollout: hierarchical search over collections in many languages."""

from collections.abc import Sequence

from lcrag.data.questions import Question
from lcrag.episodes.observation import information
from lcrag.episodes.prompts import RETHINK, opening_prompt
from lcrag.episodes.requests import ContextFull, Generate, Observe, Outcome, Program, Retrieve
from lcrag.episodes.routing import Route, local_first
from lcrag.episodes.tags import Answer, Invalid, SearchAction, answer_in, parse_action


def hierarchical_search(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 3,
    passages: int = 3,
    invalid_limit: int = 3,
    route: Route = local_first,
    prompt: str = "lcrl",
    style: str = "search_r1",
    observation_tokens: int = 600,
) -> Program:
    """Algorithm 1 of LcRL (section 3.1).

    After the last search, or one invalid action too many, the policy has one last word without a search.

    Args:
      question: What is asked; its language is the native one.
      collections: Languages of the collection set.
      budget: Valid searches allowed (the paper's B); 0 answers without searching.
      passages: Passages of each searched language.
      invalid_limit: Invalid actions allowed; they do not count as searches.
      route: Which collections search number b goes to.
      prompt: Name of the opening prompt.
      style: Name of the passage style.
      observation_tokens: At most this many tokens for what one search shows.
    """
    searches = invalid = 0
    try:
        yield Observe(opening_prompt(prompt, question))
        while searches < budget and invalid < invalid_limit:
            text = yield Generate(stop=("</search>", "</answer>"))
            match parse_action(text):
                case SearchAction(query):
                    searches += 1
                    found = yield Retrieve((query,), route(searches, question.language, collections), passages)
                    yield Observe(information(found, style, observation_tokens))
                case Answer(answer):
                    return Outcome(answer=answer, invalid_actions=invalid)
                case Invalid():
                    invalid += 1
                    yield Observe(RETHINK)
        text = yield Generate(stop=("</answer>",))  # one last word, no search
    except ContextFull:
        return Outcome(answer=None, invalid_actions=invalid)
    last_word = answer_in(text)
    return Outcome(answer=last_word, invalid_actions=invalid + (last_word is None))
