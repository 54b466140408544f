"""Curation of training data, in the formats that `lcrag.data` reads.

`playing` runs programs with a text writer in the policy's place and judges the trajectories, `text_writers` contains
such writers and the teachers that use them, `rows` encodes demonstrations as training rows, and `oracle_demonstrations`
makes rows with the atlas's oracles.
"""
