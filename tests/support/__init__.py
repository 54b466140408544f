"""The tiny model and tokenizer that tests share."""

from support.tiny import SENTENCES, tiny_config, tiny_tokenizer
