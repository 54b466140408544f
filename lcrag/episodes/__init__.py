"""Episodes: methods written as programs, and the runner that drives many of them over the sampler's slots.

Public: the requests a program yields and the `Outcome` it returns, `hierarchical_search` with its routes and
prompts, the baselines, and `Runner`, which turns programs into `EpisodeRecord`s.
"""

from lcrag.episodes.completion import Completer, SamplerCompleter
from lcrag.episodes.context_text import Chat
from lcrag.episodes.observation import STYLES, Information, information
from lcrag.episodes.prompts import PROMPTS, RETHINK, opening_prompt
from lcrag.episodes.record import EpisodeRecord, SideCompletion, Turn, episode_json
from lcrag.episodes.requests import (
    Complete,
    Completion,
    ContextFull,
    Generate,
    Observe,
    Outcome,
    Program,
    Request,
    RetrievalFailure,
    Retrieve,
    Translate,
    TranslationFailure,
)
from lcrag.episodes.retrying import Retries
from lcrag.episodes.rollout import RolloutStatistics
from lcrag.episodes.routing import Route, all_at_once, available_first, english_only, local_first, native_only
from lcrag.episodes.runner import Runner
from lcrag.episodes.tags import Answer, Invalid, SearchAction, answer_in, neutralise, parse_action
from lcrag.episodes.translation import Translated, Translator

__all__ = [
    "PROMPTS",
    "RETHINK",
    "STYLES",
    "Answer",
    "Chat",
    "Complete",
    "Completer",
    "Completion",
    "ContextFull",
    "EpisodeRecord",
    "Generate",
    "Information",
    "Invalid",
    "Observe",
    "Outcome",
    "Program",
    "Request",
    "RetrievalFailure",
    "Retrieve",
    "Retries",
    "RolloutStatistics",
    "Route",
    "Runner",
    "SamplerCompleter",
    "SearchAction",
    "SideCompletion",
    "Translate",
    "Translated",
    "TranslationFailure",
    "Translator",
    "Turn",
    "all_at_once",
    "answer_in",
    "available_first",
    "english_only",
    "episode_json",
    "information",
    "local_first",
    "native_only",
    "neutralise",
    "opening_prompt",
    "parse_action",
]
