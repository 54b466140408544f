"""Settings of programs: those that all programs share, a program's own, and those of evaluation."""

import gin
import pytest

from lcrag.config import configure
from lcrag.episodes.programs import SHARED, check_settings, program_settings, with_settings
from lcrag.errors import UserError

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
