"""Sources of rows for supervised fine-tuning: files, seqio tasks, golden answers, oracles of the atlas.

A source is a function whose first argument is a `RowContext`; gin binds its other arguments.
"""

import concurrent.futures
import dataclasses
import hashlib
import itertools
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias

import gin
import numpy as np

from lcrag.atlas import World
from lcrag.atlas import comprehension as atlas
from lcrag.atlas.oracle import Oracle
from lcrag.atlas.world import DATASET, atlas_world
from lcrag.curation.encoding import EncodedRow, RowEncoder, UnusableRow
from lcrag.curation.oracle_demonstrations import Demonstrator
from lcrag.curation.playing import TextWriter, play
from lcrag.curation.text_writers import AtlasOracle, GoldenAnswers, misread, oracle_writer
from lcrag.data.batches import share_of
from lcrag.data.demonstrations import Demonstration, read_demonstrations, take_part
from lcrag.data.questions import Question
from lcrag.data.rows import BadRows, counted_bad_rows
from lcrag.episodes import Chat, EpisodeRecord, Translator
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.errors import UserError
from lcrag.learning import Trajectory
from lcrag.limits import Count, InnerShare, PositiveShare, Seed, Share
from lcrag.methods.translate_r1.oracles import CALL_BEGINS, ComprehensionOracle
from lcrag.policy import Tokenizer
from lcrag.retrieval import SearchableCollections
from lcrag.train.method import Method


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowContext:
    """The policy for which a source makes rows.

    Attributes:
      tokenizer: The policy's tokenizer.
      chat: Formats the openings of dialogues for a model with a chat template.
      longest_tokens: Maximum length of a training row, in tokens.
      method: The method whose program is demonstrated; None: rows do not come from a program.
      collections: The collections that the program searches; None: none are configured.
    """

    tokenizer: Tokenizer
    chat: Chat
    longest_tokens: int
    method: Method | None
    collections: SearchableCollections | None

    def encoder(self, end_of_sequence: bool) -> RowEncoder:
        """Returns the encoder of the rows."""
        return RowEncoder(self.tokenizer, self.chat, self.longest_tokens, end_of_sequence)

    def played(self) -> tuple[Method, SearchableCollections]:
        """Returns the method and the collections, which are needed to run its program.

        Raises:
          UserError: one of them is not configured.
        """
        if self.method is None or self.collections is None:
            raise UserError("rows of a program need sft.method and sft.collections: set both, or read rows from files")
        return self.method, self.collections


RowSource: TypeAlias = Callable[[RowContext], Sequence[Trajectory]]


@gin.configurable
def demonstration_files(
    row_context: RowContext,
    files: Sequence[str],
    part: str = "all",
    validation_share: InnerShare = 0.05,
    seed: Seed = 0,
    end_of_sequence: bool = True,
) -> list[Trajectory]:
    """Reads demonstrations from files; see `lcrag.data.demonstrations`.

    Args:
      row_context: The policy that learns from the rows.
      files: JSON Lines files, plain or gzipped; names may contain the wildcard `*`.
      part: "train" or "validation" of a random split by question, or "all".
      validation_share: Share of the questions in the validation split.
      seed: Seed of the split.
      end_of_sequence: Whether to train on an end-of-sequence token after a dialogue that ends with the policy's text.
    """
    with counted_bad_rows() as bad_rows:
        demonstrations = take_part(read_demonstrations(files, bad_rows), part, validation_share, seed)
        return _encoded(demonstrations, row_context.encoder(end_of_sequence), bad_rows)


@gin.configurable
def seqio_demonstrations(
    row_context: RowContext, task: str, split: str, limit: Count | None = None, end_of_sequence: bool = True
) -> list[Trajectory]:
    """Reads rows from a seqio task or mixture, `inputs` -> `targets`; see `lcrag.data.seqio_tasks`.

    Args:
      row_context: The policy that learns from the rows.
      task: Name of the task or mixture; a gin file may import the module that registers it.
      split: Split of the task.
      limit: Maximum number of examples of each task; None: all.
      end_of_sequence: Whether to train on an end-of-sequence token after each target.
    """
    import lcrag.atlas.tasks  # noqa: F401  registers the tasks of lcrag, and takes TensorFlow's seconds
    from lcrag.data.seqio_tasks import demonstrations_of_task

    with counted_bad_rows() as bad_rows:
        demonstrations = demonstrations_of_task(task, split, bad_rows, limit)
        return _encoded(demonstrations, row_context.encoder(end_of_sequence), bad_rows)


