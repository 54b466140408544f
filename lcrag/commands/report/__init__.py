"""`lcrag report`: the report of one run, or the tables and figures of several."""
