"""Languages, questions, the batch of a step, seqio tasks; `atlas` is the embedded world.

Only `lcrag.data.tasks` and `lcrag.data.atlas.tasks` import TensorFlow.
"""
