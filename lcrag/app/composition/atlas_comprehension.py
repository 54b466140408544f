"""The atlas's comprehension questions, as gin builds them: asked, translated and demonstrated."""

import dataclasses
from collections.abc import Callable, Sequence

import gin
import numpy as np

from lcrag.app.composition.components import atlas_world
from lcrag.app.composition.datasets import counted_bad_rows
from lcrag.app.composition.sft_rows import RowContext, rows_of_records
from lcrag.atlas import World
from lcrag.atlas import comprehension as atlas
from lcrag.curation.playing import play
from lcrag.curation.text_writers import oracle_writer
from lcrag.data.questions import MATHEMATICS, MULTIPLE_CHOICE, Question
from lcrag.episodes import EpisodeRecord
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.errors import UserError
from lcrag.learning import Trajectory
from lcrag.methods.translate_r1.oracles import CALL_BEGINS, ComprehensionOracle


@gin.configurable
def comprehension_questions(
    split: str,
    languages: Sequence[str] = atlas.LANGUAGES,
    domains: Sequence[str] = (MATHEMATICS, MULTIPLE_CHOICE),
    limit: int | None = None,
    world: Callable[[], World] = atlas_world,
) -> list[Question]:
    """Sums in stories and choices about countries; see `lcrag.atlas.comprehension`.

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
    surroundings: RowContext,
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
        call: how to call, and what to do with the response, but not when. The tag that opens a call must be one token.
      seed: Of which ones these are, and of the oracle's guesses.
      end_of_sequence: Teach the end of sequence behind the answer.
      world: Builds the atlas.

    Raises:
      UserError: there is no method, there are no collections, rows cannot be used, or some are to be undecided and the
        tag that opens a call is several tokens of the policy's.
    """
    method, collections = surroundings.played()
    encoder, program = surroundings.encoder(end_of_sequence), method.on(collections.languages)
    tasks = atlas.ComprehensionTasks(world())

    def played(questions: Sequence[Question], oracle: ComprehensionOracle) -> list[EpisodeRecord]:
        return play(
            [(question, program(question)) for question in questions],
            oracle_writer(oracle),
            collections.search,
            encoder.context_tokenizer,
            context=surroundings.longest_tokens - 1,  # the end of sequence
            translator=atlas.ComprehensionTranslator(tasks),
        )

    once_more = np.random.default_rng([seed, 1]).random(len(questions)) < undecided
    told = [question for question, taken in zip(questions, once_more, strict=True) if taken]
    records = [
        *played(questions, ComprehensionOracle(tasks, calls, seed)),
        *(
            _without_decision(record, encoder.context_tokenizer)
            for record in played(told, ComprehensionOracle(tasks, 1.0, seed))
        ),
    ]
    with counted_bad_rows() as bad_rows:
        return rows_of_records(records, encoder, bad_rows)


def _without_decision(record: EpisodeRecord, tokenizer: ContextTokenizer) -> EpisodeRecord:
    """The episode as if its first token by the policy, the opening of a call, had been given.

    Raises:
      UserError: the opening is more than this token, or less.
    """
    by_policy, first = record.by_policy.copy(), int(np.argmax(record.by_policy))
    if (text := tokenizer.decode([int(record.tokens[first])])) != CALL_BEGINS:
        raise UserError(
            f"the policy's tokenizer begins a call with the token {text!r}, not with all of {CALL_BEGINS}, so its"
            " decision cannot be hidden: set comprehension_demonstrations.undecided to 0, or add the tag to"
            " tokenizer.json"
        )
    by_policy[first] = False
    return dataclasses.replace(record, by_policy=by_policy)
