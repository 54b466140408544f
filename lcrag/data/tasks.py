"""Importing this module registers the seqio tasks of every data set, and takes TensorFlow's seconds.

import lcrag.data.tasks
seqio.get_mixture_or_task("atlas_train")
lcrag.data.tasks.questions_of_task("atlas_held_out_fi")
"""

from lcrag.data.atlas.tasks import register_atlas
from lcrag.data.seqio_questions import questions_of_task

__all__ = ["questions_of_task"]

register_atlas()
