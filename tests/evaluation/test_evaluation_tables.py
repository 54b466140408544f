"""Tables of single runs and of papers, in their three formats, against `tables.md`; the training log."""

import dataclasses
import io
import json
import math
import pathlib
import runpy

import numpy as np
import pytest
import rich.console
from evaluation_trials import asked, trial

from lcrag.errors import UserError
from lcrag.evaluation import (
    Cell,
    Row,
    Table,
    compare,
    comparison_table,
    evaluate,
    paired_difference,
    place_tables,
    read_training_log,
    step_size,
    summary_table,
    to_latex,
    to_markdown,
    to_rich,
)
from lcrag.evaluation.plots import draw_training_curves, method_styles
from lcrag.evaluation.scoreboard import (
    Marking,
    Scoreboard,
    difference_table,
    language_table,
    overall_table,
    part_table,
    runs_table,
    study_table,
)
from lcrag.evaluation.tables import rewards_table

GOLDEN = pathlib.Path(__file__).with_name("tables.md")
RIGHT, HALF, NONE = [1] * 8, [1, 0] * 4, [0] * 8
TRIALS = [
    trial("LcRL", {"en": RIGHT, "fi": HALF}),
    trial("mSearch-R1", {"en": HALF, "fi": HALF}),
    trial("RAG", {"en": NONE, "fi": NONE}),
]
BOARD, MARKING = Scoreboard(TRIALS), Marking(against="mSearch-R1", threshold=0.05)
METRICS = ("exact_match", "correct_language", "searches")


def paper_tables():
    """Systems of one or two models and data sets, ranked and marked; an interval where something varies."""
    yield overall_table([BOARD], "Overall", ["exact_match", "searches"], MARKING)
    yield overall_table([BOARD], "A right answer is in the right language, Oslo is too short", METRICS[1:2], Marking())
    yield language_table(BOARD, "EM by language, 100 % of {toy_set}", "exact_match", MARKING)
    own = Scoreboard([*TRIALS, trial("LcRL, fi", {"en": RIGHT, "fi": HALF}, seen=("fi",))])
    yield language_table(own, "Trained on different languages", "exact_match", MARKING)
    yield part_table(BOARD, "EM by part", "exact_match", Marking())
    again = Scoreboard([*TRIALS, trial("LcRL", {"en": NONE, "fi": HALF}, run="LcRL, seed 1")])
    yield runs_table(again, "Two runs", METRICS)
    all_seen = [trial(name, {"en": RIGHT, "fi": HALF}, seen=("en", "fi")) for name in ("LcRL", "mSearch-R1")]
    yield difference_table(Scoreboard(all_seen), "No parts that repeat the whole", "exact_match", MARKING)
    better = {"a": [1, 1, 0, 0, 0, 0, 0, 0], "b": NONE}
    board = Scoreboard([trial(name, {"en": right, "fi": HALF}) for name, right in better.items()])
    for threshold in (0.5, 0.7):  # the uncorrected p-values are a quarter
        marking = Marking(against="b", threshold=threshold)
        yield difference_table(board, "Corrected for the number of tests", "exact_match", marking)
    larger = trial("RAG", {"en": HALF, "fi": NONE}, model="large", run="other")
    elsewhere = Scoreboard([trial("LcRL", {"en": RIGHT, "fi": HALF}, dataset="other")])
    boards = [Scoreboard([*TRIALS, larger]), elsewhere]
    yield overall_table(boards, "Models have ranks of their own", ["exact_match"], MARKING)
    points = [trial("LcRL", {"en": HALF, "fi": HALF}, point=point, run=str(point)) for point in ("b", 1.0, 0.25)]
    study = Scoreboard([*points, trial("RAG", {"en": NONE, "fi": NONE}, point=1.0)])
    yield study_table(study, "Study", "exact_match", "train.question_share", "all")


def rows(questions, *, seed=0, seen=("en",)):
    return evaluate(questions, seed=seed, seen_languages=seen, method="LcRL, greedy", model="tiny", split="held_out")


def year(number, language="en", answer="1999", **fields):
    return asked(number, language, answer, ("1999",), searches=2, **fields)


