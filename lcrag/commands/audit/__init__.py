"""`lcrag audit`: whether the collections contain the answers, searches find them, and observations show them.

`auditing` is the command, `searching` searches for the answers of each question, `tables` counts them by language.
"""
