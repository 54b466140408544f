"""docs/tutorial.md: its module, its configuration and every command, one after the other, as written.

With tiny models and few steps under the names of the page's; with the real ones, and all steps, if LCRAG_TEST_SMOLLM2
names `real/SmolLM2-135M-Instruct` of `bash launch/real_weights.sh real`.
"""

import contextlib
import io
import os
import re
import runpy
import shlex
from pathlib import Path

import gin
import jax
import pytest
from experiment_parts import json_lines
from test_your_model import write_models

from lcrag import main
from lcrag.evaluation import read_rows

PAGE = (Path(__file__).parents[2] / "docs" / "tutorial.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)
[MODULE], [CONFIGURATION] = ([code for language, code in BLOCKS if language == name] for name in ("python", "gin"))
COMMANDS = [shlex.split(line) for language, code in BLOCKS if language == "bash" for line in code.splitlines()]
FEW = """
STEPS = 2
SFT_STEPS = 2
train.questions_per_step = 1
Method.samples = 2
Runner.max_tokens = 8
CONTEXT = 2048
Sampler.slots = 4
Sampler.windows = (2048,)
Sampler.append_tokens = (1024,)
PolicyGradient.constant_length = 32
"""


@pytest.mark.slow
@pytest.mark.parametrize("real", [False, True], ids=["tiny", "real"])
def test_every_command_runs(real, tmp_path, monkeypatch):
    folder = os.environ.get("LCRAG_TEST_SMOLLM2")
    if real and folder is None:
        pytest.skip("needs SmolLM2-135M-Instruct: set LCRAG_TEST_SMOLLM2 to its folder")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jax, "devices", lambda *platforms: jax.local_devices()[:1])  # as on a laptop
    if real:
        Path("real").symlink_to(Path(folder).resolve().parent)
    else:
        write_models(Path("real"))
        Path("real", "my-model").rename("real/SmolLM2-135M-Instruct")
    Path("make_world.py").write_text(MODULE, encoding="utf-8")
    Path("tutorial.gin").write_text(CONFIGURATION + ("" if real else FEW), encoding="utf-8")
    printed = {}
    for program, *words in COMMANDS:
        if program == "python":
            runpy.run_path(words[0])
        elif program == "lcrag":
            gin.clear_config()
            with contextlib.redirect_stdout(io.StringIO()) as said:
                assert main.run(words) == 0, words
            printed[words[0], words[-1]] = said.getvalue()
        else:
            assert [program, *words] == ["bash", "launch/real_weights.sh", "real"]
    assert [len(json_lines(Path(name))) for name in ("train.jsonl", "test.jsonl")] == [36, 24]
    shown = json_lines(Path("runs/shown/rows.jsonl"))
    assert len(shown) == 36
    mine = Path("runs/mine")
    assert len(json_lines(mine / "metrics.jsonl")) == (20 if real else 2)
    assert "difference" in printed["train", "--output_dir=runs/mine"]
    assert printed["view", "runs/mine"]
    if real:
        rows = read_rows(mine / "evaluation.json")
        values = {
            row.method: row.value
            for row in rows
            if (row.split, row.language, row.metric) == ("held_out", "all", "c3_recall")
        }
        assert values["after, greedy"] > 0.3
