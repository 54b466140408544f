"""Conversion of episodes to the formats of other tools: ATIF (and back), inspect logs, messages for fine-tuning.

`exporting` implements `lcrag export RUN --to=FORMAT`; each other module converts rows of `episodes/*.jsonl`.
"""
