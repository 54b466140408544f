"""The evaluation on held-out questions that train, sft and evaluate share: by language, sampled and greedy."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gin
import numpy as np
from rich.console import Console

from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, episode_json
from lcrag.episodes.search_log import LoggedSearch, log_searches
from lcrag.errors import UserError, typed
from lcrag.evaluation import Answered, Row
from lcrag.evaluation import evaluate as metric_rows
from lcrag.methods.globalrag.analysis import diversity_rows
from lcrag.methods.translate_r1.tool_use import CALLS
from lcrag.retrieval import SearchableCollections
from lcrag.rewards import Reward
from lcrag.rewards.matching import holds_answer
from lcrag.runs import is_writer
from lcrag.runs.answers import AFTER, BEFORE, add_rows, answers_path, episodes_path, write_answers
from lcrag.runs.display import progress_display
from lcrag.runs.folder import write_episodes
from lcrag.train.checks import check_questions, check_rewarded
from lcrag.train.episode import check_scored
from lcrag.train.load import check_shape, policy_parameters
from lcrag.train.method import ProgramOf, reward_values
from lcrag.train.rollout import Rollouts

# Added to the seed once for each inference run: evaluation never repeats the random numbers of a training rollout.
SEED_OFFSET = 1_000_000


@gin.register
@typed
@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Questions, and how the answers are decoded and scored."""

    questions: Sequence[Question]
    split: str = "held_out"  # name of the split in the rows
    # Name of a way of decoding -> its temperature; 0 is greedy.
    temperatures: Mapping[str, float] = dataclasses.field(default_factory=lambda: {"sampled": 1.0, "greedy": 0.0})
    max_tokens: int | None = None  # of a generation; None: as in training
    # Settings in place of those of training, of whichever program the method has, where it has them: {"passages": 5}.
    program_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    before: bool = True  # whether a training also evaluates the policy that it starts from
    runs: int = 1  # inference runs with different random numbers; greedy decoding has one
    # Name of another policy of the same shape to compare with -> its folder.
    references: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seen_languages: Sequence[str] = LCRL_TRAINING  # languages of the training data; the others are zero-shot
    languages: Sequence[str] = LCRL_LANGUAGES  # all languages, among which an answer's is identified
    # What the numbers show and do not show, for the report.
    reading: str = "One run on one machine; compare methods only over several seeds."
    reward: Reward | None = None  # scores each answer, excluding tool costs, for the metric `reward`

    def __post_init__(self):
        if self.runs < 1 or (self.max_tokens is not None and self.max_tokens < 1):
            raise UserError("Evaluation.runs and Evaluation.max_tokens must be at least 1")
        if any(temperature < 0 for temperature in self.temperatures.values()):
            raise UserError(f"Evaluation.temperatures are {dict(self.temperatures)}: none may be below 0")

    @property
    def decodings(self) -> dict[str, int]:
        """Inference runs of each way of decoding; greedy decoding has one."""
        return {name: self.runs if temperature else 1 for name, temperature in self.temperatures.items()}

    def run(
        self,
        folder: pathlib.Path,
        label: str,
        rollouts: Rollouts,
        *,
        seed: int,
        name: str | None = None,
        console: Console | None = None,
    ) -> list[Row]:
        """Evaluates all questions with every decoding, using the present parameters of the lanes.

        Writes `answers/<label>_<decoding>.jsonl` and, in the format of training, `episodes/<label>_<decoding>.jsonl`
        (later inference runs with the suffix `_run_2`, ...), and adds the rows to `evaluation.json`. The seed of a
        later run's rows is the text "<seed>, run 2", that of rows over several runs "<seed>, runs 1 to 5".

        Args:
          folder: Where to write.
          label: Name of the results.
          rollouts: The lanes, with the method and the policy.
          seed: Seed of sampling.
          name: Name of the policy in the rows; None: that of `rollouts.policy`.
          console: Where to show the progress.
        """
        rows: list[Row] = []
        about = {"model": name or rollouts.policy.name, "split": self.split}
        for decoding, temperature in self.temperatures.items():
            method, samples = f"{label}, {decoding}", []
            for number in range(1, self.decodings[decoding] + 1):
                answered, episodes, seconds = self._ask(
                    rollouts,
                    method,
                    console or Console(),
                    temperature=temperature,
                    seed=seed + number * SEED_OFFSET,
                    max_tokens=self.max_tokens or rollouts.runner.max_tokens,
                )
                if is_writer():
                    write_answers(answers_path(folder, label, decoding, number), answered)
                    write_episodes(episodes_path(folder, label, decoding, number), episodes)
                measured = metric_rows(
                    answered,
                    method=method,
                    seed=seed if number == 1 else f"{seed}, run {number}",
                    seen_languages=self.seen_languages,
                    languages=self.languages,
                    **about,
                )
                rows += measured
                rows += [
                    # Episodes of all data sets run concurrently: each has the time of the whole.
                    dataclasses.replace(
                        row, metric="seconds_per_question", value=seconds / len(answered), standard_error=math.nan
                    )
                    for row in measured
                    if row.language == "all" and row.metric == "answered" and "/" not in row.split
                ]
                samples += answered
            if self.runs > 1 and temperature:
                rows += diversity_rows(samples, method=method, seed=f"{seed}, runs 1 to {self.runs}", **about)
        if is_writer():
            add_rows(folder, rows)
        return rows

    def _ask(
        self, rollouts: Rollouts, title: str, console: Console, **decoding: Any
    ) -> tuple[list[Answered], Iterator[dict[str, Any]], float]:
        """Returns the answers, the rows of the file of episodes, and the seconds that they took."""
        program = self.program(rollouts)
        logs: list[list[LoggedSearch]] = [[] for _ in self.questions]
        programs = [(q, log_searches(program(q), logs[n]), n) for n, q in enumerate(self.questions)]
        show = progress_display(
            title, len(programs), unit="question", tokens=rollouts.written_tokens, transient=True, console=console
        )
        with show as display:
            records, seconds = rollouts.run(programs, progress=lambda done, _: display.update(done), **decoding)
        rewards: list[dict[str, float]] = [{} for _ in records]
        if self.reward is None:
            check_scored(records, np.array([math.nan if record.failure else 0.0 for record in records]))
        else:
            values = reward_values(self.reward, records, np.arange(len(records), dtype=np.int32))
            check_scored(records, values["total"])
            rewards = [{name: float(own[n]) for name, own in values.items()} for n in range(len(records))]
        texts = [[f"{passage.title} {passage.text}" for each in log for passage in each.passages] for log in logs]
        answered = [_answered(*parts) for parts in zip(records, rollouts.gather(texts), rewards, strict=True)]
        rows = (episode_json(each, rewards=earned) for each, earned in zip(records, rewards, strict=True))
        return answered, rows, seconds

    def program(self, rollouts: Rollouts) -> ProgramOf:
        """Returns the method's program with the settings of the evaluation."""
        return rollouts.method.with_settings(self.program_settings).on(rollouts.languages)


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """The evaluation of a training run, before and after it; checked when it is built.

    Attributes:
      evaluation: Questions, and how they are answered.
      rollouts: The run's lanes.
      collections: The collections that they search.
      seed: Seed of sampling.

    Raises:
      UserError: a question does not fit the collections or the reward, or a reference policy has another shape.
    """

    evaluation: Evaluation
    rollouts: Rollouts
    collections: SearchableCollections
    seed: int

    def __post_init__(self):
        evaluation, rollouts = self.evaluation, self.rollouts
        check_rewarded(evaluation.reward, evaluation.questions)
        check_questions(
            evaluation.questions,
            self.collections,
            rollouts.runner,
            evaluation.program(rollouts),
            native_collections=rollouts.method.native_collections,
        )
        for reference in evaluation.references.values():
            check_shape(reference, rollouts.policy)

    def before(self, folder: pathlib.Path, params: Any, console: Console) -> None:
        """Evaluates the policy that training starts from, if its evaluation is wanted, and the references."""
        if self.evaluation.before:
            self._run(BEFORE, folder, params, console)
        for label, reference in self.evaluation.references.items():
            self._run(label, folder, policy_parameters(reference, self.rollouts.policy), console, name=reference)

    def after(self, folder: pathlib.Path, params: Any, console: Console) -> None:
        """Evaluates the trained policy."""
        self._run(AFTER, folder, params, console)

    def _run(self, label: str, folder: pathlib.Path, params: Any, console: Console, name: str | None = None) -> None:
        self.rollouts.set_params(params)
        self.evaluation.run(folder, label, self.rollouts, seed=self.seed, name=name, console=console)


