"""Builds the parts of an experiment from gin's bindings; no other package reads gin.

`gin_files` parses configurations, `bindings` checks them, `configuration` hands them to gin. The other modules define
what configurations name; importing `commands` registers all of it.
"""
