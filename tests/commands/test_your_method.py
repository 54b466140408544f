"""docs/your_method.md: its method runs in every command of the page, in a folder that is not on Python's path."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "your_method.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL))
COMMANDS = [shlex.split(line)[1:] for line in BLOCKS["bash"].splitlines()]
# The page's run is one of minutes, most of which compile; everything else stays as on the page.
FEW = """
STEPS = 1
train.questions_per_step = 1
train/atlas_questions.limit = 8
held_out/atlas_questions.limit = 1
held_out/atlas_questions.languages = ("en", "fi")
Evaluation.before = False
Evaluation.temperatures = {"greedy": 0.0}
Evaluation.references = {}
Sampler.slots = 16
Sampler.windows = (384,)
Sampler.decode_rows = ()
Sampler.append_rows = (16,)
Sampler.append_tokens = (160,)
"""
# As the installed command, whose path lacks the working directory; one process, which imports everything once.
LCRAG = """
import json, sys
sys.path.remove("")
from lcrag.main import run
for words in json.load(sys.stdin):
    print("$", words[0], flush=True)
    if status := run(words):
        sys.exit(status)
"""


def test_the_page_s_method_runs(tmp_path):
    (tmp_path / "my_method.py").write_text(BLOCKS["python"])
    (tmp_path / "my_run.gin").write_text(BLOCKS["gin"] + FEW)
    (tmp_path / "data").mkdir()  # named like one of gin's folders
    one_device = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command, given = [sys.executable, "-c", LCRAG], json.dumps(COMMANDS)
    run = subprocess.run(command, input=given, cwd=tmp_path, env=one_device, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    said = dict(part.split("\n", 1) for part in run.stdout.split("$ ")[1:])
    assert "look_up" in said["describe"]
    assert "[policy]" in said["sample"]
    [metrics] = map(json.loads, (tmp_path / "runs" / "look-up" / "metrics.jsonl").read_text().splitlines())
    assert {"reward/recall", "reward/short", "episode/looked_up_elsewhere"} <= metrics.keys()
    rows = (tmp_path / "runs" / "look-up" / "episodes" / "step_0.jsonl").read_text().splitlines()
    assert {turn["by"] for row in rows for turn in json.loads(row)["turns"]} == {"policy", "environment"}
    assert (tmp_path / "runs" / "look-up-again" / "evaluation.json").is_file()
