"""What the files of experiments, baselines and platforms say, and what is left of an experiment under a baseline."""

import contextlib
import dataclasses
import functools
import re
from pathlib import Path

import gin
import pytest
from support.gin_files import bound, values

from lcrag.commands.plan import Parts
from lcrag.commands.studies import ABLATIONS, LCRL_STUDIES, Settings
from lcrag.config import configure, packaged_folder, packaged_names
from lcrag.data.questions import LCRL_LANGUAGES, LCRL_TRAINING, Question
from lcrag.episodes.programs import program_name, program_settings
from lcrag.errors import UserError
from lcrag.methods.baselines import rag
from lcrag.rewards.terms import answer_only
from lcrag.runs.folder import Macro
from lcrag.train.method import Method

FILES = ("train/jsonl_questions.files = ('train.jsonl',)", "held_out/jsonl_questions.files = ('held_out.jsonl',)")
PAPERS = ("lcrl/paper.gin", "r_search/paper.gin", "rag_r1/paper.gin", "globalrag/paper.gin", "translate_r1/paper.gin")
XOR_TYDI = ("en", "fi", "ja", "ko", "ru", "ar", "bn", "te")
ATLAS = ("lcrl/atlas.gin", "r_search/atlas.gin", "rag_r1/atlas.gin", "globalrag/atlas.gin", "translate_r1/atlas.gin")
BASELINES = sorted(
    path.stem for path in (packaged_folder() / "baselines").glob("*.gin") if "Method.program" in path.read_text()
)
PROGRAMS = {bound(f"baselines/{name}.gin")["Method.program"].strip("@()") for name in BASELINES}
PLATFORM = {
    *("Computation.compute_dtype", "Computation.remat", "mesh.data", "mesh.fsdp", "mesh.tensor"),
    *("Sampler.slots", "Sampler.context", "Sampler.block", "Sampler.min_finished_share", "Sampler.windows"),
    *("Sampler.append_rows", "Sampler.append_tokens", "Layout.rows", "Layout.row_lengths"),
    *("Lanes.count", "Lanes.tensor", "Runner.wait_for_searches"),
}


class Unread(Parts):
    def questions(self, name, reference):
        return []


def composed(command, *gin_files, bindings=()):
    reads = any(name in gin_files for name in ("globalrag/paper.gin", "translate_r1/paper.gin"))
    platform = () if any(name.endswith("atlas.gin") for name in gin_files) else ("platform/h200.gin",)
    given = (*(FILES[: 2 if "translate_r1/paper.gin" in gin_files else 1] if reads else ()), *bindings)
    gin.clear_config()
    configure((*platform, *gin_files), given)
    return Unread().arguments(command)


@pytest.mark.parametrize(("number", "baseline"), enumerate(BASELINES))
def test_nothing_that_an_experiment_says_of_its_method_is_left_under_a_baseline(number, baseline):
    own = bound(f"baselines/{baseline}.gin")
    fixed = {name for name, value in own.items() if name.partition(".")[0] in PROGRAMS and type(value) is not Macro}
    assert fixed == ({"rag.route", "rag.passages", "rag.observation_tokens"} if baseline == "sft" else set())
    for experiment in [(*PAPERS, *ATLAS)[(number + step) % 10] for step in (0, 3, 6)]:
        given = composed("evaluate", experiment, f"baselines/{baseline}.gin")
        method, evaluation = given["method"], given["evaluation"]
        assert (method.name, given["label"]) == (own["Method.name"], None), experiment
        for each in (method, method.with_settings(evaluation.program_settings)):
            assert program_name(each.program) == own["Method.program"].strip("@()"), experiment
        assert evaluation.references == {}, experiment
        assert evaluation.reading == own["Evaluation.reading"], experiment
        assert dict(method.models) == {}, experiment
        next(method.program(asked(1, ("fi",))[0], ("en", "fi")))


@pytest.mark.parametrize("experiment", [*PAPERS, *ATLAS])
def test_a_baseline_is_trained_and_evaluated_like_its_experiment(experiment):
    own, baseline = composed("train", experiment), composed("train", experiment, "baselines/msearch_r1.gin")
    for name in ("questions_per_step", "prompts_per_step", "updates_per_rollout"):
        assert baseline[name] == own[name]
    assert (baseline["method"].samples, baseline["method"].coupling) == (own["method"].samples, own["method"].coupling)
    for field in ("temperatures", "max_tokens", "program_settings", "runs"):
        assert getattr(baseline["evaluation"], field) == getattr(own["evaluation"], field)


