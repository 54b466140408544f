"""The command line: what a person types, checked before anything slow is imported.

`arguments` splits the words, `gin_files` finds and reads configuration files, `bindings`
checks them against what can be configured, `configuration` hands them to gin, and `quiet`
keeps libraries from writing over the answers.
"""
