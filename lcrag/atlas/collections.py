"""The atlas's collections."""

import pathlib
from collections.abc import Callable

import gin

from lcrag.atlas.world import World, atlas_world
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.errors import typed
from lcrag.files import resolved_folder
from lcrag.retrieval import Collections
from lcrag.retrieval.collections import cache_folder, kept_collections
from lcrag.retrieval.encoder import configured_encoder


@gin.configurable
@typed
def atlas_collections(
    folder: str | None = None, encoder: str = "atlas/encoder", world: Callable[[], World] = atlas_world
) -> Collections:
    """Opens the atlas's collections, one per language; they are built on first use and kept in the user's cache.

    Args:
      folder: Folder of the collections; None: a folder of the cache, named by the fingerprints of the world and the
        encoder.
      encoder: Folder of the encoder, or the name of one that ships with the package.
    """
    atlas, opened = world(), configured_encoder(resolved_folder(encoder))
    root = pathlib.Path(folder) if folder else cache_folder() / f"{atlas.fingerprint()}-{opened.fingerprint()}"
    return kept_collections(root, opened, LCRL_LANGUAGES, atlas.passages)
