"""Times a checkpoint at its real size in bfloat16: loading, generation compared with `transformers`, and updates.

    python benchmarks/checkpoint.py                                # a Qwen2.5-3B of random weights, on an accelerator
    python benchmarks/checkpoint.py --shape=layers=12,width=1024   # any shape: fields of DecoderConfig
    python benchmarks/checkpoint.py --folder=/models/Qwen2.5-3B-Instruct
    python benchmarks/checkpoint.py --tiny                         # a smoke run on the CPU

Each part runs in a separate process, so no library holds another's memory; results are medians after a warm-up that
compiles. Both sides sample `batch` random prompts of equal length at temperature 1 without an end token. Bandwidth is
the minimum of bytes that decoding reads (`lcrag.policy.flops.decode_bytes`) over its time, as a share of the measured
bandwidth of copying a large array. MFU is `update_flops` (nothing recomputed) over the time of a GRPO update with AdamW
and float32 masters, as a share of the measured rate of a large bfloat16 matrix product, and of the data sheet of the
device if `lcrag.policy.accelerators` lists it.
"""

import argparse
import dataclasses
import functools
import json
import os
import subprocess
import sys
import tempfile

from timing import median_seconds, timed

QWEN2_5_3B = {
    "family": "qwen2",
    "vocabulary_size": 151_936,
    "width": 2048,
    "layers": 36,
    "heads": 16,
    "kv_heads": 2,
    "head_width": 128,
    "mlp_width": 11_008,
    "max_positions": 32_768,
}
TINY = {"vocabulary_size": 4096, "width": 32, "layers": 2, "heads": 4, "kv_heads": 2, "head_width": 8, "mlp_width": 48}
TINY_WORK = {"batch": 4, "prompt": 24, "new": 16, "rows": 2, "row_length": 64, "repeats": 1}
PROBE_BYTES, PROBE_WIDTH = 2**31, 8192  # of the copied array and of the square matrices; tiny: a thousandth
POLICY_SHARE = 0.25  # of an episode's tokens, the rest being prompt and passages


def decoder_config(options: argparse.Namespace):
    """The decoder of random weights that the flags describe."""
    from lcrag.policy import DecoderConfig

    shape = TINY | {"max_positions": 512} if options.tiny else dict(QWEN2_5_3B)
    for change in filter(None, options.shape.split(",")):
        name, value = change.split("=")
        shape[name] = value if name == "family" else json.loads(value)
    return DecoderConfig(**shape)


def load(options: argparse.Namespace, dtype: str):
    """Configuration (computing in bfloat16, recomputing activations) and parameters of the folder, and seconds."""
    import jax

    from lcrag.policy import load_hugging_face

    (config, params), seconds = timed(lambda: jax.block_until_ready(load_hugging_face(options.folder, dtype=dtype)))
    return dataclasses.replace(config, compute_dtype="bfloat16", remat="full"), params, seconds


def random_prompts(options: argparse.Namespace, vocabulary_size: int):
    import numpy as np

    return np.random.default_rng(0).integers(0, vocabulary_size, (options.batch, options.prompt))


def create(options: argparse.Namespace) -> dict:
    """Writes a checkpoint of random weights."""
    import jax

    from lcrag.policy import initialise, parameter_count, save_hugging_face

    config = decoder_config(options)
    save_hugging_face(options.folder, config, initialise(config, jax.random.key(0)), dtype="bfloat16")
    return {"parameters": parameter_count(config)}


