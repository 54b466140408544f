"""Evaluation: metrics, intervals and paired tests, tables, figures and reports of answered questions.

Public API:
  Metrics: `Answered`, `question_metrics`, `evaluate`, `compare`, `correct_language`, `retrieval_rows`.
  Rows of `evaluation.json`: `Row`, `read_rows`, `write_rows`, `mean_over_seeds`.
  Statistics: `clustered_standard_error`, `paired_difference`; `scoreboard` compares several systems with many runs,
    whose scores are in `trials`.
  Tables: `Table`, `Cell`, `to_rich`, `to_markdown`, `to_latex`; `comparison_table`, `method_table` and `place_tables`
    of single runs, `paper_tables` of several systems.
  Reports: `read_training_log`, `write_report`; `plots` draws their figures.
"""

from lcrag.evaluation.answered import Answered, Row, mean_over_seeds, read_rows, write_rows
from lcrag.evaluation.correct_language import correct_language
from lcrag.evaluation.metrics import METRIC_NAMES, compare, evaluate, question_metrics
from lcrag.evaluation.retrieval_metrics import retrieval_rows
from lcrag.evaluation.run_tables import comparison_table, method_table, place_tables, write_report
from lcrag.evaluation.significance import clustered_standard_error, paired_difference
from lcrag.evaluation.tables import Cell, Table, to_latex, to_markdown, to_rich
from lcrag.evaluation.training_log import Curve, read_training_log, step_size
