"""Rows for supervised fine-tuning: demonstrations as tokens, encoded as their text would be in an episode.

A source of rows is a function whose first argument is a `RowContext`; gin binds its other arguments. Here are those of
files, seqio tasks, golden answers and the atlas's oracle.
"""

import concurrent.futures
import dataclasses
import hashlib
import itertools
import pathlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import gin
import numpy as np

from lcrag.atlas.facts import Fact, section_of
from lcrag.atlas.oracle import Oracle
from lcrag.atlas.world import DATASET, World, atlas_world
from lcrag.curation.playing import AtlasOracle, GoldenAnswers, TextWriter, misread, oracle_writer, play
from lcrag.data.demonstrations import Demonstration, Part, read_demonstrations, take_part
from lcrag.data.questions import Question, share_of
from lcrag.data.rows import BadRows, counted_bad_rows
from lcrag.episodes import Chat, EpisodeRecord, Program, Search, Translator
from lcrag.episodes.chat import ContextTokenizer
from lcrag.episodes.programs import Found, FoundPassage
from lcrag.errors import Count, Seed, Share, UserError, typed
from lcrag.learning import Trajectory
from lcrag.policy import Tokenizer
from lcrag.retrieval import Hit


class UnusableRow(ValueError):
    """A demonstration that cannot be used for training: its field, if one is at fault, and the problem."""

    def __init__(self, field: str, problem: str):
        super().__init__(problem)
        self.field, self.problem = field, problem


