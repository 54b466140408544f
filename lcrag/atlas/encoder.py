"""Trains the tokenizer and the encoder of the atlas from scratch, in minutes on two CPU cores, and measures recall.

Only training facts are used. Held-out facts are about entities of other training facts; unseen entities occur in no
training fact.
"""

import collections
import itertools
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import jax
import numpy as np
import tokenizers
from jaxtyping import Float
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from lcrag.atlas.facts import Fact, query_text, section_of, subject_of
from lcrag.atlas.world import Chain, Entry, FactSampler, World, mentioned_entities, render_passage
from lcrag.data.questions import LCRL_LANGUAGES
from lcrag.retrieval import (
    BertConfig,
    ContrastiveConfig,
    Encoder,
    EncoderSettings,
    Pair,
    initialise_encoder,
    train_encoder,
)
from lcrag.retrieval.collections import exact_search
from lcrag.retrieval.passages import passage_text

# --- The tokenizer ---

# A byte-level BPE in which names and values have the same tokens everywhere. Pre-tokens are words with the preceding
# space (as in GPT-2), split where the script changes; digits and punctuation are separate.
VOCABULARY_SIZE = 4096
PADDING = "<pad>"  # id 0, seqio's padding id
END_OF_SEQUENCE = "<eos>"
TAG_NAMES = (
    *("think", "search", "information", "answer", "observation", "original_evidence"),
    *("plan", "subPlan", "subAnswer", "tool_call", "tool_response"),
)
SHIPPED_FOLDER = pathlib.Path(__file__).parent / "weights" / "tokenizer"

_CUT_SCRIPTS = (
    r"\p{Han}",
    r"[\p{Katakana}ー]",
    r"\p{Hiragana}",
    r"\p{Thai}",
    r"\p{Hangul}",
    r"\p{Arabic}",
    r"\p{Cyrillic}",
)
_OTHER_LETTERS = rf"[[\p{{L}}\p{{M}}\x{{200C}}]&&[^{''.join(_CUT_SCRIPTS)}]]"
_PRE_TOKEN = "|".join(
    (*(rf" ?{script}+" for script in (*_CUT_SCRIPTS, _OTHER_LETTERS)), r" ?\p{N}", r" ?[^\s\p{L}\p{M}\p{N}]", r"\s")
)


def tags() -> list[str]:
    """Returns the opening and closing tags of every method, each of which is one token."""
    return [form.format(name) for name in TAG_NAMES for form in ("<{}>", "</{}>")]


def training_text(world: World, language: str) -> Iterator[str]:
    """Yields the training text of a language: questions, queries and passages of training facts, without years."""
    for question in world.questions("train", (language,)):
        yield f" {question.text}"
    sections = collections.defaultdict(list)
    for fact in world.training_facts:
        yield f" {query_text(language, fact.relation, world.name(subject_of(fact), language).text)}"
        sections[section_of(fact)].append((fact, Entry(fact.value, None)))
    for statements in sections.values():
        yield f" {render_passage(world.written_passage('', language, statements))}\n"


def train_tokenizer(world: World, extra_text: Iterable[str] = ()) -> Tokenizer:
    """Trains the tokenizer; the same world and text give the same vocabulary.

    Languages have equal weight, because all have the same training facts; repeated lines of `extra_text` have more.
    """
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_PRE_TOKEN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE - len([END_OF_SEQUENCE, *tags()]),
        special_tokens=[PADDING],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    lines = [line for language in LCRL_LANGUAGES for line in training_text(world, language)]
    tokenizer.train_from_iterator([*lines, *extra_text], trainer)
    tokenizer.add_special_tokens([AddedToken(END_OF_SEQUENCE, normalized=False, special=True)])
    tokenizer.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in tags()])
    return tokenizer


# --- The encoder ---

# Shares of pairs whose query is in the passage's language, and whose query is a whole question.
_NATIVE, _QUESTIONS = 0.25, 0.3
# One text in a hundred is longer; the end of its value is cut.
TRAINING_TOKENS = 56
RECALL_DEPTHS = (1, 3)

# Language -> vectors of its passages, and the row of each section's passage.
EncodedCollections: TypeAlias = Mapping[str, tuple[Float[np.ndarray, "passages width"], Mapping[str, int]]]


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
    settings = EncoderSettings(query_prefix="? ", passage_prefix=": ", max_tokens=96)
    start = initialise_encoder(sizes, settings, tokenizer, seed)
    return train_encoder(start, atlas_pairs(world, config.batch, seed), config, progress)


