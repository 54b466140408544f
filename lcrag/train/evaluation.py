"""The evaluation on held-out questions that train, sft and evaluate share: by language, sampled and greedy."""

import dataclasses
import json
import math
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Console

from lcrag.composition.components import check_shape, policy_parameters
from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Runner, episode_json
from lcrag.episodes.search_log import LoggedSearch, log_searches
from lcrag.evaluation import Answered, Row
from lcrag.evaluation import evaluate as metric_rows
from lcrag.evaluation.answerable import strata, stratified
from lcrag.limits import Count, NonNegative
from lcrag.methods.globalrag.analysis import diversity_rows
from lcrag.methods.translate_r1.tool_use import CALLS
from lcrag.policy import Policy
from lcrag.rewards import Episodes, Reward
from lcrag.rewards.matching import holds_answer
from lcrag.rewards.terms import Values
from lcrag.runs import is_writer
from lcrag.runs.answers import add_rows, answers_path, episodes_path, write_answers
from lcrag.runs.display import progress_display
from lcrag.runs.folder import write_episodes
from lcrag.sampling import Sampler
from lcrag.train.lanes import Lanes, of_all_lanes
from lcrag.train.method import ProgramOf
from lcrag.train.scoring import scored_rewards

# Added to the seed once for each inference run: evaluation never repeats the random numbers of a training rollout.
SEED_OFFSET = 1_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Questions, and how the answers are decoded and scored."""

    questions: Sequence[Question]
    split: str = "held_out"  # name of the split in the rows
    # Name of a way of decoding -> its temperature; 0 is greedy.
    temperatures: Mapping[str, NonNegative] = dataclasses.field(default_factory=lambda: {"sampled": 1.0, "greedy": 0.0})
    max_tokens: Count | None = None  # of a generation; None: as in training
    # Settings in place of those of training, of whichever program the method has, where it has them: {"passages": 5}.
    program_settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    before: bool = True  # whether a training also evaluates the policy that it starts from
    runs: Count = 1  # inference runs with different random numbers; greedy decoding has one
    # Name of another policy of the same shape to compare with -> its folder.
    references: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seen_languages: Sequence[str] = LCRL_TRAINING  # languages of the training data; the others are zero-shot
    languages: Sequence[str] = LCRL_LANGUAGES  # all languages, among which an answer's is identified
    # What the numbers show and do not show, for the report.
    reading: str = "One run on one machine; compare methods only over several seeds."
    reward: Reward | None = None  # scores each answer, excluding tool costs, for the metric `reward`
    # Folder of an audit (`lcrag audit`), whose strata (whether a question can be answered) are reported separately.
    audit: str | None = None

    def __post_init__(self):
        if self.audit is not None:
            strata(self.audit, [question.key for question in self.questions])

    @property
    def decodings(self) -> dict[str, int]:
        """Inference runs of each way of decoding; greedy decoding has one."""
        return {name: self.runs if temperature else 1 for name, temperature in self.temperatures.items()}

    def run(
        self,
        folder: pathlib.Path,
        label: str,
        runner: Runner,
        program: ProgramOf,
        policy: Policy,
        *,
        seed: int,
        console: Console | None = None,
    ) -> list[Row]:
        """Evaluates all questions with every decoding, using the current parameters of the runner's sampler.

        Writes `answers/<label>_<decoding>.jsonl` and, in the format of training, `episodes/<label>_<decoding>.jsonl`
        (later inference runs with the suffix `_run_2`, ...), and adds the rows to `evaluation.json`. The seed of a
        later run's rows is the text "<seed>, run 2", that of rows over several runs "<seed>, runs 1 to 5".
        """
        rows: list[Row] = []
        for decoding, temperature in self.temperatures.items():
            method, samples = f"{label}, {decoding}", []
            for number in range(1, self.decodings[decoding] + 1):
                decoder = dataclasses.replace(
                    runner,
                    temperature=temperature,
                    seed=seed + number * SEED_OFFSET,
                    max_tokens=self.max_tokens or runner.max_tokens,
                )
                answered, episodes = self._ask(decoder, program, method, console or Console())
                if is_writer():
                    write_answers(answers_path(folder, label, decoding, number), answered)
                    write_episodes(episodes_path(folder, label, decoding, number), episodes)
                measured = metric_rows(
                    answered,
                    method=method,
                    model=policy.name,
                    split=self.split,
                    seed=seed if number == 1 else f"{seed}, run {number}",
                    seen_languages=self.seen_languages,
                    languages=self.languages,
                )
                rows += [*measured, *_seconds_rows(measured, decoder.statistics.seconds / len(answered))]
                samples += answered
            if self.runs > 1 and temperature:
                runs = f"{seed}, runs 1 to {self.runs}"
                rows += diversity_rows(samples, method=method, model=policy.name, split=self.split, seed=runs)
        if is_writer():
            add_rows(folder, rows)
        return rows

    def _ask(
        self, runner: Runner, program: ProgramOf, title: str, console: Console
    ) -> tuple[list[Answered], Iterator[dict[str, Any]]]:
        """Returns the answers, and the rows of the file of episodes."""
        logs: list[list[LoggedSearch]] = [[] for _ in self.questions]
        programs = [(q, log_searches(program(q), logs[n]), n) for n, q in enumerate(self.questions)]
        count, tokens = len(programs), runner.written_tokens
        with progress_display(title, count, unit="question", tokens=tokens, transient=True, console=console) as display:
            records = runner.run(programs, progress=lambda done, _: display.update(done))
        rewards: list[dict[str, float]] = [{} for _ in records]
        terms = scored_rewards(self.reward or _unscored, records, np.arange(len(records), dtype=np.int32))
        if self.reward is not None:
            rewards = [{name: float(values[n]) for name, values in terms.items()} for n in range(len(records))]
        texts = [[f"{passage.title} {passage.text}" for each in log for passage in each.passages] for log in logs]
        found = of_all_lanes(runner, texts)
        answered = [_answered(*parts) for parts in zip(records, found, rewards, strict=True)]
        answered = answered if self.audit is None else stratified(answered, self.audit)
        return answered, (episode_json(each, rewards=own) for each, own in zip(records, rewards, strict=True))

    def check_references(self, policy: Policy) -> None:
        """Checks the references before anything is written.

        Raises:
          UserError: one has another shape than the policy, or cannot be read.
        """
        for reference in self.references.values():
            check_shape(reference, policy)

    def run_references(
        self,
        folder: pathlib.Path,
        sampler: Sampler | Lanes,
        runner: Runner,
        program: ProgramOf,
        policy: Policy,
        **options,
    ) -> None:
        """Evaluates every reference policy; the caller must restore the sampler's parameters afterwards."""
        for label, reference in self.references.items():
            sampler.set_params(policy_parameters(reference, policy))
            self.run(folder, label, runner, program, dataclasses.replace(policy, name=reference), **options)


def _unscored(episodes: Episodes) -> dict[str, Values]:
    """Returns no rewards; the reward of evaluations without one."""
    return {"total": np.zeros(len(episodes.answers))}


def _seconds_rows(rows: Sequence[Row], seconds: float) -> list[Row]:
    """The wall time per question of an inference run, for each of its data sets: their episodes run concurrently."""
    whole = [row for row in rows if row.language == "all" and row.metric == "answered" and "/" not in row.split]
    metric = "seconds_per_question"
    return [dataclasses.replace(row, metric=metric, value=seconds, standard_error=math.nan) for row in whole]


def _answered(record: EpisodeRecord, passages: Sequence[str], rewards: Mapping[str, float]) -> Answered:
    question, counts, plan = record.question, record.counts, record.outcome.extra.get("plan")
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
        reward=_known(rewards.get("total")),
        tool_calls=counts.get(CALLS),
        failed=record.failure is not None,
        unscored=record.failure is None and math.isnan(rewards.get("total", 0.0)),
    )


def _known(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else value


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
