"""Languages, questions, data sets in files, batches of questions and seqio tasks; `corpora` cuts documents to passages.

TensorFlow is imported by `seqio_tasks` and, at first use, by `corpora.source`.
"""
