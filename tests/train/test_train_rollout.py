"""Rollouts on lanes: who samples what, that all of it comes back in order; dynamic sampling; and evaluations."""

import functools
import itertools
import json

import jax
import numpy as np
import pytest
from experiment_parts import json_lines
from rich.console import Console
from rollout_parts import GROUPS, Shown, make_rollouts, method_of, question, record_of, roll_out, rows, searching
from support import tiny_config, tiny_tokenizer
from support.pretended_collections import PretendedCollections
from support.scripted_sampler import ScriptedSampler

from lcrag.data.questions import Question
from lcrag.episodes import Abandoned, Completion, Generate, GenerationFailure, Observe, Outcome, Retrieve, Runner
from lcrag.errors import UserError
from lcrag.evaluation import place_tables, read_rows
from lcrag.evaluation.metrics import UNANSWERED
from lcrag.methods.globalrag.analysis import PlanAnalysis
from lcrag.methods.lcrl import hierarchical_search
from lcrag.methods.r_search import answer_from_evidence
from lcrag.policy import initialise, make_mesh
from lcrag.sampling import Sampler
from lcrag.train.evaluation import SEED_OFFSET, Evaluation, answers_path, read_answers
from lcrag.train.method import Episode, grouped, values_of, without_variance
from lcrag.train.rollout import Lanes, Rollouts, StepSampler, assign_lanes
from lcrag.train.steps import dynamic_sampling_metrics


def test_groups_are_dealt_whole_and_evenly():
    assert assign_lanes([(question(number),) for number in range(7)], 3) == [0, 1, 2, 0, 1, 2, 0]
    assert assign_lanes([GROUPS[1], GROUPS[0], *GROUPS[2:4]], 2) == [1, 0, 1, 0]  # the largest first
    assert assign_lanes([GROUPS[1], GROUPS[2], GROUPS[1]], 2) == [0, 1, 0]  # a question that is drawn twice


def test_a_lane_has_its_share_of_slots_and_rows():
    sampler = Sampler(slots=12, append_rows=(5, 12), decode_rows=(3,))
    shared = Lanes(sampler=sampler, runner=print, count=4).lane_sampler()
    assert (shared.slots, shared.append_rows, shared.decode_rows) == (3, (2, 3), (1,))


@pytest.mark.parametrize(("count", "devices"), [(1, 1), (3, 1), (2, 4)])
def test_all_episodes_come_in_the_order_of_the_prompts(count, devices):
    shown = Shown()
    rollouts = make_rollouts(count, devices)
    rollouts.set_params(rollouts.policy.params, policy_version=2)
    episodes, [taken] = StepSampler(rollouts, lambda step: GROUPS, 1, 10, shown).sample(2)
    asked = [(each.record.question.key, each.record.episode, each.record.policy_version) for each in episodes]
    keys = [each.key for group in GROUPS for each in group for _ in range(2)]
    assert asked == [(key, number, 2) for number, key in enumerate(keys, 20)]
    assert shown.phases == [*(("rollout", finished, 12) for finished in range(12)), ("rewards",)]
    assert taken["sampled_tokens"] == sum(int(each.record.by_policy.sum()) for each in episodes)
    totals = values_of(episodes, "total")
    np.testing.assert_allclose(totals.reshape(-1, 2)[2:].sum(axis=1), 0, atol=1e-6)
    assert abs(totals[:4].sum()) < 1e-6  # the coupled question in both languages


def test_lanes_sample_what_one_samples_and_again_with_other_parameters():
    """What an episode samples depends on its number, not on its lane; after the first update they still agree."""
    found = []
    for count in (1, 2):
        rollouts = make_rollouts(count)
        first, _ = roll_out(rollouts)
        params = initialise(tiny_config(layers=1), jax.random.key(1), make_mesh(devices=jax.devices()[:1]))
        rollouts.set_params(params)
        if count > 1:  # lanes have copies
            jax.tree.map(lambda leaf: leaf.delete(), params)
        found.append([first, roll_out(rollouts, step=1)[0]])
    for one, two in zip(*found, strict=True):
        assert [each.record.tokens.tolist() for each in one] == [each.record.tokens.tolist() for each in two]
        assert [each.advantage for each in one] == [each.advantage for each in two]
    assert rows(found[0][0]) != rows(found[0][1])


