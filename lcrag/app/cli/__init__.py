"""The command line: what a person types, checked before anything slow is imported.

`arguments` splits the words, `commands` is the table of commands with their help, `catalogue` lists configurations.
"""
