"""The questions, collections and rewards of an experiment as environments of other tools: inspect and verifiers.

Both tools are optional. Install inspect with `pip install 'lcrag[inspect]'`. Install verifiers in a separate
environment with `pip install 'lcrag[verifiers]'`, because it needs older versions of packages that other extras need.
"""
