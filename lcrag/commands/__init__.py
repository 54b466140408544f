"""The commands of `lcrag`: one module or folder for each, without gin.

`lcrag.composition.commands` contains the same functions with their configuration applied.
"""
