"""Trains the encoder of the atlas from scratch, in minutes on two CPU cores.

    python -m lcrag.commands.build.encoder --output_dir=FOLDER [--steps=1000] [--seed=0]

Only training facts are used. Held-out facts are about entities of other training facts; unseen entities occur in no
training fact.
"""

import argparse
import dataclasses
import datetime
import itertools
import os
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
import tokenizers
from jaxtyping import Float

from lcrag.atlas.fact_sampler import FactSampler
from lcrag.atlas.facts import Fact, section_of, subject_of
from lcrag.atlas.splits import mentioned_entities
from lcrag.atlas.vocabulary import SHIPPED_FOLDER as TOKENIZER_FOLDER
from lcrag.atlas.world import Chain, World, build_world
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.data.questions import Question
from lcrag.policy import load_tokenizer
from lcrag.retrieval import (
    BertConfig,
    ContrastiveConfig,
    Encoder,
    EncoderSettings,
    Pair,
    initialise_encoder,
    load_encoder,
    save_encoder,
    train_encoder,
)
from lcrag.retrieval.index import exact_search
from lcrag.retrieval.passages import passage_text

# Shares of pairs whose query is in the passage's language, and whose query is a whole question.
_NATIVE = 0.25
_QUESTIONS = 0.3
# One text in a hundred is longer; the end of its value is cut.
TRAINING_TOKENS = 56
RECALL_DEPTHS = (1, 3)
COMMAND = "python -m lcrag.commands.build.encoder --output_dir=lcrag/atlas/weights/encoder"
LICENCES = "Licences: `LICENSES.md` of the folder `lcrag/atlas/weights`."


def train_atlas_encoder(
    world: World,
    tokenizer: tokenizers.Tokenizer,
    config: ContrastiveConfig,
    seed: int,
    progress: Callable[[int, dict[str, float]], None],
) -> Encoder:
    """Trains an encoder of about a million parameters on the training facts of a world."""
    sizes = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=384,
        max_position_embeddings=96,
        hidden_act="gelu_new",
    )
    start = initialise_encoder(
        sizes, EncoderSettings(query_prefix="? ", passage_prefix=": ", max_tokens=96), tokenizer, seed
    )
    return train_encoder(start, atlas_pairs(world, config.batch, seed), config, progress)


def atlas_pairs(world: World, batch: int, seed: int) -> Iterator[Pair]:
    """Yields batches of pairs without end; the passages of a batch are in one language, as in a collection.

    A batch contains all facts of an entity, so the negatives of a passage are other facts of its entity, which teach
    the relation, and facts of other entities, which teach the names.
    """
    generator = np.random.default_rng(seed)
    entities, facts = _facts_by_entity(world), FactSampler(world)
    while True:
        language = str(generator.choice(LCRL_LANGUAGES))
        shuffled = (entities[index] for index in generator.permutation(len(entities)))
        for fact in itertools.islice(itertools.chain.from_iterable(shuffled), batch):
            asked_in = language if generator.random() < _NATIVE else str(generator.choice(LCRL_LANGUAGES))
            question = world.question(Chain((fact,)), asked_in)
            query = question.text if generator.random() < _QUESTIONS else question.extra["query"]
            passage = facts.passage(generator, fact, language)
            yield Pair(query=query, passage=passage_text(passage), group=section_of(fact))


def _facts_by_entity(world: World) -> list[list[Fact]]:
    entities: dict[str, list[Fact]] = {}
    for fact in world.facts:
        if world.splits[fact.id] == "train":
            entities.setdefault(fact.subject, []).append(fact)
    return list(entities.values())


@dataclasses.dataclass(frozen=True)
class EncodedCollection:
    """Passage vectors of one language, and the row of each fact's passage."""

    vectors: Float[np.ndarray, "passages width"]
    row_of: dict[str, int]


def encode_collections(world: World, encoder: Encoder) -> list[EncodedCollection]:
    """Encodes the collection of every language, in the order of LCRL_LANGUAGES."""
    collections = []
    for language in LCRL_LANGUAGES:
        passages = world.passages(language)
        vectors = encoder.encode([passage_text(passage) for passage in passages], "passage")
        row_of = {passage.id.split("/", 1)[1]: row for row, passage in enumerate(passages)}
        collections.append(EncodedCollection(vectors, row_of))
    return collections


