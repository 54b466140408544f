"""Importing this module registers the seqio tasks of every data set, and takes TensorFlow's seconds.

import lcrag.data.tasks
seqio.get_mixture_or_task("atlas_train")
lcrag.data.tasks.questions_of_task("atlas_held_out_fi")
lcrag.data.tasks.questions_of_task("mkqa_train")  # once $LCRAG_DATA holds the files; see docs/data.md
"""

from lcrag.atlas.tasks import register_atlas
from lcrag.atlas.vocabulary import SHIPPED_FOLDER
from lcrag.data.file_tasks import register_file_data
from lcrag.data.seqio_questions import TokenizerVocabulary, questions_of_task

__all__ = ["questions_of_task"]

register_atlas()
register_file_data(TokenizerVocabulary(SHIPPED_FOLDER))
