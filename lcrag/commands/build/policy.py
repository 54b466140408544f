"""Trains the two policies of the atlas from scratch: copying, reading, judging, noting, then SFT, short or long."""

import contextlib
import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
from jaxtyping import Bool

from lcrag.atlas import World
from lcrag.atlas.random_searcher import RandomSearcher
from lcrag.commands.build.pretask_rows import (
    COPYING_TOKENS,
    ECHO_SHARE,
    LATER_TRANSLATING_SHARE,
    NOTING_ECHO_SHARE,
    TRANSLATING_SHARE,
    copying_rows,
    echo_rows,
    judging_rows,
    mixed,
    noting_rows,
    reading_rows,
    translating_rows,
)
from lcrag.curation.oracle_demonstrations import Demonstrator, remembered
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Program
from lcrag.episodes.host_services import Search
from lcrag.episodes.tags import Invalid, parse_action
from lcrag.learning import Layout, Supervised, Trajectory, adamw, initial_state, make_update, pack
from lcrag.learning.checkpoints import Checkpoints
from lcrag.limits import Count, Positive
from lcrag.policy import (
    DecoderConfig,
    HuggingFaceTokenizer,
    hidden_states,
    initialise,
    save_hugging_face,
    unembed_log_probabilities,
)

COPYING_ROWS = 32
# Micro-batches of about a thousand tokens fit the cache of a CPU: 0.22 s per step, against 0.33 s with four thousand.
COPYING_LAYOUT = Layout(rows=8, row_lengths=(COPYING_TOKENS,))
TEXT_LAYOUT = Layout(rows=4, row_lengths=(288, 448), min_episodes=32)

