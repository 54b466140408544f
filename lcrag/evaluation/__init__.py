"""Evaluation: metrics of answered questions, intervals and paired tests, the tables of a run and its training log.

`scoreboard` compares several systems with many runs and makes the tables of a paper, `plots` draws figures.
"""

from lcrag.evaluation.metrics import (
    METRIC_NAMES,
    Answered,
    Row,
    compare,
    correct_language,
    evaluate,
    mean_over_seeds,
    question_metrics,
    read_rows,
    replace_rows,
    retrieval_rows,
    write_rows,
)
from lcrag.evaluation.significance import clustered_standard_error, paired_difference
from lcrag.evaluation.tables import (
    Cell,
    Curve,
    Table,
    comparison_table,
    place_tables,
    read_training_log,
    step_size,
    summary_table,
    to_latex,
    to_markdown,
    to_rich,
)
