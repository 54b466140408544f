"""Gin may say of an encoder what its folder does not, or says otherwise."""

import gin

from lcrag.files import WEIGHTS
from lcrag.retrieval.encoder_folder import configured_encoder


def test_gin_overrides_what_the_folder_says():
    folder = WEIGHTS / "encoder"
    gin.parse_config(["load_encoder.pooling = 'cls'", "load_encoder.query_prefix = 'ask: '"])
    changed = configured_encoder(folder)
    assert (changed.settings.pooling, changed.settings.query_prefix) == ("cls", "ask: ")
    gin.clear_config()
    plain = configured_encoder(folder)
    assert (plain.settings.pooling, plain.settings.passage_prefix) == ("mean", changed.settings.passage_prefix)
