"""lcrag trains language models to search.

What a method or a training loop of one's own needs is here (docs/your_method.md, docs/library.md). The names are
imported at first use, because `lcrag --help` needs none.
"""

import importlib
from typing import Any

_HOMES = {
    "lcrag.atlas.world": ("atlas_collections", "atlas_questions"),
    "lcrag.data.corpora": ("find_source",),
    "lcrag.data.questions": ("Question", "coupled", "groups_of_step"),
    "lcrag.episodes": (
        *("Complete", "Generate", "Observe", "Outcome", "Retrieve", "Translate"),
        *("Program", "Runner", "answer_in", "information", "parse_action"),
    ),
    "lcrag.learning": ("Layout", "PolicyGradient", "Trajectory", "adamw", "group_advantages"),
    "lcrag.learning.learners": ("Learner",),
    "lcrag.methods.lcrl": ("anti_consistency", "hierarchical_search", "language_coupled_reward"),
    "lcrag.policy": ("load_policy", "save_policy"),
    "lcrag.retrieval": ("build_collection", "load_collections", "load_encoder"),
    "lcrag.rewards": ("Episodes", "Reward", "Term", "TermSum", "answer_term", "c3_recall", "exact_match"),
    "lcrag.sampling": ("Sampler", "SlotSampler"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}
__all__ = list(_HOME_OF)


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)