def test_lanes_without_a_group_and_without_a_score_are_no_mistake():
    def unknown(episodes):
        return {"total": np.array([np.nan if "fi" in episodes.languages else 1.0 for _ in episodes.answers])}

    episodes, _ = roll_out(make_rollouts(4, reward=unknown), GROUPS[:2])
    assert 0 < sum(each.scored for each in episodes) < len(episodes)


def test_a_failure_of_one_lane_ends_all_of_them():
    def breaking(asked, languages):
        if asked.id == "3":
            raise UserError("there is no third capital")
        return searching(asked, languages)

    with pytest.raises(UserError, match="third capital"):
        roll_out(make_rollouts(2, program=breaking))


def test_an_abandoned_rollout_is_a_failure():
    rollouts = make_rollouts(2)
    rollouts.abandon()
    assert isinstance(rollouts.sample(GROUPS, 0, step=0, display=Shown()), Abandoned)


@pytest.mark.parametrize(
    ("count", "settings", "clue"),
    [
        (3, {}, "Lanes.count is 3"),
        (2, {"tensor": 3}, "Lanes.tensor is 3"),
        (8, {"slots": 4}, "Sampler.slots is 4"),
        (0, {"slots": 4}, "Lanes.count is 0"),
    ],
)
def test_lanes_that_do_not_fit_are_refused(count, settings, clue):
    with pytest.raises(UserError, match=clue):
        make_rollouts(count, 4, **settings)


def test_a_rollout_takes_as_long_as_its_slowest_lane_and_counts_all():
    rollouts = object.__new__(Rollouts)
    rollouts.lane_count = 2
    lanes = []
    for number, seconds in enumerate((3.0, 1.0)):
        episode = Episode(record=record_of(question(number), episode=1 - number), group="", rewards={})
        taken = {"seconds/rollout": seconds, "seconds/rewards": 0.5 * number, "sampled_tokens": 10 + number}
        lanes.append(([episode], taken | {"compiled_shapes": 4 + number}))
    episodes, taken = rollouts.join(lanes)
    assert [episode.record.episode for episode in episodes] == [0, 1]
    assert taken == {"seconds/rollout": 3.0, "seconds/rewards": 0.0, "sampled_tokens": 21, "compiled_shapes": 5}
    with pytest.raises(OSError, match="lane"):
        rollouts.join(OSError("a lane failed"))


class Pretended(Rollouts):
    """Rollouts of groups of two scored episodes and one without a score; only some groups, in English, teach."""

    def __init__(self, teaching, unscored=()):
        self.teaching, self.unscored, self.asked = teaching, unscored, []
        self.method = method_of(lambda episodes: {})

    def sample(self, groups, first_number, **about):
        self.asked.append("".join(group[0].id for group in groups))
        assert first_number == 3 * len(groups[0]) * (sum(map(len, self.asked)) - len(groups))
        return groups

    def join(self, groups):
        episodes = []
        for number, asked in enumerate(itertools.chain(*groups)):
            name, place = (asked.id, int(asked.id, 16)) if asked.language == "en" else (f"{asked.id} fi", None)
            same = np.nan if place in self.unscored else 0.0
            for sample, total in enumerate((same + (place in self.teaching), same, np.nan)):
                record = record_of(asked, episode=3 * number + sample)
                episodes.append(Episode(record=record, group=name, rewards={"total": total}))
        return episodes, {}


@pytest.mark.parametrize(
    ("drawn", "rollouts", "teaching", "asked", "learned"),
    [
        (12, 3, {0, 3, 5, 6, 7, 8}, ["0123", "45", "6"], "0356"),  # what is missing is sampled in the order drawn
        (12, 3, range(12), ["0123"], "0123"),  # a full step needs one rollout
        (8, 2, {2}, ["0123", "456"], "2"),  # the last rollout may leave the step small
        (4, 1, {1}, ["0123"], "0123"),  # one rollout drops nothing
        (8, 2, set(), ["0123", "4567"], "01234567"),  # nor does a step in which no group teaches anything
    ],
)
def test_dynamic_sampling(drawn, rollouts, teaching, asked, learned):
    groups = [(question(f"{number:x}"),) for number in range(drawn)]
    pretended = Pretended(teaching)
    episodes, taken = StepSampler(pretended, lambda step: groups, rollouts, 3 * drawn, Shown()).sample(0)
    assert pretended.asked == asked
    assert [each.group for each in episodes if each.kept] == [group for group in learned for _ in range(2)]
    measured = dynamic_sampling_metrics(episodes, len(taken))
    dropped = 3 * sum(map(len, asked)) - 2 * len(learned)
    assert measured == {
        "dynamic_sampling/rollouts": len(asked),
        "dynamic_sampling/groups_sampled": sum(map(len, asked)),
        "dynamic_sampling/groups_kept": len(learned),
        "dynamic_sampling/episodes_dropped": dropped,
        "dynamic_sampling/policy_tokens_dropped": 2 * dropped,
    }


