"""The episodes of evaluations: every question with every way of decoding, in the format of training."""

import pytest
from experiment_parts import json_lines, run


@pytest.fixture(scope="module")
def evaluated(tiny, tmp_path_factory):
    """The output folder of an evaluation whose answers are scored."""
    output = tmp_path_factory.mktemp("evaluated")
    bindings = ("Evaluation.runs=2", "Evaluation.reward=@language_coupled()", "evaluate.label='my policy'")
    assert run("evaluate", tiny, *bindings, output=output) == 0
    return output


def test_every_inference_run_has_a_file(evaluated):
    names = {f"my_policy_{name}.jsonl" for name in ("greedy", "sampled", "sampled_run_2")}
    assert {path.name for path in (evaluated / "episodes").iterdir()} == names


@pytest.mark.parametrize("name", ["my_policy_greedy.jsonl", "my_policy_sampled_run_2.jsonl"])
def test_episodes_are_those_of_the_answers(evaluated, name):
    answers, episodes = (json_lines(evaluated / folder / name) for folder in ("answers", "episodes"))
    identity = ("question_id", "language", "answer")
    assert [[each[part] for part in identity] for each in episodes] == [
        [each[part] for part in identity] for each in answers
    ]
    assert [episode["outcome"]["counts"]["searches"] for episode in episodes] == [each["searches"] for each in answers]
    assert [episode["rewards"]["total"] for episode in episodes] == [each["reward"] for each in answers]


def test_the_row_format_is_that_of_training(evaluated, finished):
    [learned, *_] = json_lines(finished / "episodes" / "step_0.jsonl")
    [asked, *_] = json_lines(evaluated / "episodes" / "my_policy_greedy.jsonl")
    assert asked.keys() == learned.keys()
    assert asked["rewards"].keys() == learned["rewards"].keys()
    assert {turn["by"] for turn in asked["turns"]} == {"policy", "environment"}


def test_training_writes_those_of_its_held_out_questions(finished):
    names = {path.stem for path in (finished / "episodes").iterdir()}
    assert names >= {f"{label}_{decoding}" for label in ("before", "after") for decoding in ("greedy", "sampled")}
