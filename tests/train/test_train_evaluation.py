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
from lcrag.files import write_json_lines
from lcrag.methods.r_search import answer_from_evidence
from lcrag.runs.answers import answers_path, read_answers
from lcrag.train.evaluation import SEED_OFFSET, Evaluation


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


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluated")
    evaluation = Evaluation(questions=QUESTIONS, temperatures={"sampled": 1.0, "greedy": 0.0}, runs=4)
    evaluation.run(folder, "policy", scripted_rollouts(program, write), seed=0, console=Console(quiet=True))
    return folder


def test_answers_say_what_they_cost(evaluated):
    answers = [read_answers(answers_path(evaluated, "policy", "sampled", number)) for number in range(1, 5)]
    for own in answers:
        assert [each.answer_retrieved for each in own] == [False, True, False]
        assert all(each.total_tokens > each.sampled_tokens > 1 for each in own)
    plans = {each.plan for own in answers for each in own}
    assert plans == {PLANS[0], PLANS[2], None}


def test_rows_of_one_and_of_several_inference_runs(evaluated):
    rows = read_rows(evaluated / "evaluation.json")
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


def test_answers_of_before_are_still_read(evaluated, tmp_path):
    path = answers_path(evaluated, "policy", "greedy")
    old = [{name: row[name] for name in list(row)[:9]} for row in json_lines(path)]
    write_json_lines(tmp_path / "old.jsonl", old)
    assert [each.plan for each in read_answers(tmp_path / "old.jsonl")] == [None] * 3


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


@pytest.fixture(scope="module")
def partly(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    return folder, evaluated_by_reader(folder, lambda prompt: "Question 1?" in prompt)


@pytest.mark.parametrize(("metric", "value", "count"), [("exact_match", 1.0, 3), ("failed", 0.25, 4)])
def test_failed_episodes_are_counted_and_in_no_other_row(partly, metric, value, count):
    row = next(row for row in partly[1] if (row.metric, row.language) == (metric, "all"))
    assert (row.value, row.count) == (value, count)


def test_a_table_says_how_many_failed(partly):
    [table] = place_tables(partly[1], ("exact_match",))
    assert "1 of 4 episodes failed and is in no mean" in table.note


def test_the_episodes_say_why_they_failed(partly):
    lines = (partly[0] / "episodes" / "reader_greedy.jsonl").read_text().splitlines()
    assert [json.loads(line).get("failure") for line in lines] == [None, "cut", None, None]


def test_an_evaluation_without_any_answer_is_an_error(tmp_path):
    with pytest.raises(UserError, match=r"no episode of this rollout can be scored \(cut\): check what the method"):
        evaluated_by_reader(tmp_path, lambda prompt: True)
