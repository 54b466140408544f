"""What answers cost: tokens, searches, passages that were missing, and the seconds of a training step."""

import dataclasses
import math

import numpy as np
import pytest
from evaluation_trials import trial

from lcrag.evaluation import Answered, evaluate, question_metrics, to_markdown
from lcrag.evaluation.efficiency import EFFICIENCY, score_per_log_token
from lcrag.evaluation.paper_tables import Marking, overall_table
from lcrag.evaluation.scoreboard import Scoreboard
from lcrag.methods.globalrag.cost_plots import draw_costs, draw_searches, has_costs, has_searches
from lcrag.methods.globalrag.phase_times import phase_table, phase_times

RUN = dict(method="GlobalRAG", model="tiny", split="test", seed=0, seen_languages=("en",))


def answered(number, answer="Oslo", *, searches=1, tokens=None, held=None, dataset="toy"):
    return Answered(
        question_id=str(number), dataset=dataset, language="en", answer=answer, golds=("Oslo",), searches=searches,
        sampled_tokens=tokens, answer_retrieved=held,
    )  # fmt: skip


def test_the_score_per_log_token_is_the_papers():
    """EM 32.9, F1 44.2 and 391.4 tokens of HotpotQA, in the code that drew figure 8."""
    assert score_per_log_token(0.329, 0.442, 391.4) == pytest.approx(0.385_5 / np.log(391.4))
    assert all(math.isnan(score_per_log_token(0.5, 0.5, tokens)) for tokens in (0, 1, math.nan))


def test_rows_of_a_run():
    rows = evaluate([answered(0, tokens=100), answered(1, "Rome", tokens=300)], **RUN)
    found = {row.metric: row for row in rows if (row.split, row.language) == ("test", "all")}
    assert found["sampled_tokens"].value == 200 and found["sampled_tokens"].count == 2
    assert found[EFFICIENCY].value == pytest.approx(0.5 / np.log(200)) and math.isnan(found[EFFICIENCY].standard_error)
    old = {row.metric for row in evaluate([answered(0)], **RUN)}
    assert old.isdisjoint({"sampled_tokens", EFFICIENCY, "failures_without_passage"}), "answers that do not tell"


def test_failures_without_a_passage_by_hand():
    answers = [
        answered(0, held=True),
        answered(1, "Rome", held=True),
        answered(2, "Rome", held=False),
        answered(3, None, searches=0, held=False),
    ]
    values = question_metrics(answers)["failures_without_passage"]
    assert np.isnan(values[0]) and values[1:].tolist() == [0, 1, 1]
    never = question_metrics([dataclasses.replace(each, searches=0) for each in answers])["failures_without_passage"]
    assert np.isnan(never).all(), "a method that never searches"


def costly(method, right, tokens, dataset="toy"):
    found = trial(method, {"en": right, "fi": right}, dataset=dataset)
    told = (dataclasses.replace(each, sampled_tokens=tokens, answer_retrieved=False) for each in found.answered)
    return dataclasses.replace(found, answered=tuple(told))


BOARD = Scoreboard([costly("GlobalRAG", [1, 1, 1, 0], 400), costly("Search-R1", [1, 0, 0, 0], 100)])


def test_systems_by_their_costs():
    system, other, whole = ("m", "GlobalRAG"), ("m", "Search-R1"), ("", "all")
    assert BOARD.standing(system, EFFICIENCY, whole).value == pytest.approx(0.75 / np.log(400))
    for metric in (EFFICIENCY, "seconds_per_question"):
        assert math.isnan(BOARD.p_value(system, other, metric, whole))
    assert BOARD.standing(system, "seconds_per_question", whole) is None
    metrics = (EFFICIENCY, "sampled_tokens", "failures_without_passage", "seconds_per_question")
    (section,) = overall_table([BOARD], "", metrics, Marking(against="Search-R1")).sections
    assert [(cell.text, cell.rank) for cell in section[0][1:]] == [
        ("12.5", "best"), ("400.00", ""), ("100.0", ""), ("–", ""),
    ]  # fmt: skip


def test_figures_of_costs(tmp_path):
    boards = [BOARD, Scoreboard([costly("GlobalRAG", [0, 0, 1, 0], 300, dataset="other")])]
    assert has_costs(boards) and has_searches(boards)
    draw_costs(boards, tmp_path / "costs.png")
    draw_searches(boards, tmp_path / "searches.png")
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("costs.png", "searches.png"))
    unknown = [Scoreboard([trial("RAG", {"en": [1], "fi": [0]})])]
    assert not has_costs(unknown) and not has_searches(unknown)


def log(rollout, rewards, update, rate):
    curves = {"seconds/rollout": rollout, "seconds/rewards": rewards, "seconds/update": update}
    curves["tokens_per_second/sampled"] = rate
    return {name: (np.arange(len(values)), np.array(values, float)) for name, values in curves.items()}


def test_times_by_phase_and_token():
    times = phase_times(log([2, 4], [1, 1], [3, 1], [100, 50]))
    assert dict(times.seconds) == {"rollout": 3, "rewards": 1, "update": 2} and times.tokens == 200
    assert (times.step_seconds, times.share("rewards")) == (6, pytest.approx(1 / 6))
    assert times.milliseconds_per_token("rollout") == pytest.approx(15)
    assert phase_times({"loss/supervised": (np.arange(2), np.ones(2))}) is None


def test_the_table_of_a_steps_time():
    logs = {"GlobalRAG": [log([2], [1], [1], [100]), log([4], [1], [1], [50])], "SFT": [{}]}
    markdown = to_markdown(phase_table(logs))
    assert "| GlobalRAG | 5.00 | 3.00 | 58.33 | 15.00 | 1.00 | 20.83 | 5.00 | 1.00 | 20.83 | 5.00 |" in markdown
    assert "SFT" not in markdown and phase_table({"SFT": [{}]}) is None
