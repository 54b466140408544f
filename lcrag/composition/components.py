"""Builds the policy, the sampler and the episode runner from gin bindings."""

from typing import Any

import gin
import jax
from jax.sharding import Mesh

from lcrag.episodes import Chat, Retries, Runner
from lcrag.episodes.agreement import is_collective
from lcrag.errors import UserError
from lcrag.files import WEIGHTS, resolved_folder  # noqa: F401
from lcrag.policy import (
    Lora,
    Policy,
    make_mesh,
)
from lcrag.policy.policy import DEFAULT_COMPUTATION, Computation  # noqa: F401
from lcrag.retrieval import SearchableCollections
from lcrag.runs.trackers import Trackers
from lcrag.sampling import Sampler, SamplerConfig
from lcrag.train.checks import check_models
from lcrag.train.load import policy as load_policy

configured_sampler = gin.external_configurable(SamplerConfig, "Sampler", module="lcrag.sampling")
configured_runner = gin.external_configurable(Runner, module="lcrag.episodes")
configured_chat = gin.external_configurable(Chat, module="lcrag.episodes")
gin.external_configurable(make_mesh, "mesh", module="lcrag.policy")
gin.external_configurable(Retries, module="lcrag.episodes")
gin.register(Trackers, module="lcrag.runs")
gin.register(Lora, module="lcrag.policy")


gin.register(Computation, module="lcrag.policy")


gin.external_configurable(load_policy, "policy", module="lcrag.train")


def make_sampler(policy: Policy, mesh: Mesh | None = None) -> Sampler:
    """Returns the configured sampler with the policy's parameters, on `mesh` or by default the policy's mesh."""
    return Sampler(policy.config, policy.params, policy.tokenizer, configured_sampler(), mesh or policy.mesh)


def make_runner(
    sampler: Sampler,
    policy: Policy,
    collections: SearchableCollections,
    seed: int,
    *,
    may_wait: bool = False,
) -> Runner:
    """Returns the configured episode runner.

    Processes that run the same programs in one lane must call the sampler with the same arguments at the same points,
    so they have to wait for searches.

    Args:
      sampler: The sampler.
      policy: The policy that the sampler runs.
      collections: The collections to search.
      seed: Seed of sampling.
      may_wait: Whether several processes wait for searches although `Runner.wait_for_searches` is False.

    Raises:
      UserError: several processes share the sampler without waiting for searches, or a model of the runner cannot be
        loaded.
    """
    parts: dict[str, Any] = {"sampler": sampler, "tokenizer": policy.tokenizer, "search": collections.search}
    if may_wait and is_collective():
        parts |= {"wait_for_searches": True}
    runner = configured_runner(**parts, chat=configured_chat(), seed=seed)
    if is_collective() and not runner.wait_for_searches:
        raise UserError(
            f"Runner.wait_for_searches is False, but {jax.process_count()} processes share one lane and must not go on"
            f" at different times: set Runner.wait_for_searches to True, or for train and evaluate Lanes.count to"
            f" {jax.process_count()} or a multiple of it"
        )
    check_models(runner.completers.values())
    return runner