def tables_of_places():
    """No answer has an identifiable language, and a single question has no error."""
    found = rows([year(0, subsets=("two_hops",)), year(1, answer="2000"), year(0, "fi"), year(1, "fi")])
    whole = next(row for row in found if row.metric == "searches" and row.language == "all")
    timed = dataclasses.replace(whole, metric="seconds_per_question", value=0.25, standard_error=math.nan)
    yield from place_tables([*found, timed], METRICS)
    yield from place_tables(rows([year(number) for number in range(3)]), METRICS)  # no places that repeat others
    questions = [year(n, answer="1999" if n > 1 else "2000", dataset=name) for name in ("nq", "pop") for n in range(4)]
    again = [dataclasses.replace(each, answer="1999" if each.question_id < "2" else "2000") for each in questions]
    # Inference runs are averaged; the questions of both are the same.
    yield from place_tables([*rows(questions), *rows(again, seed="0, run 2")], ["exact_match"])


def row(method, value, language="all", metric="c3_recall"):
    return Row(
        method=method, model="tiny", dataset="atlas", split="held_out", language=language, metric=metric,
        value=value, count=500, seed=0, standard_error=0.02,
    )  # fmt: skip


def training_summary(datasets=("nq",), references=("long SFT", "other"), **options):
    """Before, after and other policies; after training every odd question is right, and every second version of it."""
    sides, found, differences = {}, [], {}
    for label, right in {"before": (), "after": (1, 3), **dict.fromkeys(references, (1,))}.items():
        sides[label] = [
            year(n, language, answer="1999" if n in right else "1871", dataset=dataset, subsets=("two_hops",))
            for dataset in datasets
            for n in range(4)
            for language in ("en", "fi")
        ]
        labels = {"method": f"{label}, greedy", "model": "", "split": "held_out", "seed": 0, "seen_languages": ("en",)}
        found += evaluate(sides[label], **labels)
    for dataset in datasets:
        of = [[each for each in sides[label] if each.dataset == dataset] for label in ("before", "after")]
        differences[dataset, "greedy"] = compare(*of, split="held_out", seen_languages=("en",))
    metrics = ("c3_recall", "exact_match", "correct_language", "searches", "answered")
    return summary_table(found, "Summary", metrics, differences=differences, **options)


def test_what_only_some_runs_have_is_counted_over_all_of_them():
    some = [year(0, failed=True), year(1, answer=None, unanswered="no_tag"), year(2)]
    both = [*rows(some), *rows([year(number) for number in range(3)], seed=1)]
    [table] = place_tables(both, ["exact_match"])
    assert "1 of 6 episodes failed" in table.note
    assert table.note.count("(1)") == 1, "other reasons are not named"
    [lines] = summary_table(both, "", ["exact_match", "failed", "unscored"]).sections
    assert len(lines) == 2, "nothing is unscored"


@pytest.mark.parametrize("metric", ["c3_recall", "answer_length", "searches", "failed"])
def test_what_is_neither_better_nor_worse_has_no_tone(metric):
    paired = {(("held_out", "all"), metric): paired_difference([0.0, 0.1, 0.2], [1.0, 1.0, 1.0])}
    both = [row(f"{name}, greedy", 0.5, metric=metric) for name in ("before", "after")]
    [[line]] = summary_table(both, "", [metric], differences={("atlas", "greedy"): paired}).sections
    assert line[3].tone == ("worse" if metric == "c3_recall" else "")


def test_lengths_are_no_percentages_and_failures_have_no_ranks():
    [lines] = overall_table([BOARD], "", ["answer_length", "failed", "unscored"], Marking()).sections
    assert [(cell.text, cell.rank) for cell in lines[0][1:]] == [("8.00", ""), ("0.0", ""), ("0.0", "")]


@pytest.mark.parametrize("datasets", [("nq",), tuple(map(str, range(9)))])
def test_a_brief_summary_fits_a_screen_of_80_columns(datasets):
    table = training_summary(datasets, references=("the policy of a very long name", "other"), brief=True)
    assert len(table.header) == 5
    console = rich.console.Console(width=80, file=io.StringIO())
    console.print(to_rich(table))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 50
    assert not any("…" in line for line in lines)


