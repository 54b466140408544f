"""tunix on the work of lcrag: python benchmarks/peers/tunix_side.py generation|rollouts|step"""

import asyncio
import importlib.metadata
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor

os.environ["JAX_PLATFORMS"] = "cpu"
import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
import work  # noqa: E402  # makes the folder of `timing` known
from flax import nnx  # noqa: E402
from timing import repeated, report, timed  # noqa: E402
from tunix.generate import sampler, tokenizer_adapter  # noqa: E402
from tunix.models.qwen2 import model as qwen2  # noqa: E402
from tunix.rl import rl_cluster  # noqa: E402
from tunix.rl.agentic import utils  # noqa: E402
from tunix.rl.agentic.agents import agent_types, base_agent  # noqa: E402
from tunix.rl.agentic.environments import base_environment  # noqa: E402
from tunix.rl.agentic.parser.chat_template_parser import parser as chat_parser  # noqa: E402
from tunix.rl.agentic.pipeline import rollout_orchestrator  # noqa: E402
from tunix.rl.agentic.trajectory import trajectory_collect_engine  # noqa: E402
from tunix.rl.grpo import grpo_learner  # noqa: E402
from tunix.rl.rollout import base_rollout, vanilla_rollout  # noqa: E402

logging.disable(logging.WARNING)
NAME = f"tunix {importlib.metadata.version('google-tunix')}"
NEVER = [999_999]  # no such token: lengths are forced
TURNS = 3


def model() -> qwen2.Qwen2:
    config = qwen2.ModelConfig(
        num_layers=work.LAYERS,
        vocab_size=work.VOCABULARY,
        embed_dim=work.WIDTH,
        hidden_dim=work.MLP_WIDTH,
        num_heads=work.HEADS,
        head_dim=work.HEAD_WIDTH,
        num_kv_heads=work.KV_HEADS,
        rope_theta=10_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
        dtype=jnp.float32,
        param_dtype=jnp.float32,
    )
    graph, state = nnx.split(qwen2.Qwen2(config, rngs=nnx.Rngs(0)))
    keys = iter(jax.random.split(jax.random.key(0), 1_000))
    # its own initial embeddings have a standard deviation of 1, and its MLPs are zero
    drawn = lambda each: 0.02 * jax.random.normal(next(keys), each.shape) if each.ndim > 1 else each  # noqa: E731
    return nnx.merge(graph, jax.tree.map(drawn, state))


def cache(positions: int) -> dict[str, int]:
    return {
        "cache_size": positions,
        "num_layers": work.LAYERS,
        "num_kv_heads": work.KV_HEADS,
        "head_dim": work.HEAD_WIDTH,
    }


def generation() -> None:
    positions = work.PROMPT + work.NEW
    own = sampler.Sampler(model(), work.fast_tokenizer(), sampler.CacheConfig(**cache(positions)))
    prompts, seeds = work.texts(work.EPISODES, work.PROMPT, 1), iter(range(100))

    def generate() -> None:
        found = own(
            prompts,
            max_generation_steps=work.NEW,
            max_prompt_length=work.PROMPT,
            temperature=1.0,
            top_p=1.0,
            top_k=None,
            seed=next(seeds),
            eos_tokens=NEVER,
        )
        assert all(len(each) == work.NEW for each in found.tokens)

    amount = work.EPISODES * work.NEW
    report(work.GENERATION, NAME, repeated(generate, work.REPEATS), amount, "new tokens")


