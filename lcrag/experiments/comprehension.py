"""The atlas's comprehension questions, as gin builds them: asked, translated and demonstrated."""

import dataclasses
from collections.abc import Callable, Sequence

import gin
import numpy as np

from lcrag.curation.playing import play
from lcrag.data.atlas import World
from lcrag.data.atlas import comprehension as atlas
from lcrag.data.domains import MATHEMATICS, MULTIPLE_CHOICE
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord
from lcrag.experiments.datasets import counted_bad_rows
from lcrag.experiments.parts import atlas_world
from lcrag.experiments.sft_rows import Surroundings, rows_of_records
from lcrag.learning import Trajectory


@gin.configurable
def comprehension_questions(
    split: str,
    languages: Sequence[str] = atlas.LANGUAGES,
    domains: Sequence[str] = (MATHEMATICS, MULTIPLE_CHOICE),
    limit: int | None = None,
    world: Callable[[], World] = atlas_world,
) -> list[Question]:
    """Sums in stories and choices about countries; see `lcrag.data.atlas.comprehension`.

    Args:
      split: demonstrations, validation, train or held_out.
      languages: Languages to ask in.
      domains: mathematics, multiple_choice or both.
      limit: At most this many questions of each domain, each in all languages.
      world: Builds the atlas.
    """
    return atlas.ComprehensionTasks(world()).questions(split, languages, domains, limit)


@gin.configurable
def comprehension_translator(world: Callable[[], World] = atlas_world) -> atlas.ComprehensionTranslator:
    """The exact translator of the comprehension questions.

    Args:
      world: Builds the atlas.
    """
    return atlas.ComprehensionTranslator(atlas.ComprehensionTasks(world()))


@gin.configurable
def comprehension_demonstrations(
    surroundings: Surroundings,
    questions: Sequence[Question],
    calls: float,
    undecided: float = 0.0,
    seed: int = 0,
    end_of_sequence: bool = True,
    world: Callable[[], World] = atlas_world,
) -> list[Trajectory]:
    """Demonstrations of the method's program by the oracle of the comprehension questions.

    Args:
      surroundings: What they are for.
      questions: Comprehension questions.
      calls: Share of them, in every language alike, that the oracle has translated.
      undecided: Share of them that is demonstrated once more, translated, without learning the token that begins the
        call: how to call, and what to do with the response, but not when.
      seed: Of which ones these are, and of the oracle's guesses.
      end_of_sequence: Teach the end of sequence behind the answer.
      world: Builds the atlas.
    """
    method, collections = surroundings.played()
    encoder, program = surroundings.encoder(end_of_sequence), method.on(collections.languages)
    tasks = atlas.ComprehensionTasks(world())

    def played(questions: Sequence[Question], oracle: atlas.ComprehensionOracle) -> list[EpisodeRecord]:
        return play(
            [(question, program(question)) for question in questions],
            lambda question, turns, request: oracle.next_text(question, [(turn.by, turn.text) for turn in turns]),
            collections.search,
            encoder.context_tokenizer,
            context=surroundings.longest_tokens - 1,  # the end of sequence
            translator=atlas.ComprehensionTranslator(tasks),
        )

    once_more = np.random.default_rng([seed, 1]).random(len(questions)) < undecided
    told = [question for question, taken in zip(questions, once_more, strict=True) if taken]
    records = [
        *played(questions, atlas.ComprehensionOracle(tasks, calls, seed)),
        *map(_without_decision, played(told, atlas.ComprehensionOracle(tasks, 1.0, seed))),
    ]
    with counted_bad_rows() as bad_rows:
        return rows_of_records(records, encoder, bad_rows)


def _without_decision(record: EpisodeRecord) -> EpisodeRecord:
    """The episode as if its first token by the policy had been given."""
    by_policy = record.by_policy.copy()
    by_policy[np.argmax(by_policy)] = False
    return dataclasses.replace(record, by_policy=by_policy)