def tables_of_a_run():
    both = [row("cold start", 1.1, metric="searches"), row("LcRL", 1.6, metric="searches")]
    both += [row("cold start", 0.3), row("LcRL", 0.5), row("long SFT", 0.45)]
    both += [row("cold start", 0.3, "fr"), row("LcRL", 0.31, "fr")]
    places = [[("held_out", "all"), ("held_out", "fr")], [("held_out/native_missing", "all")]]
    sides = {"before": "cold start", "after": "LcRL", "references": ["long SFT"]}
    paired = {(places[0][0], "c3_recall"): paired_difference([0.0, 0.1, 0.2], [1.0, 1.0, 1.0])}
    metrics = ["c3_recall", "searches"]
    yield comparison_table(both, "A place without rows is left out", places, metrics, differences=paired, **sides)
    yield summary_table(rows([year(0), year(1, answer=None, unanswered="no_tag")]), "One policy", ["exact_match"])
    yield training_summary(datasets=("nq", "pop"))

    def log(**values):
        return {f"reward/{name}": (np.arange(len(own)), np.array(own, float)) for name, own in values.items()}

    two_runs = [log(total=[0, 9, 9, 9, 1], f1=[0, 0, 1, 1, 1]), log(total=[2, 2, 9, 9, 9, 3, 3], f1=[0] * 7)]
    yield rewards_table({"one": two_runs, "other": [log(total=[1.0])], "evaluated": [{}]})
    assert rewards_table({"evaluated": [{"loss/policy": (np.arange(2), np.ones(2))}]}) is None
    sections = (((Cell("a_b & 5 %"), Cell("+.1", "better")),), ((Cell("\\^~"), Cell("–")),))
    yield Table(title="Titles and tones", header=("", "x"), section_titles=("one", "two"), sections=sections)


ALL = [*paper_tables(), *tables_of_places(), *tables_of_a_run()]


def test_markdown_and_latex_are_the_golden_ones():
    latex = ("EM by language, 100 % of {toy_set}", "Models have ranks of their own", "Titles and tones")
    formatted = [*map(to_markdown, ALL), *(to_latex(table) for table in ALL if table.title in latex)]
    assert "\n".join(formatted) == GOLDEN.read_text(encoding="utf-8")
    assert difference_table(BOARD, "", "exact_match", Marking()) is None


def test_the_terminal_shows_every_cell():
    console = rich.console.Console(width=200, record=True, quiet=False, file=open("/dev/null", "w"))
    for table in ALL:
        console.print(to_rich(table))
        text = " ".join(console.export_text().split())
        assert all(f"{cell.text}{cell.mark}" in text for section in table.sections for line in section for cell in line)
        assert " ".join(table.note.split()) in text


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (("loss/supervised", "validation/loss"), "Loss, nats per token: curves over the training steps"),
        (("reward/total",), "Reward: curves over the training steps"),
        (("reward/total", "reward/cost", "episode/searches"), "Reward, penalty, searches per episode: curves over"),
    ],
)
def test_a_figure_is_described_by_what_it_shows(names, shown, tmp_path):
    curves = {name: (np.arange(3), np.full(3, -1.0 if name.endswith("cost") else 1.0)) for name in names}
    assert draw_training_curves(curves, tmp_path / "training.png", "T").startswith(shown)
    with pytest.raises(UserError, match="reward/total"):
        draw_training_curves({"loss": (np.arange(2), np.ones(2))}, tmp_path / "training.png", "T")


def test_a_resumed_run_counts_its_later_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "a": 1}\n{"step": 2, "a": 5}\n\n{"step": 2, "a": 2, "b": null}\n')
    log = read_training_log(path)
    assert [column.tolist() for column in log["a"]] == [[1, 2], [1, 2]]
    assert step_size(log) == ""
    path.write_text('{"step": 0, "step/prompts": 48, "step/episodes": 96}\n{"step": 1, "a": 1.0}\n')
    assert step_size(read_training_log(path)) == "96 episodes of 48 prompts a step"


def test_a_method_has_one_colour_in_every_figure():
    alone = method_styles(["LcRL"], "marker")["LcRL"]
    many = [*(f"method {number}" for number in range(20)), "mSearch-R1", "LcRL", "LcRL from long SFT"]
    styles = method_styles(many, "marker")
    assert styles["LcRL"] == alone
    assert styles["mSearch-R1"]["color"] == method_styles(["mSearch-R1"], "linestyle")["mSearch-R1"]["color"]
    assert len({(style["color"], style["marker"]) for style in styles.values()}) == len(many)
    assert method_styles(["mine", "LcRL"], "marker")["mine"] == method_styles(["LcRL", "mine"], "marker")["mine"]


def test_the_picture_of_the_front_page_is_drawn_from_a_run(tmp_path):
    names = ("reward/total", "episode/searches_native_holds", "episode/searches_native_missing")
    steps = [{"step": n, **dict.fromkeys(names, n / 5)} for n in range(5)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(step)}\n" for step in steps))
    script = pathlib.Path(__file__).parents[2] / "benchmarks" / "front_page.py"
    runpy.run_path(str(script))["draw"](tmp_path, tmp_path / "learning.png")
    assert (tmp_path / "learning.png").read_bytes().startswith(b"\x89PNG")