@gin.configurable
def golden_answers(
    row_context: RowContext,
    questions: Sequence[Question],
    question_share: PositiveShare = 1.0,
    seed: Seed = 0,
    template: str = "<answer> {answer}</answer>",
    end_of_sequence: bool = True,
    writer: Callable[[Sequence[Question]], TextWriter] | None = None,
) -> list[Trajectory]:
    """Runs the method's program on each question, with the golden answer as the policy's text.

    If the program also completes prompts outside its dialogue, each completion is another row.

    Args:
      row_context: The policy that learns from the rows.
      questions: The questions.
      question_share: Share of the questions that is used, in all their languages. With the same seed, a smaller share
        is a subset of a larger one.
      seed: Seed that selects the share.
      template: The policy's text, with `{answer}` for the golden answer.
      end_of_sequence: Whether to train on an end-of-sequence token after the answer.
      writer: Makes from all questions a writer of the policy's texts, which replaces the template: `GoldenArguments`.
    """
    method, collections = row_context.played()
    encoder, program = row_context.encoder(end_of_sequence), method.on(collections.languages)
    records = play(
        [(question, program(question)) for question in share_of(questions, question_share, seed=seed)],
        GoldenAnswers(template) if writer is None else writer(questions),
        collections.search,
        encoder.context_tokenizer,
        context=row_context.longest_tokens - 1,  # the end of sequence
    )
    with counted_bad_rows() as bad_rows:
        return rows_of_records(records, encoder, bad_rows, misread)


@gin.configurable
def oracle_demonstrations(
    row_context: RowContext,
    questions: Sequence[Question],
    count: Count,
    searches: Count,
    seed: Seed = 0,
    end_of_sequence: bool = True,
    oracle: Callable[..., AtlasOracle] = Oracle,
    translator: Translator | None = None,
    only_correct: bool = True,
    world: Callable[[], World] = atlas_world,
) -> list[Trajectory]:
    """Has an oracle of the atlas demonstrate the method's program, mostly in counterfactual versions of the world.

    Args:
      row_context: The policy that learns from the rows.
      questions: Questions of the atlas; drawn with replacement.
      count: Number of demonstrations.
      searches: Maximum number of searches that the oracle makes, which is the program's budget.
      seed: Seed of the draws.
      end_of_sequence: Whether to train on an end-of-sequence token after the answer.
      oracle: Creates the oracle from its `budget`.
      translator: Translates for a program that asks for translations; None: the program asks for none.
      only_correct: Whether to leave out demonstrations with another answer than the value in the passages.
      world: Builds the atlas.
    """
    method, collections = row_context.played()
    if unknown := {question.id for question in questions if question.dataset != DATASET}:
        raise UserError(f"the oracle cannot demonstrate {min(unknown)}: give it questions of the atlas")
    demonstrator = Demonstrator(
        world=world(),
        questions=questions,
        program=method.on(collections.languages),
        search=collections.search,
        tokenizer=row_context.tokenizer,
        oracle=oracle(budget=searches),
        context=row_context.longest_tokens - 1,
        chat=row_context.chat,
        translator=translator,
        only_correct=only_correct,
    )
    records = itertools.islice(demonstrator.stream(seed), count)
    with counted_bad_rows() as bad_rows:
        return rows_of_records(records, row_context.encoder(end_of_sequence), bad_rows)


