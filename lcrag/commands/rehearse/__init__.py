"""`lcrag rehearse`: measures the episodes of a run on its own data, and computes a lower bound of its cost.

`scripted_policy` takes the policy's place, `episodes` runs and measures episodes, `answerable` looks for gold answers
in the collections, `costs` computes a step's time and a run's device-hours, `tables` formats the results.
"""
