"""Reading and writing a checkpoint: host memory above the parameters, and time relative to `transformers`.

    python benchmarks/loading.py
    python benchmarks/loading.py --model=qwen2_5_3b --folder=/scratch/checkpoint

Writes a random bfloat16 checkpoint once, then reads it (or reads it and writes a copy) in a fresh process each time.
Memory is the growth of anonymous resident memory (the system can drop pages of mapped files), sampled every
millisecond; "above" subtracts the parameters. Its bound is 1.3 times the largest stored tensor plus 200 MB.
`transformers` maps files of the requested dtype and reads them at first use, so its parameters are summed once.
"""

import argparse
import atexit
import functools
import json
import math
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time

DEVICES = 8
BOUND_TENSORS, BOUND_BYTES = 1.3, 200_000_000
MODELS = {
    "qwen2_5_0_5b": {"width": 896, "layers": 24, "heads": 14, "kv_heads": 2, "head_width": 64, "mlp_width": 4864},
    "qwen2_5_3b": {"width": 2048, "layers": 36, "heads": 16, "kv_heads": 2, "head_width": 128, "mlp_width": 11008},
    "tiny": {"width": 64, "layers": 2, "heads": 4, "kv_heads": 2, "head_width": 16, "mlp_width": 128},
}
# Times are ratios to `transformers` with the same dtype.
WAYS = {
    "transformers, bfloat16": {"dtype": "bfloat16", "peer": True},
    "transformers, float32": {"dtype": "float32", "peer": True},
    "lcrag, bfloat16": {"dtype": "bfloat16"},
    "lcrag, float32": {"dtype": "float32"},
    "lcrag, bfloat16, fsdp 4 x tensor 2": {"dtype": "bfloat16", "fsdp": 4, "tensor": 2},
    "lcrag, float32, fsdp 4 x tensor 2": {"dtype": "float32", "fsdp": 4, "tensor": 2},
    "transformers writes, float32": {"dtype": "float32", "peer": True, "write": True},
    "lcrag writes, float32, fsdp 4 x tensor 2": {"dtype": "float32", "fsdp": 4, "tensor": 2, "write": True},
}


def write_checkpoint(folder: pathlib.Path, model: str) -> None:
    """Writes random values under the names of a Qwen2.5 checkpoint, in shards of 500 MB."""
    import numpy as np

    from lcrag.policy import DecoderConfig
    from lcrag.policy.hugging_face_config import config_to_hugging_face
    from lcrag.policy.model_files import DTYPES, plan_shards, tensor_bytes, write_index, write_shard
    from lcrag.policy.stored_parameters import stored_parameters

    config = DecoderConfig(family="qwen2", vocabulary_size=151_936, max_positions=4096, **MODELS[model])
    shapes = {stored.name: stored.shape for stored in stored_parameters(config)}
    dtype, generator = DTYPES["BF16"], np.random.default_rng(0)
    shards = plan_shards(shapes, dtype, 500_000_000)
    folder.mkdir(parents=True, exist_ok=True)
    for file, names in shards.items():
        held = {name: shapes[name] for name in names}
        values = ((name, 0, generator.standard_normal(held[name], dtype=np.float32)) for name in names)
        write_shard(folder / file, held, dtype, values)
    if len(shards) > 1:
        write_index(folder, shards, sum(tensor_bytes(shape, dtype) for shape in shapes.values()))
    (folder / "config.json").write_text(json.dumps(config_to_hugging_face(config, "bfloat16")))


def anonymous_bytes() -> int:
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("this system does not report anonymous memory")


class Peak(threading.Thread):
    """The largest anonymous memory of the process while it runs."""

    def __init__(self):
        super().__init__(daemon=True)
        self.bytes = 0
        self._stop_asked = threading.Event()

    def run(self) -> None:
        while not self._stop_asked.wait(0.001):
            self.bytes = max(self.bytes, anonymous_bytes())

    def stopped(self) -> int:
        self._stop_asked.set()
        self.join()
        return self.bytes


