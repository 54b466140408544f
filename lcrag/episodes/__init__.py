"""Episodes: methods written as programs, and the runner that drives many of them over the sampler's slots.

Public: the requests that a program yields and the `Outcome` that it returns; parsing of what the policy wrote
(`parse_action`, `answer_in`, `neutralise`); prompts and routes that programs share; what shows passages to the policy
(`information`); the services that a runner calls (`Translator`, `Completer`); and `Runner`, which turns programs into
`EpisodeRecord`s.
"""

from lcrag.episodes.context_text import Chat
from lcrag.episodes.host_services import Completer, Retries, Search, Translated, Translator
from lcrag.episodes.observation import STYLES, Information, information
from lcrag.episodes.prompts import RETHINK
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
from lcrag.episodes.routing import all_at_once, available_first, english_only, local_first, native_only
from lcrag.episodes.runner import Runner, completion_of
from lcrag.episodes.tags import Answer, Invalid, SearchAction, answer_in, neutralise, parse_action

__all__ = [
    "Chat",
    "Completer",
    "Retries",
    "Search",
    "Translated",
    "Translator",
    "STYLES",
    "Information",
    "information",
    "RETHINK",
    "EpisodeRecord",
    "SideCompletion",
    "Turn",
    "episode_json",
    "Complete",
    "Completion",
    "ContextFull",
    "Generate",
    "Observe",
    "Outcome",
    "Program",
    "Request",
    "RetrievalFailure",
    "Retrieve",
    "Translate",
    "TranslationFailure",
    "all_at_once",
    "available_first",
    "english_only",
    "local_first",
    "native_only",
    "Runner",
    "completion_of",
    "Answer",
    "Invalid",
    "SearchAction",
    "answer_in",
    "neutralise",
    "parse_action",
]
