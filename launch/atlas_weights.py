"""Trains the tokenizer, encoder and policies of the atlas from scratch, with model cards.

`python launch/atlas_weights.py FOLDER [tokenizer] [encoder] [pretrained] [policies]` takes about three hours on two CPU
cores; the same command continues after an interruption.

The encoder is trained and its recall measured in minutes. Only training facts are used. Held-out facts are about
entities of other training facts; unseen entities occur in no training fact.

The policies learn copying, reading, judging, noting and translating, which stand in for a pretrained multilingual
model: copying teaches the induction circuit, the others teach to use passages in all thirteen languages. Then SFT on
random searches, short or long, teaches the format of the program, but not when to search.
"""

import argparse
import collections
import contextlib
import dataclasses
import datetime
import functools
import itertools
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
import tokenizers
from contrastive import ContrastiveConfig, Pair, train_encoder
from jaxtyping import Bool, Float
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from lcrag.atlas.facts import UNREAD, Fact, query_text, section_of, sentence_text, subject_of
from lcrag.atlas.oracle import RandomSearcher, read_texts
from lcrag.atlas.world import (
    DATED_SHARE,
    PRESENT_YEARS,
    STALE_YEARS,
    STATED_SHARE,
    Chain,
    Entry,
    World,
    atlas_collections,
    atlas_world,
    mentioned_entities,
)
from lcrag.config import configure
from lcrag.curation.rows import RowContext, demonstrate
from lcrag.data.questions import LCRL_LANGUAGES
from lcrag.episodes import RETHINK, Chat, EpisodeRecord, Search
from lcrag.episodes.tags import Invalid, parse_action
from lcrag.learning import Layout, Supervised, Trajectory, adamw, initial_state, make_update, pack
from lcrag.learning.checkpoints import Checkpoints
from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.policy import (
    DecoderConfig,
    Tokenizer,
    hidden_states,
    initialise,
    load_hugging_face,
    load_tokenizer,
    parameter_count,
    save_hugging_face,
    unembed_log_probabilities,
)
from lcrag.retrieval import (
    BertConfig,
    Encoder,
    EncoderSettings,
    initialise_encoder,
    load_encoder,
    save_encoder,
)
from lcrag.retrieval.collections import exact_search
from lcrag.retrieval.passages import Passage, passage_text
from lcrag.runs.display import progress_display

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


def train_tokenizer(world: World, extra_text: Iterable[str] = ()) -> tokenizers.Tokenizer:
    """Trains the tokenizer; the same world and text give the same vocabulary.

    Languages have equal weight, because all have the same training facts; repeated lines of `extra_text` have more.
    """
    tokenizer = tokenizers.Tokenizer(models.BPE())
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
        f" {world.fingerprint}; stored as float16. Fingerprint {encoder.fingerprint()}.\n\n"
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


# --- The policies ---

PARTS = ("tokenizer", "encoder", "pretrained", "policies")
LICENCES = "Licences: `LICENSES.md` of the folder `lcrag/atlas/weights`.\n"
CHECKPOINT_EVERY = 100

COPYING_ROWS, COPYING_TOKENS = 32, 128
SPAN_TOKENS = (3, 10)
REPEATED_SHARE = 0.6
ALPHABETS = ((0, 32), (900, 512), (1050, 4096))  # (first step, size)
# Micro-batches of about a thousand tokens fit the cache of a CPU: 0.22 s per step, against 0.33 s with four thousand.
COPYING_LAYOUT = Layout(rows=8, row_lengths=(COPYING_TOKENS,))
TEXT_LAYOUT = Layout(rows=4, row_lengths=(288, 448), min_episodes=32)

# Shares, and numbers of passages, in the rows of texts.
FOREIGN_SHARE, NATIVE_SHARE, PRESENT_SHARE, NATIVE_PRESENT_SHARE, SECOND_SEARCH_SHARE = 0.5, 0.7, 0.6, 0.55, 0.6
FOREIGN_PASSAGES, NATIVE_PASSAGES, FURTHER_NOTES, TRANSLATED_VALUES = 4, 3, 2, 4
# Shares of rows that are mixed into those of a stage; `SLIP_SHARE` of the demonstrations begin with a malformed action.
ECHO_SHARE, NOTING_ECHO_SHARE = 0.25, 0.1
TRANSLATING_SHARE, LATER_TRANSLATING_SHARE = 0.3, 0.5
SLIP_SHARE, MAX_NOTES = 0.15, 2
BUDGET, PASSAGES = 2, 3  # searches of an episode, and passages of each searched language

