"""`lcrag export`: a checkpoint becomes a folder that `transformers` opens."""

import json
import shutil

import gin
import numpy as np
import pytest
import transformers
from experiment_parts import assert_mistake, contents, run
from safetensors.numpy import load_file

from lcrag import main
from lcrag.policy import load_hugging_face, load_tokenizer, save_hugging_face


def export(*words, output=None):
    gin.clear_config()
    return main.run(["export", *map(str, words), *([f"--output_dir={output}"] if output else [])])


def assert_same_weights(folder, other):
    ours, saved = (load_file(each / "model.safetensors") for each in (folder, other))
    assert ours.keys() == saved.keys()
    for name, value in ours.items():
        np.testing.assert_array_equal(value, saved[name])


def test_the_latest_checkpoint_is_what_the_run_saved_as_its_policy(finished, tmp_path):
    assert export(finished, output=tmp_path / "out") == 0
    assert_same_weights(tmp_path / "out", finished / "policy")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    sizes = [value.size for value in load_file(tmp_path / "out" / "model.safetensors").values()]
    assert sum(parameter.numel() for parameter in model.parameters()) == sum(sizes)
    assert load_tokenizer(tmp_path / "out").fingerprint() == load_tokenizer(finished / "policy").fingerprint()


def test_an_earlier_step_and_another_dtype(finished, tmp_path):
    assert export(finished, 1, "--gin.export.dtype='bfloat16'", output=tmp_path / "out") == 0
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    _, first = load_hugging_face(tmp_path / "out")
    _, last = load_hugging_face(finished / "policy")
    assert not np.array_equal(first["embedding"], last["embedding"])
    np.testing.assert_allclose(first["embedding"], last["embedding"], rtol=2e-2, atol=2e-2)


def test_merged_adapters_are_stored_as_their_base(tiny, tmp_path):
    """In the dtype of the folder, whatever the compute dtype; the values are those of `test_policy_lora`."""
    own = shutil.copytree(tiny, tmp_path / "own")
    config, params = load_hugging_face(tiny / "policy")
    save_hugging_face(own / "policy", config, params, dtype="bfloat16")
    adapters = ("Computation.lora=@Lora()", "Lora.rank=2", "policy.computation=@Computation()")
    bindings = (*adapters, "Computation.compute_dtype='float32'", "STEPS=1", "train.evaluation=None")
    assert run("train", own, *bindings, output=tmp_path / "run") == 0
    assert export(tmp_path / "run", output=tmp_path / "out") == 0
    assert_same_weights(tmp_path / "out", tmp_path / "run/policy")
    assert {str(value.dtype) for value in load_file(tmp_path / "out" / "model.safetensors").values()} == {"bfloat16"}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (("{run}/episodes",), ("is no run of lcrag", "config.gin")),
        (("{run}", "7"), ("no checkpoint of step 7", "[1, 2]")),
        (("{run}", "1", "2"), ("optionally a step",)),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(finished, tmp_path, capsys, words, parts):
    before = contents(finished)
    assert export(*(word.format(run=finished) for word in words), output=tmp_path / "out") == 2
    assert_mistake(capsys, *parts)
    assert not (tmp_path / "out").exists()
    assert export(finished, output=finished) == 2
    assert_mistake(capsys, "is not empty")
    assert contents(finished) == before
