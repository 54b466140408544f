"""Registers functions and classes of the engine with gin, and imports the modules that register what they define."""

import gin

import lcrag.methods.baselines
import lcrag.methods.globalrag.golden_trajectory
import lcrag.methods.globalrag.oracle
import lcrag.methods.globalrag.program
import lcrag.methods.globalrag.rewards
import lcrag.methods.r_search.players
import lcrag.methods.rag_r1
import lcrag.methods.translate_r1.oracles
import lcrag.methods.translate_r1.translate_and_search
import lcrag.models.translation_service  # noqa: F401
from lcrag.learning import Critic, Layout, PolicyGradient, Supervised
from lcrag.learning.optimizers import adamw
from lcrag.rewards.domains.reward import domain_reward
from lcrag.rewards.terms import answer_only

for _reward in (answer_only, domain_reward):
    gin.external_configurable(_reward, module="lcrag.rewards")
for _learning in (Critic, Layout, PolicyGradient, Supervised, adamw):
    gin.register(_learning, module="lcrag.learning")
