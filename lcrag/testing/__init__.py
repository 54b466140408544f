"""The tiny model and tokenizer that tests share."""

from lcrag.testing.tiny import SENTENCES, tiny_config, tiny_tokenizer
