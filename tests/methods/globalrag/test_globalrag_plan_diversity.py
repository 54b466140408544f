"""Distinct plans among correct samples: the paper's numbers, and counting in plain Python."""

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.evaluation import Answered, to_markdown
from lcrag.methods.globalrag.analysis import PlanDiversity, diversity_rows, diversity_table, plan_diversity


def sample(question, plan, right=True, dataset="bamboogle"):
    return Answered(
        question_id=str(question), dataset=dataset, language="en", answer="Oslo" if right else "Rome",
        golds=("oslo",), plan=plan,
    )  # fmt: skip


def test_the_papers_numbers():
    """254 right answers with 144 different plans: over 56 %."""
    samples = [sample(number % 144, "p") for number in range(254)] + [sample(n, "q", right=False) for n in range(371)]
    found = plan_diversity(samples)
    assert found == PlanDiversity(correct=254, distinct=144) and found.share == pytest.approx(0.567, abs=5e-4)


samples_of = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["p", "q", None]), st.booleans()), max_size=12)


@given(samples_of)
def test_equal_plans_of_a_question_are_one(drawn):
    found = plan_diversity([sample(*each) for each in drawn])
    right = [(question, plan) for question, plan, correct in drawn if correct and plan]
    assert (found.correct, found.distinct) == (len(right), len(set(right)))
    assert math.isnan(found.share) if not right else 0 < found.share <= 1


def test_languages_of_a_question_are_apart():
    assert plan_diversity([sample(0, "p"), dataclasses.replace(sample(0, "p"), language="fi")]).distinct == 2


def test_rows_and_the_table():
    samples = [sample(0, "p"), sample(0, "q"), sample(0, "q"), sample(1, "p", dataset="musique", right=False)]
    (row,) = diversity_rows(samples, method="GlobalRAG, sampled", model="m", split="test", seed="0, runs 1 to 5")
    assert (row.dataset, row.metric, row.count, row.seed) == ("bamboogle", "plan_diversity", 3, "0, runs 1 to 5")
    assert row.value == pytest.approx(2 / 3)
    found = {"GlobalRAG": [plan_diversity(samples), PlanDiversity(1, 1)], "RAG": [PlanDiversity(0, 0)]}
    assert "| GlobalRAG | 4 | 3 | 0.750 |" in to_markdown(diversity_table(found, "Plans"))
    assert diversity_table({"RAG": [PlanDiversity(0, 0)]}, "Plans") is None