class RowEncoder:
    """Encodes demonstrations for one policy.

    Args:
      longest_tokens: Rows with more tokens are unusable.
      end_of_sequence: Append the end of the model's turn in its chat template, or else end-of-sequence, to dialogues
        that end with the policy's turn. Episodes end at their stop strings without it; generation without stop strings
        needs it.
    """

    def __init__(self, tokenizer: Tokenizer, chat: Chat, longest_tokens: int, end_of_sequence: bool = True):
        self.context_tokenizer = ContextTokenizer(tokenizer, chat)
        self._tokenizer, self._chat = tokenizer, chat  # uncached: files hold too many texts
        self.longest_tokens = longest_tokens
        end = chat.end_of_turn(tokenizer)
        self._end = [tokenizer.eos_ids[0] if end is None else end] if end_of_sequence else []

    def demonstration(self, demonstration: Demonstration) -> Trajectory:
        """Encodes a demonstration up to the policy's last turn; raises `UnusableRow`, as the other methods do."""
        if demonstration.in_template and self._chat.template and self._tokenizer.chat_template is not None:
            if spelled := [token for token in self._tokenizer.special_tokens if token in demonstration.opening]:
                raise UnusableRow(
                    "prompt",
                    f"it holds the control token {spelled[0]}: if it stands in a chat template already, give the text"
                    ' without it as "opening": ["..."]',
                )
        learned_turns = [number for number, turn in enumerate(demonstration.turns, start=1) if turn.learn]
        turns = demonstration.turns[: max(learned_turns, default=0)]
        # Text that is certainly too long is not encoded, which would take long.
        characters = sum(map(len, (demonstration.opening, *(turn.text for turn in turns))))
        if characters > self.context_tokenizer.max_characters(self.longest_tokens):
            raise self._too_long(f"{characters} characters")
        opening = self._chat.opening(self._tokenizer, demonstration.opening, demonstration.system, ())
        pieces = [(opening.ids, False)]
        context_tokenizer, before, end = self.context_tokenizer, "environment", list[int]()
        for turn in turns:
            text = turn.text
            if turn.by == "policy":
                text, end = context_tokenizer.demonstrated(text)
                pieces.append(([*self._tokenizer.encode_ordinary(text, continues=True), *end], turn.learn))
            elif context_tokenizer.role and before == "policy":
                message = self._chat.observation(self._tokenizer, context_tokenizer.role, context_tokenizer.shown(text))
                pieces.append((message.ids[len(end) :], False))
            else:
                pieces.append((self._tokenizer.encode_ordinary(text, continues=True), False))
            before = turn.by
        tokens = np.concatenate([np.asarray(ids, np.int32) for ids, _ in pieces])
        learned = np.concatenate([np.full(len(ids), learned) for ids, learned in pieces])
        return self._row(tokens, learned, ends=demonstration.turns[-1].learn)

    def record(self, record: EpisodeRecord) -> Trajectory:
        """Encodes a played episode."""
        if not record.by_policy.any():
            raise UnusableRow("", "the policy wrote nothing in it")
        last = int(np.flatnonzero(record.by_policy)[-1]) + 1
        return self._row(record.tokens[:last], record.by_policy[:last], ends=bool(record.by_policy[-1]))

    def completions(self, record: EpisodeRecord) -> list[Trajectory]:
        """Encodes the policy's completions in an episode outside its dialogue, one row for each."""
        rows = []
        for completion in record.completions:
            if completion.model is None:
                prompt = self.context_tokenizer.place(completion.opening or completion.prompt, opens=True).tokens
                text = self.context_tokenizer.encode(completion.text)
                learned = np.repeat([False, True], [len(prompt), len(text)])
                rows.append(self._row(np.asarray([*prompt, *text], np.int32), learned, ends=True))
        return rows

    def _row(self, tokens: np.ndarray, learned: np.ndarray, *, ends: bool) -> Trajectory:
        """Appends end-of-sequence if the policy's turn is the last and has none, and checks the row."""
        end = self._end if ends and tokens[-1:].tolist() != self._end else []
        tokens = np.concatenate([tokens, np.asarray(end, np.int32)])
        learned = np.concatenate([learned, np.full(len(end), True)])
        if learned[0]:
            raise UnusableRow("prompt", "it has no tokens, so nothing precedes the policy's first token")
        if not learned.any():
            raise UnusableRow("turns", "the policy's text has no tokens to learn")
        if len(tokens) > self.longest_tokens:
            raise self._too_long(f"{len(tokens)} tokens")
        return Trajectory(tokens, learned, np.broadcast_to(np.float32(0), tokens.shape))

    def _too_long(self, length: str) -> UnusableRow:
        longest = f"the longest training row holds {self.longest_tokens} tokens; raise Layout.row_lengths"
        return UnusableRow("", f"it has {length}, but {longest}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RowContext:
    """The policy for which a source makes rows."""

    tokenizer: Tokenizer
    chat: Chat  # formats the openings of dialogues for a model with a chat template
    longest_tokens: int  # maximum length of a training row
    program: Callable[[Question], Program] | None = None  # of a question; None: rows do not come from a program
    search: Search | None = None  # for the program
    demonstrated: list[Question] = dataclasses.field(default_factory=list)  # to which a source adds its questions

    def encoder(self, end_of_sequence: bool) -> RowEncoder:
        return RowEncoder(self.tokenizer, self.chat, self.longest_tokens, end_of_sequence)

    @property
    def played_tokens(self) -> int:
        """Length of the context in which a demonstration is played, which leaves room for an end of sequence."""
        return self.longest_tokens - 1

    def played(self) -> tuple[Callable[[Question], Program], Search]:
        """Returns program and search; raises a UserError if one of them is not configured."""
        if self.program is None or self.search is None:
            raise UserError("rows of a program need sft.method and sft.collections: set both, or read rows from files")
        return self.program, self.search

    def play(
        self,
        questions: Sequence[Question],
        writer: TextWriter,
        encoder: RowEncoder,
        translator: Translator | None = None,
    ) -> list[EpisodeRecord]:
        """Plays the program on questions, with a writer in the policy's place."""
        program, search = self.played()
        programs = [(question, program(question)) for question in questions]
        tokenizer, context = encoder.context_tokenizer, self.played_tokens
        return play(programs, writer, search, tokenizer, context=context, translator=translator)


RowSource: TypeAlias = Callable[[RowContext], Sequence[Trajectory]]


@gin.configurable
@typed
def demonstration_files(
    row_context: RowContext,
    files: Sequence[str],
    part: Part = "all",
    validation_share: Share = 0.05,
    seed: Seed = 0,
    end_of_sequence: bool = True,
) -> list[Trajectory]:
    """Reads demonstrations from files; see `lcrag.data.demonstrations`.

    Args:
      files: JSON Lines files, plain or gzipped; names may contain the wildcard `*`.
      part: "train" or "validation" of a random split by question, or "all".
    """
    with counted_bad_rows() as bad_rows:
        demonstrations = take_part(read_demonstrations(files, bad_rows), part, validation_share, seed)
        return _encoded(demonstrations, row_context, end_of_sequence, bad_rows)


@gin.configurable
@typed
def seqio_demonstrations(
    row_context: RowContext, task: str, split: str, limit: int | None = None, end_of_sequence: bool = True
) -> list[Trajectory]:
    """Reads rows from a seqio task or mixture, `inputs` -> `targets`, whose module a gin file may import."""
    import lcrag.atlas.tasks  # noqa: F401  registers the tasks of lcrag, and takes TensorFlow's seconds
    from lcrag.data.seqio_tasks import demonstrations_of_task

    with counted_bad_rows() as bad_rows:
        demonstrations = demonstrations_of_task(task, split, bad_rows, limit)
        return _encoded(demonstrations, row_context, end_of_sequence, bad_rows)


@gin.configurable
@typed
def golden_answers(
    row_context: RowContext,
    questions: Sequence[Question],
    question_share: Share = 1.0,
    seed: Seed = 0,
    template: str = "<answer> {answer}</answer>",
    end_of_sequence: bool = True,
    writer: Callable[[Sequence[Question]], TextWriter] | None = None,
) -> list[Trajectory]:
    """Runs the method's program on each question, with the golden answer as the policy's text.

    If the program also completes prompts outside its dialogue, each completion is another row.

    Args:
      question_share: Share of the questions that is used, in all their languages. With the same seed, a smaller share
        is a subset of a larger one.
      template: The policy's text, with `{answer}` for the golden answer.
      writer: Makes from all questions a writer of the policy's texts, which replaces the template: `GoldenArguments`.
    """
    encoder = row_context.encoder(end_of_sequence)
    shared = share_of(questions, question_share, seed=seed)
    row_context.demonstrated.extend(shared)
    text_writer = GoldenAnswers(template) if writer is None else writer(questions)
    return rows_of_records(row_context.play(shared, text_writer, encoder), encoder, misread)


def _encoded(
    demonstrations: Sequence[Demonstration], row_context: RowContext, end_of_sequence: bool, bad_rows: BadRows
) -> list[Trajectory]:
    """Encodes rows on threads, because tokenizers release Python's lock; unusable rows are counted as bad rows."""
    encoder = row_context.encoder(end_of_sequence)
    row_context.demonstrated.extend(question for demonstration in demonstrations for question in demonstration.asked)

    def encode(demonstration: Demonstration) -> Trajectory | UnusableRow:
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
                rows.append(row)
    return rows


def rows_of_records(
    records: Iterable[EpisodeRecord],
    encoder: RowEncoder,
    problem_of: Callable[[EpisodeRecord], str] = lambda record: "",
) -> list[Trajectory]:
    """Returns the rows of episodes and of their completions; episodes with a problem are counted as bad rows."""
    rows: list[Trajectory] = []
    with counted_bad_rows() as bad_rows:
        for record in records:
            question = record.question
            try:
                if problem := problem_of(record):
                    raise UnusableRow("", problem)
                rows += [*encoder.completions(record), encoder.record(record)]
            except UnusableRow as error:
                place = pathlib.Path(f"question {question.dataset}/{question.id} ({question.language})")
                bad_rows.add(place, None, "", error.problem)
    return rows


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


# --- Demonstrations on the atlas ---

TOGETHER = 256
MAX_FRUITLESS = 20 * TOGETHER


def demonstrate(
    row_context: RowContext,
    questions: Sequence[Question],
    oracle: AtlasOracle,
    *,
    world: World,
    seed: int,
    translator: Translator | None = None,
    only_correct: bool = True,
) -> Iterator[EpisodeRecord]:
    """Yields demonstrations of the program on the atlas's training questions forever, determined by the seed.

    Those that a context does not hold are left out, and with `only_correct` those whose answer is not the passages'.

    Raises:
      UserError: none of many consecutive demonstrations could be kept.
    """
    program, search = row_context.played()
    generator, context = np.random.default_rng(seed), row_context.played_tokens
    encoder = ContextTokenizer(row_context.tokenizer, row_context.chat)  # one for all, because it remembers encodings
    fruitless = 0
    while fruitless < MAX_FRUITLESS:
        drawn: list[tuple[Question, Fact | None, Fact | None]] = []  # question, its fact, the fact as told
        for _ in range(TOGETHER):
            question = questions[int(generator.integers(len(questions)))]
            fact = world.last_facts.get(question.id)
            drawn.append((question, fact, fact and world.often_counterfactual(generator, fact)))

        def retold(number: int, found: Found, drawn: Sequence[tuple] = drawn) -> Found:
            """Replaces the passages about the fact by those in the world in which it has its told value."""
            _, fact, told = drawn[number]
            if told is None or told is fact:
                return found
            section = section_of(told)

            def replaced(hit: FoundPassage) -> FoundPassage:
                if not isinstance(hit, Hit) or hit.id != f"{hit.language}/{section}":
                    return hit
                return dataclasses.replace(hit, text=world.passage(section, hit.language, told).text)

            return [[[replaced(hit) for hit in hits] for hits in languages] for languages in found]

        records = play(
            [(question, program(question)) for question, *_ in drawn],
            oracle_writer(oracle),
            search,
            encoder,
            context=context,
            edit=retold,
            translator=translator,
        )
        fruitless += TOGETHER
        for (question, _, told), record in zip(drawn, records, strict=True):
            golden = world.values(told, question.language) if told else question.answers
            correct = record.outcome.answer in golden
            if len(record.tokens) <= context and (correct or not only_correct):
                fruitless = 0
                yield record
    raise UserError(
        f"the oracle made no demonstration to keep for {fruitless} questions: demonstrate with collections that hold"
        " their facts, ask other questions, or give a longer context"
    )


@gin.configurable
@typed
def oracle_demonstrations(
    row_context: RowContext,
    questions: Sequence[Question],
    count: Count,
    searches: int,
    seed: Seed = 0,
    end_of_sequence: bool = True,
    oracle: Callable[..., AtlasOracle] = Oracle,
    translator: Translator | None = None,
    only_correct: bool = True,
) -> list[Trajectory]:
    """Has an oracle of the atlas demonstrate the method's program, mostly in counterfactual versions of the world.

    Args:
      questions: Questions of the atlas; drawn with replacement.
      searches: Maximum number of searches that the oracle makes, which is the program's budget.
      oracle: Creates the oracle from its `budget`.
      translator: Translates for a program that asks for translations; None: the program asks for none.
      only_correct: As of `demonstrate`.
    """
    row_context.demonstrated.extend(questions)
    if not questions:
        raise UserError("oracle_demonstrations.questions is empty: give questions of the atlas")
    if unknown := {question.id for question in questions if question.dataset != DATASET}:
        raise UserError(f"the oracle cannot demonstrate {min(unknown)}: give it questions of the atlas")
    player = oracle(budget=searches)
    records = demonstrate(
        row_context, questions, player, world=atlas_world(), seed=seed, translator=translator, only_correct=only_correct
    )
    return rows_of_records(itertools.islice(records, count), row_context.encoder(end_of_sequence))
