"""The baselines of LcRL (appendix A.3) and R-Search (section 4.1), each an episode program.

`docs/methods/baselines.md` lists them with their papers and commands. mSearch-R1 is
`lcrag.methods.lcrl.hierarchical_search` under another reward.

Prompts are defined next to their programs, shared ones in `rag`. `lcrag.methods` explains the settings that programs
share.
"""

from lcrag.methods.baselines.d_rag import d_rag
from lcrag.methods.baselines.rag import direct_inference, iter_retgen, rag, sure
from lcrag.methods.baselines.searches import adaptive_rag, flare, ircot, search_o1, search_r1, step_search
