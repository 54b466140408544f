"""`lcrag sft`: what it learns, keeps, stops at, continues from and refuses."""

import itertools
import json
import re
import signal

import jax
import numpy as np
import pytest
from experiment_parts import assert_mistake, assert_same_bits, json_lines, measured, run, saved_state
from support import tiny_config, tiny_tokenizer

from lcrag.learning import Layout, Supervised, Trajectory, adamw
from lcrag.learning.learners import SupervisedLearner
from lcrag.policy import Policy, initialise, load_hugging_face, make_mesh, param_shardings

BINDINGS = (
    "sft.collections=@load_collections()",
    "sft.evaluation=None",
    "sft.patience=None",
    "sft.rows_per_step=6",
    "sft.validate_every=2",
    "demonstration_files.validation_share=0.25",
)
WORDS = (" Botswana", " Vietnam", " Lituania", " Togo")


def demonstrations(count=32):
    """Dialogues of one search, in which the answer is what the environment showed."""
    for number in range(count):
        word = WORDS[number % len(WORDS)]
        yield {
            "prompt": f"Where is number {number}?\n",
            "turns": [
                {"by": "policy", "text": f"<search>{word}</search>"},
                {"by": "environment", "text": f"<information>\n{word}: number {number}\n</information>\n"},
                {"by": "policy", "text": f"<answer>{word}</answer>"},
            ],
        }


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture(scope="session")
def rows(tmp_path_factory):
    return write(tmp_path_factory.mktemp("rows") / "rows.jsonl", demonstrations())


def sft(folder, output, *bindings, files=(), rows=None, steps=8, words=()):
    of_files = () if rows is None else ("data/demonstrations.gin",)
    named = () if rows is None else (f"demonstration_files.files=('{rows}',)",)
    bindings = (*BINDINGS, *named, f"SFT_STEPS={steps}", *bindings)
    return run("sft", folder, *bindings, gin_files=("baselines/sft.gin", *of_files, *files), output=output, words=words)


@pytest.fixture(scope="module")
def learned(tiny, rows, tmp_path_factory):
    output = tmp_path_factory.mktemp("learned") / "run"
    assert sft(tiny, output, rows=rows) == 0
    return output


def test_epochs_are_passes_over_the_rows(tiny, rows, tmp_path):
    epochs = ("sft.steps=None", "sft.epochs=1.9", "sft/adamw.steps=None")  # eight steps, as in other tests
    rows_only = ("sft.collections=None", "sft.method=None")
    assert sft(tiny, tmp_path / "run", *epochs, *rows_only, rows=rows) == 0
    metrics = measured(tmp_path / "run")
    assert metrics[-2]["data/epoch"] < 1.9 <= metrics[-1]["data/epoch"]
    assert len(metrics) == 8


def saved_policy(folder):
    return (folder / "policy" / "model.safetensors").read_bytes()


def test_the_loss_falls_and_what_is_learned_is_shown(learned):
    metrics = measured(learned)
    losses = [record["loss/supervised"] for record in metrics]
    assert losses[-1] < losses[0] - 1
    assert [record["step"] for record in metrics if "validation/loss" in record] == [1, 3, 5, 7]
    assert metrics[0]["validation/initial_loss"] > metrics[-1]["validation/loss"]
    assert metrics[-1]["data/epoch"] == pytest.approx(8 * 6 / 24)
    assert {"config.gin", "run.json", "report.md"} <= {path.name for path in learned.iterdir()}
    shown = json_lines(learned / "rows.jsonl")
    assert len(shown) == 6
    spans = shown[0]["spans"]
    assert [span["learned"] for span in spans] == [False, True, False, True]
    assert spans[1]["text"].startswith("<search>")
    assert spans[3]["text"].endswith("</answer><eos>")


