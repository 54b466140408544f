"""LcRL: language-coupled reinforcement learning for multilingual retrieval-augmented generation."""

from lcrag.methods.lcrl.program import hierarchical_search
from lcrag.methods.lcrl.rewards import anti_consistency, language_coupled, language_coupled_reward

__all__ = ["anti_consistency", "hierarchical_search", "language_coupled", "language_coupled_reward"]
