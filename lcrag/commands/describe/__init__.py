"""`lcrag describe`: what a command would run, without weights.

`named_parts` replaces large or missing parts by placeholders, `run_plan` reads programs, prompts and episodes from the
composed arguments, `learning_plan` the objective, `memory` computes bytes by formula, `describing` combines them and
compares with a paper's settings, and `tables` formats the result.
"""
