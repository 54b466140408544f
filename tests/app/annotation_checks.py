"""Checks annotations of lcrag's functions at every call, in tests only."""

import beartype

# An int is a float to Python's own type checkers, and so it is here.
checked = beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))