@pytest.mark.parametrize(
    ("languages", "teaching", "unscored", "asked", "learned"),
    [
        (("en", "fi"), range(8), (), ["0123", "45", "6"], "0123456"),  # a prompt has a group of its own
        (("en",), {0, 3, 6}, {4, 5}, ["0123", "45", "67"], "036"),  # of a later rollout nothing may be scored
    ],
)
def test_dynamic_sampling_goes_on(languages, teaching, unscored, asked, learned):
    groups = [tuple(question(str(number), code) for code in languages) for number in range(12)]
    pretended = Pretended(teaching, unscored)
    episodes, _ = StepSampler(pretended, lambda step: groups, 3, 99, Shown()).sample(0)
    assert pretended.asked == asked
    assert [each.group for each in episodes if each.kept] == [group for group in learned for _ in range(2)]


def test_a_group_of_one_is_not_without_variance():
    episodes = [
        Episode(record=record_of(question(0)), group=group, rewards={"total": float(total)})
        for group, total in zip("abbcc", (1, 1, 1, 0, 1), strict=True)
    ]
    assert list(map(without_variance, grouped(episodes))) == [False, True, False]


# --- Evaluations ---


def scripted_rollouts(program, write, **runner):
    tokenizer = tiny_tokenizer()
    sampler = ScriptedSampler(tokenizer, write, context=200, slots=4)
    search = runner.pop("search", PretendedCollections().search)
    rollouts = make_rollouts(1, program=program)
    rollouts.runners[0] = Runner(sampler=sampler, tokenizer=tokenizer, search=search, **runner)
    rollouts.set_params = lambda params: None
    return rollouts


def evaluated(evaluation, folder, label, rollouts):
    return evaluation.run(folder, label, rollouts, rollouts.policy.params, seed=0, console=Console(quiet=True))


PLANS = ('{"Q1": ["Who?", "#1"]}', '{ "Q1" : ["Who?","#1"] }', '{"Q1": ["Where?", "#1"]}', "{")
QUESTIONS = [
    Question(id=str(number), dataset="d", language="en", text=f"{number}", answers=answers)
    for number, answers in enumerate([("yes",), ("Oslo", "in en"), ("Rome",)])
]


def program(question, languages):
    yield Observe("plan")
    written = yield Generate(stop=(".",))
    if question.id != "0":
        yield Retrieve(("Oslo",), ("en",), 1)
    plan = written.removesuffix(".")
    return Outcome(answer="yes", extra={"plan": None if plan == "{" else json.loads(plan)})