def measure(folder: pathlib.Path, way: dict) -> dict[str, float]:
    """Reads the folder (or writes its copy) one way, in this process."""
    work, resident = _peer(folder, way) if way.get("peer") else _ours(folder, way)
    before, peak = anonymous_bytes(), Peak()
    peak.start()
    started = time.perf_counter()
    kept = work()
    seconds = time.perf_counter() - started
    growth = peak.stopped() - before
    return {"seconds": seconds, "growth": growth, "resident": resident(kept)}


def _ours(folder: pathlib.Path, way: dict):
    import jax

    from lcrag.policy import load_hugging_face, make_mesh, save_hugging_face

    fsdp, tensor = way.get("fsdp", 1), way.get("tensor", 1)
    mesh = make_mesh(data=1, fsdp=fsdp, tensor=tensor, devices=jax.devices()[: fsdp * tensor])
    jax.block_until_ready(jax.jit(lambda x: x @ x)(jax.numpy.ones((64, 64))))  # starts the backend

    def read():
        return load_hugging_face(folder, dtype=way["dtype"], mesh=mesh)

    def resident(kept) -> int:
        return sum(shard.data.nbytes for leaf in jax.tree.leaves(kept[1]) for shard in leaf.addressable_shards)

    if not way.get("write"):
        return read, resident
    config, params = read()
    return functools.partial(save_hugging_face, copied(folder), config, params), lambda kept: 0


def _peer(folder: pathlib.Path, way: dict):
    import torch
    import transformers

    def read():
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, way["dtype"]))
        for parameter in model.parameters():
            parameter.sum()
        return model

    if way.get("write"):
        return functools.partial(read().save_pretrained, copied(folder)), lambda kept: 0
    return read, lambda model: sum(parameter.nbytes for parameter in model.parameters())


def copied(folder: pathlib.Path) -> pathlib.Path:
    """Returns a folder for a copy of the checkpoint, deleted when this process ends."""
    copy = folder / "copy"
    atexit.register(shutil.rmtree, copy)
    return copy


def largest_tensor_bytes(folder: pathlib.Path) -> int:
    from lcrag.policy.model_files import DTYPES, TensorFolder

    return max(math.prod(each.shape) * DTYPES[each.code].itemsize for each in TensorFolder(folder).tensors.values())


def in_fresh_process(folder: pathlib.Path, name: str) -> dict[str, float]:
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={DEVICES}"
    environment = os.environ | {"XLA_FLAGS": flags}
    command = [sys.executable, __file__, f"--folder={folder}", f"--way={name}"]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(answer.stdout.splitlines()[-1])


def compare(folder: pathlib.Path, repeats: int) -> None:
    largest = largest_tensor_bytes(folder)
    bound = BOUND_TENSORS * largest + BOUND_BYTES
    print(
        f"largest tensor {largest / 1e6:,.0f} MB as stored; bound on memory above the parameters {bound / 1e6:,.0f} MB"
    )
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for _ in range(repeats):
        for name in WAYS:
            runs[name].append(in_fresh_process(folder, name))
    for name, way in WAYS.items():
        growth = max(run["growth"] for run in runs[name])
        line = f"{name:42s} peak {growth / 1e6:6,.0f} MB"
        if not way.get("peer"):
            above = growth - runs[name][0]["resident"]
            peer = f"transformers{' writes' * way.get('write', False)}, {way['dtype']}"
            ratios = [ours["seconds"] / theirs["seconds"] for ours, theirs in zip(runs[name], runs[peer], strict=True)]
            line += f", above the parameters {above / 1e6:4,.0f} MB ({above / bound:.2f} of the bound)"
            line += f", {statistics.median(ratios):.2f} x the time of transformers"
        print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="qwen2_5_0_5b")
    parser.add_argument("--folder", type=pathlib.Path, help="keep the checkpoint here; a temporary folder if absent")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.environ["JAX_PLATFORMS"] = "cpu"  # the memory in question is the host's
    if options.way:
        print(json.dumps(measure(options.folder, WAYS[options.way])))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.folder or pathlib.Path(temporary)
        if not (folder / "config.json").is_file():
            write_checkpoint(folder, options.model)
        compare(folder, options.repeats)


if __name__ == "__main__":
    main()