@pytest.mark.parametrize("experiment", [*PAPERS[:4], *ATLAS[:4], "translate_r1/with_search_atlas.gin"])
def test_search_as_a_tool_plays_the_experiments_own_program(experiment):
    own = composed("evaluate", experiment)["method"].program
    given = composed("evaluate", experiment, "r_search/answer_from_evidence.gin")["method"].program
    searcher = program_settings(given)["searcher"]
    assert (program_name(searcher), program_settings(searcher)) == (program_name(own), program_settings(own))


@functools.cache
def asked(count, languages):
    return [
        Question(id=str(number), dataset="d", language=language, text=f"{number}?", answers=("x",))
        for number in range(count)
        for language in languages
    ]


def method_of(samples, advantage_group, reward=None):
    return Method(
        name="m", program=rag, reward=reward or answer_only(), samples=samples, advantage_group=advantage_group
    )


@pytest.mark.parametrize(("samples", "couplings", "drawn", "episodes"), [(3, 64, 64, 1536), (1, 12, 6, 96)])
def test_independent_groups_have_the_prompts_and_episodes_of_coupled_ones(samples, couplings, drawn, episodes):
    questions = asked(80, LCRL_TRAINING)
    (coupled, whole), (independent, found) = (
        method_of(samples, group).with_advantage_group(couplings) for group in ("coupled", "prompt")
    )
    assert (whole, found) == (couplings, drawn)
    assert independent.table(questions) == coupled.table(questions)
    assert len(coupled.prompts(coupled.table(questions)[:whole])) == episodes
    assert len(independent.prompts(independent.table(questions)[:found])) == episodes


# Runs that end before the schedule of their rate, with the rate of their last update.
ENDS_EARLIER = {"lcrl/paper.gin": 0.79e-6, "globalrag/paper.gin": 0.70e-6}


@pytest.mark.parametrize("experiment", ENDS_EARLIER)
def test_a_run_may_end_in_the_warm_up_of_a_longer_schedule(experiment):
    found = composed("train", experiment)
    updates = found["updates_per_rollout"]
    rate = found["optimizer"].with_updates(updates).learning_rate(found["steps"] * updates - 1)
    assert float(rate) == pytest.approx(ENDS_EARLIER[experiment], rel=0.01)


@pytest.mark.parametrize("experiment", sorted({*PAPERS, *ATLAS} - ENDS_EARLIER.keys()))
def test_steps_is_the_length_of_the_run_and_of_its_schedule(experiment):
    short, longer = (composed("train", experiment, bindings=[f"STEPS = {steps}"]) for steps in (20, 40))
    assert (short["steps"], longer["steps"]) == (20, 40)
    updates = short["updates_per_rollout"]
    rates = [each["optimizer"].with_updates(updates).learning_rate for each in (short, longer)]
    assert float(rates[0](updates * 15)) == pytest.approx(float(rates[1](updates * 30)), rel=0.1)


@pytest.mark.parametrize("experiment", ["lcrl/paper.gin", "r_search/paper.gin", "globalrag/paper.gin"])
def test_ppo_keeps_the_kl_and_all_else_of_an_experiment(experiment):
    own, ppo = composed("train", experiment), composed("train", experiment, "objective/ppo.gin")
    kl = own["objective"].kl_coefficient
    assert kl > 0
    assert (ppo["critic"].kl_in_reward, ppo["objective"].kl_coefficient) == (kl, 0.0)
    assert dataclasses.replace(ppo["objective"], kl_coefficient=kl) == own["objective"]
    for name in ("questions_per_step", "prompts_per_step", "updates_per_rollout", "passes_per_rollout", "steps"):
        assert ppo[name] == own[name]
    assert (ppo["method"].samples, ppo["method"].coupling) == (own["method"].samples, own["method"].coupling)


# What an ablation may change in addition to what its bindings name.
OF_PPO = {"train.critic", "compile.critic", "PolicyGradient.kl_coefficient", "critic/adamw.warmup_share"}
OF_PPO |= {f"Critic.{name}" for name in ("discount", "trace", "value_clip", "kl_in_reward", "whiten")}


@pytest.mark.parametrize("ablation", ABLATIONS)
def test_an_ablation_differs_from_the_papers_run_in_what_it_names_only(ablation):
    variant, paper = ABLATIONS[ablation], values("lcrl/paper.gin")
    changed = values("lcrl/paper.gin", *variant.files, bindings=variant.bound())
    named = {binding.partition(" = ")[0] for binding in variant.bound()} | (OF_PPO if variant.files else set())
    assert {name for name, value in changed.items() if paper.get(name) != value} <= named


