"""The baselines that methods are compared with (LcRL, appendix A.3; R-Search, section 4.1), each an episode program.

Public: the programs. SFT is `rag` of a fine-tuned policy; mSearch-R1 is `hierarchical_search` under another reward.
"""

from lcrag.methods.baselines.adaptive_rag import adaptive_rag
from lcrag.methods.baselines.d_rag import d_rag
from lcrag.methods.baselines.direct import direct_inference
from lcrag.methods.baselines.flare import flare
from lcrag.methods.baselines.ircot import ircot
from lcrag.methods.baselines.iter_retgen import iter_retgen
from lcrag.methods.baselines.rag import rag
from lcrag.methods.baselines.search_o1 import search_o1
from lcrag.methods.baselines.search_r1 import search_r1
from lcrag.methods.baselines.sure import sure

__all__ = [
    "adaptive_rag",
    "d_rag",
    "direct_inference",
    "flare",
    "ircot",
    "iter_retgen",
    "rag",
    "search_o1",
    "search_r1",
    "sure",
]