Progress = Callable[[int, dict[str, float]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curriculum:
    """Steps, learning rates and tokens of the stages of training a tiny policy; `tokens_per_step` not of copying."""

    copying_steps: int = 1200  # random spans, without text
    reading_steps: int = 1800  # passages, a question, the answering passage, in all thirteen languages
    judging_steps: int = 900  # reading with the question first, where the passages may lack the answer
    noting_steps: int = 5000  # after the passages of one or two searches a sentence about the fact, and its value
    translating_steps: int = 3000  # noting where half of the rows ask for the value alone
    short_steps: int = 600  # SFT of the initial policy on random searches: it learns the format, not when to search
    long_steps: int = 1200  # the same SFT of the reference, which is trained on demonstrations only
    learning_rate: float = 2e-3
    later_learning_rate: float = 1e-3  # of translating
    searching_learning_rate: float = 1.5e-3  # of the SFT on random searches
    tokens_per_step: int = 3600


def build(
    output_dir: pathlib.Path, parts: Sequence[str] = PARTS, seed: int = 0, curriculum: Curriculum | None = None
) -> None:
    """Rebuilds the weights that ship with the package, in the order of their dependencies.

    Args:
      output_dir: Receives the folders `tokenizer`, `encoder`, `pretrained`, `cold_start` and `long_sft`; parts that are
        not built must exist there. `stages` has checkpoints, from which an interrupted stage of a policy continues.
      parts: What is built, of PARTS.
      seed: Seed of initialisation and of all draws.
    """
    configure(["quickstart.gin"])  # the settings of the program that the player demonstrates
    curriculum, world = curriculum or Curriculum(), atlas_world()
    made = f"Made on {datetime.date.today()} by `python launch/atlas_weights.py FOLDER`, seed {seed}"
    folders = {name: output_dir / name for name in ("tokenizer", "encoder", "pretrained", "cold_start", "long_sft")}
    if "tokenizer" in parts:
        folders["tokenizer"].mkdir(parents=True, exist_ok=True)
        # Every episode may contain the rethink sentence, so the vocabulary should cover it.
        train_tokenizer(world, [" " + RETHINK.strip()] * 500).save(str(folders["tokenizer"] / "tokenizer.json"))
    tokenizer = load_tokenizer(folders["tokenizer"])
    if "encoder" in parts:
        contrastive, start = ContrastiveConfig(steps=1000, tokens=TRAINING_TOKENS), time.perf_counter()
        with progress_display("encoder", contrastive.steps) as display:
            encoder = train_atlas_encoder(world, tokenizer.backend, contrastive, seed, display.update)
        made_in = f"{made}, in {time.perf_counter() - start:.0f} seconds"
        save_encoder(folders["encoder"], encoder, dtype="float16")
        card = encoder_card(world, load_encoder(folders["encoder"]), made_in) + f"\n{LICENCES}"
        (folders["encoder"] / "README.md").write_text(card, encoding="utf-8")
    config = DecoderConfig(  # 1.3 million parameters
        family="qwen3",
        vocabulary_size=tokenizer.vocabulary_size,
        width=128,
        layers=4,
        heads=4,
        kv_heads=2,
        head_width=32,
        mlp_width=384,
        max_positions=1024,
        unroll_layers=True,
    )

    def stage(name: str, params, rows: Iterator[Trajectory], steps: int, **options):
        defaults = {"tokens_per_step": curriculum.tokens_per_step, "learning_rate": curriculum.learning_rate}
        settings: dict[str, Any] = defaults | options
        with progress_display(name, steps) as display:
            folder = output_dir / "stages" / name
            return fit(config, params, rows, steps=steps, progress=display.update, folder=folder, **settings)

    def save(name: str, params, dtype: str) -> None:
        stored = dataclasses.replace(config, unroll_layers=False)
        eos = tokenizer.eos_ids
        save_hugging_face(folders[name], stored, params, dtype=dtype, eos_ids=eos, save_tokenizer=tokenizer.save)

    if "pretrained" in parts:
        plan, params = curriculum, initialise(config, jax.random.key(seed))
        rows = copying_rows(tokenizer.vocabulary_size, COPYING_ROWS, seed)
        copying = {"tokens_per_step": COPYING_ROWS * COPYING_TOKENS, "layout": COPYING_LAYOUT, "decay": "constant"}
        params = stage("copying", params, rows, plan.copying_steps, **copying)
        echoes = echo_rows(world, tokenizer, seed)
        rows = mixed(reading_rows(world, tokenizer, seed), echoes, ECHO_SHARE, seed)
        params = stage("reading", params, rows, plan.reading_steps)
        rows = mixed(judging_rows(world, tokenizer, seed), echoes, ECHO_SHARE, seed)
        params = stage("judging", params, rows, plan.judging_steps)
        translating = translating_rows(world, tokenizer, seed)
        rows = mixed(noting_rows(world, tokenizer, seed), translating, TRANSLATING_SHARE, seed)
        params = stage("noting", params, mixed(rows, echoes, NOTING_ECHO_SHARE, seed), plan.noting_steps)
        rows = mixed(noting_rows(world, tokenizer, seed + 1), translating, LATER_TRANSLATING_SHARE, seed + 1)
        later = {"learning_rate": plan.later_learning_rate}
        save("pretrained", stage("translating", params, rows, plan.translating_steps, **later), dtype="float32")
    if "policies" in parts:
        collections = atlas_collections(encoder=str(folders["encoder"]))
        _, pretrained = load_hugging_face(folders["pretrained"])
        questions = world.questions("train")
        queries = [question.extra["query"] for question in questions]
        row_context = RowContext(
            tokenizer=tokenizer,
            chat=Chat(),
            longest_tokens=513,  # one for an end of sequence
            program=lambda question: hierarchical_search(question, collections.languages),
            search=remembered(collections.search, queries, collections.languages, PASSAGES),
        )
        oracle = RandomSearcher(budget=BUDGET, slips=SLIP_SHARE, max_notes=MAX_NOTES)
        for name, steps in (("cold_start", curriculum.short_steps), ("long_sft", curriculum.long_steps)):
            learned = (  # malformed actions carry no loss
                Trajectory(record.tokens, record.by_policy & ~slips_in(record), record.log_probabilities)
                for record in demonstrate(row_context, questions, oracle, world=world, seed=seed, only_correct=False)
            )
            copy = jax.tree.map(lambda leaf: leaf + 0, pretrained)  # `fit` donates them
            params = stage(name, copy, learned, steps, learning_rate=curriculum.searching_learning_rate)
            save(name, params, dtype="bfloat16")
            stages = "".join(f"| {key} | {value:g} |\n" for key, value in dataclasses.asdict(curriculum).items())
            fingerprints = f"tokenizer {tokenizer.fingerprint()}, encoder {collections.encoder.fingerprint()}"
            (folders[name] / "README.md").write_text(
                f"# The atlas's policy: {name.replace('_', ' ')}\n\n"
                f"{parameter_count(config):,} parameters of the plain Qwen3 architecture, in bfloat16; opens in"
                f" `transformers`.\n{made}: pretraining on copying, reading, judging, noting and translating of"
                f" *training* facts in all thirteen languages, then {steps} steps of SFT on a player that knows the"
                " format and reads passages, but searches and trusts at random. `Curriculum` in it"
                f" explains the stages:\n\n| setting | value |\n|---|---|\n{stages}\n"
                f"World {world.fingerprint}, {fingerprints}. No held-out fact's question was seen in any stage.\n\n"
                f"{LICENCES}",
                encoding="utf-8",
            )


def fit(
    config: DecoderConfig,
    params,
    rows: Iterator[Trajectory],
    *,
    steps: int,
    tokens_per_step: int,
    learning_rate: float,
    layout: Layout = TEXT_LAYOUT,
    progress: Progress,
    folder: pathlib.Path,
    decay: str = "cosine",
):
    """Trains on the policy tokens of `rows` and returns the parameters; `params` are donated.

    Rows that are longer than those of the layout are left out. An interrupted stage continues from a checkpoint in
    `folder`, and with the same rows learns the same.
    """
    optimizer = adamw(learning_rate=learning_rate, steps=steps, warmup_share=0.05, decay=decay, beta2=0.98)
    hidden = functools.partial(hidden_states, config)
    rows = (row for row in rows if len(row.tokens) <= max(layout.row_lengths))
    update = make_update(hidden, functools.partial(unembed_log_probabilities, config), Supervised(), optimizer)
    with contextlib.closing(Checkpoints(folder, keep=1)) as checkpoints:
        first, state = checkpoints.continue_from(initial_state(params, optimizer))
        for step in range(steps):
            batch: list[Trajectory] = []
            tokens = 0
            for row in rows:
                if tokens >= tokens_per_step:
                    break  # and drop this row: the shipped weights depend on this order
                batch.append(row)
                tokens += len(row.tokens)
            if step < first:
                continue
            state, metrics = update(state, pack(batch, layout))
            progress(step + 1, {name: float(value) for name, value in jax.device_get(metrics).items()})
            if (step + 1) % CHECKPOINT_EVERY == 0 or step + 1 == steps:
                checkpoints.save(step + 1, state)
    return state.params


def slips_in(record: EpisodeRecord) -> Bool[np.ndarray, " length"]:
    """Returns which tokens belong to malformed actions."""
    turns = (number for number, turn in enumerate(record.turns) if turn.by == "policy")
    return np.isin(record.turn, [turn for turn in turns if isinstance(parse_action(record.turns[turn].text), Invalid)])


def copying_rows(vocabulary_size: int, rows_per_step: int, seed: int) -> Iterator[Trajectory]:
    """Yields rows of random spans, many of them repeated, without end; the loss covers what can be predicted by looking
    back.

    Small alphabets make the induction circuit appear quickly: half of the rows use one fixed alphabet, half a fresh
    random one, and the alphabet grows once copying works.
    """
    generator = np.random.default_rng(seed)
    row = 0
    while True:
        alphabet = [size for first, size in ALPHABETS if row >= first * rows_per_step][-1]
        alphabet = min(alphabet, vocabulary_size)
        words = generator if row % 2 else np.random.default_rng(alphabet)
        symbols, copied, filled = np.zeros(COPYING_TOKENS, np.int64), np.zeros(COPYING_TOKENS, bool), 0
        while filled < COPYING_TOKENS:
            length = min(int(generator.integers(*SPAN_TOKENS)), COPYING_TOKENS - filled)
            if filled > 12 and generator.random() < REPEATED_SHARE:
                start = int(generator.integers(0, filled - length))
                symbols[filled : filled + length] = symbols[start : start + length]
                copied[filled + 1 : filled + length] = True  # the first token of a span cannot be predicted
            else:
                symbols[filled : filled + length] = generator.integers(0, alphabet, length)
            filled += length
        tokens = words.permutation(vocabulary_size)[:alphabet][symbols].astype(np.int32)
        yield Trajectory(tokens, copied, np.zeros(COPYING_TOKENS, np.float32))
        row += 1


def render_passage(passage: Passage) -> str:
    """Returns title and text in one line, as in the atlas's observations (which add a leading space)."""
    return f"{passage.title}: {passage.text}"


class FactSampler:
    """Samples training facts of a world, and passages about them, for demonstrations."""

    def __init__(self, world: World):
        self._world = world
        self._facts = world.training_facts
        self._by_section: dict[str, list[Fact]] = collections.defaultdict(list)
        self._by_relation: dict[str, list[Fact]] = collections.defaultdict(list)
        self._by_subject: dict[str, list[Fact]] = collections.defaultdict(list)
        for fact in self._facts:
            self._by_relation[fact.relation].append(fact)
            self._by_subject[fact.subject].append(fact)
            self._by_section[section_of(fact)].append(fact)

    def any(self, generator: np.random.Generator) -> Fact:
        return _one_of(generator, self._facts)

    def passage(
        self, generator: np.random.Generator, fact: Fact, language: str, *, hidden: Fact | None = None
    ) -> Passage:
        """Returns a passage that states a fact and usually the other training facts of its section, some of them dated.

        It never states the fact `hidden`.
        """
        section = section_of(fact)
        told = [fact if other.id == fact.id else other for other in self._by_section[section]]
        told = [other for other in told if hidden is None or other.id != hidden.id]
        kept = [other for other in told if other is fact or generator.random() < STATED_SHARE]
        years = [int(generator.integers(STALE_YEARS[0], PRESENT_YEARS[1])) for _ in kept]
        dated = generator.random(len(kept)) < DATED_SHARE
        statements = [
            (other, Entry(other.value, year if has_year else None))
            for other, year, has_year in zip(kept, years, dated, strict=True)
        ]
        return self._world.written_passage(f"{language}/{section}", language, statements)

    def of_section(self, generator: np.random.Generator, fact: Fact) -> Fact:
        """Returns a fact of the same section, possibly the same."""
        return _one_of(generator, self._by_section[section_of(fact)])

    def related(self, generator: np.random.Generator, fact: Fact) -> Fact:
        """Returns another fact of the same subject or relation as a plausible wrong search result."""
        pool = (self._by_subject[fact.subject], self._by_relation[fact.relation])[int(generator.random() < 0.6)]
        others = [other for other in pool if other.id != fact.id]
        return _one_of(generator, others or self._facts)


def _one_of(generator: np.random.Generator, facts: Sequence[Fact]) -> Fact:
    return facts[int(generator.integers(len(facts)))]


def reading_rows(world: World, tokenizer: Tokenizer, seed: int) -> Iterator[Trajectory]:
    """Yields rows of passages, a question, its keywords and the answering sentence in its language, without end.

    Here and below there are no held-out facts, and most values are counterfactual.
    """
    generator = np.random.default_rng(seed)
    facts = FactSampler(world)
    while True:
        fact = world.often_counterfactual(generator, facts.any(generator))
        language = str(generator.choice(LCRL_LANGUAGES))
        shown = str(generator.choice(LCRL_LANGUAGES)) if generator.random() < FOREIGN_SHARE else language
        lines = [facts.passage(generator, fact, shown)]
        for _ in range(int(generator.integers(1, 5))):
            other = facts.related(generator, fact)
            told_in = str(generator.choice(LCRL_LANGUAGES)) if generator.random() < FOREIGN_SHARE else language
            lines.append(facts.passage(generator, other, told_in, hidden=fact))
        order = generator.permutation(len(lines))
        context = "".join(f" {render_passage(lines[index])}\n" for index in order)
        question = world.question(Chain((fact,)), language)
        yield _text_row(
            tokenizer,
            f"{context}{question.text}\n",
            f" {question.extra['query']}\n {_sentence(world, fact, language)}\n",
        )


def judging_rows(world: World, tokenizer: Tokenizer, seed: int) -> Iterator[Trajectory]:
    """Yields rows in which the question comes first; the answer is a question mark if no passage has it.

    There is either one passage in the question's language, or one in each of several others.
    """
    generator = np.random.default_rng(seed)
    facts = FactSampler(world)
    while True:
        fact = world.often_counterfactual(generator, facts.any(generator))
        language = str(generator.choice(LCRL_LANGUAGES))
        one = generator.random() < NATIVE_SHARE
        others = [code for code in LCRL_LANGUAGES if code != language]
        shown_in = (language,) if one else tuple(map(str, generator.permutation(others)[:FOREIGN_PASSAGES]))
        present = generator.random(len(shown_in)) < (PRESENT_SHARE if one or generator.random() < 0.9 else 0.0)
        about = [fact if here else facts.related(generator, fact) for here in present]
        context = _passages(facts, generator, fact, shown_in, about)
        question = world.question(Chain((fact,)), language)
        answer = _sentence(world, fact, language) if present.any() else UNREAD
        yield _text_row(tokenizer, f"{question.text}\n {question.extra['query']}\n{context}", f" {answer}\n")


def noting_rows(world: World, tokenizer: Tokenizer, seed: int) -> Iterator[Trajectory]:
    """Yields rows of one or two searches' passages, each with a note, the value, and notes on other facts, without end.

    A note is a sentence about the fact as a passage writes it, or one with a question mark where no passage states it.
    The first search shows passages in the question's language, the second in several others.
    """
    generator = np.random.default_rng(seed)
    facts, searcher = FactSampler(world), RandomSearcher(budget=2)
    while True:
        fact = world.often_counterfactual(generator, facts.any(generator))
        language = str(generator.choice(LCRL_LANGUAGES))
        question = world.question(Chain((fact,)), language)
        parts, told, context = [f"{question.text}\n"], [fact], ""
        native = (generator.permutation(NATIVE_PASSAGES) == 0) & (generator.random() < NATIVE_PRESENT_SHARE)
        searches = [((language,) * NATIVE_PASSAGES, native)]  # languages of the passages, which of them state the fact
        if generator.random() < SECOND_SEARCH_SHARE:
            others = [code for code in LCRL_LANGUAGES if code != language]
            abroad = tuple(map(str, generator.permutation(others)[:FOREIGN_PASSAGES]))
            searches.append((abroad, generator.random(FOREIGN_PASSAGES) < PRESENT_SHARE))
        for shown_in, stating in searches:
            about = [fact if here else facts.related(generator, fact) for here in stating]
            block = _passages(facts, generator, fact, shown_in, about)
            context, told = context + block, told + about
            note, value = searcher.notes(generator, read_texts([f"<information>\n{context}</information>"]), question)
            parts[-1] += f" {question.extra['query']}\n{block}"
            parts += [note, ""]
        parts[-2] += f" {value or UNREAD}\n"
        for _ in range(FURTHER_NOTES):
            other = facts.of_section(generator, told[int(generator.integers(len(told)))])
            if other.id == fact.id:
                continue
            question = world.question(Chain((other,)), language)
            note, value = searcher.notes(generator, read_texts([f"<information>\n{context}</information>"]), question)
            parts[-1] += f"{question.text}\n"
            parts += [f"{note} {value or UNREAD}\n", ""]
        yield _text_row(tokenizer, *parts[:-1])


def translating_rows(world: World, tokenizer: Tokenizer, seed: int) -> Iterator[Trajectory]:
    """Yields rows of questions, each with a sentence in another language and the value in its own, without end."""
    generator = np.random.default_rng(seed)
    facts = FactSampler(world)
    while True:
        parts = [""]
        for _ in range(TRANSLATED_VALUES):
            fact = world.often_counterfactual(generator, facts.any(generator))
            language, other = map(str, generator.permutation(LCRL_LANGUAGES)[:2])
            parts[-1] += f"{world.question(Chain((fact,)), language).text}\n {_sentence(world, fact, other)}\n"
            parts += [f" {world.values(fact, language)[0]}\n", ""]
        yield _text_row(tokenizer, *parts[:-1])


def _passages(
    facts: FactSampler, generator: np.random.Generator, fact: Fact, languages: Sequence[str], about: Sequence[Fact]
) -> str:
    """Returns lines of a passage in each language about each fact; none but those about `fact` state it."""
    passages = (
        facts.passage(generator, own, code, hidden=None if own is fact else fact)
        for own, code in zip(about, languages, strict=True)
    )
    return "".join(f" {render_passage(passage)}\n" for passage in passages)


def echo_rows(world: World, tokenizer: Tokenizer, seed: int) -> Iterator[Trajectory]:
    """Yields rows that repeat a name or a value between tags, in all languages: a tag's form, not its use."""
    generator = np.random.default_rng(seed)
    facts = FactSampler(world)
    openings = [opening for opening in tags() if not opening.startswith("</")]
    while True:
        language = str(generator.choice(LCRL_LANGUAGES))
        given, wanted = "", ""
        for _ in range(int(generator.integers(1, 4))):
            fact, tag = facts.any(generator), str(generator.choice(openings))
            text = (
                world.name(subject_of(fact), language).text
                if generator.random() < 0.5
                else world.values(fact, language)[0]
            )
            given += f" {text}\n{tag}\n"
            wanted += f"{tag} {text}</{tag[1:]}"
        yield _text_row(tokenizer, given, wanted)


def remembered(search: Search, queries: Sequence[str], languages: Sequence[str], passages: int) -> Search:
    """Returns a search that looks up `queries`, all searched beforehand in one batch."""
    pairs = [(query, language) for query in dict.fromkeys(queries) for language in languages]
    found = dict(zip(pairs, search([q for q, _ in pairs], [code for _, code in pairs], passages), strict=True))

    def look_up(queries: list[str], languages: list[str], k: int):
        asked = list(zip(queries, languages, strict=True))
        if k != passages or any(pair not in found for pair in asked):
            return search(queries, languages, k)
        return [found[pair] for pair in asked]

    return look_up


def mixed(rows: Iterator[Trajectory], others: Iterator[Trajectory], share: float, seed: int) -> Iterator[Trajectory]:
    """Yields rows, of which a share is taken from `others`, without end."""
    generator = np.random.default_rng(seed)
    while True:
        yield next(others if generator.random() < share else rows)


def _sentence(world: World, fact: Fact, language: str) -> str:
    """Returns the sentence that states a fact, after its subject's name."""
    name = world.name(subject_of(fact), language).text
    return f"{name}: {sentence_text(language, fact.relation, world.values(fact, language)[0])}"


def _text_row(tokenizer: Tokenizer, *parts: str) -> Trajectory:
    """Returns a row of texts that are given and wanted in turn."""
    encoded = [tokenizer.encode(part) for part in parts]
    by_policy = np.repeat(np.arange(len(parts)) % 2 == 1, [len(tokens) for tokens in encoded])
    tokens = np.asarray([token for part in encoded for token in part], np.int32)
    return Trajectory(tokens, by_policy, np.zeros(len(tokens), np.float32))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    if unknown := set(given.parts) - set(PARTS):
        parser.error(f"there is no part {min(unknown)}: choose among {', '.join(PARTS)}")
    build(given.folder, given.parts or PARTS, given.seed)
