"""Commands that make the weights the package ships; a composition root: it may use every room."""
