"""`lcrag build`: makes the weights that the package ships."""
