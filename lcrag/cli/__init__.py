"""The command line, parsed and checked before anything slow is imported.

`arguments` parses the words, `commands` is the table of commands with their help, `catalogue` lists configurations.
"""