def rollouts() -> None:
    """Times the agentic pipeline, which calls the model for one episode and turn at a time.

    Random weights sample texts that tokenise to other lengths: the history holds texts of the sampled length instead.
    """
    length, turn = work.PROMPT + TURNS * (work.SAMPLED + work.OBSERVED), work.SAMPLED + work.OBSERVED
    prompts = work.texts(work.EPISODES, work.PROMPT, 0)
    observed = [work.texts(work.EPISODES, work.OBSERVED, 1 + number) for number in range(TURNS)]
    written = [work.texts(work.EPISODES, work.SAMPLED, 10 + number) for number in range(TURNS)]
    tokenizer = tokenizer_adapter.TokenizerAdapter(work.fast_tokenizer())
    own = vanilla_rollout.VanillaRollout(model(), tokenizer, base_rollout.CacheConfig(**cache(length)))
    settings = base_rollout.RolloutConfig(
        max_tokens_to_generate=work.SAMPLED,
        temperature=1.0,
        top_p=1.0,
        top_k=None,
        max_prompt_length=work.PROMPT + (TURNS - 1) * turn,  # one compiled program for all turns
        kv_cache_size=length,
        eos_tokens=NEVER,
        return_logprobs=True,
    )

    class Plain(chat_parser.BaseChatTemplateParser):
        """Joins the messages' texts, without marks of their roles."""

        def _init_tokens(self):
            return chat_parser.TokenConfig()

        def _init_generation_prompt(self):
            return ""

    class Asked(base_environment.BaseTaskEnv):
        def _initial_observation(self):
            return {"question": self.task["question"]}

        def _step_impl(self, action):
            text = observed[self.step_count - 1][self.extra_kwargs["pair_index"]]
            done = self.step_count >= TURNS
            return base_environment.EnvStepResult(observation=text, reward=1.0, done=done, info={})

    class Answering(base_agent.ConversationAgentBase):
        def __init__(self, index: int):
            super().__init__("")
            self.index = index

        def update_from_model(self, response, **_):
            text = written[len(self.trajectory.steps)][self.index]
            self._messages.append({"role": "assistant", "content": text})
            made = agent_types.Step(
                chat_completions=[dict(each) for each in self._messages],
                action=agent_types.Action(action=response),
                model_response=response,
            )
            self.trajectory.steps.append(made)
            return made.action

    plain = Plain(tokenizer)

    def call(messages, env=None, max_generation_steps=None, **_):
        return own.generate([plain.parse(messages=messages, add_generation_prompt=True, is_first_msg=True)], settings)

    async def collected() -> int:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=work.EPISODES + 1))
        orchestrator = rollout_orchestrator.RolloutOrchestrator(
            rollout_sync_lock=utils.RolloutSyncLock(),
            engine_cls=trajectory_collect_engine.TrajectoryCollectEngine,
            engine_kwargs={
                "model_call": call,
                "tokenizer": tokenizer,
                "chat_parser": plain,
                "timeout": 1800.0,
                "max_response_length": 100_000,
            },
            max_concurrency=work.EPISODES,
        )
        pairs = [
            (Answering(index), Asked({"question": prompt}, max_steps=TURNS, pair_index=index, group_id=index))
            for index, prompt in enumerate(prompts)
        ]
        producing = asyncio.create_task(
            orchestrator.run_producers_from_stream(
                pairs_stream=iter(pairs),
                group_size=1,
                group_key_fn=lambda index, env, trajectory: env.extra_kwargs["group_id"],
                collect_mode="Token",
            )
        )
        await asyncio.sleep(0)
        count = 0
        async for batch in orchestrator.yield_batches(batch_size=1):
            for each in batch:
                assert each.traj["conversation_masks"].sum() == TURNS * work.SAMPLED
            count += len(batch)
        await producing
        return count

    seconds = []
    for _ in range(work.REPEATS):
        count, each = timed(lambda: asyncio.run(collected()))
        assert count == work.EPISODES
        seconds.append(each)
    amount = work.EPISODES * TURNS * work.SAMPLED
    report(work.rollouts(TURNS), f"{NAME}, agentic", seconds[1:] or seconds, amount, "sampled tokens")


def step() -> None:
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    roles = (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT)
    adamw = optax.adamw(1e-6, b1=0.9, b2=0.95, weight_decay=0.0)
    cluster = rl_cluster.RLCluster(
        actor=model(),
        reference=model(),
        tokenizer=work.fast_tokenizer(),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(roles, mesh),
            rollout_engine="vanilla",
            offload_to_cpu=False,
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.chain(optax.clip_by_global_norm(1.0), adamw),
                eval_every_n_steps=1_000_000,
                max_steps=work.STEPS + 1,
                mini_batch_size=work.PROMPTS,
                train_micro_batch_size=work.PROMPTS,
            ),
            rollout_config=base_rollout.RolloutConfig(
                max_tokens_to_generate=work.NEW,
                max_prompt_length=work.PROMPT,
                kv_cache_size=work.PROMPT + work.NEW + 1,
                temperature=1.0,
                top_p=1.0,
                top_k=None,
                eos_tokens=NEVER,
            ),
        ),
    )
    learner = grpo_learner.GRPOLearner(
        rl_cluster=cluster,
        reward_fns=lambda prompts, completions, **_: [float(len(each) % 7) for each in completions],
        algo_config=grpo_learner.GRPOConfig(
            num_generations=work.SAMPLES, num_iterations=1, beta=0.04, epsilon=0.2, kl_loss_mode="low_var_kl"
        ),
    )
    seconds, one_step = [], learner._run_global_step

    def timed_step(*arguments, **named):
        started, updates = time.perf_counter(), cluster.actor_trainer.train_steps
        one_step(*arguments, **named)
        jax.block_until_ready(nnx.state(cluster.actor_trainer.model))
        if cluster.actor_trainer.train_steps > updates:
            seconds.append(time.perf_counter() - started)

    learner._run_global_step = timed_step
    numbers = range(work.STEPS + 1)
    learner.train([{"prompts": np.array(work.texts(work.PROMPTS, work.PROMPT, 40 + number))} for number in numbers])
    report(work.STEP, NAME, seconds[1:], work.EPISODES, "episodes")


if __name__ == "__main__":
    work.run({"generation": generation, "rollouts": rollouts, "step": step})
