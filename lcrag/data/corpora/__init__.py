"""Corpora: from Wikipedia dumps and published passage collections to shards of embedded passages.

`source` finds and reads a source's files (dumps by `dump`, which removes wiki markup), `chunking` cuts articles into
passages, and `local` and `beam` make the shards of a `CorpusPlan` on one machine or on a cluster. Only `chunking`
imports TensorFlow, at first use.
"""
