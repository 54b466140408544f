"""Corpora: from Wikipedia dumps, articles and published passage collections to passages.

`source` finds and reads files (dumps by `dump`, which removes wiki markup) and yields their passages; it imports
TensorFlow when it cuts the first. `beam` also embeds them on a cluster.
"""
