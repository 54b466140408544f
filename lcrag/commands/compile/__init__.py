"""`lcrag compile`: whether training fits some devices, by compiling it for them."""
