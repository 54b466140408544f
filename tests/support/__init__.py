"""What tests share; here a decoder and a byte-level BPE that compile and run in seconds."""

import functools

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from lcrag.policy import DecoderConfig, Tokenizer

SENTENCES = (
    "<search> capital of France</search>",
    "<answer> Paris</answer><information> passage</information>",
    "Какая валюта в стране Япония? 日本の通貨は 円 です。 العملة في مصر هي الجنيه",
    "กรุงเทพมหานคร 서울특별시 München façade naïve 🙂 the code is EUR since 1999",
)


def tiny_config(**changes) -> DecoderConfig:
    """Returns a configuration with two layers of width 32; `changes` override any field."""
    sizes = {"vocabulary_size": 384, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_width": 8}
    return DecoderConfig(**(sizes | {"mlp_width": 48, "max_positions": 256} | changes))


def tiny_gemma() -> dict[str, object]:
    """Returns the changes that make `tiny_config` a Gemma 3 of two windows and one global layer between them."""
    windows = {"sliding_window": 5, "global_layers": (1,), "query_pre_attn_scalar": 6}
    return {"family": "gemma3", "layers": 3, "logit_softcap": 3.0, **windows}


@functools.cache
def tiny_tokenizer(vocabulary_size: int = 384) -> Tokenizer:
    """Returns a byte-level BPE with <eos>, trained on a few sentences in many scripts."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size, special_tokens=["<eos>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator(SENTENCES * 4, trainer)
    [eos] = backend.encode("<eos>").ids
    return Tokenizer(backend=backend, eos_ids=(eos,), pad_id=eos)
