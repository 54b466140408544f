"""Episodes: methods written as programs, and the runner that executes many of them on the sampler's slots.

Public:
  Observe, Generate, Retrieve, Translate, Complete: The requests that a program yields. Their answers: Completion,
    RetrievalFailure, TranslationFailure; ContextFull is raised if a context has no room, GenerationFailed if
    another model fails (its Completer returns a GenerationFailure).
  Program, Request, Outcome: A program's type, its requests' type, and its result.
  Runner: Runs programs.
  Search, Translator, Translated, Completer, completion_of: The services that a runner calls, and their answers.
  EpisodeRecord, Turn, SideCompletion, Wait: The record of a finished episode; episode_json converts it to a row of
    JSON, and token_arrays reads the tokens of a row.
  parse_action, SearchAction, Answer, Invalid, answer_in, neutralise: Parsing the policy's text, and neutralising tags.
  Chat, ContextTokenizer, Information, information, STYLES, RETHINK, TRY_AGAIN: How prompts, passages and corrections
    are shown to the policy.
  local_first, available_first, native_only, english_only, all_at_once: Which collections a search goes to.
"""

from lcrag.episodes.chat import Chat, ContextTokenizer
from lcrag.episodes.programs import (
    RETHINK,
    TRY_AGAIN,
    Complete,
    Completion,
    ContextFull,
    Generate,
    GenerationFailed,
    GenerationFailure,
    Observe,
    Outcome,
    Program,
    Request,
    RetrievalFailure,
    Retrieve,
    Translate,
    TranslationFailure,
)
from lcrag.episodes.record import EpisodeRecord, SideCompletion, Turn, Wait, episode_json, token_arrays
from lcrag.episodes.runner import (
    Abandoned,
    Completer,
    Programs,
    Runner,
    Search,
    Translated,
    Translator,
    completion_of,
)
from lcrag.episodes.searches import (
    STYLES,
    Information,
    all_at_once,
    available_first,
    english_only,
    information,
    local_first,
    native_only,
)
from lcrag.episodes.tags import Answer, Invalid, SearchAction, answer_in, neutralise, parse_action