def test_an_index_with_more_languages_than_the_data_set_is_not_searched_in_all():
    question = Question(id="1", dataset="mkqa", language="fi", text="?", answers=("x",))
    for files, languages in (((), LCRL_LANGUAGES), (("data/xor_tydi.gin",), XOR_TYDI)):
        method = composed("train", "lcrl/paper.gin", *files)["method"]
        assert set(method.collections(question, (*LCRL_LANGUAGES, "bn", "te"))) == set(languages)


def test_the_value_model_learns_at_the_papers_rate_except_on_the_atlas():
    for experiment, rate in (("lcrl/paper.gin", 1e-5), ("r_search/paper.gin", 1e-5), ("lcrl/atlas.gin", 1e-3)):
        schedule = composed("train", experiment, "objective/ppo.gin")["critic"].optimizer.learning_rate
        assert max(float(schedule(update)) for update in range(0, 2000, 5)) == pytest.approx(rate, rel=0.1)
    found = composed("train", "r_search/paper.gin", "r_search/ppo.gin")
    rate = found["critic"].optimizer.learning_rate
    assert (found["method"].samples, found["updates_per_rollout"]) == (1, 1)
    assert float(rate(8)) < 1e-5 == pytest.approx(float(rate(10)))  # 0.05 of 195 steps


@pytest.mark.parametrize("name", [name for name in packaged_names() if re.match("platform/(?!accelerator)", name)])
def test_a_platform_binds_all_of_the_platform(name):
    assert bound(name).keys() >= PLATFORM


@pytest.mark.parametrize("experiment", [*PAPERS, "baselines/published/search_r1.gin"])
def test_an_experiment_binds_no_platform(experiment):
    contexts = {"Sampler.context", "Sampler.windows", "Layout.row_lengths"}
    assert not (PLATFORM - contexts) & bound(experiment).keys()


LOW, LOWERED = "platform/h200.gin", "name platform/h200.gin first, and r_search/paper.gin after it"
MINE = "include 'r_search/paper.gin'\ninclude 'platform/h200.gin'\n"
LATER = {
    "of the command": (("r_search/paper.gin", LOW), "", (), LOWERED),
    "of a file of one's own": (("mine.gin",), MINE, (), LOWERED),
    "of a file that then sets it": (("mine.gin",), MINE + "Sampler.context = 2048\n", (), None),
    "then set": (("r_search/paper.gin", LOW), "", ("Sampler.context = 2048",), None),
    "first": ((LOW, "r_search/paper.gin"), "", (), None),
    "after what needs no more": (("lcrl/paper.gin", LOW), "", (), None),
    "after another platform": (("platform/tpu_v5p_64.gin", LOW), "", (), None),
    "that is large enough": (("r_search/paper.gin", "platform/tpu_v5p_64.gin"), "", (), None),
}


@pytest.mark.parametrize("case", LATER)
def test_a_platform_does_not_lower_the_context_of_an_experiment(case, tmp_path, monkeypatch):
    gin_files, mine, bindings, refused = LATER[case]
    monkeypatch.chdir(tmp_path)
    Path("mine.gin").write_text(mine)
    with pytest.raises(UserError, match=refused) if refused else contextlib.nullcontext():
        configure(gin_files, bindings)


OF_ATLAS = {"from_long_sft", "long_sft"}  # begin with a policy of the atlas


@pytest.mark.parametrize("study", LCRL_STUDIES)
def test_every_training_of_a_study_at_paper_scale_has_the_papers_episodes(study, monkeypatch):
    monkeypatch.setattr(
        Settings, "chosen", lambda settings, known, usual: [name for name in known if name not in OF_ATLAS]
    )
    platform = ("platform/h200.gin",)
    settings = Settings(output=Path("out"), experiment="lcrl/paper", seeds=(0,), gin_files=platform)
    points = [point for point in LCRL_STUDIES[study].points(settings) if point.command == ("train",)]
    assert points
    for point in points:
        given = composed("train", *point.gin_files[1:], bindings=point.bindings)
        languages = values(*point.gin_files, bindings=point.bindings)["train/mkqa_questions.languages"]
        counts, by_group = (given["questions_per_step"], given["prompts_per_step"]), given["critic"] is None
        method, table, count = given["method"].of_step(asked(600, languages), *counts, group_baseline=by_group)
        assert count * len(table[0]) * method.samples == pytest.approx(1536, rel=0.05), point.folder


@pytest.mark.parametrize(("experiment", "tokens"), [("lcrl/paper.gin", 4 * 256), ("lcrl/atlas.gin", 128)])
def test_dr_grpo_divides_by_the_tokens_of_the_experiments_episodes(experiment, tokens):
    objective = composed("train", experiment, "objective/dr_grpo.gin")["objective"]
    assert (objective.aggregation, objective.constant_length) == ("constant", tokens)
