"""docs/your_model.md: its configuration and every command run as they are written, with a tiny model and few steps."""

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
from lcrag.runs.answers import EVALUATION

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


def write_model(folder):
    tokenizer = load_tokenizer(TOKENIZER)
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, layers=1, max_positions=4096)
    save_hugging_face(folder, config, initialise(config, jax.random.key(0)), eos_ids=tokenizer.eos_ids)
    tokenizer.backend.save(str(folder / "tokenizer.json"))


def write_encoder(folder):
    tokenizer = load_tokenizer(TOKENIZER)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    config = BertConfig(vocab_size=tokenizer.vocabulary_size, max_position_embeddings=512, **sizes)
    save_encoder(folder, initialise_encoder(config, EncoderSettings(max_tokens=256), tokenizer.backend))


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
    write_model(folder / "my-model")
    write_encoder(folder / "multilingual-e5-small")
    (folder / "articles").mkdir()
    for name in PEOPLE:
        (folder / "articles" / f"{name}.txt").write_text(f"{name} repaired the tower of {name} in Turku.\n")
    write_questions(folder / "train.jsonl", PEOPLE[:4])
    write_questions(folder / "test.jsonl", PEOPLE[4:])
    (folder / "my_run.gin").write_text(BLOCKS["gin"] + FEW)
    return folder


@pytest.fixture(scope="module")
def printed(place):
    """What each command of the page prints, run one after the other in that folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setattr(jax, "devices", lambda *platforms: jax.local_devices()[:1])  # as on a laptop
        outputs = {}
        for words in COMMANDS:
            gin.clear_config()
            assert main.run(words) == 0, words
            outputs[words[0]] = words
    return outputs


def test_the_commands_are_those_of_the_whole_way(printed):
    assert list(printed) == ["index", "describe", "train", "evaluate", "sample", "export"]


def test_the_questions_of_the_files_were_trained_and_tested_on(printed, place):
    trained = json_lines(place / "runs" / "mine" / "episodes" / "step_0.jsonl")
    tested = json_lines(place / "runs" / "mine" / "episodes" / "after_greedy.jsonl")
    assert {episode["question_id"] for episode in trained} <= set(PEOPLE[:4])
    assert {episode["question_id"] for episode in tested} == set(PEOPLE[4:])
    assert len(json_lines(place / "runs" / "mine" / "metrics.jsonl")) == 2


def exact_matches(folder, label):
    rows = read_rows(folder / EVALUATION)
    return {row.language: row.value for row in rows if (row.method, row.metric) == (label, "squad_exact_match")}


def test_the_trained_policy_is_evaluated_again(printed, place):
    first = exact_matches(place / "runs" / "mine", "after, greedy")
    assert first
    assert first == exact_matches(place / "runs" / "mine-again", "Search-R1, greedy")


def test_the_exported_folder_is_a_model(printed, place):
    config, _ = load_hugging_face(place / "exported", "float32")
    assert config.vocabulary_size == load_tokenizer(place / "exported").vocabulary_size


def test_the_row_of_the_page_can_be_read(place):
    [row] = map(json.loads, BLOCKS["json"].splitlines())
    assert row.keys() == {"id", "language", "question", "answers"}
