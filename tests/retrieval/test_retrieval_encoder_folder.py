"""Encoder folders: the sources of settings in order of precedence, and folders that are damaged or not supported."""

import json
import logging

import pytest
import safetensors.torch
import torch
from encoder_checkpoints import write_checkpoint, write_json

from lcrag.errors import UserError
from lcrag.retrieval import BertConfig, EncoderSettings, XlmRobertaConfig, load_encoder
from lcrag.retrieval.encoder_folder import BODY_FILE, MODULES, MODULES_FILE, POOLING_FILE, PROMPTS_FILE


@pytest.fixture
def folder(tmp_path):
    """An XLM-R without settings, with an unknown name."""
    return write_checkpoint(tmp_path / "model", "xlm-roberta")


def _settings(folder, **given):
    return load_encoder(folder, **given).settings


def test_a_bare_folder_defaults_to_e5_with_a_warning(folder, caplog):
    assert _settings(folder) == EncoderSettings(max_tokens=64)
    [record] = [record for record in caplog.records if record.name.startswith("lcrag")]
    assert record.levelno == logging.WARNING
    assert "pooling, query_prefix, passage_prefix" in record.getMessage()


def test_settings_of_the_caller_come_first(folder, caplog):
    write_json(folder / POOLING_FILE, {"pooling_mode_cls_token": True})
    write_json(folder / PROMPTS_FILE, {"prompts": {"query": "q", "passage": "p"}})
    given = {"pooling": "mean", "query_prefix": "", "passage_prefix": "text: ", "max_tokens": 20}
    with caplog.at_level(logging.INFO, "lcrag"):
        assert _settings(folder, **given) == EncoderSettings(**given)
    [record] = [record for record in caplog.records if record.name.startswith("lcrag")]
    assert record.levelno == logging.INFO


def test_the_files_come_next(tmp_path, caplog):
    folder = write_checkpoint(tmp_path / "multilingual-e5-small", "bert")
    write_json(folder / MODULES_FILE, MODULES)
    write_json(folder / POOLING_FILE, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    write_json(folder / PROMPTS_FILE, {"prompts": {"query": "ask: ", "document": "read: "}})
    write_json(folder / BODY_FILE, {"max_seq_length": 33, "do_lower_case": False})
    expected = EncoderSettings(pooling="cls", query_prefix="ask: ", passage_prefix="read: ", max_tokens=33)
    assert _settings(folder) == expected
    assert not caplog.records, "nothing was guessed"


@pytest.mark.parametrize(
    "values, pooling",
    [
        ({"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"word_embedding_dimension": 32}, "mean"),
    ],
)
def test_old_and_new_poolings_are_read(folder, values, pooling):
    write_json(folder / POOLING_FILE, values)
    assert _settings(folder).pooling == pooling


DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        (POOLING_FILE, {"pooling_mode": "lasttoken"}, "lasttoken"),
        (POOLING_FILE, {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}, r"max \+ mean|mean \+ max"),
        (POOLING_FILE, {"pooling_mode_mean_tokens": True, "include_prompt": False}, "include_prompt"),
        (MODULES_FILE, [*MODULES[:2], DENSE], "Dense"),
        (MODULES_FILE, MODULES, "1_Pooling/config.json"),  # absent
    ],
)
def test_unsupported_modules(folder, file, content, named):
    write_json(folder / file, content)
    with pytest.raises(UserError, match=named):
        load_encoder(folder)


def test_a_pooling_without_prompts_is_that_of_empty_ones(folder):
    write_json(folder / POOLING_FILE, {"pooling_mode": "mean", "include_prompt": False})
    assert _settings(folder, query_prefix="", passage_prefix="").pooling == "mean"


def test_a_body_in_a_folder_of_its_own_is_found(tmp_path):
    write_checkpoint(tmp_path / "e5" / "0_Transformer", "bert")
    write_json(tmp_path / "e5" / MODULES_FILE, [MODULES[0] | {"path": "0_Transformer"}, MODULES[1]])
    write_json(tmp_path / "e5" / POOLING_FILE, {"pooling_mode_mean_tokens": True})
    assert _settings(tmp_path / "e5") == EncoderSettings(max_tokens=64)


def test_a_listed_folder_without_prompts_has_no_prefixes(folder):
    write_json(folder / MODULES_FILE, [MODULES[0]])
    write_json(folder / PROMPTS_FILE, {"prompts": {"query": "", "document": ""}})
    settings = _settings(folder)
    assert (settings.query_prefix, settings.passage_prefix, settings.pooling) == ("", "", "mean")


def test_the_longest_text_has_positions(folder):
    write_json(folder / BODY_FILE, {"max_seq_length": 512})
    assert _settings(folder).max_tokens == 64  # 66 rows, of which XLM-R's first two belong to no token
    (folder / BODY_FILE).unlink()
    path = folder / "tokenizer_config.json"
    write_json(path, json.loads(path.read_text()) | {"model_max_length": 1e30})
    assert _settings(folder).max_tokens == 64
    with pytest.raises(UserError, match="65 exceeds the encoder's 64 positions"):
        load_encoder(folder, max_tokens=65)
    with pytest.raises(UserError, match="2 special tokens"):
        load_encoder(folder, max_tokens=2)


def test_a_folder_without_an_encoder_is_named(tmp_path):
    with pytest.raises(UserError, match=f"no encoder in {tmp_path}: expected the file config.json"):
        load_encoder(tmp_path)


@pytest.mark.parametrize(
    ("name", "pooling", "query", "passage"),
    [
        ("multilingual-e5-large", "mean", "query: ", "passage: "),
        ("my_E5", "mean", "query: ", "passage: "),
        ("multilingual-e5-large-instruct", "mean", "Instruct: ", ""),
        ("bge-base-en-v1.5", "cls", "Represent this sentence", ""),
        ("bge-large-zh-v1.5", "cls", "为这个句子", ""),
        ("bge-m3", "cls", "", ""),
        ("models--intfloat--multilingual-e5-base/snapshots/d13f1b27", "mean", "query: ", "passage: "),
        ("lace5x", "mean", "", ""),
    ],
)
def test_cards_of_known_models(tmp_path, name, pooling, query, passage):
    """The folder lists its modules, so that E5's prefixes are not the default."""
    folder = write_checkpoint(tmp_path / name, "bert")
    write_json(folder / MODULES_FILE, [MODULES[0]])
    settings = _settings(folder)
    assert (settings.pooling, settings.passage_prefix) == (pooling, passage)
    assert settings.query_prefix.startswith(query)
    assert bool(settings.query_prefix) == bool(query)
    write_checkpoint(tmp_path / "model", "bert")
    write_json(tmp_path / "model" / MODULES_FILE, [MODULES[0]])
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    write_json(tmp_path / "model" / "config.json", config | {"_name_or_path": f"someone/{name}"})
    assert _settings(tmp_path / "model") == settings


QUERY = "encoder.layer.1.attention.self.query.weight"
EXTRA = "encoder.layer.7.output.dense.bias"


@pytest.fixture(params=["bert", "xlm-roberta"])
def checkpoint(request, tmp_path):
    return write_checkpoint(tmp_path / "e5", request.param)


def _refused(folder, *parts):
    with pytest.raises(UserError) as caught:
        load_encoder(folder)
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message, message


def _change_tensors(folder, change):
    path = folder / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    change(tensors)
    safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda tensors: tensors.pop(QUERY), (QUERY, "missing")),
        (lambda tensors: tensors.update({EXTRA: torch.zeros(32)}), (EXTRA,)),
        (lambda tensors: tensors.update({QUERY: torch.zeros(32, 31)}), (QUERY, "(32, 31)", "(32, 32)")),
        (lambda tensors: tensors.update({QUERY: torch.zeros(32, 32, dtype=torch.int8)}), (QUERY, "I8")),
    ],
    ids=["missing", "extra", "shape", "dtype"],
)
def test_wrong_tensors(checkpoint, change, parts):
    _change_tensors(checkpoint, change)
    _refused(checkpoint, *parts)


