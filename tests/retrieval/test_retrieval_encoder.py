"""Encoders: batches, devices, saved folders and the sources of their settings, parity with `transformers`."""

import json
import logging
import shutil
import types

import jax
import numpy as np
import pytest
import safetensors.torch
import tokenizers
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from support import tiny_tokenizer
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from lcrag.errors import UserError
from lcrag.retrieval import (
    Encoder,
    EncoderSettings,
    XlmRobertaConfig,
    initialise_encoder,
    load_encoder,
    save_encoder,
)
from lcrag.retrieval import encoder as encoders

TEXTS = ["", "a", "Какая валюта?", "日本の通貨は 円 です。" * 3, "word " * 100, "naïve 🙂", "กรุงเทพ"] * 3


def test_a_vector_depends_on_its_text_alone(encoder):
    together = encoder.encode(TEXTS, "query")
    alone = np.concatenate([encoder.encode([text], "query") for text in TEXTS])
    np.testing.assert_allclose(together, alone, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(together, axis=1), 1, atol=1e-5)
    assert together.dtype == np.float32
    assert together.shape == (len(TEXTS), encoder.dimension)
    assert encoder.encode([]).shape == (0, encoder.dimension)
    seen = "Hel\u00adsinki\u200f", "\ufeffHelsinki", "Hel\u200bsinki\u2060", "Helsinki"
    assert len({tuple(row) for row in encoder.tokenize(seen, "passage")}) == 1, "invisible signs are no part of a text"
    with jax.transfer_guard("disallow"):
        encoder.encode(TEXTS, "query")


def test_texts_have_prefixes_and_are_cut_before_they_are_tokenized(encoder, config, monkeypatch):
    tokenizer, sizes = encoder.tokenizer, []
    assert tokenizer.decode(encoder.tokenize(["x y"], "query")[0]) == "query: x y"
    assert tokenizer.decode(encoder.tokenize(["x y"], "passage")[0]) == "passage: x y"
    with pytest.raises(UserError, match="'document'"):
        encoder.encode(["x"], "document")

    def recorded(texts):
        sizes.extend(map(len, texts))
        return tokenizer.encode_batch_fast(texts)

    monkeypatch.setattr(encoder, "tokenizer", types.SimpleNamespace(encode_batch_fast=recorded))
    [tokens] = encoder.tokenize(["word " * 100_000], "query")
    assert sizes == [len("query: ") + 32 * 32]
    assert tokens == tokenizer.encode("query: " + "word " * 100).ids
    assert len(tokens) == 32
    bare = initialise_encoder(config, EncoderSettings(query_prefix="", max_tokens=32), tiny_tokenizer().backend)
    np.testing.assert_allclose(np.linalg.norm(bare.encode([""], "query")), 1, atol=1e-5)


@pytest.mark.parametrize("weight", [np.nan, np.inf, -np.inf])
def test_vectors_that_are_not_finite_are_refused(encoder, config, weight):
    params = jax.tree.map(np.array, jax.device_get(encoder.params))
    [row] = encoder.tokenizer.encode("é", add_special_tokens=False).ids[:1]
    params["word_embeddings"]["embedding"][row] = weight
    damaged = Encoder(config, encoder.settings, params, encoder.tokenizer)
    np.testing.assert_array_equal(damaged.encode(["abc"]), encoder.encode(["abc"]))
    with pytest.raises(UserError, match="vector of 'é' is not finite"):
        damaged.encode(["abc", "é"])


SHAPES = pytest.mark.parametrize("shapes", [encoders.ON_CPU, encoders.ON_ACCELERATORS])


