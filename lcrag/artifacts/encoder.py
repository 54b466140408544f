"""Trains the atlas's encoder from scratch: `python -m lcrag.artifacts.encoder --output_dir=FOLDER` (minutes on two cores).

It sees training facts only. Held-out facts are about entities that it knows from other facts; unseen
entities it has never read a name of.
"""

import argparse
import datetime
import itertools
import pathlib
import time
from collections.abc import Iterator, Sequence

import numpy as np
import tokenizers

from lcrag.data.atlas import Fact, World, build_world
from lcrag.data.atlas.vocabulary import SHIPPED_FOLDER as TOKENIZER_FOLDER
from lcrag.data.languages import LCRL_LANGUAGES
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
from lcrag.retrieval.building import passage_text
from lcrag.retrieval.index import exact_search

# Shares of the pairs whose query is in the collection's own language, and whose query is a whole question.
_NATIVE = 0.25
_QUESTIONS = 0.3
RECALL_DEPTHS = (1, 3)


def train_atlas_encoder(
    world: World, tokenizer: tokenizers.Tokenizer, config: ContrastiveConfig, seed: int = 0, progress=None
) -> Encoder:
    """An encoder of about a million parameters, trained on the world's training facts."""
    sizes = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=384,
        max_position_embeddings=64,
    )
    start = initialise_encoder(sizes, EncoderSettings(max_tokens=64), tokenizer, seed)
    return train_encoder(start, atlas_pairs(world, config.batch, seed), config, progress or (lambda *_: None))


def atlas_pairs(world: World, batch: int, seed: int) -> Iterator[Pair]:
    """Endless batches of pairs; all passages of a batch are in one language, as all rivals in a collection are.

    A batch takes entities whole, so that each passage's rivals are the entity's other facts (which
    teach the relation) as well as the same facts of others (which teach the names).
    """
    generator = np.random.default_rng(seed)
    entities = _facts_by_entity(world)
    while True:
        language = str(generator.choice(LCRL_LANGUAGES))
        shuffled = (entities[index] for index in generator.permutation(len(entities)))
        for fact in itertools.islice(itertools.chain.from_iterable(shuffled), batch):
            asked_in = language if generator.random() < _NATIVE else str(generator.choice(LCRL_LANGUAGES))
            question = world.question(fact, asked_in)
            query = question.text if generator.random() < _QUESTIONS else question.extra["query"]
            yield Pair(query=query, passage=passage_text(world.passage(fact, language)), group=fact.id)


def _facts_by_entity(world: World) -> list[list[Fact]]:
    entities: dict[str, list[Fact]] = {}
    for fact in world.facts:
        if world.splits[fact.id] == "train":
            entities.setdefault(fact.subject, []).append(fact)
    return list(entities.values())


def measure_recall(world: World, encoder: Encoder, split: str, form: str = "query") -> np.ndarray:
    """Recall@1 and @3 of a split's one-hop facts, by language asked in and collection searched.

    A search counts if the collection holds a passage of the fact, current or outdated; finding it is a success.

    Args:
      form: "query", the search query that a demonstration writes, or "question", the question itself.

    Returns:
      float[languages asked, languages searched, depths].
    """
    asked = [_asked(world, encoder, split, language, form) for language in LCRL_LANGUAGES]
    recall = np.zeros((len(LCRL_LANGUAGES), len(LCRL_LANGUAGES), len(RECALL_DEPTHS)))
    for column, language in enumerate(LCRL_LANGUAGES):
        passages = world.passages(language)
        row_of = {passage.id.split("/", 1)[1]: row for row, passage in enumerate(passages)}
        vectors = encoder.encode([passage_text(passage) for passage in passages], "passage")
        for row, (facts, queries) in enumerate(asked):
            held = [index for index, fact in enumerate(facts) if fact in row_of]
            found = exact_search(vectors, queries[held], max(RECALL_DEPTHS))
            right = found == np.array([row_of[facts[index]] for index in held])[:, None]
            recall[row, column] = [right[:, :depth].any(axis=1).mean() for depth in RECALL_DEPTHS]
    return recall


def _asked(world: World, encoder: Encoder, split: str, language: str, form: str) -> tuple[list[str], np.ndarray]:
    questions = world.questions(split, languages=(language,), hops=1)
    texts = [question.text if form == "question" else question.extra["query"] for question in questions]
    return [question.id for question in questions], encoder.encode(texts, "query")


def native_and_cross(recall: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Means over languages, and over ordered pairs of different languages, of `measure_recall`'s table."""
    own = np.eye(len(recall), dtype=bool)
    return recall[own].mean(axis=0), recall[~own].mean(axis=0)
