"""Plans: a question cut into sub-questions that name each other's answers, and golden ones to compare with.

What a policy writes, what a reward matches, what a teacher demonstrates and what a data set gives are the same plan.
"""

from lcrag.methods.globalrag.plans.golden import GoldenPlan, golden_graph, golden_plans
from lcrag.methods.globalrag.plans.plan import (
    FAULTS,
    MOST_QUESTIONS,
    BadPlan,
    Fault,
    Plan,
    parse_plan,
    plan_of,
    substituted,
)

__all__ = [
    "FAULTS",
    "MOST_QUESTIONS",
    "BadPlan",
    "Fault",
    "GoldenPlan",
    "Plan",
    "golden_graph",
    "golden_plans",
    "parse_plan",
    "plan_of",
    "substituted",
]
