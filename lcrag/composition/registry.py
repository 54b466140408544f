"""Registers functions and classes of other packages with gin; only `lcrag.composition` imports gin."""

import gin

from lcrag.composition.programs import configurable_program, configurable_settings
from lcrag.composition.stand_ins import replaceable
from lcrag.episodes import routing
from lcrag.learning import Critic, Layout, PolicyGradient, Supervised
from lcrag.learning.optimizers import adamw
from lcrag.methods import baselines
from lcrag.methods.baselines.d_rag import GoldenArguments
from lcrag.methods.baselines.step_search import step_search_reward
from lcrag.methods.globalrag.golden_trajectory import golden_trajectory
from lcrag.methods.globalrag.oracle import PlanOracle
from lcrag.methods.globalrag.program import globalrag
from lcrag.methods.globalrag.rewards import globalrag_reward
from lcrag.methods.lcrl import hierarchical_search, language_coupled
from lcrag.methods.r_search import answer_from_evidence, r_search, r_search_reward
from lcrag.methods.r_search.evidence_reader import EvidenceReader
from lcrag.methods.r_search.players import RandomReasoner, RuleReader
from lcrag.methods.rag_r1 import rag_r1
from lcrag.methods.translate_r1.call_costs import cost
from lcrag.methods.translate_r1.oracles import TranslatingSearcher
from lcrag.methods.translate_r1.program import translate_r1
from lcrag.methods.translate_r1.translate_and_search import translate_and_search
from lcrag.models import EndpointTranslator, FirstTranslator, ModelTranslator, RememberedTranslator, TranslationCache
from lcrag.models.completers import CompletionJudge, EndpointCompleter
from lcrag.models.translation_service import RemoteTranslator, TranslationLimits
from lcrag.models.translators import LookUpTranslator, TranslationMemory
from lcrag.rewards.domains.reward import domain_reward
from lcrag.rewards.terms import answer_only

_configured_direct_inference = configurable_program(baselines.direct_inference)
_configured_rag = configurable_program(baselines.rag)
_configured_ircot = configurable_program(baselines.ircot)
configurable_program(
    baselines.adaptive_rag,
    programs=lambda: {
        "none": _configured_direct_inference(),
        "single": _configured_rag(),
        "multiple": _configured_ircot(),
    },
)
for _program in (
    answer_from_evidence,
    baselines.d_rag,
    baselines.flare,
    baselines.iter_retgen,
    baselines.search_o1,
    baselines.search_r1,
    baselines.step_search,
    baselines.sure,
    globalrag,
    golden_trajectory,
    hierarchical_search,
    r_search,
    rag_r1,
    translate_and_search,
    translate_r1,
):
    configurable_program(_program)


for _choice in (routing.chosen_collections, routing.largest_collections):
    configurable_settings(_choice)
for _reward in (
    *(
        answer_only,
        cost,
        domain_reward,
        globalrag_reward,
        language_coupled,
        r_search_reward,
        step_search_reward,
    ),
):
    gin.external_configurable(_reward, module="lcrag.rewards")
for _player in (RandomReasoner, PlanOracle, TranslatingSearcher):
    gin.external_configurable(_player, module="lcrag.atlas")
gin.register(GoldenArguments, module="lcrag.methods")
for _learning in (Critic, Layout, PolicyGradient, Supervised, adamw):
    gin.register(_learning, module="lcrag.learning")
for _route in (
    routing.all_at_once,
    routing.available_first,
    routing.english_only,
    routing.local_first,
    routing.native_only,
    routing.english_collection,
    routing.every_collection,
    routing.native_and_english,
    routing.native_collection,
    routing.native_english_and_high,
):
    gin.register(_route, module="lcrag.episodes")
for _service in (EndpointCompleter, EndpointTranslator, RemoteTranslator):
    gin.external_configurable(replaceable("model")(_service), module="lcrag.models")
for _model in (
    CompletionJudge,
    EvidenceReader,
    FirstTranslator,
    LookUpTranslator,
    ModelTranslator,
    RememberedTranslator,
    RuleReader,
    TranslationCache,
    TranslationLimits,
    TranslationMemory,
):
    gin.register(_model, module="lcrag.models")