def _encoded(demonstrations: Sequence[Demonstration], encoder: RowEncoder, bad_rows: BadRows) -> list[Trajectory]:
    """Encodes rows on threads, because tokenizers release Python's lock; unusable rows are counted as bad rows."""

    def encode(demonstration: Demonstration) -> EncodedRow | UnusableRow:
        try:
            return encoder.demonstration(demonstration)
        except UnusableRow as error:
            return error

    rows = []
    with concurrent.futures.ThreadPoolExecutor() as pool:
        for demonstration, row in zip(demonstrations, pool.map(encode, demonstrations), strict=True):
            if isinstance(row, UnusableRow):
                bad_rows.add(demonstration.path, demonstration.line, row.field, row.problem)
            else:
                rows.append(_trajectory(row))
    return rows


def rows_of_records(
    records: Iterable[EpisodeRecord],
    encoder: RowEncoder,
    bad_rows: BadRows,
    problem_of: Callable[[EpisodeRecord], str] = lambda record: "",
) -> list[Trajectory]:
    """Returns the rows of episodes and of their completions; episodes with a problem are counted as bad rows."""
    rows: list[Trajectory] = []
    for record in records:
        question = record.question
        place = pathlib.Path(f"question {question.dataset}/{question.id} ({question.language})")
        try:
            if problem := problem_of(record):
                raise UnusableRow("", problem)
            rows += map(_trajectory, [*encoder.completions(record), encoder.record(record)])
        except UnusableRow as error:
            bad_rows.add(place, None, "", error.problem)
    return rows


def _trajectory(row: EncodedRow) -> Trajectory:
    return Trajectory(row.tokens, row.learned, np.broadcast_to(np.float32(0), row.tokens.shape))


def rows_fingerprint(rows: Iterable[Trajectory]) -> str:
    """Returns a hash of rows and their order, of 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(np.int64(len(row.tokens)).tobytes() + row.tokens.tobytes() + row.by_policy.tobytes())
    return digest.hexdigest()[:16]


def spans_of(row: Trajectory, tokenizer: Tokenizer) -> list[dict[str, str | bool]]:
    """Returns the text of a row, split into spans that are learned and spans that are not."""
    cuts = [0, *(np.flatnonzero(np.diff(row.by_policy)) + 1), len(row.tokens)]
    return [
        {
            "learned": bool(row.by_policy[start]),
            "text": tokenizer.decode_bytes(row.tokens[start:end]).decode("utf-8", errors="replace"),
        }
        for start, end in itertools.pairwise(cuts)
    ]


@gin.configurable
def comprehension_demonstrations(
    row_context: RowContext,
    questions: Sequence[Question],
    calls: Share,
    undecided: Share = 0.0,
    seed: Seed = 0,
    end_of_sequence: bool = True,
    world: Callable[[], World] = atlas_world,
) -> list[Trajectory]:
    """Has the oracle of comprehension questions demonstrate the method's program.

    Args:
      row_context: The policy that learns from the rows.
      questions: Comprehension questions.
      calls: Share of the questions in each language for which the oracle calls the translator.
      undecided: Share of the questions that is demonstrated once more with a call whose first token is not learned:
        these rows teach how to call and how to use the response, but not when to call. The tag that opens a call must
        be a single token.
      seed: Seed that selects these questions and the oracle's guesses.
      end_of_sequence: Whether to train on an end-of-sequence token after the answer.
      world: Builds the atlas.

    Raises:
      UserError: method or collections are not configured, a row is unusable, or `undecided` is positive and the
        policy's tokenizer splits the tag that opens a call.
    """
    method, collections = row_context.played()
    encoder, program = row_context.encoder(end_of_sequence), method.on(collections.languages)
    tasks = atlas.ComprehensionTasks(world())

    def played(questions: Sequence[Question], oracle: ComprehensionOracle) -> list[EpisodeRecord]:
        return play(
            [(question, program(question)) for question in questions],
            oracle_writer(oracle),
            collections.search,
            encoder.context_tokenizer,
            context=row_context.longest_tokens - 1,  # the end of sequence
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
    """Returns the episode with the policy's first token, which opens a call, marked as not written by the policy.

    Raises:
      UserError: the tag that opens a call is not exactly this token.
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
