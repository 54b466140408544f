"""Mistakes in bindings that are found before anything is built, or before a run's folder is claimed."""

import contextlib
import math
from collections.abc import Mapping

import gin
import numpy as np
import pytest

import lcrag.composition.commands  # noqa: F401  registers what configurations name
from lcrag.composition.configuration import configure, missing_as_sentence, operative_config, read_configuration
from lcrag.composition.used_bindings import expect_use
from lcrag.errors import UserError, without_secrets
from lcrag.learning.optimizers import adamw
from lcrag.limits import Count, NonNegative, Positive, PositiveShare, check
from lcrag.sampling import SamplingParameters


def used(*typed):
    """Composes parts of the quickstart with typed bindings, and claims what they would write."""
    gin.clear_config()
    configure(read_configuration(["quickstart.gin"], ["held_out/atlas_questions.limit = 1", *typed]))
    expect_use(typed)
    try:
        for name in ("Method", "Evaluation"):
            gin.get_configurable(name)()
        return operative_config()
    finally:
        expect_use(())


@pytest.mark.parametrize(
    "typed",
    [
        "Method.samples = 2",
        "hierarchical_search.budget = 1",
        "PASSAGES = 2",
        "TRAINING_LANGUAGES = ('en',)",
        "held_out/atlas_questions.hops = (1,)",
        "atlas_questions.copyable = None",
    ],
)
def test_a_typed_binding_that_a_part_uses_is_accepted(typed):
    assert typed.partition(" = ")[0] in used(typed)


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        ("rag.passages = 9", r"--gin\.rag\.passages has no effect: .*used are hierarchical_search\.passages"),
        ("adamw.weight_decay = 0.1", "adamw.weight_decay has no effect"),
        ("train/atlas_questions.hops = (1,)", r"used are held_out/atlas_questions\.hops"),
        ("atlas_questions.split = 'train'", "atlas_questions.split has no effect"),  # held_out/ has its own
        ("SFT_STEPS = 3", "SFT_STEPS has no effect"),
    ],
)
def test_a_typed_binding_without_effect_is_refused(typed, sentence):
    with pytest.raises(UserError, match=sentence):
        used(typed)


def test_bindings_of_files_need_not_be_used():
    assert "rag.passages" not in used()


@pytest.mark.parametrize(
    ("value", "annotation", "sentence"),
    [
        (0, Count, "x must be 1 or more, but 0 is not"),
        (10**12, Count, "x must be at most 2147483647, but 1000000000000 is not"),
        (np.float32("nan"), Positive, "x must be a finite number, but nan is not"),
        (-math.inf, float | None, "x must be a finite number, but -inf is not"),
        ({"a": 1, "b": -1}, Mapping[str, NonNegative], "x must be 0 or more, but -1 is not"),
        ((1.0, 0.0), tuple[PositiveShare, ...], "x must be above 0 and at most 1, but 0.0 is not"),
        (3, int | Mapping[str, Count], ""),
        (True, Count, ""),
        (None, Count | None, ""),
        ("many", Count, ""),  # a type is the caller's
    ],
)
def test_limits_of_annotations(value, annotation, sentence):
    with pytest.raises(UserError, match=f"^{sentence}$") if sentence else contextlib.nullcontext():
        check("x", value, annotation)


def test_calls_from_python_are_limited():
    with pytest.raises(UserError, match=r"^adamw.learning_rate must be a finite number, but inf is not"):
        adamw(learning_rate=math.inf, steps=3)
    with pytest.raises(UserError, match=r"^SamplingParameters.top_p must be above 0 and at most 1, but 2.0 is not"):
        SamplingParameters(max_tokens=1, top_p=2.0)


def test_a_missing_value_is_named_with_its_scope():
    gin.clear_config()
    configure(read_configuration(["quickstart.gin", "data/jsonl.gin"], []))
    with pytest.raises(
        UserError, match=r"^held_out/jsonl_questions.files has no value: .*--gin.held_out/jsonl_questions"
    ):
        with missing_as_sentence():
            gin.get_configurable("Evaluation")()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cannot reach http://me:pass@host:80/x?q=a@b", "cannot reach http://***@host:80/x?q=a@b"),
        ("https://host/search?q=a&api_key=0f3&n=1", "https://host/search?q=a&api_key=***&n=1"),
        ("see http://host:80/a and mail me@host", "see http://host:80/a and mail me@host"),
    ],
)
def test_secrets_in_addresses_are_not_shown(text, shown):
    assert without_secrets(text) == str(UserError(text)) == shown
