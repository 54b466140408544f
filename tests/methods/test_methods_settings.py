"""Settings of programs and rewards: those that all programs share, those of evaluation, and impossible ones."""

import functools

import gin
import numpy as np
import pytest

from lcrag.config import configure
from lcrag.data.questions import Question
from lcrag.episodes.programs import SHARED, check_settings, program_settings, with_settings
from lcrag.errors import UserError
from lcrag.methods.globalrag import globalrag_reward
from lcrag.methods.lcrl import language_coupled
from lcrag.methods.r_search import r_search_reward
from lcrag.methods.rag_r1 import rag_r1
from lcrag.methods.rag_r1.curation import select, split
from lcrag.methods.translate_r1 import cost
from lcrag.rewards.terms import answer_only

# Programs by the shared settings that they take, so that none loses one unnoticed.
ONE_SEARCH = {"passages", "observation_tokens", "wording"}
SEVERAL = ONE_SEARCH | {"budget"}
TAKEN = (
    dict.fromkeys(("adaptive_rag", "answer_from_evidence", "direct_inference", "translate_r1"), {"wording"})
    | dict.fromkeys(("d_rag", "flare", "golden_trajectory", "rag", "sure"), ONE_SEARCH)
    | dict.fromkeys(("ircot", "iter_retgen"), SEVERAL)
    | dict.fromkeys(
        ("globalrag", "r_search", "rag_r1", "search_o1", "step_search", "translate_and_search"), set(SHARED)
    )
    | dict.fromkeys(("hierarchical_search", "search_r1"), set(SHARED) - {"wording"})
)


def configured(*gin_files, bindings=()):
    gin.clear_config()
    configure(gin_files, bindings)


def settings(name, *inner):
    """The settings of a program, or of one that an adaptive program runs."""
    found = program_settings(gin.get_configurable(name))
    return program_settings(found["programs"][inner[0]]) if inner else found


# The file that binds a program's settings to the macros, if it is not that of a baseline of the program's name.
FILES = {"direct_inference": "baselines/direct.gin", "answer_from_evidence": "r_search/answer_from_evidence.gin"}
FILES["hierarchical_search"] = "lcrl/paper.gin"
FILES |= {name: f"{name}/paper.gin" for name in ("r_search", "rag_r1", "globalrag", "translate_r1")}


@pytest.mark.parametrize("name", sorted(TAKEN.keys() - {"translate_and_search", "golden_trajectory"}))
def test_a_macro_sets_every_program(name):
    values = {"budget": 7, "passages": 8, "observation_tokens": 9, "invalid_limit": 6, "wording": "atlas"}
    macros = [f"{macro.upper()} = {value!r}" for macro, value in values.items()]
    file = FILES.get(name, f"baselines/{name}.gin")
    files = (file,) if file.endswith("paper.gin") else ("lcrl/paper.gin", file)
    configured(*files, bindings=macros)
    bound = settings(name)
    assert {shared: bound[shared] for shared in SHARED if shared in bound} == {
        shared: values[shared] for shared in TAKEN[name]
    }
    if "passages" in TAKEN[name]:  # a program's own binding wins
        configured(*files, bindings=[f"{name}.passages = 9"])
        assert settings(name)["passages"] == 9


def test_a_recorded_configuration_gives_the_same_settings():
    configured("quickstart.gin", "baselines/adaptive_rag.gin")
    before = settings("ircot"), settings("adaptive_rag", "multiple")
    recorded = gin.operative_config_str()
    gin.clear_config()
    gin.parse_config(recorded)
    assert (settings("ircot"), settings("adaptive_rag", "multiple")) == before


def test_settings_of_evaluation_reach_the_programs_that_a_program_runs():
    configured("r_search/paper.gin", "baselines/adaptive_rag.gin")
    evaluated = with_settings(gin.get_configurable("adaptive_rag"), {"passages": 5, "budget": 2})
    inner = program_settings(evaluated)["programs"]
    single, multiple = program_settings(inner["single"]), program_settings(inner["multiple"])
    assert (single["passages"], multiple["passages"], multiple["budget"]) == (5, 5, 2)
    assert "budget" not in single
    assert settings("adaptive_rag", "single")["passages"] == 3
    of_one = {"passages": 5, "r_search.budget": 10}  # which others ignore
    found = [program_settings(with_settings(gin.get_configurable(name), of_one)) for name in ("r_search", "ircot")]
    assert [(each["passages"], each["budget"]) for each in found] == [(5, 10), (5, 4)]


@pytest.mark.parametrize("wrong", [{"pasages": 5}, {"ircot.budgte": 1}, {"passages": "three"}, {"budget": -1}])
def test_a_setting_that_is_unknown_or_of_a_wrong_type_or_below_zero_is_refused(wrong):
    configured("quickstart.gin")
    with pytest.raises(UserError, match=next(iter(wrong))):
        check_settings(with_settings(gin.get_configurable("adaptive_rag"), wrong))


def played(**settings):
    question = Question(id="7", dataset="d", language="en", text="A or B?", answers=("A",))
    return next(rag_r1(question, ("en",), **settings))


costs, plans = functools.partial(cost, answer_only()), functools.partial(globalrag_reward, np.eye)
selected = functools.partial(select, [], {}, {}, seed=0)


@pytest.mark.parametrize(
    ("made", "settings", "clue"),
    [
        (language_coupled, {"answer": "bleu"}, "answer reward"),
        (language_coupled, {"weight": -0.1}, "language_coupled.weight"),
        (language_coupled, {"short_gold": "half"}, "language_coupled.short_gold"),
        (costs, {"method": "steep"}, "cost.method"),
        (costs, {"strength": -0.1}, "cost.strength"),
        (costs, {"minimum_native_correct": 0}, "cost.minimum_native_correct"),
        (r_search_reward, {"reader": None, "gamma_evidence": -1.0}, "gamma_evidence"),
        (r_search_reward, {"reader": None, "answer": "bleu"}, "bleu"),
        (plans, {"sub_answer": "f1"}, "f1"),
        (plans, {"structure": "exact"}, "globalrag_reward.structure"),
        (plans, {"semantic_weight": -1.0}, "semantic_weight"),
        (plans, {"threshold": 70.0}, "globalrag_reward.threshold"),
        (plans, {"transition_width": 0.0}, "transition_width"),
        (played, {"generations": 0}, "rag_r1.generations is 0"),
        (played, {"layout": "yaml"}, "yaml"),
        *((selected, {"easy_share": share}, "easy_share") for share in (-0.1, 1.5)),
        *((split, {"selected": [], "validation_share": share, "seed": 0}, "validation_share") for share in (-0.1, 1.5)),
    ],
)
def test_an_impossible_setting_is_refused(made, settings, clue):
    with pytest.raises(UserError, match=clue):
        made(**settings)
