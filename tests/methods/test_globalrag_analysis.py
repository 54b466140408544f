"""Costs of answers, times of a training step's phases, and the diversity of plans."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.evaluation import Answered, to_markdown
from lcrag.evaluation.tables import phase_table
from lcrag.methods.globalrag.analysis import PlanAnalysis, PlanDiversity, diversity_table, plan_diversity


def log(rollout, rewards, update, rate):
    curves = {"seconds/rollout": rollout, "seconds/rewards": rewards, "seconds/update": update}
    curves["tokens_per_second/sampled"] = rate
    return {name: (np.arange(len(values)), np.array(values, float)) for name, values in curves.items()}


def test_the_table_of_a_steps_time():
    logs = {"GlobalRAG": [log([2], [1], [1], [100]), log([4], [1], [1], [50])], "SFT": [{}]}
    markdown = to_markdown(phase_table(logs))
    assert "| GlobalRAG | 5.00 | 3.00 | 58.33 | 15.00 | 1.00 | 20.83 | 5.00 | 1.00 | 20.83 | 5.00 |" in markdown
    assert "SFT" not in markdown
    of_two_steps = phase_table({"a": [log([2, 4], [1, 1], [3, 1], [100, 50])]})
    assert "| a | 6.00 | 3.00 | 50.00 | 15.00 |" in to_markdown(of_two_steps)
    assert phase_table({"SFT": [{"loss/supervised": (np.arange(2), np.ones(2))}]}) is None


def sample(question, plan, right=True, dataset="bamboogle"):
    return Answered(
        question_id=str(question), dataset=dataset, language="en", answer="Oslo" if right else "Rome",
        golds=("oslo",), plan=plan,
    )  # fmt: skip


samples_of = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["p", "q", None]), st.booleans()), max_size=12)


@given(samples_of)
def test_equal_plans_of_a_question_are_one(drawn):
    found = plan_diversity([sample(*each) for each in drawn])
    right = [(question, plan) for question, plan, correct in drawn if correct and plan]
    assert (found.correct, found.distinct) == (len(right), len(set(right)))
    assert math.isnan(found.share) if not right else 0 < found.share <= 1
    assert PlanDiversity(correct=254, distinct=144).share == pytest.approx(0.567, abs=5e-4)  # the paper's
    assert plan_diversity([sample(0, "p"), dataclasses.replace(sample(0, "p"), language="fi")]).distinct == 2


def test_rows_and_the_table():
    samples = [sample(0, "p"), sample(0, "q"), sample(0, "q"), sample(1, "p", dataset="musique", right=False)]
    labels = {"method": "GlobalRAG, sampled", "model": "m", "split": "test", "seed": "0, runs 1 to 5"}
    (row,) = PlanAnalysis().rows(samples, **labels)
    assert (row.dataset, row.metric, row.count, row.seed) == ("bamboogle", "plan_diversity", 3, "0, runs 1 to 5")
    assert row.value == pytest.approx(2 / 3)
    found = {"GlobalRAG": [plan_diversity(samples), PlanDiversity(1, 1)], "RAG": [PlanDiversity(0, 0)]}
    assert "| GlobalRAG | 4 | 3 | 0.750 |" in to_markdown(diversity_table(found, "Plans"))
    assert diversity_table({"RAG": [PlanDiversity(0, 0)]}, "Plans") is None
