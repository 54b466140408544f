"""Curation of training data, in the formats that `lcrag.data` reads.

`playing` runs programs with a text writer in the policy's place and judges the trajectories, `text_writers` contains
such writers, `oracle_demonstrations` uses the atlas's oracle as the writer, and `encoding` encodes demonstrations as
training rows.
"""
