"""Where the rows of supervised fine-tuning come from: files, seqio tasks, golden answers, the atlas's oracle.

A source is a function of what is known about the policy and its row_context (`RowContext`); gin gives it the rest.
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

from lcrag.app.composition.atlas import atlas_world
from lcrag.app.composition.datasets import counted_bad_rows
from lcrag.app.composition.method import Method
from lcrag.atlas import World
from lcrag.atlas import comprehension as atlas
from lcrag.atlas.oracle import Oracle
from lcrag.atlas.world import DATASET
from lcrag.curation.encoding import EncodedRow, RowEncoder, UnusableRow
from lcrag.curation.oracle_demonstrations import Demonstrator
from lcrag.curation.playing import TextWriter, play
from lcrag.curation.text_writers import AtlasOracle, GoldenAnswers, misread, oracle_writer
from lcrag.data.batches import share_of
from lcrag.data.demonstrations import Demonstration, read_demonstrations, take_part
from lcrag.data.questions import Question
from lcrag.data.rows import BadRows
from lcrag.episodes import Chat, EpisodeRecord, Translator
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.errors import UserError
from lcrag.learning import Trajectory
from lcrag.limits import Count, InnerShare, PositiveShare, Seed, Share
from lcrag.methods.translate_r1.oracles import CALL_BEGINS, ComprehensionOracle
from lcrag.policy import Tokenizer
from lcrag.retrieval import SearchableCollections


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowContext:
    """What a source of rows knows about the policy that learns from them.

    Attributes:
      tokenizer: The policy's.
      chat: How openings are put to a model with a chat template.
      longest_tokens: Tokens of the longest training row.
      method: The method whose program is demonstrated, or None.
      collections: The collections that it searches, or None.
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
        """Returns the method and the collections that playing a program needs.

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
    """Rows from files; see `lcrag.data.demonstrations`.

    Args:
      row_context: The policy that learns from them.
      files: JSON lines, plain or gzipped; a name may hold `*`.
      part: "train" or "validation" of a seeded split by question, or "all".
      validation_share: Share of the questions that the split keeps for validation.
      seed: Of the split.
      end_of_sequence: Teach the end of sequence after a dialogue that ends with the policy's text.
    """
    with counted_bad_rows() as bad_rows:
        demonstrations = take_part(read_demonstrations(files, bad_rows), part, validation_share, seed)
        return _encoded(demonstrations, row_context.encoder(end_of_sequence), bad_rows)


@gin.configurable
def seqio_demonstrations(
    row_context: RowContext, task: str, split: str, limit: Count | None = None, end_of_sequence: bool = True
) -> list[Trajectory]:
    """Rows from a seqio task or mixture, `inputs` -> `targets`; see `lcrag.data.seqio_tasks`.

    Args:
      row_context: The policy that learns from them.
      task: Its name; a gin file may import the module that registers it.
      split: Of the task.
      limit: At most this many examples of each task.
      end_of_sequence: Teach the end of sequence after each target.
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
    """Rows "question and passages -> golden answer": the method's program, its searches done, its answer given.

    Of a program that completes prompts outside its dialogue, each completion is a row too.

    Args:
      row_context: The policy that learns from them.
      questions: What is asked.
      question_share: Share of them that is used, in all their languages; with one seed, smaller shares are parts of
        larger ones.
      seed: Of the share.
      template: What the policy is to write, with `{answer}` in the answer's place.
      end_of_sequence: Teach the end of sequence after the answer.
      writer: Makes from all questions what writes the policy's texts, in place of the template: `GoldenArguments`.
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
    """Demonstrations of the method's program by an oracle of the atlas, most of them counterfactual.

    Args:
      row_context: The policy that learns from them.
      questions: Questions of the atlas; they are drawn with replacement.
      count: How many demonstrations.
      searches: Searches that the oracle makes at most: the program's budget.
      seed: Of the draws.
      end_of_sequence: Teach the end of sequence after the answer.
      oracle: Makes the one that plays the program, from its `budget`.
      translator: Makes the translations that the program asks for; None: it asks for none.
      only_correct: Leave out those with another answer than the passages' value.
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
    """Encodes rows on all cores (tokenizers leave Python while they work); unusable ones are bad rows."""

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
    """Rows of played episodes and of their completions; episodes with a problem are bad rows."""
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
    """Sixteen hexadecimal digits that name some rows, in their order."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(np.int64(len(row.tokens)).tobytes() + row.tokens.tobytes() + row.by_policy.tobytes())
    return digest.hexdigest()[:16]


def spans_of(row: Trajectory, tokenizer: Tokenizer) -> list[dict[str, str | bool]]:
    """A row as text, cut where what is learned begins and ends."""
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
    """Demonstrations of the method's program by the oracle of the comprehension questions.

    Args:
      row_context: The policy that learns from them.
      questions: Comprehension questions.
      calls: Share of them, in every language alike, that the oracle has translated.
      undecided: Share of them that is demonstrated once more, translated, without learning the token that begins the
        call: how to call, and what to do with the response, but not when. The tag that opens a call must be one token.
      seed: Of which ones these are, and of the oracle's guesses.
      end_of_sequence: Teach the end of sequence after the answer.
      world: Builds the atlas.

    Raises:
      UserError: there is no method, there are no collections, rows cannot be used, or some are to be undecided and the
        tag that opens a call is several tokens of the policy's.
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
