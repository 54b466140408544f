"""Questions and their languages, data sets in files, corpora and their passages, demonstrations, and seqio tasks.

Only `seqio_tasks` imports TensorFlow.
"""
