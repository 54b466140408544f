"""Curation: making training data. What is written here is what `lcrag.data` reads."""
