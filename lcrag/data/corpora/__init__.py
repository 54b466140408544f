"""Corpora: from Wikipedia dumps, articles and published passage collections to passages.

`source` finds and reads files (dumps by `dump`, which removes wiki markup) and yields their passages, which `chunking`
cuts; `beam` also embeds them on a cluster. Only `chunking` imports TensorFlow, at first use.
"""