@SHAPES
@given(st.lists(st.integers(1, 8192), max_size=700), st.sampled_from([64, 512, 8192]), st.integers(1, 8))
def test_every_text_is_in_one_batch_that_holds_it(shapes, lengths, longest, devices):
    lengths = [min(length, longest) for length in lengths]
    seen = []
    for chunk, (rows, tokens) in encoders.batches(lengths, longest, devices, shapes):
        seen += chunk
        assert len(chunk) <= rows
        assert rows % devices == 0
        assert max(lengths[index] for index in chunk) <= tokens <= longest
        assert rows // devices == 1 or rows // devices * tokens**2 <= shapes.largest_scores
    assert sorted(seen) == list(range(len(lengths)))


@SHAPES
@pytest.mark.parametrize(("count", "median"), [(240, 180), (960, 180), (1190, 20)])
def test_most_positions_hold_a_token_and_accelerators_compile_few_shapes(count, median, shapes):
    """Lengths of paragraphs and of questions, as in XQuAD."""
    lengths = np.random.default_rng(0).lognormal(np.log(median), 0.35, count).round().clip(8, 512).astype(int).tolist()
    made = [shape for _, shape in encoders.batches(lengths, 512, 1, shapes)]
    assert sum(lengths) >= (0.85 if shapes is encoders.ON_CPU else 0.5) * sum(rows * tokens for rows, tokens in made)
    assert len(set(made)) <= (20 if shapes is encoders.ON_CPU else 8)


def test_a_long_text_does_not_widen_short_ones_and_shapes_are_finite(encoder):
    shapes = [shape for _, shape in encoders.batches([12] * 255 + [8192], 8192, 1, encoders.ON_CPU)]
    assert [tokens for _, tokens in shapes].count(8192) == 1
    assert shapes[0] == (1, 8192)
    before = encoders._compiled_embed._cache_size()
    for count in range(1, 40):
        encoder.encode([f"text {'longer ' * (number % 9)}" for number in range(count)], "query")
    assert (
        encoders._compiled_embed._cache_size() - before <= 5 * 5
    )  # token buckets 16, 20, 24, 28, 32; row buckets 1, 4, 16, 64


def test_all_devices_compute_and_none_waits_for_another(encoder):
    mesh, texts = encoders.rows_mesh(), [f"text {'longer ' * (number % 5)}{number}" for number in range(40)]
    assert mesh.size == 8 == len(encoder.params["embeddings_norm"]["scale"].sharding.device_set)
    arguments = (mesh, encoder.config, "mean", encoder.params, *encoders.pad_rows([[1, 2]] * 16, (16, 16)))
    program = encoders._compiled_embed.lower(*arguments).compile()
    assert program.output_shardings.shard_shape((16, 16)) == (2, 16)
    for collective in ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter"):
        assert collective not in program.as_text()
    one = Encoder(encoder.config, encoder.settings, encoder.params, encoder.tokenizer, devices=3)
    assert one.params["embeddings_norm"]["scale"].sharding.device_set == {jax.local_devices()[3]}
    np.testing.assert_allclose(one.encode(texts), encoder.encode(texts), atol=1e-5)
    assert encoders.rows_mesh("cpu").devices.tolist() == jax.local_devices(backend="cpu")
    with pytest.raises(UserError, match="devices = 8"):
        encoders.rows_mesh(8)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 0), ("float16", 5e-3), ("bfloat16", 3e-2)])
def test_saved_encoders_are_read_back(encoder, tmp_path, dtype, tolerance):
    save_encoder(tmp_path / "e", encoder, dtype)
    loaded = load_encoder(tmp_path / "e")
    np.testing.assert_allclose(loaded.encode(TEXTS), encoder.encode(TEXTS), atol=tolerance + 1e-7)
    assert (loaded.fingerprint() == encoder.fingerprint()) == (dtype == "float32")
    assert (loaded.settings, loaded.config) == (encoder.settings, encoder.config)
    save_encoder(tmp_path / "again", loaded)
    assert load_encoder(tmp_path / "again").fingerprint() == loaded.fingerprint()
    assert load_encoder(tmp_path / "e", pooling="cls").fingerprint() != loaded.fingerprint()


# --- Folders that transformers writes ---

