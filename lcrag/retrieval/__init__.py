"""Retrieval: corpora, encoders, ScaNN indexes and the collections of several languages.

Public: `Passage`, `Hit`; `Corpus`; `Encoder`, `EncoderSettings`, `BertConfig`, `XlmRobertaConfig`,
`initialise_encoder`, `load_encoder`, `save_encoder`; `build_collection`, `IndexSettings`, `load_collections`,
`Collections`; the interface `SearchableCollections` of local and remote collections (`lcrag.retrieval.remote`), and
`NoCollections`. `lcrag.retrieval.service` serves collections over HTTP. JAX, Arrow and ScaNN are imported at first use.
"""

import importlib
from typing import TYPE_CHECKING, Any

from lcrag.retrieval.passages import Hit, NoCollections, Passage, SearchableCollections

if TYPE_CHECKING:
    from lcrag.retrieval.collections import Collections, Corpus, IndexSettings, build_collection, load_collections
    from lcrag.retrieval.encoder import (
        BertConfig,
        Encoder,
        EncoderSettings,
        XlmRobertaConfig,
        initialise_encoder,
        load_encoder,
        save_encoder,
    )

_MODULES = {
    "collections": ("Collections", "Corpus", "IndexSettings", "build_collection", "load_collections"),
    "encoder": (
        "BertConfig",
        "XlmRobertaConfig",
        "Encoder",
        "EncoderSettings",
        "initialise_encoder",
        "load_encoder",
        "save_encoder",
    ),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Imports a public name's module when it is first used (PEP 562)."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
