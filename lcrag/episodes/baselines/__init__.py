"""The baselines that methods are compared with (LcRL, appendix A.3), each an episode program of its own.

Public: the programs. SFT is `rag` of a fine-tuned policy; mSearch-R1 is `hierarchical_search` under another reward.
"""

from lcrag.episodes.baselines.d_rag import d_rag
from lcrag.episodes.baselines.direct import direct_inference
from lcrag.episodes.baselines.ircot import ircot
from lcrag.episodes.baselines.rag import rag
from lcrag.episodes.baselines.search_o1 import search_o1
from lcrag.episodes.baselines.search_r1 import search_r1

__all__ = ["d_rag", "direct_inference", "ircot", "rag", "search_o1", "search_r1"]
