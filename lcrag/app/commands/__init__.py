"""The commands of `lcrag`: one module or folder for each, without gin.

`lcrag.app.composition.commands` has them with their configuration applied.
"""
