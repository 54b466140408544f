"""Curation: making training data, in the formats that `lcrag.data` reads.

`playing` plays programs with a text writer in the policy's place and judges the trajectories, `text_writers` has such
writers, `oracle_demonstrations` plays the atlas's oracle, and `encoding` makes training rows of demonstrations.
"""
