"""Episodes: methods written as programs, and the runner that executes many of them on the sampler's slots.

A program yields requests (`programs`), and reads the policy's text (`tags`). It shows passages (`searches`), in the
form of the model (`chat`). A `Runner` runs programs, calls the services of a `Search`, `Translator` and `Completer`,
and returns an `EpisodeRecord` of each.
"""

from lcrag.episodes.chat import Chat
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
from lcrag.episodes.record import EpisodeRecord, SideCompletion, Turn, episode_json, token_arrays
from lcrag.episodes.runner import Abandoned, Completer, Programs, Runner, Search, Translated, Translator, completion_of
from lcrag.episodes.searches import (
    STYLES,
    all_at_once,
    available_first,
    english_only,
    information,
    local_first,
    native_only,
)
from lcrag.episodes.tags import Answer, Invalid, SearchAction, answer_in, neutralise, parse_action
