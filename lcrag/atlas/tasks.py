"""Registers the seqio tasks of every data set when imported; imports TensorFlow.

The atlas's tasks are `atlas_<split>_<language>`, with a mixture `atlas_<split>` for each split.

import lcrag.atlas.tasks
seqio.get_mixture_or_task("atlas_train")
lcrag.atlas.tasks.questions_of_task("atlas_held_out_fi")
lcrag.atlas.tasks.questions_of_task("mkqa_train")  # requires the files in $LCRAG_DATA; see docs/data.md
"""

import functools

import seqio

from lcrag.atlas.world import DATASET, SPLITS, build_world
from lcrag.data.questions import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.data.seqio_tasks import questions_of_task, register_file_data, register_questions

__all__ = ["questions_of_task"]


# Every split of the world of seed 0: `train` in LcRL's training languages, the others in all.
_VOCABULARY = seqio.ByteVocabulary()
for _split in SPLITS:
    _languages = LCRL_TRAINING if _split == "train" else LCRL_LANGUAGES
    _questions = functools.partial(lambda split, language: build_world().questions(split, (language,)), _split)
    register_questions(DATASET, _split, _languages, _questions, _VOCABULARY)
register_file_data(_VOCABULARY)