def _answered(record: EpisodeRecord, passages: Sequence[str], rewards: Mapping[str, float]) -> Answered:
    """Returns the answer of an episode, with the passages that it retrieved and its rewards by term, if it has any."""
    question, counts, plan = record.question, record.counts, record.outcome.extra.get("plan")
    total = rewards.get("total")
    return Answered(
        question_id=question.id,
        dataset=question.dataset,
        language=question.language,
        answer=record.outcome.answer,
        golds=question.answers,
        searches=counts["searches"],
        retrieval_rounds=counts["retrieval_rounds"],
        subsets=_subsets(question),
        sampled_tokens=counts["policy_tokens"] + counts["completion_tokens"],
        total_tokens=len(record.tokens) + sum(each.prompt_tokens + each.tokens for each in record.completions),
        answer_retrieved=holds_answer(passages, question.answers),
        plan=None if plan is None else json.dumps(plan, ensure_ascii=False),
        domain=question.domain,
        tier=question.tier,
        reward=None if total is None or math.isnan(total) else total,
        tool_calls=counts.get(CALLS),
        failed=record.failure is not None,
        unscored=record.failure is None and total is not None and math.isnan(total),
    )


def _subsets(question: Question) -> tuple[str, ...]:
    """Returns the parts of its data set that a question belongs to: kind, domain, tier, and where its fact is."""
    extra = question.extra
    subsets = ["native_holds" if extra["native_holds"] else "native_missing"] if "native_holds" in extra else []
    if "copyable" in extra:
        subsets.append("copyable" if extra["copyable"] else "translated")
    if extra.get("hops", 1) > 1:
        subsets.append({2: "two_hops", 3: "three_hops", 4: "four_hops"}[extra["hops"]])
    if "type" in extra:  # comparison, bridge, 3hop1, a relation, ...
        subsets.append(extra["type"])
    subsets += filter(None, (question.domain, question.tier))
    if question.domain and question.tier:
        subsets.append(f"{question.domain}/{question.tier}")
    return tuple(subsets)