def measure_recall(
    world: World, encoder: Encoder, collections: Sequence[EncodedCollection], split: str, form: str
) -> Float[np.ndarray, "asked searched depths"]:
    """Measures recall@1 and @3 of the one-hop facts of a split, by query language and collection.

    Only searches whose collection contains a passage of the fact, current or outdated, are counted.

    Args:
      form: "query" (the search query of a demonstration) or "question".
    """
    recall = np.zeros((len(LCRL_LANGUAGES), len(collections), len(RECALL_DEPTHS)))
    for row, language in enumerate(LCRL_LANGUAGES):
        questions = _measured_questions(world, split, language)
        texts = [question.text if form == "question" else question.extra["query"] for question in questions]
        queries = encoder.encode(texts, "query")
        for column, collection in enumerate(collections):
            sections = [section_of(world.last_facts[question.id]) for question in questions]
            held = [index for index, section in enumerate(sections) if section in collection.row_of]
            wanted = np.array([collection.row_of[sections[index]] for index in held])
            found = exact_search(collection.vectors, queries[held], max(RECALL_DEPTHS)) == wanted[:, None]
            recall[row, column] = [found[:, :depth].any(axis=1).mean() for depth in RECALL_DEPTHS]
    return recall


def _measured_questions(world: World, split: str, language: str) -> list[Question]:
    """Returns the one-hop questions of a split; of "unseen", only those whose subject is in no training fact."""
    train = [fact for fact in world.facts if world.splits[fact.id] == "train"]
    known = {entity for fact in train for entity in (subject_of(fact), *mentioned_entities(fact))}
    questions = world.questions(split, languages=(language,))
    return [each for each in questions if split != "unseen" or tuple(each.extra["subject"]) not in known]


def native_and_cross(recall: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the means of `measure_recall` over languages, and over ordered pairs of different languages."""
    own = np.eye(len(recall), dtype=bool)
    return recall[own].mean(axis=0), recall[~own].mean(axis=0)


def model_card(world: World, encoder: Encoder, config: ContrastiveConfig, seed: int, seconds: float) -> str:
    """Returns the README of the encoder: description, training and recall."""
    collections = encode_collections(world, encoder)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(encoder.params))
    lines = [
        "# The atlas's encoder",
        "",
        f"A dual encoder of {parameters:,} parameters (BERT body, {encoder.config.num_hidden_layers} layers, "
        f"{encoder.dimension} wide, mean pooling) for the atlas's questions and passages in thirteen languages. "
        "It knows nothing else.",
        "",
        f"Made on {datetime.date.today()} by `{COMMAND} --steps={config.steps} --seed={seed}` in {seconds:.0f} seconds "
        f"({os.cpu_count()} CPU cores), from scratch, contrastively (InfoNCE, batch {config.batch}), on training facts "
        f"of the world {world.fingerprint()}; stored as float16. Fingerprint {encoder.fingerprint()}.",
        "",
        "Recall, the searched collection holding a passage of the fact. Held-out facts are about entities known from "
        "other facts; unseen entities occur in no training fact. Native: the collection of the query's own "
        "language, mean of 13. Across: every other collection, mean of the 156 ordered pairs; the worst pair beside.",
        "",
        "| facts | asked as | native @1 | native @3 | across @1 | across @3 | worst pair @3 |",
        "|---|---|---|---|---|---|---|",
    ]
    for split, form in itertools.product(("held_out", "unseen"), ("query", "question")):
        recall = measure_recall(world, encoder, collections, split, form)
        figures = np.concatenate([*native_and_cross(recall), recall[..., -1].min(keepdims=True).ravel()])
        lines.append(
            f"| {split.replace('_', ' ')} | {form} | " + " | ".join(f"{figure:.3f}" for figure in figures) + " |"
        )
    return "\n".join([*lines, "", LICENCES]) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains and saves the encoder with its model card, replacing an existing one at the end."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Trains the atlas's encoder from scratch.")
    parser.add_argument("--output_dir", required=True, type=pathlib.Path)
    parser.add_argument("--tokenizer", type=pathlib.Path, default=TOKENIZER_FOLDER)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    world, tokenizer = build_world(seed=0), load_tokenizer(options.tokenizer).backend
    config = ContrastiveConfig(steps=options.steps, tokens=TRAINING_TOKENS)
    start = time.perf_counter()
    encoder = train_atlas_encoder(world, tokenizer, config, options.seed, _print_progress)
    seconds = time.perf_counter() - start
    save_encoder(options.output_dir, encoder, dtype="float16")
    stored = load_encoder(options.output_dir)
    card = model_card(world, stored, config, options.seed, seconds)
    (options.output_dir / "README.md").write_text(card)
    print(card)


def _print_progress(step: int, metrics: dict[str, float]) -> None:
    if step % 50 == 0:
        print(f"step {step}: loss {metrics['loss']:.3f}", flush=True)


if __name__ == "__main__":
    main()
