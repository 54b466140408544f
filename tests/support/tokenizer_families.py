"""A small tokenizer of every family that models use, trained on a few sentences."""

import functools
import json
from collections.abc import Callable

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers, trainers

from lcrag.policy import Tokenizer
from support import SENTENCES, tiny_tokenizer

SPECIAL = ("<unk>", "<s>", "</s>")
_SPACE = "▁"
MARKS_SPACES = normalizers.Replace(" ", _SPACE)
_BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def _finished(backend: tokenizers.Tokenizer) -> Tokenizer:
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in SPECIAL])
    [eos] = backend.encode("</s>", add_special_tokens=False).ids
    return Tokenizer(backend=backend, eos_ids=(eos,), pad_id=eos)


def byte_fallback(normalizer=None, pre_tokenizer=None) -> Tokenizer:
    """A BPE over whole lines that spells unknown characters in bytes; one of the two may put a space in front."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.normalizer = normalizers.Replace(" ", _SPACE)
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=[*SPECIAL, *_BYTES], show_progress=False)
    backend.train_from_iterator(SENTENCES * 4, trainer)
    trained = json.loads(backend.to_str())["model"]
    merges = [tuple(pair) for pair in trained["merges"]]
    model = models.BPE(vocab=trained["vocab"], merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    backend = tokenizers.Tokenizer(model)
    if normalizer is not None:
        backend.normalizer = normalizer
    if pre_tokenizer is not None:
        backend.pre_tokenizer = pre_tokenizer
    strips = [decoders.Strip(" ", 1, 0)] if normalizer is not MARKS_SPACES else []
    backend.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *strips]
    )
    return _finished(backend)


def llama_2() -> Tokenizer:
    """Llama 2, first conversion: a normaliser prepends a space."""
    return byte_fallback(normalizers.Sequence([normalizers.Prepend(_SPACE), MARKS_SPACES]))


def metaspace() -> Tokenizer:
    """Llama 2 and Mistral, present conversion: the pre-tokeniser prepends a space."""
    return byte_fallback(None, pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="first", split=False))


def gemma() -> Tokenizer:
    """Gemma: marks spaces and prepends none."""
    return byte_fallback(MARKS_SPACES)


def unigram() -> Tokenizer:
    """T5 and XLM-R: Unigram over normalised words, whose pieces include the special tokens."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\u200b", "")])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement=_SPACE, prepend_scheme="always")]
    )
    backend.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=300, special_tokens=list(SPECIAL), unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(SENTENCES * 4, trainer)
    return _finished(backend)


def word_piece() -> Tokenizer:
    """BERT: words and their continuations."""
    backend = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=list(SPECIAL), show_progress=False)
    backend.train_from_iterator(SENTENCES * 4, trainer)
    return _finished(backend)


LOSSLESS: dict[str, Callable[[], Tokenizer]] = {
    "byte-level": tiny_tokenizer,
    "Llama 2": functools.cache(llama_2),
    "Metaspace": functools.cache(metaspace),
    "Gemma": functools.cache(gemma),
}
LOSSY: dict[str, Callable[[], Tokenizer]] = {
    "Unigram": functools.cache(unigram),
    "WordPiece": functools.cache(word_piece),
}
FAMILIES = LOSSLESS | LOSSY
