"""Settings of programs: those of all programs of an experiment, a program's own, and those of evaluation."""

import functools

import gin
import pytest

import lcrag.composition.commands  # noqa: F401  registers what configurations name
from lcrag.composition.configuration import configure, read_configuration
from lcrag.composition.programs import every_program, with_settings
from lcrag.errors import UserError

PAPERS = ("lcrl", "r_search", "rag_r1", "globalrag", "translate_r1")
PROGRAMS = ("hierarchical_search", "search_r1", "rag", "ircot", "iter_retgen", "flare", "sure", "search_o1", "d_rag")
METHODS = ("r_search", "rag_r1", "globalrag", "translate_and_search")
PLANS = ("train/jsonl_questions.files = ('train.jsonl',)", "held_out/jsonl_questions.files = ('held_out.jsonl',)")


def configured(*gin_files, bindings=()):
    gin.clear_config()
    configure(read_configuration(gin_files, bindings))


def program(name):
    return gin.get_configurable(name)()


@pytest.mark.parametrize("paper", PAPERS)
def test_every_program_of_a_paper_has_the_same_budgets(paper):
    reads = paper in ("globalrag", "translate_r1")
    configured(f"{paper}/paper.gin", bindings=PLANS[: 2 if paper == "translate_r1" else 1] if reads else ())
    shared = every_program()
    assert set(shared) == {"budget", "passages", "observation_tokens", "invalid_limit", "wording"}
    for name in (*PROGRAMS, *METHODS):
        own = program(name).keywords
        assert {setting: own[setting] for setting in shared if setting in own}.items() <= shared.items(), name


def test_a_programs_own_binding_wins():
    configured("lcrl/paper.gin", bindings=["rag.passages = 9"])
    assert program("rag").keywords["passages"] == 9
    assert program("ircot").keywords["passages"] == 3


def test_a_recorded_configuration_gives_the_same_settings():
    configured("quickstart.gin", "baselines/adaptive_rag.gin")
    before = program("adaptive_rag").keywords["programs"]["multiple"].keywords
    recorded = gin.operative_config_str()
    gin.clear_config()
    gin.parse_config(recorded)
    assert program("adaptive_rag").keywords["programs"]["multiple"].keywords == before


def test_settings_of_evaluation_reach_the_programs_that_a_program_runs():
    configured("r_search/paper.gin", "baselines/adaptive_rag.gin")
    evaluated = with_settings(program("adaptive_rag"), {"passages": 5, "budget": 2})
    single, multiple = (evaluated.keywords["programs"][name].keywords for name in ("single", "multiple"))
    assert (single["passages"], multiple["passages"], multiple["budget"]) == (5, 5, 2)
    assert "budget" not in single
    assert program("adaptive_rag").keywords["programs"]["single"].keywords["passages"] == 3


def test_a_setting_that_no_program_has_is_refused():
    configured("quickstart.gin")
    with pytest.raises(UserError, match="program_settings sets pasages, which no program has; did you mean passages"):
        with_settings(program("rag"), {"pasages": 5})


def test_any_other_function_has_no_settings():
    assert with_settings(print, {"passages": 5}) is print
    assert with_settings(functools.partial(print, end=""), {"passages": 5}).keywords == {"end": ""}
