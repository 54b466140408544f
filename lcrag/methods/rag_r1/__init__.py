"""RAG-R1: Incentivize the Search and Reasoning Capabilities of LLMs through Multi-query Parallelism.

Tan, Huang, Wu, Zhang, Zhuang and Gu, 2025, arXiv 2507.02962. Commands and results: `docs/methods/rag_r1.md`.

| in the paper | here |
|---|---|
| section 3.1.1, tables 1 and 2: the dialogue and its prompts | `rag_r1`, `program.rag_r1_prompt` |
| section 3.1.1: demonstrations by a teacher | `lcrag curate demonstrations`; `curation.ParallelOracle` |
| section 3.1.2: segmentation | `curation.segments` |
| section 3.2.1: selection of questions for RL; table 4, "w/o Filter" | `curation.select`, `split`; `unfiltered` |
| section 3.2.2: PPO that masks retrieved tokens, with exact match | `lcrag.learning`, `lcrag.rewards` |
| section 4: several queries in one search | `program.parallel_queries`, `json_information` |
"""

from lcrag.methods.rag_r1.program import rag_r1