def atlas_pairs(world: World, batch: int, seed: int) -> Iterator[Pair]:
    """Yields batches of pairs without end; the passages of a batch are in one language, as in a collection.

    A batch contains all facts of an entity, so the negatives of a passage are other facts of its entity, which teach
    the relation, and facts of other entities, which teach the names.
    """
    generator, sampler = np.random.default_rng(seed), FactSampler(world)
    by_entity: dict[str, list[Fact]] = {}
    for fact in world.training_facts:
        by_entity.setdefault(fact.subject, []).append(fact)
    entities = list(by_entity.values())
    while True:
        language = str(generator.choice(LCRL_LANGUAGES))
        shuffled = (entities[index] for index in generator.permutation(len(entities)))
        for fact in itertools.islice(itertools.chain.from_iterable(shuffled), batch):
            asked_in = language if generator.random() < _NATIVE else str(generator.choice(LCRL_LANGUAGES))
            question = world.question(Chain((fact,)), asked_in)
            query = question.text if generator.random() < _QUESTIONS else question.extra["query"]
            passage = sampler.passage(generator, fact, language)
            yield Pair(query=query, passage=passage_text(passage), group=section_of(fact))


def encode_collections(world: World, encoder: Encoder, languages: Sequence[str] = LCRL_LANGUAGES) -> EncodedCollections:
    """Encodes the collection of every language."""
    collections = {}
    for language in languages:
        passages = world.passages(language)
        vectors = encoder.encode([passage_text(passage) for passage in passages], "passage")
        collections[language] = vectors, {passage.id.split("/", 1)[1]: row for row, passage in enumerate(passages)}
    return collections


def measure_recall(
    world: World, encoder: Encoder, collections: EncodedCollections, split: str, form: str
) -> Float[np.ndarray, "asked searched depths"]:
    """Measures recall@1 and @3 of the one-hop facts of a split, by query language and collection.

    Only searches whose collection contains a passage of the fact, current or outdated, are counted. Of the split
    "unseen" only the questions whose subject is in no training fact are asked. `form` is "query" or "question".
    """
    taught = {entity for fact in world.training_facts for entity in (subject_of(fact), *mentioned_entities(fact))}
    recall = np.zeros((len(collections), len(collections), len(RECALL_DEPTHS)))
    for row, language in enumerate(collections):
        questions = world.questions(split, languages=(language,))
        questions = [q for q in questions if split != "unseen" or tuple(q.extra["subject"]) not in taught]
        texts = [question.text if form == "question" else question.extra["query"] for question in questions]
        sections = [section_of(world.last_facts[question.id]) for question in questions]
        queries = encoder.encode(texts, "query")
        for column, (vectors, row_of) in enumerate(collections.values()):
            held = [index for index, section in enumerate(sections) if section in row_of]
            wanted = np.array([row_of[sections[index]] for index in held])
            hits = exact_search(vectors, queries[held], max(RECALL_DEPTHS)) == wanted[:, None]
            recall[row, column] = [hits[:, :depth].any(axis=1).mean() for depth in RECALL_DEPTHS]
    return recall


def native_and_cross(recall: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the means of `measure_recall` over languages, and over ordered pairs of different languages."""
    native = np.eye(len(recall), dtype=bool)
    return recall[native].mean(axis=0), recall[~native].mean(axis=0)


def encoder_card(world: World, encoder: Encoder, made: str) -> str:
    """Returns the README of the encoder: how it was made, sizes, recall."""
    collections = encode_collections(world, encoder)
    parameters = sum(leaf.size for leaf in jax.tree.leaves(encoder.params))
    card = (
        "# The atlas's encoder\n\n"
        f"A dual encoder of {parameters:,} parameters (BERT body, {encoder.config.num_hidden_layers} layers,"
        f" {encoder.dimension} wide, mean pooling) for the atlas's questions and passages in thirteen languages.\n\n"
        f"{made} ({os.cpu_count()} CPU cores), from scratch, contrastively (InfoNCE), on training facts of the world"
        f" {world.fingerprint()}; stored as float16. Fingerprint {encoder.fingerprint()}.\n\n"
        "Recall, the searched collection holding a passage of the fact. Held-out facts are about entities known from"
        " other facts; unseen entities occur in no training fact. Native: the collection of the query's language, mean"
        " of 13. Across: every other collection, mean of the 156 ordered pairs; and the worst pair.\n\n"
        "| facts | asked as | native @1 | native @3 | across @1 | across @3 | worst pair @3 |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    for split, form in itertools.product(("held_out", "unseen"), ("query", "question")):
        recall = measure_recall(world, encoder, collections, split, form)
        figures = [*np.concatenate(native_and_cross(recall)), recall[..., -1].min()]
        card += f"| {split.replace('_', ' ')} | {form} | {' | '.join(f'{figure:.3f}' for figure in figures)} |\n"
    return card