SENTENCES = (
    "The capital of France is Paris, and its currency the euro.",
    "Какая валюта используется в Японии? Иена.",
    "日本の通貨は円です。首都は東京です。",
    "العملة في مصر هي الجنيه",
    "กรุงเทพมหานคร เป็นเมืองหลวงของประเทศไทย",
    "naïve façade, 1999 and 2002; query: passage: [CLS]",
)
MODULES = [
    {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
    for number, (path, kind) in enumerate((("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")))
]
SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 52,
    "max_position_embeddings": 66,
}


def word_pieces() -> tokenizers.Tokenizer:
    """A WordPiece tokenizer as BERT's: [PAD] is 0, [CLS] text [SEP]."""
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
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
    ends = [("<s>", 0), ("</s>", 2)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=ends)
    return tokenizer


def write_checkpoint(folder, family, dtype=torch.float32, config=None, **save):
    """Writes a random model and its tokenizer as `save_pretrained` does; no tensor is near its usual start."""
    torch.manual_seed(0)
    tokenizer = {"bert": word_pieces, "xlm-roberta": unigrams}[family]()
    types = 2 if family == "bert" else 1
    sizes = SIZES | {"vocab_size": tokenizer.get_vocab_size() + 3, "type_vocab_size": types} | (config or {})
    model = transformers.AutoModel.from_config(transformers.AutoConfig.for_model(family, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    model.to(dtype).save_pretrained(folder, **save)
    pad, unknown = ("[PAD]", "[UNK]") if family == "bert" else ("<pad>", "<unk>")
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=64, pad_token=pad, unk_token=unknown
    ).save_pretrained(folder)
    return folder


def write_json(path, value):
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(value))


def pooled_of(folder, texts, pooling, max_tokens=64):
    """The pooled hidden states of the texts, each as `transformers` reads it from the folder, in one padded batch."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, dtype=torch.float32, add_pooling_layer=False).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=max_tokens, return_tensors="pt")
    with torch.no_grad():
        hidden = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).last_hidden_state
    mask = batch.attention_mask[..., None]
    return hidden[:, 0] if pooling == "cls" else (hidden * mask).sum(1) / mask.sum(1)


def unit(vectors):
    with torch.no_grad():
        return torch.nn.functional.normalize(vectors).numpy().astype(np.float32)


def vectors_of(*arguments, **options):
    return unit(pooled_of(*arguments, **options))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), "xlm-roberta")


@pytest.fixture
def folder(tmp_path, checkpoint):
    return shutil.copytree(checkpoint, tmp_path / "model")


def test_sources_of_settings(folder, caplog):
    """The caller, the files, then E5's, or no prefix for another of sentence-transformers; a guess is a warning."""

    def loaded(level, **given):
        caplog.clear()
        with caplog.at_level(logging.INFO, "lcrag"):
            settings = load_encoder(folder, **given).settings
        [record] = [record for record in caplog.records if record.name.startswith("lcrag.retrieval")]
        assert record.levelno == level
        return settings, record.getMessage()

    settings, line = loaded(logging.WARNING)
    assert settings == EncoderSettings(max_tokens=64)
    assert "pooling, query_prefix, passage_prefix" in line
    write_json(folder / encoders.MODULES_FILE, MODULES)
    write_json(folder / encoders.POOLING_FILE, {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False})
    write_json(folder / encoders.PROMPTS_FILE, {"prompts": {"query": "", "document": ""}})  # of a model without prompts
    assert loaded(logging.WARNING)[0] == EncoderSettings(
        pooling="cls", query_prefix="", passage_prefix="", max_tokens=64
    )
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", config | {"_name_or_path": "intfloat/multilingual-e5-small"})
    assert loaded(logging.INFO)[0] == EncoderSettings(pooling="cls", max_tokens=64)
    write_json(folder / encoders.PROMPTS_FILE, {"prompts": {"query": "ask: ", "document": "read: "}})
    write_json(folder / encoders.BODY_FILE, {"max_seq_length": 33, "do_lower_case": False})
    stated = {"pooling": "cls", "query_prefix": "ask: ", "passage_prefix": "read: ", "max_tokens": 33}
    assert loaded(logging.INFO)[0] == EncoderSettings(**stated)
    given = {"pooling": "mean", "query_prefix": "", "passage_prefix": "text: ", "max_tokens": 20}
    assert loaded(logging.INFO, **given)[0] == EncoderSettings(**given)


