"""LcRL: Language-Coupled Reinforcement Learning for Multilingual Retrieval-Augmented Generation.

Qi, Mo, Chen, Zhang, Wang, Li, Xu, Jiang, Nie and Huang; code of the authors: https://github.com/Cherry-qwq/LcRL-Open.
Commands, studies and results: `docs/methods/lcrl.md`.

| in the paper | here |
|---|---|
| section 3.1, algorithm 1: the rollout | `hierarchical_search` |
| section 3.1, turns 1 to 3: which collections are searched | `lcrag.episodes.searches.local_first` |
| table 7: the prompt | `program.lcrl_prompt` |
| section 3.2: coupled groups | `lcrag.data.questions.coupled`, `lcrag.learning.group_advantages`; `pivot` |
| section 3.3: c3 recall | `lcrag.rewards.c3_recall` |
| section 3.3: the anti-consistency penalty | `anti_consistency` |
| section 3.3: the fused reward, with its ablations of table 2 | `language_coupled_reward`, `language_coupled` |
| appendix A.3: baselines | `lcrag.methods.baselines` |
"""

from lcrag.methods.lcrl.program import (
    anti_consistency,
    hierarchical_search,
    language_coupled,
    language_coupled_reward,
    pivot,
)
