"""Corpora: from the files that Wikipedia and published passage collections come in to passages for a collection.

`source` finds a source's files and reads them, by `dump`, `articles` or `passage_files`; `wikitext` cleans, `chunking`
cuts, `plan` says what is to be made, and `local` and `beam` make it, on this machine or on a cluster. TensorFlow is
imported by `chunking` alone, at first use.
"""