def test_the_saved_policy_is_that_of_the_lowest_validation_loss(tiny, rows, tmp_path, monkeypatch, capsys):
    """Kept while later checkpoints come, and what patience is counted from."""
    losses = (9.0, 5.0, 3.0, 4.0, 5.0, 3.0, 4.0, 4.0, 4.0)
    monkeypatch.setattr(SupervisedLearner, "loss", lambda self, rows, size: losses[int(self.state.step)])
    bindings = ("sft.validate_every=1",)
    assert sft(tiny, tmp_path / "run", *bindings, rows=rows, steps=6) == 0
    kept = {int(path.name) for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept == {2, 4, 5, 6}
    assert re.search("lowest validation loss .*step 2", capsys.readouterr().out)
    _, params = load_hugging_face(tmp_path / "run" / "policy")
    np.testing.assert_array_equal(params["embedding"], saved_state(tmp_path / "run", 2)["['params']['embedding']"])

    bindings = ("sft.validate_every=1", "sft.patience=2")
    assert sft(tiny, tmp_path / "patient", *bindings, rows=rows, steps=6) == 0
    assert re.search("stopped at step 4.* step 2", capsys.readouterr().out)
    assert measured(tmp_path / "patient") == measured(tmp_path / "run")[:4]
    assert saved_policy(tmp_path / "patient") == saved_policy(tmp_path / "run")


def test_fewer_steps_than_were_done_are_refused(learned, tiny, rows, capfd):
    assert sft(tiny, learned, rows=rows, steps=4) == 2
    assert_mistake(capfd, "has done 8 steps")


@pytest.fixture(scope="module")
def stopped(tiny, rows, tmp_path_factory):
    """A run that Ctrl-C ends in step 5 and, continued, SIGTERM in step 6: its exit statuses, steps and checkpoints."""
    learn, calls, ends = SupervisedLearner.learn, itertools.count(1), []
    output = tmp_path_factory.mktemp("stopped") / "run"

    def interrupted(self, batch):
        match next(calls):
            case 6:
                raise KeyboardInterrupt  # step 4 came after the last checkpoint and runs again
            case 9:
                signal.raise_signal(signal.SIGTERM)
        return learn(self, batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SupervisedLearner, "learn", interrupted)
        for _ in range(3):
            status = sft(tiny, output, rows=rows)
            saved = max(int(path.name) for path in (output / "checkpoints").iterdir())
            ends.append((status, [record["step"] for record in measured(output)], saved))
    return output, ends


def test_stops_change_nothing(stopped, learned):
    """An interrupted step is not saved, one with a signal is finished; the best policy is the same all the same."""
    folder, ends = stopped
    assert ends == [(130, list(range(5)), 4), (143, list(range(7)), 7), (0, list(range(8)), 8)]
    leaves = saved_state(folder, 8)
    assert len(leaves) > 20
    assert_same_bits(leaves, saved_state(learned, 8))
    assert measured(folder) == measured(learned)
    assert saved_policy(folder) == saved_policy(learned)


def test_golden_answers_with_an_evaluation_before_and_after(tiny, tmp_path):
    bindings = (
        "sft.evaluation=@Evaluation()",
        "train/golden_answers.question_share=0.5",
        "validation/atlas_questions.limit=1",
        "held_out/atlas_questions.languages=('en', 'fi')",
        "Evaluation.temperatures={'greedy': 0.0}",
        "rag.observation_tokens=48",
    )
    assert sft(tiny, tmp_path / "run", *bindings, steps=2) == 0
    spans = json_lines(tmp_path / "run" / "rows.jsonl")[0]["spans"]
    assert [span["learned"] for span in spans] == [False, True]
    assert spans[0]["text"].endswith("</information>\n")
    assert re.fullmatch(r"<answer> .+</answer><eos>", spans[1]["text"])
    labels = {row["method"] for row in json.loads((tmp_path / "run" / "evaluation.json").read_text())["rows"]}
    assert labels == {"before, greedy", "after, greedy"}
    hashes = json.loads((tmp_path / "run" / "run.json").read_text())["hashes"]
    assert {"rows", "validation_rows", "policy", "tokenizer", "questions", "collection/fi"} <= hashes.keys()


@pytest.mark.parametrize(
    ("bindings", "part"),
    [
        (("sft.rows_per_step=25",), "there are 24 rows for steps of 25"),
        (("sft/Layout.rows=3", "policy.mesh=@mesh()"), "Layout.rows is 3 for 8 devices"),
        (("sft.epochs=2",), "sft.steps is 8 and sft.epochs 2"),
        (("sft.steps=None",), "set one of them"),
        (("sft/Layout.row_lengths=(20,)",), "tokens, but the longest training row"),
        (("train/demonstration_files.part='test'",), "demonstration_files.part is 'test'"),
        (("sft.evaluation=@Evaluation()", "sft.method=None"), "sft.evaluation needs a program"),
        (("Chat.system='Be brief.'",), "has no chat template"),
        (("sft.rows=@train/golden_answers", "sft.collections=None"), "need sft.method and sft.collections"),
        (("sft.rows=@train/golden_answers", "golden_answers.template='{answer}'"), "the program read the answer None"),
        (("sft.rows=@train/golden_answers", "golden_answers.template='yes'"), "no place {answer}"),
    ],
)
def test_impossible_configurations(tiny, rows, tmp_path, capfd, bindings, part):
    assert sft(tiny, tmp_path / "run", *bindings, rows=rows) == 2
    assert_mistake(capfd, part)
    assert not (tmp_path / "run").exists()


def supervised_learner(layout, rate, **objective):
    config, mesh = tiny_config(), make_mesh()
    params = jax.device_put(initialise(config, jax.random.key(0)), param_shardings(config, mesh))
    policy = Policy("tiny", config, params, tiny_tokenizer(), mesh)
    return SupervisedLearner(policy, Supervised(**objective), adamw(learning_rate=rate, steps=4), layout)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_the_validation_loss_is_the_training_loss_of_the_same_rows(aggregation):
    """However the rows are packed and divided over devices."""
    generator = np.random.default_rng(0)
    rows = [
        Trajectory(
            generator.integers(0, 384, length).astype(np.int32),
            np.arange(length) >= generator.integers(1, length),
            np.zeros(length, np.float32),
        )
        for length in map(int, generator.integers(4, 60, 21))
    ]
    layout = Layout(rows=8, row_lengths=(32, 64), min_episodes=2)
    learner = supervised_learner(layout, 1e-9, aggregation=aggregation)
    losses = [learner.loss(rows, size) for size in (21, 5)]
    assert losses == pytest.approx([learner.learn(rows)["loss/supervised"]] * 2, rel=2e-6)
