"""`lcrag build`: trains the tokenizer, encoder and policies of the atlas from scratch, with model cards."""

import contextlib
import datetime
import functools
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from lcrag.atlas.vocabulary import save_tokenizer, train_tokenizer
from lcrag.commands.build import encoder as encoder_training
from lcrag.commands.build.policy import Curriculum, PolicyTrainer
from lcrag.commands.build.pretask_rows import TRANSLATING_SHARE
from lcrag.composition.atlas import atlas_world
from lcrag.composition.collections import atlas_collections
from lcrag.data.questions import Question
from lcrag.episodes import RETHINK, Program
from lcrag.errors import UserError
from lcrag.limits import Amount, Passages, Seed
from lcrag.policy import load_hugging_face, load_tokenizer, parameter_count
from lcrag.retrieval import Collections

PARTS = ("tokenizer", "encoder", "pretrained", "policies")


def build(
    output_dir: pathlib.Path | None,
    words: Sequence[str] = (),
    *,
    program: Callable[[Question, Sequence[str]], Program],
    curriculum: Curriculum,
    budget: Amount,
    passages: Passages,
    seed: Seed = 0,
) -> None:
    """Rebuilds the weights that ship with the package, in the order of their dependencies.

    Args:
      output_dir: Receives the folders `tokenizer`, `encoder`, `pretrained`, `cold_start` and `long_sft`; parts that are
        not built must exist there. `stages` has checkpoints, from which an interrupted stage of a policy continues.
      words: Parts to build, of PARTS; empty: all.
      program: Episode program that the oracle demonstrates.
      curriculum: Training stages of the policies.
      budget: Searches that the program allows.
      passages: Passages per searched language.
      seed: Seed of initialisation and of all draws.

    Raises:
      UserError: There is no output folder, or a part is unknown.
    """
    if output_dir is None:
        raise UserError("lcrag build needs an output folder: --output_dir=FOLDER")
    if unknown := sorted(set(words) - set(PARTS)):
        raise UserError(f"lcrag build has no part {unknown[0]}: choose among {', '.join(PARTS)}")
    wanted, console = words or PARTS, Console()
    if "tokenizer" in wanted:
        # Every episode may contain the rethink sentence, so the vocabulary should cover it.
        tokenizer = train_tokenizer(atlas_world(), [" " + RETHINK] * 500)
        save_tokenizer(tokenizer, output_dir / "tokenizer")
    if "encoder" in wanted:
        folders = [f"--output_dir={output_dir / 'encoder'}", f"--tokenizer={output_dir / 'tokenizer'}"]
        encoder_training.main([*folders, f"--seed={seed}"])
    with _progress(console) as progress:
        trainer = PolicyTrainer(
            world=atlas_world(),
            tokenizer=load_tokenizer(output_dir / "tokenizer"),
            curriculum=curriculum,
            progress=progress,
            folder=output_dir / "stages",
            seed=seed,
        )
        if "pretrained" in wanted:
            trainer.save(output_dir / "pretrained", trainer.pretrained(), dtype="float32")
        if "policies" in wanted:
            _tune(trainer, output_dir, program, budget, passages)


def _tune(trainer: PolicyTrainer, output_dir: pathlib.Path, program, budget: int, passages: int) -> None:
    """Trains the cold start and the reference, both from the pretrained policy."""
    collections = atlas_collections(encoder=str(output_dir / "encoder"))
    demonstrations = functools.partial(
        trainer.demonstrations,
        lambda question: program(question, collections.languages),
        collections.search,
        collections.languages,
        budget=budget,
        passages=passages,
    )
    _, pretrained = load_hugging_face(output_dir / "pretrained")
    plan = trainer.curriculum
    for name, steps in (("cold_start", plan.short_steps), ("long_sft", plan.long_steps)):
        params = trainer.tuned(pretrained, demonstrations(), name, steps)
        trainer.save(output_dir / name, params, dtype="bfloat16")
        card = _model_card(name, trainer, collections, steps)
        (output_dir / name / "README.md").write_text(card, encoding="utf-8")


def _model_card(name: str, trainer: PolicyTrainer, collections: Collections, steps: int) -> str:
    plan = trainer.curriculum
    return (
        f"# The atlas's policy: {name.replace('_', ' ')}\n\n"
        f"{parameter_count(trainer.config):,} parameters of the plain Qwen3 architecture, in bfloat16; opens in"
        " `transformers`.\n"
        f"Made on {datetime.date.today()} by `lcrag build --gin_file=quickstart.gin --output_dir=FOLDER`, seed"
        f" {trainer.seed}:\n\n"
        f"1. copying: {plan.copying_steps} steps on random re-appearing spans, no text at all;\n"
        f"2. reading: {plan.reading_steps} steps of about {plan.tokens_per_step} tokens: passages of *training* facts"
        " in all thirteen languages, a question, the answering sentence; most values counterfactual. It stands in for"
        " what a pretrained multilingual model brings along. A quarter of the rows shows every method's tags around"
        " names and values, without any use;\n"
        f"3. judging: {plan.judging_steps} such steps with the question first, where the passages may lack"
        " the answer;\n"
        f"4. noting: {plan.noting_steps} such steps with the passages of one or two searches: a sentence about the"
        " fact as a passage writes it, or a question mark for its value, then the value in the question's language;"
        f" {TRANSLATING_SHARE:.0%} of the rows give the sentence in another language and ask for the value alone;\n"
        f"5. translating: {plan.translating_steps} such steps at learning rate {plan.later_learning_rate:g}, where half"
        " of the rows ask for the value alone;\n"
        f"6. searching at random: SFT of {steps} steps at learning rate {plan.searching_learning_rate:g} on a player"
        " that knows the format of the program in all thirteen languages and reads passages, but searches once or"
        " twice, and trusts passages, at random; after every search it notes one or two of the sentences that it has"
        ' read about the fact or that it has read none, and answers with the value of its last note or "unknown". When'
        " to search, whom to trust, and when to stop is left to reinforcement learning.\n\n"
        f"World {trainer.world.fingerprint()}, tokenizer {trainer.tokenizer.fingerprint()}, encoder"
        f" {collections.encoder.fingerprint()}. No held-out fact's question was seen in any stage.\n\n"
        f"{encoder_training.LICENCES}\n"
    )


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, int], Any]]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, TextColumn("{task.fields[loss]}"), console=console) as bars:

        def stage(name: str, steps: int):
            task = bars.add_task(name, total=steps, loss="")

            def show(done: int, metrics: dict[str, float]) -> None:
                loss = f"loss {metrics['loss/supervised']:.3f}"
                bars.update(task, completed=done, loss=loss)
                if not console.is_terminal and done % 50 == 0:
                    console.print(f"{name} {done}/{steps}  {loss}", highlight=False)

            return show

        yield stage