@pytest.mark.parametrize(
    "values, pooling",
    [
        ({"embedding_dimension": 32, "pooling_mode": "cls", "include_prompt": True}, "cls"),
        ({"pooling_mode": ["mean"]}, "mean"),
        ({"word_embedding_dimension": 32}, "mean"),
        ({"pooling_mode": "mean", "include_prompt": False}, "mean"),
    ],
)
def test_old_and_new_poolings_are_read(folder, values, pooling):
    write_json(folder / encoders.POOLING_FILE, values)
    assert load_encoder(folder, query_prefix="", passage_prefix="").settings.pooling == pooling


def test_a_body_in_a_folder_of_its_own_is_found(tmp_path, checkpoint):
    shutil.copytree(checkpoint, tmp_path / "e5" / "0_Transformer")
    write_json(tmp_path / "e5" / encoders.MODULES_FILE, [MODULES[0] | {"path": "0_Transformer"}, MODULES[1]])
    write_json(tmp_path / "e5" / encoders.POOLING_FILE, {"pooling_mode_mean_tokens": True})
    assert load_encoder(tmp_path / "e5").settings == EncoderSettings(max_tokens=64)


PLACES = {"e5-small": True, "models--intfloat--multilingual-e5-small/snapshots/0a1b": True}
PLACES |= {"multilingual-e5-large-instruct": False, "e5/models/mine": False}


@pytest.mark.parametrize("place", PLACES)
def test_e5_is_known_by_the_name_of_the_model(tmp_path, checkpoint, place):
    folder = shutil.copytree(checkpoint, tmp_path / place)
    write_json(folder / encoders.MODULES_FILE, MODULES)
    write_json(folder / encoders.POOLING_FILE, {"pooling_mode_mean_tokens": True})
    assert load_encoder(folder).settings.query_prefix == "query: " * PLACES[place]


def test_the_longest_text_has_positions(folder):
    write_json(folder / encoders.BODY_FILE, {"max_seq_length": 512})
    assert load_encoder(folder).settings.max_tokens == 64  # 66 rows, of which XLM-R's first two belong to no token
    (folder / encoders.BODY_FILE).unlink()
    path = folder / "tokenizer_config.json"
    for stated, expected in ((10**30, 64), (40, 40)):
        write_json(path, json.loads(path.read_text()) | {"model_max_length": stated})
        assert load_encoder(folder).settings.max_tokens == expected
    for impossible, named in ((65, "64 positions"), (2, "2 special tokens")):
        with pytest.raises(UserError, match=named):
            load_encoder(folder, max_tokens=impossible)


QUERY = "encoder.layer.1.attention.self.query.weight"
EXTRA = "encoder.layer.7.output.dense.bias"
DENSE = {"idx": 2, "name": "2", "path": "2_Dense", "type": "sentence_transformers.models.Dense"}


