"""A command's arguments are composed without running it, with stand-ins for what is large or absent."""

import pytest

from lcrag.composition.bound_values import BoundValues
from lcrag.composition.commands import compose, configure, read_configuration
from lcrag.composition.gin_files import Reference
from lcrag.errors import UserError

KINDS = ("policy", "mesh", "collections", "questions", "model", "encoder")
CALLS = {kind: lambda call: call for kind in KINDS} | {"questions": lambda call: []}
PAPER = ("platform/h100_8.gin", "lcrl/paper.gin")


def test_arguments_are_those_of_the_command():
    arguments = compose("train", PAPER, ["policy.folder = 'somewhere'"], CALLS).arguments
    assert {name: arguments[name] for name in ("couplings", "updates_per_rollout", "most_rollouts")} == {
        "couplings": 64,
        "updates_per_rollout": 2,
        "most_rollouts": 1,
    }
    assert arguments["method"].name == "LcRL"


def test_a_stand_in_gets_what_its_factory_would():
    policy = compose("train", PAPER, ["policy.folder = 'somewhere'"], CALLS).arguments["policy"]
    assert policy.arguments["folder"] == "somewhere"
    assert policy.arguments["mesh"].arguments["fsdp"] == 4
    assert policy.arguments["adapter_seed"] == 0


def test_a_stand_in_learns_which_parameters_have_no_value():
    policy = compose("train", PAPER, [], CALLS).arguments["policy"]
    assert policy.missing == ("folder",)


def test_a_stand_in_knows_its_scope():
    called = []
    compose("train", PAPER, [], CALLS | {"questions": lambda call: called.append(call.selector) or []})
    assert sorted(called) == ["held_out/mkqa_questions", "train/mkqa_questions"]


def test_a_factory_that_is_called_for_its_stand_in_reports_its_own_mistake():
    own = {kind: CALLS[kind] for kind in ("collections", "questions")} | {"policy": lambda call: call.make()}
    with pytest.raises(UserError, match="policy.folder has no value: bind it in a gin file"):
        compose("train", PAPER, [], own)


def test_without_stand_ins_everything_is_built():
    arguments = compose("sample", ["quickstart.gin"], ["atlas_questions.limit = 1"], {"collections": CALLS["policy"]})
    assert arguments.arguments["policy"].tokenizer.vocabulary_size > 0


def test_an_argument_without_a_value_is_the_commands_mistake():
    with pytest.raises(UserError, match=r"train.seed has no value \(nor have steps"):
        compose("train", ["lcrl/method.gin"], [], CALLS)


@pytest.fixture
def bound():
    configure(read_configuration(["rag_r1/paper.gin"], []))
    return BoundValues()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("train.steps", 500),  # a macro
        ("rag_r1.passages", 3),  # of every program
        ("rag_r1.queries", 3),
        ("hierarchical_search.style", "search_r1"),  # a default
        ("selection/rag_r1.budget", 10),
        ("selection/rag_r1.queries", 3),  # of the outer scope
        ("train.method", Reference("Method", True)),
        ("Evaluation.references", {}),  # a default that is made
        ("STEPS", 500),
    ],
)
def test_bound_values_are_found_by_name(bound, name, value):
    assert bound.value(name) == value


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("rag_r1.nothing", "rag_r1 has no parameter nothing"),
        ("nothing.budget", "nothing configurable is called nothing"),
        ("local_model.folder", "local_model.folder has no value"),
    ],
)
def test_a_name_without_a_value_is_refused(bound, name, sentence):
    with pytest.raises(UserError, match=sentence):
        bound.value(name)
