"""Episodes: methods written as programs, and the runner that drives many of them over the sampler's slots.

Public: the requests a program yields and the `Outcome` it returns, `hierarchical_search` with its routes and
prompts, the baselines, and `Runner`, which turns programs into `EpisodeRecord`s.
"""

from lcrag.episodes.actions import Answer, Invalid, Search, answer_in, parse_action
from lcrag.episodes.answer_from_evidence import answer_from_evidence
from lcrag.episodes.baselines import (
    adaptive_rag,
    d_rag,
    direct_inference,
    flare,
    ircot,
    iter_retgen,
    rag,
    search_o1,
    search_r1,
    sure,
)
from lcrag.episodes.completion import Completer, SamplerCompleter
from lcrag.episodes.context_text import Chat
from lcrag.episodes.globalrag import globalrag
from lcrag.episodes.lcrl import hierarchical_search
from lcrag.episodes.model_translator import ModelTranslator
from lcrag.episodes.observation import STYLES, Information, information
from lcrag.episodes.prompts import PROMPTS, RETHINK, opening_prompt
from lcrag.episodes.r_search import r_search
from lcrag.episodes.rag_r1 import rag_r1
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
from lcrag.episodes.tags import neutralise
from lcrag.episodes.translate_and_search import translate_and_search
from lcrag.episodes.translate_r1 import translate_r1
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
    "ModelTranslator",
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
    "Search",
    "SideCompletion",
    "Translate",
    "Translated",
    "TranslationFailure",
    "Translator",
    "Turn",
    "adaptive_rag",
    "all_at_once",
    "answer_from_evidence",
    "answer_in",
    "available_first",
    "d_rag",
    "direct_inference",
    "english_only",
    "episode_json",
    "flare",
    "globalrag",
    "hierarchical_search",
    "information",
    "ircot",
    "iter_retgen",
    "local_first",
    "native_only",
    "neutralise",
    "opening_prompt",
    "parse_action",
    "r_search",
    "rag",
    "rag_r1",
    "search_o1",
    "search_r1",
    "sure",
    "translate_and_search",
    "translate_r1",
]
