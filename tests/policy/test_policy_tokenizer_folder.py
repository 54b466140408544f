"""Tokenizers in model folders: read, refused and written."""

import json

import pytest
import transformers
from tokenizers import processors

from lcrag.errors import UserError
from lcrag.policy import load_tokenizer
from lcrag.testing import SENTENCES, tiny_tokenizer
from lcrag.testing.tokenizer_families import FAMILIES

TEMPLATE = "{{ bos_token }}{% for message in messages %}[{{ message.role }}] {{ message.content }}{% endfor %}"


def folder_of(path, family="Metaspace", **files):
    """A folder with a tokenizer and some JSON files, by their stems."""
    path.mkdir(exist_ok=True)
    FAMILIES[family]().backend.save(str(path / "tokenizer.json"))
    for stem, content in files.items():
        (path / f"{stem}.json").write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"config": {"eos_token_id": 7}}, (7,)),
        ({"config": {"eos_token_id": 7}, "generation_config": {"eos_token_id": [9, 7, 8]}}, (9, 7, 8)),
        ({"config": {"eos_token_id": None}, "generation_config": {"eos_token_id": 9}}, (9,)),
        ({"config": {"eos_token_id": [7]}, "tokenizer_config": {"eos_token": "</s>"}}, (7, 2)),
        ({"tokenizer_config": {"eos_token": {"content": "</s>", "special": True}}}, (2,)),
    ],
)
def test_every_end_of_sequence_id_of_the_folder_counts(tmp_path, files, expected):
    tokenizer = load_tokenizer(folder_of(tmp_path, **files))
    assert tokenizer.eos_ids == expected
    assert tokenizer.pad_id == expected[0]
    folder_of(tmp_path, tokenizer_config={"eos_token": "</s>", "pad_token": "<unk>"})
    assert load_tokenizer(tmp_path).pad_id == 0


def test_a_bare_vocabulary_ends_with_its_eos_token(tmp_path):
    tiny_tokenizer().backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.eos_ids == tiny_tokenizer().eos_ids
    assert tokenizer.fingerprint() == tiny_tokenizer().fingerprint()
    assert tokenizer.chat_template is None
    assert tokenizer.beginning_ids == ()


def test_a_context_begins_as_the_folder_says(tmp_path):
    backend = load_tokenizer(folder_of(tmp_path, tokenizer_config={"eos_token": "</s>"})).backend
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    backend.save(str(tmp_path / "tokenizer.json"))
    for settings, expected in (
        ({}, (1,)),
        ({"add_bos_token": False}, ()),
        ({"add_bos_token": True}, (1,)),
        ({"add_bos_token": True, "bos_token": "</s>"}, (2,)),
    ):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"} | settings))
        assert load_tokenizer(tmp_path).beginning_ids == expected


def test_stored_truncation_and_padding_are_left_behind(tmp_path):
    backend = load_tokenizer(folder_of(tmp_path, config={"eos_token_id": 2})).backend
    backend.enable_truncation(2)
    backend.enable_padding(length=50)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).encode(SENTENCES[0]) == FAMILIES["Metaspace"]().encode(SENTENCES[0])


NAMED = [{"name": "tool_use", "template": "other"}, {"name": "default", "template": TEMPLATE}]


@pytest.mark.parametrize(
    ("in_settings", "in_json", "in_jinja"),
    [(TEMPLATE, None, None), (NAMED, None, None), ("other", TEMPLATE, None), ("other", "other", TEMPLATE)],
)
def test_where_the_chat_template_is_found(tmp_path, in_settings, in_json, in_jinja):
    settings = {"eos_token": "</s>", "bos_token": "<s>", "chat_template": in_settings}
    folder_of(tmp_path, tokenizer_config=settings, **({"chat_template": {"chat_template": in_json}} if in_json else {}))
    if in_jinja:
        (tmp_path / "chat_template.jinja").write_text(in_jinja)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode_chat([{"role": "user", "content": "a"}]).text == "<s>[user] a"


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "SentencePiece"])
def test_transformers_opens_what_is_written(tmp_path, family):
    settings = {"eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE}
    tokenizer = load_tokenizer(folder_of(tmp_path / "a", family, config={"eos_token_id": 2}, tokenizer_config=settings))
    tokenizer.save(tmp_path / "b")
    (tmp_path / "b" / "config.json").write_text(json.dumps({"eos_token_id": 2, "model_type": "qwen3"}))
    again, theirs = load_tokenizer(tmp_path / "b"), transformers.AutoTokenizer.from_pretrained(tmp_path / "b")
    for name in ("eos_ids", "settings"):
        assert getattr(again, name) == getattr(tokenizer, name)
    assert again.fingerprint() == tokenizer.fingerprint()
    assert theirs.chat_template == TEMPLATE
    for text in SENTENCES:
        assert again.encode(text) == tokenizer.encode(text) == theirs.encode(text, add_special_tokens=False)


def test_transformers_opens_a_bare_vocabulary(tmp_path):
    tiny_tokenizer().save(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.eos_token_id == tiny_tokenizer().eos_ids[0]
    for text in SENTENCES:
        assert theirs.encode(text) == tiny_tokenizer().encode(text)


def test_mistakes_are_one_sentence(tmp_path):
    with pytest.raises(UserError, match=r"no tokenizer in .*: expected the file tokenizer.json"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match="names no end-of-sequence token: set eos_token_id"):
        load_tokenizer(folder_of(tmp_path))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserError, match="tokenizer_config.json is not JSON"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="tokenizer.json is not a readable tokenizer"):
        load_tokenizer(tmp_path)