def test_missing_files(checkpoint):
    folder = checkpoint
    (folder / "tokenizer.json").rename(folder / "tokenizer")
    _refused(folder, "tokenizer.json", "save_pretrained")
    (folder / "tokenizer").rename(folder / "tokenizer.json")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    _refused(folder, "pytorch_model.bin")
    _refused(folder / "absent", "no such folder")


def _change_config(folder, **values):
    path = folder / "config.json"
    changed = json.loads(path.read_text()) | values
    path.write_text(json.dumps({name: value for name, value in changed.items() if value is not ...}))


@pytest.mark.parametrize(
    "values, part",
    [
        ({"model_type": "distilbert"}, "'distilbert'"),
        ({"model_type": None}, "None"),
        ({"position_embedding_type": "relative_key"}, "relative_key"),
        ({"is_decoder": True}, "is_decoder"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"hidden_act": "swish"}, "'swish'"),
        ({"hidden_size": 31}, "hidden_size 31"),
        ({"num_hidden_layers": "three"}, "num_hidden_layers is 'three'"),
        ({"vocab_size": 5}, "embeddings.word_embeddings.weight"),
        ({"num_hidden_layers": 2}, "encoder.layer.2."),
        ({"num_hidden_layers": 4}, "encoder.layer.3."),
        ({"hidden_size": ...}, "hidden_size"),  # absent
    ],
)
def test_configurations_of_something_else(checkpoint, values, part):
    _change_config(checkpoint, **values)
    _refused(checkpoint, part)


def test_a_tokenizer_of_another_model(tmp_path):
    folder = write_checkpoint(tmp_path / "e5", "bert")
    other = write_checkpoint(tmp_path / "other", "xlm-roberta")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"] += [[f"extra{number}", -9.0] for number in range(900)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    _refused(folder, "tokens", "embeddings")


def test_impossible_sizes():
    sizes = {
        "vocab_size": 9,
        "hidden_size": 12,
        "num_hidden_layers": 1,
        "num_attention_heads": 3,
        "intermediate_size": 4,
    }
    with pytest.raises(UserError, match="no position"):
        XlmRobertaConfig(**sizes, max_position_embeddings=2)
    with pytest.raises(UserError, match="type_vocab_size is 0"):
        BertConfig(**sizes, type_vocab_size=0)
    with pytest.raises(UserError, match="multiple"):
        BertConfig(**sizes | {"hidden_size": 10})
    assert XlmRobertaConfig(**sizes, max_position_embeddings=514).longest_tokens == 512
