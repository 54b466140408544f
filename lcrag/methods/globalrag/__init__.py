"""GlobalRAG: Enhancing Global Reasoning in Multi-hop Question Answering via Reinforcement Learning.

Luo, Cheng, Wan, Li, Xia et al., 2025, arXiv 2510.20548. Commands and results: `docs/methods/globalrag.md`.

| in the paper | here |
|---|---|
| section 3.1: a plan of sub-questions | `plans.QuestionPlan`, `plans.parse_plan` |
| section 3.1, appendix D: golden trajectories | `golden.golden_trajectory` |
| appendices D.3 and E.1: filters of trajectories and questions | `golden.golden_verdict` |
| golden plans as questions carry them; one-hop questions, MuSiQue | `plans` |
| section 3.2, appendices A and M: the rollout | `program.globalrag`, read by `program.read_episode` |
| 3.2.1, 3.2.2, equations 1 to 3: planning quality, subgoal completion | `plan_rewards`, `rewards.plan_scores` |
| section 3.2.4: format | `program.tag_marks` |
| section 3.2.5, equation 6: annealing | `rewards.annealed` |
| section 3.2.5, equation 7: the whole reward | `rewards.globalrag_reward` |
| tables 6, 7: time by phase; appendix G: plan diversity | `evaluation.tables`; `analysis` |
| the atlas's oracle and teacher | `golden.PlanOracle`, `golden.PlanTeacher` |
"""

from lcrag.methods.globalrag.program import globalrag
from lcrag.methods.globalrag.rewards import globalrag_reward, plan_rewards
