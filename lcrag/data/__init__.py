"""Questions and their languages, data sets in files, corpora and their passages, demonstrations, and seqio tasks.

TensorFlow is imported by `seqio_tasks` and, at first use, by `corpora`.
"""
