"""Evaluation: metrics, intervals and paired tests, tables, figures and reports of answered questions.

Public API:
  Metrics: `Answered`, `question_metrics`, `evaluate`, `compare`, `correct_language`, `retrieval_rows`.
  Rows of `evaluation.json`: `Row`, `read_rows`, `write_rows`, `replace_rows`, `mean_over_seeds`.
  Statistics: `clustered_standard_error`, `paired_difference`; `scoreboard` compares several systems with many runs
    and makes the tables of a paper.
  Tables: `Table`, `Cell`, `to_rich`, `to_markdown`, `to_latex`; `comparison_table`, `place_tables` and
    `summary_table` of single runs.
  Training log: `read_training_log`, `step_size`; `plots` draws figures.
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
