"""Tool use by domain, tier and question: against counts by hand, and Pareto shares against a grid."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lcrag.data.questions import ALL_TIERS, DOMAINS
from lcrag.evaluation import Answered
from lcrag.evaluation.scoreboard import Scoreboard, Trial
from lcrag.methods.translate_r1.tool_report import (
    draw_pareto,
    draw_selectivity,
    draw_tool_rates,
    has_tool_use,
    in_order,
    pareto_shares,
    points_of,
    question_rates,
    tiers_in,
    tool_tables,
)

TIERS = {"en": "high", "ha": "low"}
shares = st.integers(0, 20).map(lambda number: number / 20)


def trial(method, chance, *, run=None, sample=0, questions=24, scored=True, tool=True):
    """A trial in which the tool is called, and right, where `chance[language][place % len]` says so."""
    answered = [
        Answered(
            question_id=str(number),
            dataset="toy",
            language=language,
            answer="1",
            golds=("1",),
            subsets=(domain, TIERS[language], f"{domain}/{TIERS[language]}"),
            domain=domain,
            tier=TIERS[language],
            reward=float(chance[language][(number + sample) % len(chance[language])]) if scored else None,
            tool_calls=2 * int(chance[language][(number + sample) % len(chance[language])]) if tool else None,
        )
        for language in TIERS
        for number, domain in enumerate(("multiple_choice", "mathematics") * (questions // 2))
    ]
    return Trial.of(
        answered, method=method, model="m", dataset="toy", split="held_out", decoding="sampled", run=run or method,
        seen_languages=("en",),
    )  # fmt: skip


FREE = [trial("free", {"en": (1,), "ha": (1,)}, sample=sample) for sample in range(4)]
GATED = [trial("gated", {"en": (0,), "ha": (1, 1, 0, 0)}, sample=sample) for sample in range(4)]
BOARD = Scoreboard([*FREE, *GATED, trial("none", {"en": (0,), "ha": (0,)}, tool=False)])


def cells(table):
    return {line[0].text: [cell.text for cell in line[1:]] for section in table.sections for line in section}


@given(st.lists(st.tuples(shares, shares), min_size=1, max_size=6))
def test_shares_against_a_grid(points):
    """On the middles of 4,001 equal pieces, ties divided; a crossing may fall inside a piece."""
    named = {str(number): point for number, point in enumerate(points)}
    alphas = (np.arange(4001) + 0.5) / 4001
    utilities = np.array([reward - alphas * cost for reward, cost in points])
    best = utilities >= utilities.max(axis=0) - 1e-9
    expected = (best / best.sum(axis=0)).mean(axis=1)
    found = pareto_shares(named)
    assert pareto_shares({}) == {}
    assert sum(found.values()) == pytest.approx(1)
    np.testing.assert_allclose([found[name] for name in named], expected, atol=len(points) / 4001)


def test_reward_and_rate_by_domain_and_tier():
    table, pareto, selectivity = tool_tables(BOARD, "toy, sampled")
    found = cells(table)
    assert table.title == "Reward and tool rate by domain and tier, toy, sampled"
    assert list(found) == ["mathematics, high", "mathematics, low", "multiple choice, high", "multiple choice, low",
                           "high", "low", "all"]  # fmt: skip
    assert found["high"] == ["100.0", "100.0", "0.0", "0.0", "0.0", "–"], "nothing varies"
    assert [text.split(" ")[0] for text in found["all"]] == ["100.0", "100.0", "25.0", "25.0", "0.0", "–"]
    assert table.header[1:4] == ("free R %", "free C %", "gated R %")
    assert cells(pareto) == {"free": ["100", "100", "100"], "gated": ["0", "0", "0"], "none": ["–", "–", "–"]}
    assert cells(selectivity) == {
        "free": ["0.0", "0.0", "100.0"], "gated": ["50.0", "50.0", "0.0"], "none": ["–", "–", "–"]
    }  # fmt: skip
    ordered = in_order(BOARD.questions.domains, DOMAINS), in_order(BOARD.questions.tiers, ALL_TIERS)
    assert ordered == (["mathematics", "multiple_choice"], ["high", "low"])  # the paper's
    assert points_of(BOARD, "low") == {"free": (1.0, 1.0), "gated": (0.5, 0.5)}


def test_rates_of_questions_weigh_every_tier_the_same():
    full = [trial("gated", {"en": (1,), "ha": (1, 0)}, sample=sample) for sample in range(2)]
    fields = ("method", "model", "dataset", "split", "decoding", "run", "seen_languages")
    few = [
        Trial.of(
            [answer for answer in each.answered if answer.tier == "high" or int(answer.question_id) < 6],
            **{name: getattr(each, name) for name in fields},
        )
        for each in full
    ]
    rates = question_rates(Scoreboard(few), ("m", "gated"))
    assert sorted({rate for rate, _ in rates}) == [0.5, 1.0]
    assert len(rates) == 30
    assert sum(weight for rate, weight in rates if rate == 1.0) == pytest.approx(0.5)
    of_domain = question_rates(Scoreboard(few), ("m", "gated"), "mathematics")
    assert sum(weight for _, weight in of_domain) == pytest.approx(1)


def test_a_board_without_a_tool_or_without_rewards_has_no_tables():
    for options in ({"tool": False}, {"scored": False}):
        board = Scoreboard([trial("none", {"en": (0,), "ha": (0,)}, **options)])
        assert not has_tool_use(board)
        assert tool_tables(board, "") == []
    assert len(tool_tables(Scoreboard(FREE[:1]), "")) == 2, "nothing is asked twice: no selectivity"


def test_figures(tmp_path):
    draw_pareto(BOARD, tmp_path / "pareto.png")
    draw_selectivity(BOARD, tmp_path / "selectivity.png")
    steps = np.arange(30)
    rates = {f"tools/{tier}/rate": (steps, np.linspace(0, 1, 30)) for tier in ("low", "high", "own")}
    late = {"tools/low/rate": (steps[::3], np.linspace(1, 0, 10)), "tools/mathematics/low/rate": (steps, steps / 30)}
    logs = {"free": [rates, rates], "gated": [late], "none": [{"reward/total": (steps, steps / 30)}]}
    assert tiers_in(logs) == ["high", "low", "own"]
    assert tiers_in({"none": logs["none"]}) == []
    draw_tool_rates(logs, "8 episodes", tmp_path / "rates.png")
    assert all(
        (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in ("pareto", "selectivity", "rates")
    )
