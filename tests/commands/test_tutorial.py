"""docs/tutorial.md, docs/your_model.md and docs/your_method.md: what they show and every command, as written.

With tiny models and few steps under the names of the page's; the tutorial also with the real ones, and all steps, if
LCRAG_TEST_SMOLLM2 names `real/SmolLM2-135M-Instruct` of `bash launch/real_weights.sh real`.
"""

import contextlib
import io
import json
import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import gin
import jax
import pytest
from experiment_parts import TOKENIZER, json_lines
from support import tiny_config
from support.row_files import write_rows

from lcrag import main
from lcrag.evaluation import read_rows
from lcrag.policy import initialise, load_hugging_face, load_tokenizer, save_hugging_face
from lcrag.retrieval import BertConfig, EncoderSettings, initialise_encoder
from lcrag.retrieval.encoder import save_encoder
from lcrag.train.evaluation import EVALUATION


def blocks_of(page):
    text = (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8")
    return re.findall(r"```(\w+)\n(.*?)```", text, re.DOTALL)


def commands_of(blocks):
    return [shlex.split(line) for language, code in blocks if language == "bash" for line in code.splitlines()]


def printed_by(commands):
    """What each command prints; all are run, one after the other, on one device, as on a laptop."""
    printed = {}
    for program, *words in commands:
        if program == "python":
            runpy.run_path(words[0])
        elif program == "lcrag":
            gin.clear_config()
            with contextlib.redirect_stdout(io.StringIO()) as said:
                assert main.run(words) == 0, words
            printed.setdefault(words[0], said.getvalue())
        else:
            assert [program, *words] == ["bash", "launch/real_weights.sh", "real"]
    return printed


@pytest.fixture(autouse=True)
def laptop(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jax, "devices", lambda *platforms: jax.local_devices()[:1])


TUTORIAL, MODEL, METHOD = map(blocks_of, ("tutorial.md", "your_model.md", "your_method.md"))
[MODULE], [CONFIGURATION] = ([code for language, code in TUTORIAL if language == name] for name in ("python", "gin"))
FEW_OF_TUTORIAL = """
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
def test_every_command_of_the_tutorial_runs(real):
    folder = os.environ.get("LCRAG_TEST_SMOLLM2")
    if real and folder is None:
        pytest.skip("needs SmolLM2-135M-Instruct: set LCRAG_TEST_SMOLLM2 to its folder")
    if real:
        Path("real").symlink_to(Path(folder).resolve().parent)
    else:
        write_models(Path("real"))
        Path("real", "my-model").rename("real/SmolLM2-135M-Instruct")
    Path("make_world.py").write_text(MODULE, encoding="utf-8")
    Path("tutorial.gin").write_text(CONFIGURATION + ("" if real else FEW_OF_TUTORIAL), encoding="utf-8")
    printed = printed_by(commands_of(TUTORIAL))
    assert [len(json_lines(Path(name))) for name in ("train.jsonl", "test.jsonl")] == [36, 24]
    shown = json_lines(Path("runs/shown/rows.jsonl"))
    assert len(shown) == 36
    mine = Path("runs/mine")
    assert len(json_lines(mine / "metrics.jsonl")) == (20 if real else 2)
    assert "difference" in printed["train"]
    assert printed["view"]
    if real:
        rows = read_rows(mine / "evaluation.json")
        values = {
            row.method: row.value
            for row in rows
            if (row.split, row.language, row.metric) == ("held_out", "all", "c3_recall")
        }
        assert values["after, greedy"] > 0.3


# --- Your model ---

# The runs of the pages are ones of hours; everything else stays as on the page.
FEW_OF_MODEL = """
STEPS = 2
train.questions_per_step = 2
Method.samples = 2
Runner.max_tokens = 8
Sampler.slots = 4
Sampler.context = 1536
Sampler.windows = (1536,)
Sampler.append_tokens = (768,)
Layout.row_lengths = (1536,)
Evaluation.temperatures = {"greedy": 0.0}
"""
PEOPLE = ("Ada", "Juhani", "Maija", "Pekka", "Liisa", "Otto")


def write_models(folder):
    tokenizer = load_tokenizer(TOKENIZER)
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, layers=1, max_positions=4096)
    params = initialise(config, jax.random.key(0))
    save_hugging_face(folder / "my-model", config, params, eos_ids=tokenizer.eos_ids)
    tokenizer.backend.save(str(folder / "my-model" / "tokenizer.json"))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    bert = BertConfig(vocab_size=tokenizer.vocabulary_size, max_position_embeddings=512, **sizes)
    encoder = initialise_encoder(bert, EncoderSettings(max_tokens=256), tokenizer.backend)
    save_encoder(folder / "multilingual-e5-small", encoder)


def question_about(name):
    question, answers = f"What did {name} repair?", [f"the tower of {name}"]
    return {"id": name, "language": "en", "question": question, "answers": answers}


def exact_matches(folder, label):
    rows = read_rows(folder / EVALUATION)
    return {row.language: row.value for row in rows if (row.method, row.metric) == (label, "squad_exact_match")}


def test_every_command_of_your_model_does_what_the_page_says(tmp_path):
    row, mine = json.loads(dict(MODEL)["json"]), tmp_path / "runs" / "mine"
    write_models(tmp_path)
    (tmp_path / "articles").mkdir()
    for name in PEOPLE:
        (tmp_path / "articles" / f"{name}.txt").write_text(f"{name} repaired the tower of {name} in Turku.\n")
    write_rows(tmp_path / "train.jsonl", *map(question_about, PEOPLE[:3]), row)
    write_rows(tmp_path / "test.jsonl", *map(question_about, PEOPLE[4:]))
    (tmp_path / "my_run.gin").write_text(dict(MODEL)["gin"] + FEW_OF_MODEL)
    printed = printed_by(commands_of(MODEL))
    assert {path.name for path in (tmp_path / "indexes").iterdir() if path.is_dir()} >= {"en", "encoder"}
    for part in ("search_r1", "train/jsonl_questions", "my-model"):
        assert part in printed["describe"]
    assert row["question"] in printed["sample"]
    trained = [episode for step in range(2) for episode in json_lines(mine / "episodes" / f"step_{step}.jsonl")]
    assert {episode["question_id"] for episode in trained} == {*PEOPLE[:3], row["id"]}
    assert all(row["question"] in episode["prompt"] for episode in trained if episode["question_id"] == row["id"])
    assert {episode["question_id"] for episode in json_lines(mine / "episodes" / "after_greedy.jsonl")} == set(
        PEOPLE[4:]
    )
    assert len(json_lines(mine / "metrics.jsonl")) == 2
    first = exact_matches(mine, "after, greedy")
    assert first
    assert first == exact_matches(tmp_path / "runs" / "mine-again", "Search-R1, greedy")
    exported, _ = load_hugging_face(tmp_path / "exported", "float32")
    assert exported.vocabulary_size == load_tokenizer(tmp_path / "exported").vocabulary_size


# --- Your method ---

FEW_OF_METHOD = """
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
    (tmp_path / "my_method.py").write_text(dict(METHOD)["python"])
    (tmp_path / "my_run.gin").write_text(dict(METHOD)["gin"] + FEW_OF_METHOD)
    (tmp_path / "data").mkdir()  # named like one of gin's folders
    one_device = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    command, given = [sys.executable, "-c", LCRAG], json.dumps([words for _, *words in commands_of(METHOD)])
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