CHECKPOINT_EVERY = 100
# Share of the demonstrations that begin with a malformed action.
SLIP_SHARE = 0.15
MOST_NOTES = 2
Progress = Callable[[int, dict[str, float]], None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curriculum:
    """Steps of the stages of training a tiny policy.

    Attributes:
      copying_steps: Copying of random spans, without text.
      reading_steps: Reading: passages, a question, the answering passage, in all thirteen languages.
      judging_steps: Judging: reading with the question first, where the passages may lack the answer.
      noting_steps: Noting: after the passages of one or two searches a sentence about the fact, and its value in the
        question's language. Some rows ask for the value alone.
      translating_steps: Noting where half of the rows ask for the value alone.
      short_steps: SFT of the cold start on random searches in all languages: it learns the format, not when to search.
      long_steps: The same SFT of the reference, which is trained on demonstrations only.
      searching_learning_rate: Learning rate of the SFT on random searches.
      later_learning_rate: Learning rate of translating.
      learning_rate: Learning rate of every stage before that.
      tokens_per_step: Tokens per step of every stage except copying.
    """

    copying_steps: Count = 1200
    reading_steps: Count = 1800
    judging_steps: Count = 900
    noting_steps: Count = 5000
    translating_steps: Count = 3000
    short_steps: Count = 600
    long_steps: Count = 1200
    learning_rate: Positive = 2e-3
    later_learning_rate: Positive = 1e-3
    searching_learning_rate: Positive = 1.5e-3
    tokens_per_step: Count = 3600


def atlas_decoder(vocabulary_size: int) -> DecoderConfig:
    """Returns the sizes of the tiny policy: 1.3 million parameters of the Qwen3 architecture."""
    return DecoderConfig(
        family="qwen3",
        vocabulary_size=vocabulary_size,
        width=128,
        layers=4,
        heads=4,
        kv_heads=2,
        head_width=32,
        mlp_width=384,
        max_positions=1024,
        unroll_layers=True,
    )


def fit(
    config: DecoderConfig,
    params,
    rows: Iterator[Trajectory],
    *,
    steps: int,
    tokens_per_step: int,
    learning_rate: float,
    layout: Layout,
    progress: Progress,
    folder: pathlib.Path,
    decay: str = "cosine",
):
    """Trains on the policy tokens of `rows` and returns the parameters; `params` are donated.

    Rows that are longer than those of the layout are left out. A checkpoint is kept in `folder`, from which an
    interrupted stage continues: with the same rows it learns the same.

    Args:
      tokens_per_step: A batch takes rows until they have this many tokens.
      learning_rate: Peak, after a linear warm-up over 5 % of the steps.
      progress: Called with (steps done, metrics) after every step.
      folder: Of the stage's checkpoint.
      decay: "cosine" or "constant".
    """
    optimizer = adamw(learning_rate=learning_rate, steps=steps, warmup_share=0.05, decay=decay, beta2=0.98)
    hidden = functools.partial(hidden_states, config)
    rows = (row for row in rows if len(row.tokens) <= max(layout.row_lengths))
    update = make_update(hidden, functools.partial(unembed_log_probabilities, config), Supervised(), optimizer)
    with contextlib.closing(Checkpoints(folder, keep=1)) as checkpoints:
        first, state = checkpoints.continue_from(initial_state(params, optimizer))
        for step in range(steps):
            batch = _next_rows(rows, tokens_per_step)
            if step < first:
                continue
            state, metrics = update(state, pack(batch, layout))
            progress(step + 1, {name: float(value) for name, value in jax.device_get(metrics).items()})
            if (step + 1) % CHECKPOINT_EVERY == 0 or step + 1 == steps:
                checkpoints.save(step + 1, state)
    return state.params


def _next_rows(rows: Iterator[Trajectory], tokens: int) -> list[Trajectory]:
    taken: list[Trajectory] = []
    # takewhile consumes the row after a batch, which is dropped; the shipped weights depend on this order.
    for row in itertools.takewhile(lambda _: sum(len(each.tokens) for each in taken) < tokens, rows):
        taken.append(row)
    return taken


def slips_in(record: EpisodeRecord) -> Bool[np.ndarray, " length"]:
    """Returns which tokens belong to malformed actions."""
    turns = (number for number, turn in enumerate(record.turns) if turn.by == "policy")
    return np.isin(record.turn, [turn for turn in turns if isinstance(parse_action(record.turns[turn].text), Invalid)])


@dataclasses.dataclass(frozen=True, kw_only=True)
class PolicyTrainer:
    """Trains policies on one world, stage by stage, each of which continues where it was interrupted."""

    world: World
    tokenizer: HuggingFaceTokenizer
    curriculum: Curriculum
    progress: Callable[[str, int], Progress]
    folder: pathlib.Path
    seed: int = 0

    @property
    def config(self) -> DecoderConfig:
        return atlas_decoder(self.tokenizer.vocabulary_size)

    def pretrained(self):
        """Returns parameters after copying, reading, judging, noting and translating."""
        plan = self.curriculum
        params = initialise(self.config, jax.random.key(self.seed))
        rows = copying_rows(self.tokenizer.vocabulary_size, COPYING_ROWS, self.seed)
        tokens = COPYING_ROWS * COPYING_TOKENS
        params = self._fit("copying", params, rows, plan.copying_steps, tokens, COPYING_LAYOUT, "constant")
        echoes = echo_rows(self.world, self.tokenizer, self.seed)
        rows = mixed(reading_rows(self.world, self.tokenizer, self.seed), echoes, ECHO_SHARE, self.seed)
        params = self._fit("reading", params, rows, plan.reading_steps)
        rows = mixed(judging_rows(self.world, self.tokenizer, self.seed), echoes, ECHO_SHARE, self.seed)
        params = self._fit("judging", params, rows, plan.judging_steps)
        translating = translating_rows(self.world, self.tokenizer, self.seed)
        rows = mixed(noting_rows(self.world, self.tokenizer, self.seed), translating, TRANSLATING_SHARE, self.seed)
        params = self._fit("noting", params, mixed(rows, echoes, NOTING_ECHO_SHARE, self.seed), plan.noting_steps)
        noting = noting_rows(self.world, self.tokenizer, self.seed + 1)
        rows = mixed(noting, translating, LATER_TRANSLATING_SHARE, self.seed + 1)
        learning_rate = plan.later_learning_rate
        return self._fit("translating", params, rows, plan.translating_steps, learning_rate=learning_rate)

    def demonstrations(
        self,
        program: Callable[[Question], Program],
        search: Search,
        languages: Sequence[str],
        *,
        budget: int,
        passages: int,
    ) -> Iterator[Trajectory]:
        """Yields demonstrations of random searches in all languages, whose malformed actions carry no loss."""
        questions = self.world.questions("train")
        queries = [question.extra["query"] for question in questions]
        demonstrator = Demonstrator(
            world=self.world,
            questions=questions,
            program=program,
            search=remembered(search, queries, languages, passages),
            tokenizer=self.tokenizer,
            oracle=RandomSearcher(budget=budget, slips=SLIP_SHARE, most_notes=MOST_NOTES),
            only_correct=False,
        )
        for record in demonstrator.stream(self.seed):
            yield Trajectory(record.tokens, record.by_policy & ~slips_in(record), record.log_probabilities)

    def tuned(self, params, demonstrations: Iterator[Trajectory], name: str, steps: int):
        """Returns parameters after SFT of a copy of `params`."""
        copy = jax.tree.map(lambda leaf: leaf + 0, params)
        learning_rate = self.curriculum.searching_learning_rate
        return self._fit(name, copy, demonstrations, steps, learning_rate=learning_rate)

    def save(self, folder: pathlib.Path, params, dtype: str) -> None:
        """Writes a Hugging Face folder with the tokenizer."""
        config = dataclasses.replace(self.config, unroll_layers=False)
        save_hugging_face(folder, config, params, dtype=dtype, eos_ids=self.tokenizer.eos_ids)
        self.tokenizer.save(folder)

    def _fit(self, name, params, rows, steps, tokens=None, layout=TEXT_LAYOUT, decay="cosine", learning_rate=None):
        return fit(
            self.config,
            params,
            rows,
            steps=steps,
            tokens_per_step=tokens or self.curriculum.tokens_per_step,
            learning_rate=learning_rate or self.curriculum.learning_rate,
            layout=layout,
            progress=self.progress(name, steps),
            folder=self.folder / name,
            decay=decay,
        )