def write(context, generation):
    """Another plan in each inference run; plans 0 and 1 are one."""
    return PLANS[(generation.seed // SEED_OFFSET + generation.episode) % len(PLANS)] + "."


def test_answers_say_what_they_cost_and_rows_are_of_one_or_of_several_inference_runs(tmp_path):
    evaluation = Evaluation(
        questions=QUESTIONS, temperatures={"sampled": 1.0, "greedy": 0.0}, runs=4, analysis=PlanAnalysis()
    )
    evaluated(evaluation, tmp_path, "policy", scripted_rollouts(program, write))
    answers = [read_answers(answers_path(tmp_path, "policy", "sampled", number)) for number in range(1, 5)]
    for own in answers:
        assert [each.answer_retrieved for each in own] == [False, True, False]
        assert not any(each.answer_shown for each in own)
        assert all(each.total_tokens > each.sampled_tokens > 1 for each in own)
    plans = {each.plan for own in answers for each in own}
    assert plans == {PLANS[0], PLANS[2], None}
    rows = read_rows(tmp_path / "evaluation.json")
    (failures,) = [
        row
        for row in rows
        if (row.metric, row.language, row.seed, row.method) == ("failures_without_passage", "all", 0, "policy, greedy")
    ]
    assert (failures.value, failures.count) == (0.5, 2)
    assert {row.seed for row in rows if row.metric == "score_per_log_token"} == {0, *(f"0, run {n}" for n in (2, 3, 4))}
    (plans,) = [row for row in rows if row.metric == "plan_diversity"]
    assert (plans.method, plans.seed) == ("policy, sampled", "0, runs 1 to 4")
    assert plans.value == pytest.approx(2 / plans.count)
    assert plans.count == 3


WRITTEN = {
    "": "<search>Oslo</search><answer>Oslo</answer>",
    "no_tag": "The answer is Oslo.",
    "not_closed": "<answer>Oslo",
    "empty": "<answer> </answer>",
    "not_accepted": "<answer>Oslo<think></answer>",
    "searched": "<search>Oslo</search>",
    "nothing_written": " ",
    "context_full": "What? " * 40,
}


def test_the_table_says_how_many_questions_were_answered_and_why_not(tmp_path):
    asked = [Question(id=name, dataset="d", language="en", text=f"{name}?", answers=("Oslo",)) for name in WRITTEN]
    by_text = {question.text: question.id for question in asked}
    write = lambda context, generation: WRITTEN[by_text[context.partition("\n")[0]]]  # noqa: E731
    program = functools.partial(hierarchical_search, prompt="atlas", style="atlas", budget=1, invalid_limit=1)
    evaluation = Evaluation(questions=asked, temperatures={"greedy": 0.0})
    rows = evaluated(evaluation, tmp_path, "p", scripted_rollouts(program, write))
    found = read_answers(answers_path(tmp_path, "p", "greedy"))
    assert [each.unanswered for each in found] == list(WRITTEN)
    [table] = place_tables(rows, ("exact_match",))
    [[_, answered, _]] = table.sections[0]
    assert (table.header[1], answered.text) == ("answered", "1 of 8")
    assert all(f"{said} (1)" in table.note for said in UNANSWERED.values())
    assert {row.value for row in rows if row.metric == "unanswered/no_tag"} == {1 / 8}


ASKED = [
    Question(id=str(n), dataset="d", language="en", text=f"Question {n}?", answers=("Lima",), extra={"hops": hops})
    for n, hops in enumerate((1, 2, 5, "2"))
]


def evaluated_by_reader(folder, fails):
    def reader(requests):
        fine = Completion(text="Lima", finish_reason="eos", tokens=1)
        return [GenerationFailure("cut") if fails(prompt) else fine for prompt, _ in requests]

    def reading(question, languages):
        return answer_from_evidence(question, (), searcher=None)

    rollouts = scripted_rollouts(reading, lambda *_: "", search=lambda *_: [], completers={"reader": reader})
    evaluation = Evaluation(questions=ASKED, temperatures={"greedy": 0.0}, seen_languages=("en",), languages=("en",))
    return evaluated(evaluation, folder, "reader", rollouts)


def test_failed_episodes_are_counted_explained_and_in_no_other_row(tmp_path):
    rows = evaluated_by_reader(tmp_path, lambda prompt: "Question 1?" in prompt)
    for metric, value, count in (("exact_match", 1.0, 3), ("failed", 0.25, 4)):
        row = next(row for row in rows if (row.metric, row.language) == (metric, "all"))
        assert (row.value, row.count) == (value, count)
    [table] = place_tables(rows, ("exact_match",))
    assert "1 of 4 episodes failed" in table.note
    episodes = json_lines(tmp_path / "episodes" / "reader_greedy.jsonl")
    assert [episode.get("failure") for episode in episodes] == [None, "cut", None, None]
    with pytest.raises(UserError, match=r"no episode .*\(cut\)"):
        evaluated_by_reader(tmp_path, lambda prompt: True)
    rows = evaluated_by_reader(tmp_path, lambda prompt: "Question 1?" in prompt)  # what failed is asked again
    assert next(row.value for row in rows if (row.metric, row.language) == ("failed", "all")) == 0.25
    answers = read_answers(answers_path(tmp_path, "reader", "greedy"))
    assert [each.subsets for each in answers] == [(), ("two_hops",), ("5_hops",), ()]
