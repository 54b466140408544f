"""Languages, questions, data sets in files, the batch of a step and seqio tasks; `corpora` makes passages of documents.

TensorFlow is imported by `seqio_tasks` and, at first use, by `corpora.chunking`.
"""
