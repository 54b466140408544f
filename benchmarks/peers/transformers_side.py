"""`transformers` and TRL on the work of lcrag: python benchmarks/peers/transformers_side.py generation|step"""

import os
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
import work  # makes the folder of `timing` known; stays first
from timing import repeated, report

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "2")))
NAME = f"transformers {transformers.__version__}"


def model() -> transformers.Qwen2ForCausalLM:
    config = transformers.Qwen2Config(
        vocab_size=work.VOCABULARY,
        hidden_size=work.WIDTH,
        num_hidden_layers=work.LAYERS,
        num_attention_heads=work.HEADS,
        num_key_value_heads=work.KV_HEADS,
        intermediate_size=work.MLP_WIDTH,
        max_position_embeddings=work.POSITIONS,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=None,
        bos_token_id=None,
    )
    return transformers.Qwen2ForCausalLM(config).eval()


def generation() -> None:
    own, tokenizer = model(), work.fast_tokenizer()
    prompts = tokenizer(work.texts(work.EPISODES, work.PROMPT, 1), return_tensors="pt")["input_ids"]
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": work.NEW, "pad_token_id": 0}

    for cache in ("dynamic", "static"):
        chosen = options if cache == "dynamic" else options | {"cache_implementation": cache}

        @torch.no_grad()
        def generate(chosen: dict[str, Any] = chosen) -> None:
            found = own.generate(prompts, attention_mask=torch.ones_like(prompts), **chosen)
            assert found.shape == (work.EPISODES, work.PROMPT + work.NEW), found.shape

        amount = work.EPISODES * work.NEW
        report(work.GENERATION, f"{NAME}, {cache} cache", repeated(generate, work.REPEATS), amount, "new tokens")


def step() -> None:
    import trl
    from datasets import Dataset

    transformers.logging.set_verbosity_error()
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        model().save_pretrained(folder)  # TRL reads the policy and its reference from a folder
        config = trl.GRPOConfig(
            output_dir=f"{folder}/out",
            per_device_train_batch_size=work.EPISODES,
            num_generations=work.SAMPLES,
            max_completion_length=work.NEW,
            generation_kwargs={"min_new_tokens": work.NEW},
            max_steps=work.STEPS + 1,
            beta=0.04,
            learning_rate=1e-6,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            shuffle_dataset=False,
            model_init_kwargs={"dtype": "float32"},
        )
        prompts = work.texts(work.PROMPTS * (work.STEPS + 1), work.PROMPT, 4)
        trainer = trl.GRPOTrainer(
            model=folder,
            reward_funcs=lambda completions, **_: [float(len(each) % 7) for each in completions],
            args=config,
            train_dataset=Dataset.from_dict({"prompt": prompts}),
            processing_class=work.fast_tokenizer(),
            callbacks=[clock.callback()],
        )
        trainer._generate_single_turn = clock.timed("generate", trainer._generate_single_turn)
        trainer._generate_and_score_completions = clock.timed("sample", trainer._generate_and_score_completions)
        trainer.train()
    steps = clock.steps[1:]
    phases = {name: sorted(each[name] for each in steps)[len(steps) // 2] for name in ("generate", "sample", "step")}
    phases = {
        "generate": phases["generate"],
        "score": phases["sample"] - phases["generate"],
        "update": phases["step"] - phases["sample"],
    }
    side = f"TRL {trl.__version__}"
    report(work.STEP, side, [each["step"] for each in steps], work.EPISODES, "episodes", phases=phases)


class Clock:
    """Seconds of the steps of a trainer, and of some of its methods in each."""

    def __init__(self):
        self.steps: list[dict[str, float]] = []
        self.spent: dict[str, float] = {}

    def timed(self, name: str, method: Callable) -> Callable:
        def call(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            result = method(*arguments, **named)
            self.spent[name] = self.spent.get(name, 0.0) + time.perf_counter() - started
            return result

        return call

    def callback(self) -> transformers.TrainerCallback:
        clock = self

        class Steps(transformers.TrainerCallback):
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                clock.spent, self.started = {}, time.perf_counter()

            def on_step_end(self, *_: Any, **__: Any) -> None:
                clock.steps.append(clock.spent | {"step": time.perf_counter() - self.started})

        return Steps()


if __name__ == "__main__":
    work.run({"generation": generation, "step": step})