@pytest.mark.parametrize(
    ("file", "change", "named"),
    [
        ("model.safetensors", {QUERY: None}, QUERY),
        ("model.safetensors", {EXTRA: torch.zeros(32)}, EXTRA),
        ("model.safetensors", {QUERY: torch.zeros(32, 32, dtype=torch.int8)}, QUERY),
        ("config.json", {"model_type": "distilbert"}, "distilbert"),
        ("config.json", {"position_embedding_type": "relative_key"}, "relative_key"),
        ("config.json", {"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ("config.json", {"hidden_act": "swish"}, "swish"),
        ("config.json", {"hidden_size": 31}, "hidden_size"),
        ("config.json", {"hidden_size": ...}, "hidden_size"),  # absent
        ("config.json", {"num_hidden_layers": "3"}, "num_hidden_layers"),
        ("config.json", {"type_vocab_size": 0}, "type_vocab_size"),
        ("config.json", {"max_position_embeddings": 2}, "no position"),
        ("config.json", {"vocab_size": 5}, "embeddings.word_embeddings.weight"),
        ("config.json", {"num_hidden_layers": 2}, "encoder.layer.2."),
        (encoders.POOLING_FILE, {"pooling_mode": "lasttoken"}, "lasttoken"),
        (encoders.POOLING_FILE, {"pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True}, "max"),
        (encoders.POOLING_FILE, {"pooling_mode_mean_tokens": True, "include_prompt": False}, "include_prompt"),
        (encoders.MODULES_FILE, [*MODULES[:2], DENSE], "2_Dense/config.json"),  # which is absent
        (encoders.MODULES_FILE, [*MODULES[:2], DENSE | {"type": "sentence_transformers.models.LSTM"}], "LSTM"),
        (encoders.MODULES_FILE, [MODULES[0], DENSE, MODULES[1]], "Transformer, Dense, Pooling in this order"),
        (encoders.MODULES_FILE, [DENSE | {"path": "", "type": "x.StaticEmbedding"}], "embedding.weight"),
        (encoders.MODULES_FILE, [MODULES[0] | {"path": "../other"}], "outside"),
        (encoders.MODULES_FILE, MODULES, encoders.POOLING_FILE),  # which is absent
        *((file, None, file) for file in ("config.json", "model.safetensors", "tokenizer.json")),
        *((file, 20, file) for file in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")),
    ],
)
def test_folders_that_are_damaged_or_not_supported(folder, file, change, named):
    """None removes a file, a number truncates it, tensors are replaced, and JSON gets other values."""
    path = folder / file
    if change is None:
        path.unlink()
    elif isinstance(change, int):
        path.write_bytes(path.read_bytes()[:change])
    elif file == "model.safetensors":
        tensors = {name: tensor for name, tensor in safetensors.torch.load_file(path).items() if name not in change}
        tensors |= {name: tensor for name, tensor in change.items() if tensor is not None}
        safetensors.torch.save_file(tensors, path, metadata={"format": "pt"})
    elif isinstance(change, dict) and path.exists():
        changed = json.loads(path.read_text()) | change
        write_json(path, {name: value for name, value in changed.items() if value is not ...})
    else:
        write_json(path, change)
    with pytest.raises(UserError) as caught:
        load_encoder(folder)
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


def with_dense(folder, sizes, activations, bias=True):
    """Adds dense layers to a folder; returns them in PyTorch."""
    layers, entries = [], []
    for number, activation in enumerate(activations):
        place = folder / f"{number + 2}_Dense"
        place.mkdir()
        linear = torch.nn.Linear(*sizes[number : number + 2], bias=bias)
        tensors = {f"linear.{name}": value.detach().clone() for name, value in linear.named_parameters()}
        safetensors.torch.save_file(tensors, place / "model.safetensors")
        kind = f"{type(activation).__module__}.{type(activation).__name__}"
        values = {"in_features": linear.in_features, "out_features": linear.out_features, "bias": bias}
        write_json(place / "config.json", values | {"activation_function": kind})
        entries.append(DENSE | {"path": place.name})
        layers += [linear, activation]
    return torch.nn.Sequential(*layers), entries


def assert_kept(encoder, folder):
    """A saved copy gives the same vectors and has the same fingerprint."""
    save_encoder(folder, encoder)
    again = load_encoder(folder)
    assert (again.config, again.settings) == (encoder.config, encoder.settings)
    assert again.fingerprint() == encoder.fingerprint()
    np.testing.assert_array_equal(again.encode(TEXTS), encoder.encode(TEXTS))


@pytest.mark.parametrize(
    ("sizes", "activations", "bias"),
    [((32, 24), (torch.nn.Tanh(),), True), ((32, 40, 16), (torch.nn.Identity(), torch.nn.GELU()), False)],
    ids=str,
)
def test_dense_layers_follow_the_pooling(tmp_path, folder, sizes, activations, bias):
    write_json(folder / encoders.POOLING_FILE, {"pooling_mode": "mean"})
    layers, entries = with_dense(folder, sizes, activations, bias)
    write_json(folder / encoders.MODULES_FILE, [*MODULES[:2], *entries, MODULES[2]])
    encoder = load_encoder(folder)
    assert encoder.dimension == sizes[-1]
    np.testing.assert_allclose(encoder.encode(TEXTS), unit(layers(pooled_of(folder, TEXTS, "mean"))), atol=1e-5)
    assert_kept(encoder, tmp_path / "saved")
    values = json.loads((folder / "2_Dense" / "config.json").read_text())
    for changes, named in (
        ({"activation_function": "torch.nn.modules.activation.Mish"}, "activation_function Mish"),
        ({"in_features": 33}, "takes 33 numbers"),
        ({"out_features": 7}, "linear.weight|gives 7"),  # to the next layer
        ({"bias": "yes"}, "bias"),
    ):
        write_json(folder / "2_Dense" / "config.json", values | changes)
        with pytest.raises(UserError, match=named):
            load_encoder(folder)


@pytest.mark.parametrize("name", ["embedding.weight", "embeddings"])
@pytest.mark.parametrize("dense", [False, True])
def test_static_embeddings_are_means_of_rows(tmp_path, folder, name, dense):
    source = tmp_path / "static"
    (source / "0_StaticEmbedding").mkdir(parents=True)
    shutil.copy(folder / "tokenizer.json", source / "0_StaticEmbedding")
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    table = torch.randn(backend.get_vocab_size(), 32, generator=torch.Generator().manual_seed(0))
    safetensors.torch.save_file({name: table}, source / "0_StaticEmbedding" / "model.safetensors")
    layers, entries = with_dense(source, (32, 8), (torch.nn.Tanh(),)) if dense else (torch.nn.Identity(), [])
    static = {"path": "0_StaticEmbedding", "type": "sentence_transformers.models.StaticEmbedding"}
    write_json(source / encoders.MODULES_FILE, [static, *entries])
    assert encoders.encoder_folder(str(source), "QuestionEncoder.folder") == source  # although it has no config.json
    encoder, texts = load_encoder(source), [text for text in TEXTS if text]
    ids = [backend.encode(text, add_special_tokens=False).ids for text in texts]
    starts = torch.tensor(np.cumsum([0] + [len(each) for each in ids])[:-1])
    bag = torch.nn.functional.embedding_bag(torch.tensor(sum(ids, [])), table, starts, mode="mean")
    np.testing.assert_allclose(encoder.encode(texts), unit(layers(bag)), atol=1e-5)
    assert_kept(encoder, tmp_path / "saved")


def test_a_tokenizer_with_more_tokens_than_embeddings_and_pickled_weights(folder):
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["model"]["vocab"] += [[f"extra{number}", -9.0] for number in range(900)]
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match=r"tokens.*embeddings"):
        load_encoder(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="pytorch_model.bin"):
        load_encoder(folder)
    with pytest.raises(UserError, match="no such folder"):
        load_encoder(folder / "absent")
    with pytest.raises(UserError, match="QuestionEncoder.folder names .*, which holds no encoder"):
        encoders.encoder_folder(str(folder.parent), "QuestionEncoder.folder")


# --- The vectors are those of transformers ---

# From one token to more than there are positions, so that every bucket of rows and tokens has its turn.
PARITY_TEXTS = [
    *SENTENCES,
    "",
    "a",
    " ".join(SENTENCES[:2]),
    " ".join(SENTENCES),
    *(f"{SENTENCES[number % 6]} {number}" for number in range(20)),
]


def _cosines(ours, theirs):
    assert ours.dtype == np.float32
    assert ours.shape == theirs.shape
    np.testing.assert_allclose(np.linalg.norm(ours, axis=1), 1, atol=1e-5)
    return (ours.astype(np.float64) * theirs).sum(1)


@pytest.fixture(scope="module", params=["bert", "xlm-roberta"])
def written(request, tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp(request.param) / "model", request.param)


def test_vectors_are_those_of_transformers(written):
    pooling = "mean" if "xlm" in str(written) else "cls"
    encoder = load_encoder(written, pooling=pooling)
    padding = "<pad>" if isinstance(encoder.config, XlmRobertaConfig) else "[PAD]"
    texts = [*PARITY_TEXTS, f"one {padding} two {padding}{padding} three", " ".join(SENTENCES * 2)]
    assert len(encoder.tokenize(texts[-1:], "passage")[0]) == encoder.settings.max_tokens == 64
    expected = vectors_of(written, [f"passage: {text}" for text in texts], pooling)
    vectors = encoder.encode(texts, "passage")
    assert _cosines(vectors, expected).min() >= 0.99999
    # Alone, and in fives a text is padded to other shapes.
    for rows in (slice(1), slice(3, 8), slice(9, 10)):
        assert _cosines(encoder.encode(texts[rows], "passage"), expected[rows]).min() >= 0.99999
    # What the vectors of all texts have in common, which makes any two alike, is no evidence.
    apart = expected - expected.mean(axis=0)
    assert np.abs(vectors - expected).max() <= 1e-3 * np.abs(apart).max()


@pytest.mark.parametrize(
    ("family", "stored"),
    [
        ("bert", {"dtype": torch.bfloat16, "max_shard_size": "20KB"}),
        ("bert", {"dtype": torch.float16}),
        ("xlm-roberta", {"dtype": torch.bfloat16}),
        ("xlm-roberta", {"config": {"pad_token_id": 0}}),  # as T5's tokenizer has it: positions count from 1
    ],
)
def test_half_precision_weights_and_shards_are_read(tmp_path, family, stored):
    write_checkpoint(tmp_path / "e5", family, **stored)
    assert (len(list((tmp_path / "e5").glob("*.safetensors"))) > 2) == ("max_shard_size" in stored)
    expected = vectors_of(tmp_path / "e5", [f"query: {text}" for text in PARITY_TEXTS[:9]], "mean")
    assert _cosines(load_encoder(tmp_path / "e5").encode(PARITY_TEXTS[:9]), expected).min() >= 0.99999


def test_a_saved_encoder_is_the_same_in_transformers(written, tmp_path):
    save_encoder(tmp_path / "saved", load_encoder(written, pooling="mean"))
    prompts = json.loads((tmp_path / "saved" / "config_sentence_transformers.json").read_text())["prompts"]
    assert prompts == {"query": "query: ", "passage": "passage: ", "document": "passage: "}
    np.testing.assert_allclose(
        vectors_of(written, PARITY_TEXTS, "cls"), vectors_of(tmp_path / "saved", PARITY_TEXTS, "cls"), atol=1e-6
    )


def test_texts_are_put_in_lower_case_where_the_folder_says_so(folder, tmp_path):
    write_json(folder / encoders.BODY_FILE, {"max_seq_length": 48, "do_lower_case": True})
    encoder = load_encoder(folder, query_prefix="", passage_prefix="")
    expected = vectors_of(folder, [text.lower() for text in PARITY_TEXTS], "mean", max_tokens=48)
    assert _cosines(encoder.encode(PARITY_TEXTS), expected).min() >= 0.99999
    assert_kept(encoder, tmp_path / "saved")
