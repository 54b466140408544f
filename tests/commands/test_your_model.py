"""docs/your_model.md: its row, its configuration and every command work as written, with a tiny model and few steps."""

import contextlib
import io
import json
import re
import shlex
from pathlib import Path

import gin
import jax
import pytest
from experiment_parts import TOKENIZER, json_lines
from support import tiny_config

from lcrag import main
from lcrag.evaluation import read_rows
from lcrag.policy import initialise, load_hugging_face, load_tokenizer, save_hugging_face
from lcrag.retrieval import BertConfig, EncoderSettings, initialise_encoder
from lcrag.retrieval.encoder import save_encoder
from lcrag.train.evaluation import EVALUATION

PAGE = (Path(__file__).parents[2] / "docs" / "your_model.md").read_text(encoding="utf-8")
BLOCKS = {language: code for language, code in re.findall(r"```(\w+)\n(.*?)```", PAGE, re.DOTALL)}
COMMANDS = [shlex.split(line)[1:] for line in BLOCKS["bash"].splitlines()]
# The page's run is one of hours; everything else stays as on the page.
FEW = """
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


def write_questions(path, people):
    rows = [
        {"id": name, "language": "en", "question": f"What did {name} repair?", "answers": [f"the tower of {name}"]}
        for name in people
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """What a person has who begins with the page."""
    folder = tmp_path_factory.mktemp("yours")
    write_models(folder)
    (folder / "articles").mkdir()
    for name in PEOPLE:
        (folder / "articles" / f"{name}.txt").write_text(f"{name} repaired the tower of {name} in Turku.\n")
    write_questions(folder / "train.jsonl", PEOPLE[:3])
    with (folder / "train.jsonl").open("a") as file:
        file.write(BLOCKS["json"])
    write_questions(folder / "test.jsonl", PEOPLE[4:])
    (folder / "my_run.gin").write_text(BLOCKS["gin"] + FEW)
    return folder


@pytest.fixture(scope="module")
def printed(place):
    """What each command of the page printed; all were run, one after the other."""
    printed = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(jax, "devices", lambda *platforms: jax.local_devices()[:1])  # as on a laptop
        for words in COMMANDS:
            gin.clear_config()
            with contextlib.redirect_stdout(io.StringIO()) as said:
                assert main.run(words) == 0, words
            printed[words[0]] = said.getvalue()
    return printed


def exact_matches(folder, label):
    rows = read_rows(folder / EVALUATION)
    return {row.language: row.value for row in rows if (row.method, row.metric) == (label, "squad_exact_match")}


def test_every_command_does_what_the_page_says(place, printed):
    assert {path.name for path in (place / "indexes").iterdir() if path.is_dir()} >= {"en", "encoder"}
    mine = place / "runs" / "mine"
    row = json.loads(BLOCKS["json"])
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
    assert first == exact_matches(place / "runs" / "mine-again", "Search-R1, greedy")
    exported, _ = load_hugging_face(place / "exported", "float32")
    assert exported.vocabulary_size == load_tokenizer(place / "exported").vocabulary_size
