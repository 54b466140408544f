"""The baselines of LcRL (appendix A.3) and R-Search (section 4.1), each an episode program.

Commands and results: `docs/baselines.md`.

| baseline | here |
|---|---|
| direct inference | `direct_inference` |
| RAG (Lewis et al., 2020), and SFT: RAG by a fine-tuned policy | `rag` |
| IRCoT (Trivedi et al., 2023) | `ircot` |
| Iter-Retgen (Shao et al., 2023) | `iter_retgen` |
| FLARE (Jiang et al., 2023) | `flare` |
| SuRe (Kim et al., 2024) | `sure` |
| Adaptive-RAG (Jeong et al., 2024), zero-shot | `adaptive_rag` |
| Search-o1 (Li et al., 2025) | `search_o1` |
| D-RAG (Ranaldi et al., 2025) | `d_rag` |
| Search-R1 (Jin et al., 2025) | `search_r1` |
| StepSearch (Wang et al., 2025) | `step_search` |
| mSearch-R1 | `lcrag.methods.lcrl.hierarchical_search` under another reward |

Prompts are defined next to their programs, shared ones in `rag`. `lcrag.methods` explains the settings that programs
share.
"""

from lcrag.methods.baselines.d_rag import d_rag
from lcrag.methods.baselines.rag import direct_inference, iter_retgen, rag, sure
from lcrag.methods.baselines.searches import adaptive_rag, flare, ircot, search_o1, search_r1, step_search
