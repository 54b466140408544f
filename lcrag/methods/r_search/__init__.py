"""R-Search: Empowering LLM Reasoning with Search via Multi-Reward Reinforcement Learning.

Zhao, Wang, Xu, Zha and Liu, 2025, arXiv 2506.04185. Commands and results: `docs/methods/r_search.md`.

| in the paper | here |
|---|---|
| section 3.2.1, table 1: reasoning, searches, evidence, answer | `r_search` |
| section 3.2.2, table 5: the frozen reader of the evidence | `EvidenceReader` |
| section 3.2.2, equation 5: the format reward | `format_rewards` |
| section 3.2.2, equations 4 and 6: the evidence reward, the total | `r_search_reward` |
| section 5.1: R-Search as a tool | `answer_from_evidence` |
| the player that the atlas's initial policy imitates, and a reader that follows rules | `players` |
"""

from lcrag.methods.r_search.program import EvidenceReader, answer_from_evidence, r_search
from lcrag.methods.r_search.rewards import format_rewards, r_search_reward
