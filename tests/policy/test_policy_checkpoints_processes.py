"""Several processes: each reads what its devices hold, one writes, all of them get the same model."""

import os
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

from lcrag.policy import load_hugging_face
from lcrag.testing.random_decoders import saved_decoder

PROGRAM = """
import sys
import jax

process, port, source, target = sys.argv[1:]
jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=int(process))

import lcrag.policy.stored_parameters as stored_parameters
from lcrag.policy import load_hugging_face, make_mesh, save_hugging_face
from lcrag.policy.model_files import TensorFolder

stored_parameters.PIECE_BYTES = 4000
sizes, read = [], TensorFolder.read
TensorFolder.read = lambda *arguments: (part := read(*arguments), sizes.append(part.size))[0]
config, params = load_hugging_face(source, mesh=make_mesh(data=1, fsdp=2, tensor=2))
save_hugging_face(target, config, params, shard_bytes=100_000)
print(sum(sizes) / sum(leaf.size for leaf in jax.tree.leaves(params)))
"""


@pytest.mark.slow
def test_two_processes_share_the_reading_and_one_writes(tmp_path):
    saved_decoder(tmp_path / "a", "qwen2_untied", vocab_size=384, num_key_value_heads=2)
    with socket.socket() as opened:
        opened.bind(("localhost", 0))
        port = str(opened.getsockname()[1])
    command = [sys.executable, "-c", PROGRAM]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
    processes = [
        subprocess.Popen([*command, process, port, tmp_path / "a", tmp_path / "b"], env=environment, **pipes)
        for process in "01"
    ]
    answers = [process.communicate(timeout=240) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], answers
    shares = [float(output.splitlines()[-1]) for output, _ in answers]
    assert all(0.4 < share < 0.8 for share in shares)  # half each, and overlapping last pieces
    first, second = (load_hugging_face(tmp_path / name)[1] for name in "ab")
    jax.tree.map(np.testing.assert_array_equal, first, second)
