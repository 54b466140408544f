"""Registers with gin what other rooms define; no other room reads gin.

A program's settings are read once, where a configuration names it as `@hierarchical_search()`: the result is the
program with its settings filled in, which every episode then calls with its question and the collections.
"""

import functools
import inspect
import typing
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import gin

from lcrag.data.questions import Question
from lcrag.episodes import Program, routing
from lcrag.learning import Critic, Layout, PolicyGradient, Supervised
from lcrag.learning.optimizers import adamw
from lcrag.methods import baselines
from lcrag.methods.baselines.adaptive_rag import Complexity
from lcrag.methods.globalrag.golden_trajectory import golden_trajectory
from lcrag.methods.globalrag.oracle import PlanOracle
from lcrag.methods.globalrag.program import globalrag
from lcrag.methods.globalrag.rewards import globalrag_reward
from lcrag.methods.lcrl import hierarchical_search, language_coupled
from lcrag.methods.r_search import answer_from_evidence, r_search, r_search_reward
from lcrag.methods.r_search.evidence_reader import EvidenceReader
from lcrag.methods.r_search.oracle import EvidenceOracle
from lcrag.methods.rag_r1 import rag_r1
from lcrag.methods.translate_r1.call_costs import cost
from lcrag.methods.translate_r1.oracles import TranslatingOracle
from lcrag.methods.translate_r1.program import translate_r1
from lcrag.methods.translate_r1.translate_and_search import translate_and_search
from lcrag.models import EndpointTranslator, FirstTranslator, ModelTranslator, RememberedTranslator, TranslationCache
from lcrag.models.completers import CompletionJudge, EndpointCompleter
from lcrag.models.translation_service import RemoteTranslator, TranslationLimits
from lcrag.models.translators import LookUpTranslator
from lcrag.rewards.domains.reward import domain_reward
from lcrag.rewards.terms import answer_only

ConfiguredProgram: TypeAlias = Callable[[Question, Sequence[str]], Program]


Result = TypeVar("Result")


def configurable_settings(program: Callable[..., Result]) -> Callable[..., Callable[[Question, Sequence[str]], Result]]:
    """Registers a program: what gin calls takes the program's keyword arguments and returns the program with them.

    Args:
      program: Takes a question and the languages of the collections by position, and its settings by keyword.
    """
    signature = inspect.signature(program)
    settings = [each for each in signature.parameters.values() if each.kind is each.KEYWORD_ONLY]
    hints = typing.get_type_hints(program)

    def configured(**given: Any) -> Callable[[Question, Sequence[str]], Result]:
        defaults = {each.name: each.default for each in settings if each.default is not each.empty}
        return functools.partial(program, **defaults | given)

    configured.__name__ = configured.__qualname__ = program.__name__
    configured.__doc__, configured.__module__ = program.__doc__, program.__module__
    configured.__signature__ = signature.replace(parameters=settings)  # type: ignore[attr-defined]
    configured.__annotations__ = {each.name: hints[each.name] for each in settings}
    return gin.external_configurable(configured, module="lcrag.methods")


configured_hierarchical_search = configurable_settings(hierarchical_search)
configured_direct_inference = configurable_settings(baselines.direct_inference)
configured_rag = configurable_settings(baselines.rag)
configured_ircot = configurable_settings(baselines.ircot)
for _program in (
    answer_from_evidence,
    baselines.d_rag,
    baselines.flare,
    baselines.iter_retgen,
    baselines.search_o1,
    baselines.sure,
    globalrag,
    golden_trajectory,
    r_search,
    rag_r1,
    translate_and_search,
    translate_r1,
):
    configurable_settings(_program)


@gin.configurable(module="lcrag.methods")
def search_r1(prompt: str = "search_r1") -> ConfiguredProgram:
    """Search-R1 with the settings of `hierarchical_search`, except for the opening prompt and the route.

    Args:
      prompt: Name of the opening prompt.
    """
    settings = typing.cast(functools.partial, configured_hierarchical_search()).keywords | {"prompt": prompt}
    return functools.partial(baselines.search_r1, **{name: settings[name] for name in settings if name != "route"})


@gin.configurable(module="lcrag.methods")
def adaptive_rag(classifier: str | None = None, wording: str = "full") -> ConfiguredProgram:
    """Adaptive-RAG over direct inference, RAG and IRCoT as each is configured.

    Args:
      classifier: Name of the model that classifies, one of the runner's other models; None: the policy.
      wording: "full" or "atlas".
    """
    programs: dict[Complexity, ConfiguredProgram] = {
        "none": configured_direct_inference(),
        "single": configured_rag(),
        "multiple": configured_ircot(),
    }
    return functools.partial(baselines.adaptive_rag, programs=programs, classifier=classifier, wording=wording)


for _choice in (routing.chosen_collections, routing.largest_collections):
    configurable_settings(_choice)
for _reward in (answer_only, cost, domain_reward, globalrag_reward, language_coupled, r_search_reward):
    gin.external_configurable(_reward, module="lcrag.rewards")
for _oracle in (EvidenceOracle, PlanOracle, TranslatingOracle):
    gin.external_configurable(_oracle, module="lcrag.atlas")
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
for _model in (
    CompletionJudge,
    EndpointCompleter,
    EndpointTranslator,
    EvidenceReader,
    FirstTranslator,
    LookUpTranslator,
    ModelTranslator,
    RememberedTranslator,
    RemoteTranslator,
    TranslationCache,
    TranslationLimits,
):
    gin.register(_model, module="lcrag.models")
