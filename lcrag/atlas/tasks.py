"""The atlas as seqio tasks: `atlas_<split>_<language>`, and a mixture `atlas_<split>` of each split."""

import functools

from lcrag.atlas.splits import SPLITS
from lcrag.atlas.vocabulary import SHIPPED_FOLDER
from lcrag.atlas.world import DATASET, build_world
from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.data.questions import Question
from lcrag.data.seqio_questions import TokenizerVocabulary, register_questions


def register_atlas() -> None:
    """Registers every split of the world of seed 0: `train` in LcRL's training languages, the others in all."""
    vocabulary = TokenizerVocabulary(SHIPPED_FOLDER)
    for split in SPLITS:
        languages = LCRL_TRAINING if split == "train" else LCRL_LANGUAGES
        register_questions(DATASET, split, languages, functools.partial(_questions, split), vocabulary)


def _questions(split: str, language: str) -> list[Question]:
    return build_world().questions(split, (language,))
