"""The costs of answers and of training steps: scores per token, figures, and the times of a step's phases."""

import math

import numpy as np
import pytest
from evaluation_trials import trial

from lcrag.evaluation import to_markdown
from lcrag.evaluation.metrics import EFFICIENCY
from lcrag.evaluation.paper_tables import Marking, overall_table
from lcrag.evaluation.scoreboard import Scoreboard
from lcrag.methods.globalrag.analysis import phase_table, phase_times
from lcrag.methods.globalrag.cost_plots import draw_costs, draw_searches, has_costs, has_searches


def costly(method, right, tokens, dataset="toy"):
    return trial(method, {"en": right, "fi": right}, dataset=dataset, sampled_tokens=tokens, answer_retrieved=False)


BOARD = Scoreboard([costly("GlobalRAG", [1, 1, 1, 0], 400), costly("Search-R1", [1, 0, 0, 0], 100)])


def test_systems_by_their_costs():
    system, other, whole = ("m", "GlobalRAG"), ("m", "Search-R1"), ("", "all")
    assert BOARD.score(system, EFFICIENCY, whole).value == pytest.approx(0.75 / np.log(400))
    assert BOARD.score(system, "seconds_per_question", whole) is None
    for metric in (EFFICIENCY, "seconds_per_question"):
        assert math.isnan(BOARD.p_value(system, other, metric, whole))
    metrics = (EFFICIENCY, "sampled_tokens", "failures_without_passage", "seconds_per_question")
    (section,) = overall_table([BOARD], "", metrics, Marking(against="Search-R1")).sections
    assert [(cell.text, cell.rank) for cell in section[0][1:]] == [
        ("12.5", "best"), ("400.00", ""), ("100.0", ""), ("–", ""),
    ]  # fmt: skip


def test_figures_of_costs(tmp_path):
    boards = [BOARD, Scoreboard([costly("GlobalRAG", [0, 0, 1, 0], 300, dataset="other")])]
    for known, draw in ((has_costs, draw_costs), (has_searches, draw_searches)):
        assert known(boards)
        draw(boards, tmp_path / "figure.png")
        assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
        assert not known([Scoreboard([trial("RAG", {"en": [1], "fi": [0]})])])


def log(rollout, rewards, update, rate):
    curves = {"seconds/rollout": rollout, "seconds/rewards": rewards, "seconds/update": update}
    curves["tokens_per_second/sampled"] = rate
    return {name: (np.arange(len(values)), np.array(values, float)) for name, values in curves.items()}


def test_times_by_phase_and_token():
    times = phase_times(log([2, 4], [1, 1], [3, 1], [100, 50]))
    assert dict(times.seconds) == {"rollout": 3, "rewards": 1, "update": 2}
    assert times.tokens == 200
    assert (times.step_seconds, times.share("rewards")) == (6, pytest.approx(1 / 6))
    assert times.milliseconds_per_token("rollout") == pytest.approx(15)
    assert phase_times({"loss/supervised": (np.arange(2), np.ones(2))}) is None


def test_the_table_of_a_steps_time():
    logs = {"GlobalRAG": [log([2], [1], [1], [100]), log([4], [1], [1], [50])], "SFT": [{}]}
    markdown = to_markdown(phase_table(logs))
    assert "| GlobalRAG | 5.00 | 3.00 | 58.33 | 15.00 | 1.00 | 20.83 | 5.00 | 1.00 | 20.83 | 5.00 |" in markdown
    assert "SFT" not in markdown
    assert phase_table({"SFT": [{}]}) is None
