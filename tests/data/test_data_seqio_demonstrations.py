"""seqio tasks as demonstrations, against seqio's own feature converter."""

import functools

import numpy as np
import pytest
import seqio
import tensorflow as tf

import lcrag.atlas.tasks  # noqa: F401  registers the atlas
from lcrag.atlas.vocabulary import SHIPPED_FOLDER
from lcrag.curation.encoding import RowEncoder
from lcrag.data.rows import BadRows
from lcrag.data.seqio_tasks import TokenizerVocabulary, demonstrations_of_task
from lcrag.episodes import Chat
from lcrag.errors import UserError
from lcrag.policy import load_tokenizer


def add_task(name, rows, *preprocessors, features=("inputs", "targets")):
    """A task over a few examples in memory."""
    vocabulary = TokenizerVocabulary(SHIPPED_FOLDER)

    def dataset(split, shuffle_files, seed=None):
        return tf.data.Dataset.from_tensor_slices({key: [row[key] for row in rows] for key in rows[0]})

    seqio.TaskRegistry.add(
        name,
        source=seqio.FunctionDataSource(dataset, splits=("train",)),
        preprocessors=list(preprocessors),
        output_features={key: seqio.Feature(vocabulary, add_eos=key == "targets") for key in features},
    )


@pytest.fixture
def tasks():
    """Registers tasks that are forgotten again."""
    names = []

    def add(name, *arguments, **options):
        names.append(name)
        add_task(name, *arguments, **options)

    yield add
    for name in names:
        seqio.TaskRegistry.remove(name)


def test_rows_are_those_of_the_prefix_lm_converter():
    """Tokens and loss weights of `seqio.PrefixLMFeatureConverter`; the packing is ours."""
    task = seqio.get_mixture_or_task("atlas_train_fi")
    lengths = {"inputs": 96, "targets": 32}
    examples = task.get_dataset(lengths, split="train", shuffle=False).take(40)
    converted = seqio.PrefixLMFeatureConverter(pack=False)(examples, lengths)
    rows = demonstrations_of_task("atlas_train_fi", "train", BadRows(), limit=40)
    encoder = RowEncoder(load_tokenizer(SHIPPED_FOLDER), Chat(), longest_tokens=128)
    for demonstration, expected in zip(rows, converted.as_numpy_iterator(), strict=True):
        row, count = encoder.demonstration(demonstration), len(encoder.demonstration(demonstration).tokens)
        np.testing.assert_array_equal(row.tokens, expected["decoder_target_tokens"][:count])
        np.testing.assert_array_equal(row.learned, expected["decoder_loss_weights"][:count].astype(bool))
        assert not expected["decoder_loss_weights"][count:].any()


def test_a_mixture_is_its_tasks_one_after_the_other():
    languages = ("fi", "fr")
    apart = [demonstrations_of_task(f"atlas_validation_{code}", "validation", BadRows(), 3) for code in languages]
    together = demonstrations_of_task("atlas_validation", "validation", BadRows(), 3)
    assert all(row in together for rows in apart for row in rows)


def test_text_that_the_task_does_not_keep_is_decoded(tasks):
    tokenize = functools.partial(seqio.preprocessors.tokenize, copy_pretokenized=False)
    tasks("unkept", [{"inputs": "Where is Chad?", "targets": " in Africa"}], tokenize, seqio.preprocessors.append_eos)
    [row] = demonstrations_of_task("unkept", "train", BadRows())
    assert row.opening == "Where is Chad?" and row.turns[0].text == " in Africa"


def test_mistakes_are_one_sentence(tasks):
    tasks("empty", [{"inputs": "a", "targets": ""}, {"inputs": "a", "targets": "b"}], seqio.preprocessors.tokenize)
    tasks("targets_only", [{"targets": "b"}], features=("targets",))
    for name, split, part in (
        ("nowhere", "train", "there is no seqio task or mixture 'nowhere'"),
        ("empty", "test", "the seqio task empty has no split 'test': it has train"),
        ("empty", "train", "seqio task empty, line 1, field targets: it has no text"),
        ("targets_only", "train", "has no feature inputs"),
    ):
        with pytest.raises(UserError, match=part):
            demonstrations_of_task(name, split, BadRows())
    assert len(demonstrations_of_task("empty", "train", BadRows(skip=True))) == 1
