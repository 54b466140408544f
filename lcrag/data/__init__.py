"""Languages, questions, the batch of a step, seqio tasks; `atlas` is the embedded world, `corpora` what collections are
made from.

TensorFlow is imported by the modules of seqio tasks and, at first use, by `lcrag.data.corpora.chunking`.
"""
