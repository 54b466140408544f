"""An evaluation whose other model fails for some questions: they are in no mean, and counted."""

import json
import unittest.mock

import pytest
from support import tiny_tokenizer
from support.scripted_sampler import ScriptedSampler

from lcrag.data.questions import Question
from lcrag.episodes import Completion, GenerationFailure, Runner
from lcrag.errors import UserError
from lcrag.evaluation import place_tables
from lcrag.methods.r_search import answer_from_evidence
from lcrag.policy import Policy
from lcrag.train.evaluation import Evaluation

QUESTIONS = [
    Question(id=str(n), dataset="d", language="en", text=f"Question {n}?", answers=("Lima",)) for n in range(4)
]


def evaluated(folder, fails):
    """Evaluates answers of a reader that fails for some questions; returns the rows."""

    def reader(requests):
        fine = Completion(text="Lima", finish_reason="eos", tokens=1)
        return [GenerationFailure("cut") if fails(prompt) else fine for prompt, _ in requests]

    tokenizer = tiny_tokenizer()
    sampler = ScriptedSampler(tokenizer, lambda *_: "", slots=4)
    runner = Runner(sampler=sampler, tokenizer=tokenizer, search=lambda *_: [], completers={"reader": reader})
    policy = unittest.mock.Mock(spec=Policy)
    policy.name = "m"
    evaluation = Evaluation(
        questions=QUESTIONS, temperatures={"greedy": 0.0}, seen_languages=("en",), languages=("en",)
    )
    return evaluation.run(
        folder,
        "reader",
        runner,
        lambda question: answer_from_evidence(question, (), searcher=None),
        policy,
        seed=0,
    )


@pytest.fixture(scope="module")
def partly(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluation")
    return folder, evaluated(folder, lambda prompt: "Question 1?" in prompt)


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
        evaluated(tmp_path, lambda prompt: True)
