"""What `Evaluation.run` notes of each answer beside the answer: tokens, passages, plans."""

import json

import jax
import pytest
from experiment_parts import json_lines
from rich.console import Console
from support import tiny_config, tiny_tokenizer
from support.pretended_collections import PretendedCollections
from support.scripted_sampler import ScriptedSampler

from lcrag.data.questions import Question
from lcrag.episodes import Generate, Observe, Outcome, Retrieve, Runner
from lcrag.evaluation import read_rows
from lcrag.policy import Policy, make_mesh
from lcrag.runs.answers import answers_path, read_answers
from lcrag.runs.files import write_json_lines
from lcrag.train.evaluation import SEED_OFFSET, Evaluation

PLANS = ('{"Q1": ["Who?", "#1"]}', '{ "Q1" : ["Who?","#1"] }', '{"Q1": ["Where?", "#1"]}', "{")
QUESTIONS = [
    Question(id=str(number), dataset="d", language="en", text=f"{number}", answers=answers)
    for number, answers in enumerate([("yes",), ("Oslo", "in en"), ("Rome",)])
]


def program(question):
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
    folder, tokenizer = tmp_path_factory.mktemp("evaluated"), tiny_tokenizer()
    runner = Runner(
        sampler=ScriptedSampler(tokenizer, write, context=200),
        tokenizer=tokenizer,
        search=PretendedCollections().search,
    )
    policy = Policy("tiny", tiny_config(), {}, tokenizer, make_mesh(devices=jax.devices()[:1]))
    evaluation = Evaluation(questions=QUESTIONS, temperatures={"sampled": 1.0, "greedy": 0.0}, runs=4)
    evaluation.run(folder, "policy", runner, program, policy, seed=0, console=Console(quiet=True))
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
