"""The methods, one folder a paper; the docstring of each folder maps its paper to functions."""
