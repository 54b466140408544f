"""Models other than the policy: `completers`, with judges, and `translators`.

To translate training questions with quality checks, see `lcrag.methods.translate_r1.pipeline`.
"""
