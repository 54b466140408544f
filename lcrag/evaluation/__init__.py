"""Evaluation: metrics of answered questions and of searches, their errors and differences, tables and the report."""

from lcrag.evaluation.answered import Answered
from lcrag.evaluation.comparison import Place, compare
from lcrag.evaluation.correct_language import IDENTIFIER, correct_language
from lcrag.evaluation.metrics import evaluate, question_metrics
from lcrag.evaluation.place_tables import place_tables
from lcrag.evaluation.report import Report, write_report
from lcrag.evaluation.retrieval_metrics import retrieval_rows
from lcrag.evaluation.rows import Row, mean_over_seeds, read_rows, write_rows
from lcrag.evaluation.significance import PairedDifference, clustered_standard_error, paired_difference
from lcrag.evaluation.table import Table, to_markdown, to_rich
from lcrag.evaluation.tables import Comparison, comparison_table, method_table
from lcrag.evaluation.training_log import read_training_log

__all__ = [
    "IDENTIFIER",
    "Answered",
    "Comparison",
    "PairedDifference",
    "Place",
    "Report",
    "Row",
    "Table",
    "clustered_standard_error",
    "compare",
    "comparison_table",
    "correct_language",
    "evaluate",
    "mean_over_seeds",
    "method_table",
    "paired_difference",
    "place_tables",
    "question_metrics",
    "read_rows",
    "read_training_log",
    "retrieval_rows",
    "to_markdown",
    "to_rich",
    "write_report",
    "write_rows",
]
