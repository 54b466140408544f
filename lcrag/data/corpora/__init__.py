"""Corpora: from Wikipedia dumps, articles and published passage collections to passages.

`source` finds and reads files (dumps by `dump`, which removes wiki markup), `chunking` cuts articles into passages, and
`local` yields the passages of a `CorpusPlan` on one machine; `beam` also embeds them on a cluster. Only `chunking`
imports TensorFlow, at first use.
"""
