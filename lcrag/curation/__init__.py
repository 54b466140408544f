"""Curation of training data, in the formats that `lcrag.data` reads.

`playing` runs programs with a text writer in the policy's place, and has such writers and the teachers that use them;
`players` has writers that need no model; `rows` makes training rows of demonstrations.
"""