def probe(options: argparse.Namespace) -> dict:
    """Measures bytes per second of a copy (read and written) and bfloat16 operations per second of the device."""
    import jax
    import jax.numpy as jnp

    from lcrag.policy.accelerators import accelerator_of

    scale = 1000 if options.tiny else 1
    source = jnp.zeros(PROBE_BYTES // 2 // scale, jnp.bfloat16)
    copy = jax.jit(lambda x: x + 1)
    seconds = median_seconds(lambda: copy(source).block_until_ready(), 10)
    width = PROBE_WIDTH // (32 if options.tiny else 1)
    matrix = jnp.ones((width, width), jnp.bfloat16)
    product = jax.jit(lambda x: x @ x)
    product_seconds = median_seconds(lambda: product(matrix).block_until_ready(), 10)
    listed = accelerator_of(jax.devices()[0])
    return {
        "device": jax.devices()[0].device_kind,
        "listed_operations_per_second": listed and listed.flops_per_second,
        "copied_bytes_per_second": 2 * source.nbytes / seconds,
        "operations_per_second": 2 * width**3 / product_seconds,
    }


def generate(options: argparse.Namespace) -> dict:
    """Measures the sampler: all prompts at once, all tokens, and decoding alone."""
    import numpy as np

    from lcrag.atlas.vocabulary import SHIPPED_FOLDER
    from lcrag.policy import load_tokenizer
    from lcrag.policy.flops import decode_bytes
    from lcrag.sampling import Sampler, SamplerConfig, SamplingParameters
    from lcrag.sampling.slots import CHECK_EVERY

    config, params, seconds_to_load = load(options, "bfloat16")
    # Nothing is decoded, so any tokenizer works; an end token outside the vocabulary is never sampled.
    tokenizer = dataclasses.replace(load_tokenizer(SHIPPED_FOLDER), eos_ids=(config.vocabulary_size,))
    context = options.prompt + options.new
    settings = {
        "block": min(64, options.new),
        "wanted": 1.0,
        "windows": range(options.window, context, options.window),
        "append_rows": (min(8, options.batch),),
        "append_tokens": (options.prompt,),
    }
    sampler = Sampler(config, params, tokenizer, SamplerConfig(slots=options.batch, context=context, **settings))
    prompts = dict(enumerate(random_prompts(options, config.vocabulary_size).astype(np.int32)))

    def rollout(tokens: int) -> None:
        sampler.append(prompts)
        sampler.begin({slot: SamplingParameters(max_tokens=tokens, episode=slot) for slot in prompts})
        while sampler.running:
            sampler.decode()
        sampler.free(prompts)

    seconds = median_seconds(lambda: rollout(options.new), options.repeats)
    # The time of prefill includes the first tokens: the decode loop checks for its end only every CHECK_EVERY steps.
    first_seconds = median_seconds(lambda: rollout(CHECK_EVERY), options.repeats)
    steps, decode_seconds = options.new - CHECK_EVERY, seconds - first_seconds
    length = options.prompt + options.new / 2  # of the contexts, over the steps on average
    return {
        "seconds_to_load": seconds_to_load,
        "first_tokens_seconds": first_seconds,
        "tokens_per_second": options.batch * options.new / seconds,
        "decoded_tokens_per_second": options.batch * steps / decode_seconds,
        "decoded_bytes_per_second": decode_bytes(config, options.batch, length) * steps / decode_seconds,
    }


def generate_with_transformers(options: argparse.Namespace) -> dict:
    """`transformers` on the same folder, prompts and settings; on a GPU, or in a smoke run on the CPU."""
    import torch
    import transformers

    if not (torch.cuda.is_available() or options.tiny):
        return {"skipped": "PyTorch finds no GPU"}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = transformers.AutoModelForCausalLM.from_pretrained(options.folder, dtype=torch.bfloat16).to(device).eval()
    model.generation_config.eos_token_id = None
    prompts = torch.tensor(random_prompts(options, model.config.vocab_size), device=device)
    settings = {"max_new_tokens": options.new, "do_sample": True, "temperature": 1.0, "top_k": 0, "pad_token_id": 0}

    def work():
        with torch.inference_mode():
            found = model.generate(prompts, attention_mask=torch.ones_like(prompts), **settings)
        return found.cpu()  # waits for the device

    assert work().shape == (options.batch, options.prompt + options.new)
    return {"tokens_per_second": options.batch * options.new / median_seconds(work, options.repeats)}


def update(options: argparse.Namespace) -> dict:
    """A GRPO update of full rows: float32 masters and moments, bfloat16 compute, everything recomputed."""
    import jax
    import numpy as np

    from lcrag.learning import Layout, PolicyGradient, Trajectory, adamw, initial_state, make_update, pack
    from lcrag.policy import hidden_states, make_mesh, param_shardings, unembed_log_probabilities
    from lcrag.policy.flops import causal_mean, update_flops

    config, params, _ = load(options, "float32")
    mesh, random = make_mesh(devices=jax.devices()[:1]), np.random.default_rng(0)

    def episode() -> Trajectory:
        tokens = random.integers(0, config.vocabulary_size, options.row_length).astype(np.int32)
        by_policy = np.arange(options.row_length) >= (1 - POLICY_SHARE) * options.row_length
        recorded = np.full(options.row_length, -np.log(config.vocabulary_size), np.float32)
        return Trajectory(tokens, by_policy, recorded, float(random.normal()))

    episodes = [episode() for _ in range(options.rows * options.micro_batches)]
    batch = pack(episodes, Layout(rows=options.rows, row_lengths=(options.row_length,)))
    optimizer, shardings = adamw(learning_rate=1e-6, steps=100), param_shardings(config, mesh)
    hidden = functools.partial(hidden_states, config, mesh=mesh)
    unembed = functools.partial(unembed_log_probabilities, config)
    step = make_update(hidden, unembed, PolicyGradient(), optimizer, mesh=mesh, param_shardings=shardings)
    state = initial_state(params, optimizer, mesh, shardings)

    def work():
        nonlocal state
        state, metrics = step(state, batch)
        assert np.isfinite(jax.block_until_ready(metrics)["gradient_norm"])

    seconds = median_seconds(work, options.repeats)
    tokens, learned = len(episodes) * options.row_length, sum(int(each.by_policy.sum()) for each in episodes)
    operations = update_flops(config, tokens, attended=causal_mean(options.row_length), unembedded=learned)
    memory = jax.devices()[0].memory_stats() or {}
    return {
        "seconds": seconds,
        "tokens_per_second": tokens / seconds,
        "operations_per_second": operations / seconds,
        "peak_bytes": memory.get("peak_bytes_in_use"),
    }


PARTS = {each.__name__: each for each in (create, probe, generate_with_transformers, generate, update)}


def run_part(name: str, folder: str, arguments: list[str]) -> dict:
    """Runs one part in a separate process; its last line of output is its result."""
    command = [sys.executable, __file__, *arguments, f"--folder={folder}", f"--part={name}"]
    environment = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.94"} | os.environ
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return json.loads(answer.stdout.splitlines()[-1])


def show(results: dict[str, dict]) -> None:
    """Prints rates, and the shares and ratios that carry over to another machine."""
    can, ours, theirs = (results[part] for part in ("probe", "generate", "generate_with_transformers"))
    print(f"device                      {can['device']}")
    print(f"copy                        {can['copied_bytes_per_second'] / 1e9:12,.1f} GB/s")
    print(f"bfloat16 matrix product     {can['operations_per_second'] / 1e12:12,.3f} TFLOP/s")
    print(f"loading                     {ours['seconds_to_load']:12,.1f} s")
    print(f"prompts and first tokens    {ours['first_tokens_seconds']:12,.2f} s")
    print(f"generate                    {ours['tokens_per_second']:12,.0f} new tokens/s")
    print(f"  decoding alone            {ours['decoded_tokens_per_second']:12,.0f} new tokens/s")
    share = ours["decoded_bytes_per_second"] / can["copied_bytes_per_second"]
    print(f"  share of copy bandwidth   {share:12.1%}")
    if "skipped" in theirs:
        print(f"transformers                skipped: {theirs['skipped']}")
    else:
        print(f"transformers                {theirs['tokens_per_second']:12,.0f} new tokens/s")
        print(f"  lcrag / transformers      {ours['tokens_per_second'] / theirs['tokens_per_second']:12.2f}")
    learned = results["update"]
    print(f"update                      {learned['tokens_per_second']:12,.0f} tokens/s")
    utilisation = learned["operations_per_second"] / can["operations_per_second"]
    print(f"  MFU, of the product       {utilisation:12.1%}")
    if can["listed_operations_per_second"]:
        utilisation = learned["operations_per_second"] / can["listed_operations_per_second"]
        print(f"  MFU, of the data sheet    {utilisation:12.1%}")
    if learned["peak_bytes"]:
        print(f"  peak memory               {learned['peak_bytes'] / 2**30:12,.1f} GiB")


def read_options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="a Hugging Face folder; one of random weights is made if absent")
    parser.add_argument("--shape", default="", help="changes to the random model: field=value,field=value")
    parser.add_argument("--batch", type=int, default=64, help="prompts, all at once")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--new", type=int, default=256, help="tokens sampled after it")
    parser.add_argument("--window", type=int, default=256, help="steps in which the cache's compiled length grows")
    parser.add_argument("--rows", type=int, default=4, help="rows of a micro-batch of the update")
    parser.add_argument("--row_length", type=int, default=2048, help="tokens of a row")
    parser.add_argument("--micro_batches", type=int, default=4, help="micro-batches of an update")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="a tiny model and little work, on the CPU")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    if "--tiny" in arguments:
        parser.set_defaults(**TINY_WORK)
    return parser.parse_args(arguments)


def main() -> None:
    arguments = sys.argv[1:]
    options = read_options(arguments)
    if options.part:
        print(json.dumps(PARTS[options.part](options)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        parts = [name for name in PARTS if name != "create" or not options.folder]
        show({name: run_part(name, options.folder or temporary, arguments) for name in parts})


if __name__ == "__main__":
    main()
