"""The work that lcrag and its peers do, equal for all: model, texts and vectors. Runs in every environment."""

import os
import pathlib
import sys
from collections.abc import Callable, Mapping

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

SMOKE = os.environ.get("LCRAG_SMOKE") == "1"  # sizes at which everything runs in seconds and figures mean nothing
TOKENIZER = pathlib.Path(__file__).parents[2] / "lcrag" / "atlas" / "weights" / "tokenizer" / "tokenizer.json"
CACHE = pathlib.Path(os.environ.get("LCRAG_PEERS", "~/.cache/lcrag-peers")).expanduser()

# 5.0 million parameters, float32, tied embeddings, Qwen2's attention biases.
VOCABULARY, WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_WIDTH, MLP_WIDTH, POSITIONS = 4096, 256, 4, 4, 2, 64, 1024, 1024
EPISODES, PROMPT, NEW, SAMPLED, OBSERVED = (8, 16, 8, 4, 8) if SMOKE else (64, 64, 128, 32, 64)
PROMPTS, SAMPLES, STEPS = (2, 4, 2) if SMOKE else (8, 8, 4)
VECTORS, VECTOR_WIDTH, CLUSTERS, QUERIES, NEIGHBOURS = 5_000 if SMOKE else 200_000, 256, 2_000, 2_048, 10
QUERY_BATCH, RECALL = 256, 0.95
REPEATS = 1 if SMOKE else 3

GENERATION = f"generation, {EPISODES} x ({PROMPT} + {NEW})"
STEP = f"whole step, {PROMPTS} x {SAMPLES} episodes of {PROMPT} + {NEW} tokens, with a reference"
RETRIEVAL = f"retrieval, {VECTORS:,} x {VECTOR_WIDTH}, recall@{NEIGHBOURS} of at least {RECALL}"


def rollouts(turns: int) -> str:
    """Names the work of multi-turn rollouts, as `benchmarks/sampling.py` does."""
    return f"rollouts, {turns} turns"


def texts(count: int, tokens: int, seed: int) -> list[str]:
    """Returns texts of words that are one token each, alone and together."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    words = [tokenizer.decode([number]) for number in range(tokenizer.get_vocab_size())]
    words = [word for word in words if word[:1] == " " and word[1:].isascii() and word[1:].isalpha()]
    words = [word for word in words if len(tokenizer.encode(word * 2).ids) == 2]
    random = np.random.default_rng(seed)
    drawn = ["".join(random.choice(words, tokens)) for _ in range(count)]
    assert all(len(tokenizer.encode(text).ids) == tokens for text in drawn)
    return drawn


def fast_tokenizer():
    """Returns the tokenizer for `transformers`."""
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "<pad>", "eos_token": "<pad>"}
    return PreTrainedTokenizerFast(tokenizer_file=str(TOKENIZER), padding_side="left", **special)


def vectors() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns unit vectors, queries and the exact neighbours of these; kept in a file.

    A mixture of Gaussians whose variance falls as 1/i over the dimensions, like that of text embeddings: with white
    noise the clusters lie so far apart that every index finds all neighbours.
    """
    path = CACHE / f"vectors_{VECTORS}.npz"
    if not path.exists():
        random = np.random.default_rng(0)
        spectrum = np.arange(1, VECTOR_WIDTH + 1) ** -0.5
        rotation = np.linalg.qr(random.standard_normal((VECTOR_WIDTH, VECTOR_WIDTH)))[0]
        shape = (spectrum / np.linalg.norm(spectrum))[:, None] * rotation
        centres = random.standard_normal((CLUSTERS, VECTOR_WIDTH)) @ shape

        def drawn(count: int) -> np.ndarray:
            found = centres[random.integers(0, CLUSTERS, count)]
            found = found + 0.8 * random.standard_normal((count, VECTOR_WIDTH)) @ shape
            return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32)

        stored, queries = drawn(VECTORS), drawn(QUERIES)
        near = [np.argsort(-(part @ stored.T), axis=1)[:, :NEIGHBOURS] for part in np.array_split(queries, 16)]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.with_suffix(".part").open("wb") as file:
            np.savez(file, stored=stored, queries=queries, near=np.concatenate(near))
        path.with_suffix(".part").rename(path)
    with np.load(path) as kept:
        return kept["stored"], kept["queries"], kept["near"]


def recall(found: np.ndarray, near: np.ndarray) -> float:
    """Returns the share of the exact neighbours that were found."""
    pairs = zip(found.tolist(), near.tolist(), strict=True)
    return float(np.mean([len({*one} & {*other}) / len(other) for one, other in pairs]))


def run(parts: Mapping[str, Callable[[], None]]) -> None:
    """Runs the parts that the command line names, and ends at once: some peers leave threads that never end."""
    for name in sys.argv[1:]:
        parts[name]()
    sys.stdout.flush()
    os._exit(0)
