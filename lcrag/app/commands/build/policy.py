"""Trains the atlas's two policies from scratch: copying, reading, judging, then a short and a long SFT."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Sequence

import jax

from lcrag.app.commands.build.copying import TOKENS, copying_rows
from lcrag.app.commands.build.fitting import Progress, fit
from lcrag.app.commands.build.reading import judging_rows, reading_rows
from lcrag.atlas import World
from lcrag.atlas.oracle import Oracle
from lcrag.curation.oracle_demonstrations import Demonstrator, remembered
from lcrag.data.languages import LCRL_TRAINING
from lcrag.data.questions import Question
from lcrag.episodes import Program
from lcrag.episodes.host_services import Search
from lcrag.learning import Layout, Trajectory
from lcrag.policy import DecoderConfig, HuggingFaceTokenizer, initialise, save_hugging_face

COPYING_ROWS = 32
# Micro-batches of about a thousand tokens stay in a CPU's cache: 0.22 s a step, four thousand 0.33 s.
COPYING_LAYOUT = Layout(rows=8, row_lengths=(TOKENS,))
TEXT_LAYOUT = Layout(rows=4, row_lengths=(256, 320), least_episodes=32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Curriculum:
    """The stages of a tiny policy's education, each with its number of steps.

    Attributes:
      copying_steps: Random spans (no text at all).
      reading_steps: Passages, a question, the answering passage, in all thirteen languages.
      judging_steps: Reading with the question first, where the passages may lack the answer.
      short_steps: Format-learning SFT of the cold start.
      long_steps: SFT of the reference that is trained on demonstrations only.
      learning_rate: Of every stage.
      tokens_per_step: Of every stage but copying.
    """

    copying_steps: int = 1200
    reading_steps: int = 600
    judging_steps: int = 500
    short_steps: int = 100
    long_steps: int = 700
    learning_rate: float = 2e-3
    tokens_per_step: int = 3600


def atlas_decoder(vocabulary_size: int) -> DecoderConfig:
    """The tiny policy: 1.3 million parameters of plain Qwen3."""
    return DecoderConfig(
        family="qwen3",
        vocabulary_size=vocabulary_size,
        width=128,
        layers=4,
        heads=4,
        kv_heads=2,
        head_width=32,
        mlp_width=384,
        max_positions=512,
        unroll_layers=True,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class School:
    """Trains policies on one world, stage by stage."""

    world: World
    tokenizer: HuggingFaceTokenizer
    curriculum: Curriculum
    progress: Callable[[str, int], Progress]
    seed: int = 0

    @property
    def config(self) -> DecoderConfig:
        return atlas_decoder(self.tokenizer.vocabulary_size)

    def pretrained(self):
        """Copying, reading, judging: what stands in for a pretrained multilingual model."""
        plan = self.curriculum
        params = initialise(self.config, jax.random.key(self.seed))
        rows = copying_rows(self.tokenizer.vocabulary_size, COPYING_ROWS, self.seed)
        tokens = COPYING_ROWS * TOKENS
        params = self._fit(
            "copying", params, rows, plan.copying_steps, plan.learning_rate, tokens, COPYING_LAYOUT, "constant"
        )
        rows = reading_rows(self.world, self.tokenizer, self.seed)
        params = self._fit("reading", params, rows, plan.reading_steps, plan.learning_rate, plan.tokens_per_step)
        rows = judging_rows(self.world, self.tokenizer, self.seed)
        return self._fit("judging", params, rows, plan.judging_steps, plan.learning_rate, plan.tokens_per_step)

    def demonstrations(
        self,
        program: Callable[[Question], Program],
        search: Search,
        languages: Sequence[str],
        *,
        budget: int,
        passages: int,
    ) -> Iterator[Trajectory]:
        """The oracle's clean demonstrations in the training languages."""
        questions = self.world.questions("train", languages=LCRL_TRAINING, hops=1)
        queries = [question.extra["query"] for question in questions]
        demonstrator = Demonstrator(
            world=self.world,
            questions=questions,
            program=program,
            search=remembered(search, queries, languages, passages),
            tokenizer=self.tokenizer,
            oracle=Oracle(budget=budget),
        )
        for record in demonstrator.stream(self.seed):
            yield Trajectory(record.tokens, record.by_policy, record.log_probabilities)

    def tuned(self, params, demonstrations: Iterator[Trajectory], name: str, steps: int):
        """SFT of a copy of pretrained parameters."""
        copied = jax.tree.map(lambda leaf: leaf + 0, params)
        plan = self.curriculum
        return self._fit(name, copied, demonstrations, steps, plan.learning_rate, plan.tokens_per_step)

    def save(self, folder: pathlib.Path, params, dtype: str) -> None:
        """A Hugging Face folder with its tokenizer."""
        config = dataclasses.replace(self.config, unroll_layers=False)
        save_hugging_face(folder, config, params, dtype=dtype, eos_ids=self.tokenizer.eos_ids)
        self.tokenizer.save(folder)

    def _fit(self, name, params, rows, steps, learning_rate, tokens, layout=TEXT_LAYOUT, decay="cosine"):
        return fit(
            self.config,
            params,
            rows,
            steps=steps,
            tokens_per_step=tokens,
            learning_rate=learning_rate,
            layout=layout,
            progress=self.progress(name, steps),
            decay=decay,
        )
