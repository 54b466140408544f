"""`lcrag report`: `report.md` of one run again, or the tables and figures of a paper from many runs.

`reporting` has the command, `sources` reads runs and records, `study_report` makes the tables and figures.
"""
