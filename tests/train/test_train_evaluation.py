"""What an evaluation notes of each answer: tokens, passages, plans; and episodes whose other model fails."""

import json

import pytest
from experiment_parts import json_lines
from rich.console import Console
from rollout_parts import make_rollouts
from support import tiny_tokenizer
from support.pretended_collections import PretendedCollections
from support.scripted_sampler import ScriptedSampler

from lcrag.data.questions import Question
from lcrag.episodes import Completion, Generate, GenerationFailure, Observe, Outcome, Retrieve, Runner
from lcrag.errors import UserError
from lcrag.evaluation import place_tables, read_rows
from lcrag.methods.r_search import answer_from_evidence
from lcrag.train.evaluation import SEED_OFFSET, Evaluation, answers_path, read_answers


def scripted_rollouts(program, write, **runner):
    """Rollouts of one lane whose sampler writes what a function says."""
    tokenizer = tiny_tokenizer()
    sampler = ScriptedSampler(tokenizer, write, context=200, slots=4)
    search = runner.pop("search", PretendedCollections().search)
    rollouts = make_rollouts(1, program=program)
    rollouts.runners[0] = Runner(sampler=sampler, tokenizer=tokenizer, search=search, **runner)
    return rollouts


PLANS = ('{"Q1": ["Who?", "#1"]}', '{ "Q1" : ["Who?","#1"] }', '{"Q1": ["Where?", "#1"]}', "{")
QUESTIONS = [
    Question(id=str(number), dataset="d", language="en", text=f"{number}", answers=answers)
    for number, answers in enumerate([("yes",), ("Oslo", "in en"), ("Rome",)])
]


def program(question, languages):
    """Searches for Oslo, except for question 0, and answers "yes" with a plan."""
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
    evaluation = Evaluation(questions=QUESTIONS, temperatures={"sampled": 1.0, "greedy": 0.0}, runs=4)
    evaluation.run(tmp_path, "policy", scripted_rollouts(program, write), seed=0, console=Console(quiet=True))
    answers = [read_answers(answers_path(tmp_path, "policy", "sampled", number)) for number in range(1, 5)]
    for own in answers:
        assert [each.answer_retrieved for each in own] == [False, True, False]
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


ASKED = [Question(id=str(n), dataset="d", language="en", text=f"Question {n}?", answers=("Lima",)) for n in range(4)]


def evaluated_by_reader(folder, fails):
    """Evaluates answers of a reader that fails for some questions; returns the rows."""

    def reader(requests):
        fine = Completion(text="Lima", finish_reason="eos", tokens=1)
        return [GenerationFailure("cut") if fails(prompt) else fine for prompt, _ in requests]

    def reading(question, languages):
        return answer_from_evidence(question, (), searcher=None)

    rollouts = scripted_rollouts(reading, lambda *_: "", search=lambda *_: [], completers={"reader": reader})
    evaluation = Evaluation(questions=ASKED, temperatures={"greedy": 0.0}, seen_languages=("en",), languages=("en",))
    return evaluation.run(folder, "reader", rollouts, seed=0)


def test_failed_episodes_are_counted_explained_and_in_no_other_row(tmp_path):
    rows = evaluated_by_reader(tmp_path, lambda prompt: "Question 1?" in prompt)
    for metric, value, count in (("exact_match", 1.0, 3), ("failed", 0.25, 4)):
        row = next(row for row in rows if (row.metric, row.language) == (metric, "all"))
        assert (row.value, row.count) == (value, count)
    [table] = place_tables(rows, ("exact_match",))
    assert "1 of 4 episodes failed and is in no mean" in table.note
    episodes = json_lines(tmp_path / "episodes" / "reader_greedy.jsonl")
    assert [episode.get("failure") for episode in episodes] == [None, "cut", None, None]
    with pytest.raises(UserError, match=r"no episode of this rollout can be scored \(cut\)"):
        evaluated_by_reader(tmp_path, lambda prompt: True)
