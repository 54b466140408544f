"""Encoder folders that `transformers` writes, and the vectors that it computes from them."""

import json

import numpy as np
import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

SENTENCES = (
    "The capital of France is Paris, and its currency the euro.",
    "Какая валюта используется в Японии? Иена.",
    "日本の通貨は円です。首都は東京です。",
    "العملة في مصر هي الجنيه",
    "กรุงเทพมหานคร เป็นเมืองหลวงของประเทศไทย",
    "naïve façade, 1999 and 2002; query: passage: [CLS]",
)
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 52,
    "max_position_embeddings": 66,
}
FAMILIES = {"bert": (transformers.BertConfig, transformers.BertModel)} | {
    "xlm-roberta": (transformers.XLMRobertaConfig, transformers.XLMRobertaModel)
}


def word_pieces() -> tokenizers.Tokenizer:
    """A WordPiece tokenizer as BERT's: [PAD] is 0, [CLS] text [SEP]."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


def unigrams() -> tokenizers.Tokenizer:
    """A Unigram tokenizer as XLM-R's: <pad> is 1, <s> text </s>."""
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=200, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    return tokenizer


def _fast(tokenizer: tokenizers.Tokenizer, family: str) -> transformers.PreTrainedTokenizerFast:
    names = {"bert": ("[PAD]", "[UNK]"), "xlm-roberta": ("<pad>", "<unk>")}[family]
    named = dict(zip(("pad_token", "unk_token"), names, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=64, **named)


def write_checkpoint(folder, family, dtype=torch.float32, tokenizer=None, head=False, config=None, **save):
    """Writes a random model and its tokenizer as `save_pretrained` does. Every tensor is far from its usual start, so
    that none can be swapped unnoticed."""
    torch.manual_seed(0)
    tokenizer = tokenizer or {"bert": word_pieces, "xlm-roberta": unigrams}[family]()
    config_class, model_class = FAMILIES[family]
    if head:
        model_class = {"bert": transformers.BertForMaskedLM, "xlm-roberta": transformers.XLMRobertaForMaskedLM}[family]
    types = 2 if family == "bert" else 1
    sizes = SIZES | {"vocab_size": tokenizer.get_vocab_size() + 3, "type_vocab_size": types} | (config or {})
    model = model_class(config_class(**sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    model.to(dtype).save_pretrained(folder, **save)
    _fast(tokenizer, family).save_pretrained(folder)
    return folder


def write_json(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def vectors_of(folder, texts, pooling, max_tokens=64):
    """Unit vectors of the texts, each as `transformers` reads it from the folder, in one padded batch."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, add_pooling_layer=False).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=max_tokens, return_tensors="pt")
    with torch.no_grad():
        hidden = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
    mask = batch.attention_mask[..., None]
    pooled = hidden[:, 0] if pooling == "cls" else (hidden * mask).sum(1) / mask.sum(1)
    return torch.nn.functional.normalize(pooled).numpy().astype(np.float32)
