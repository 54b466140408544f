"""`lcrag study` runs every point once, each after those it needs, and then its report; points are what they say."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from support import gin_files

from lcrag import main
from lcrag.commands import studies as tables
from lcrag.commands import study as studying
from lcrag.commands.studies import STUDIES
from lcrag.commands.study import settings_of
from lcrag.config import configure
from lcrag.data.questions import LCRL_TRAINING

ROOT = Path(__file__).resolve().parents[2]
# Writes down how it was called, and leaves what the real command leaves when it has finished.
PRETENDED = """
import json, pathlib, sys
words, folder = sys.argv[1:], pathlib.Path(sys.argv[-1].partition("=")[2])
with open("calls", "a") as calls:
    print(*words, sep="\\t", file=calls)
fails, _, said = pathlib.Path("fails").read_text().partition(",")
if folder.name == fails:
    sys.exit(said or "lcrag: error: out of luck")
folder.mkdir(parents=True, exist_ok=True)
if words[-1].startswith("--records"):
    run = pathlib.Path(words[1])
    command = ["lcrag", *json.loads((run / "words").read_text())]
    name = next((word.partition("=")[2].strip("'") for word in command if word.startswith("--gin.Method.name")), "")
    record = {"command": command, "folder": words[1]}
    record |= {"format": 1, "method": name, "model": "", "seed": 0, "commit": None, "policies": {}, "trained": True}
    record |= {"seen_languages": [], "step": "", "log": {}, "config": {}, "trained_config": {}, "answers": []}
    (folder / f"{run.name}.json").write_text(json.dumps(record))
    sys.exit()
(folder / "words").write_text(json.dumps(words))
for name in ("report.md", "evaluation.json", "report.json"):
    (folder / name).touch()
"""


def arguments_of(*words):
    return main.parse(words)


def points_of(name, *words):
    return STUDIES[name].points(settings_of(STUDIES[name], arguments_of("study", name, *words)))


def bound(point):
    return gin_files.bound(bindings=point.bindings)


def test_a_variant_that_is_not_usual_is_run_when_it_is_named():
    usual, with_f1 = points_of("smollm2"), points_of("smollm2", "--only=lcrl_f1", "--seeds=3")
    assert not any("token_f1" in "".join(point.bindings) for point in usual)
    assert [point.folder.name for point in with_f1[-2:]] == ["sft", "lcrl_f1-3"]
    assert bound(with_f1[-1])["language_coupled.answer"] == "token_f1"


@pytest.mark.parametrize("name", STUDIES)
def test_every_point_is_a_command_that_can_be_read_and_comes_after_what_it_reads(name):
    points = points_of(name, "--seeds=0,4", "--output_dir=out")
    folders, systems, forms = [], [], set()
    for point in points:
        assert point.command[0] in main.COMMANDS
        form = (point.gin_files, *(re.sub(r"\d+|'.*'", "", each) for each in point.bindings))
        if form not in forms:  # others differ in numbers and texts
            configure(point.gin_files, point.bindings)
            forms.add(form)
        assert set(point.needs) <= set(folders)
        policy = bound(point).get("policy.folder")
        trained = {str(folder / "policy") for folder in point.needs}
        assert policy is None or policy in trained or (policy.startswith("atlas/") and not point.needs)
        folders.append(point.folder)
        if Path("out", STUDIES[name].reported) in point.folder.parents:
            named = gin_files.bound(*point.gin_files, bindings=point.bindings)
            systems.append((named.get("evaluate.label", named["Method.name"]), named.get("SEED")))
    assert len(set(folders)) == len(points)
    if not any(word.startswith("--axis") for word in STUDIES[name].report):
        assert len(set(systems)) == len(systems), "each has a name of its own"
    configure(["report.gin"], arguments_of(*STUDIES[name].report).bindings)


def test_a_variant_begins_with_its_cold_start():
    start, before, trained = points_of("r_search", "--only=without_evidence", "--seeds=0", "--output_dir=out")
    assert (start.command, start.gin_files) == (("sft",), ("r_search/atlas_sft.gin",))
    assert bound(start)["RandomReasoner.evidence"] is False
    for point in (before, trained):
        assert bound(point)["policy.folder"] == f"{start.folder}/policy"
        assert bound(point)["r_search.evidence"] is False
    assert (before.command, bound(trained)["Evaluation.before"]) == (("evaluate",), False)


def test_the_papers_run_without_a_tool_is_shorter():
    for experiment, steps in (("translate_r1/paper", 100), ("translate_r1/atlas", None)):
        points = {point.folder.name: bound(point) for point in points_of("translate_r1", f"--experiment={experiment}")}
        assert points["no_tool-0"].get("STEPS") == steps
        assert "STEPS" not in points["gated-0"]


@pytest.mark.parametrize("name", ["r_search", "globalrag", "translate_r1"])
def test_at_a_papers_scale_nothing_is_started_cold_and_no_two_points_are_the_same(name):
    """Training begins with a published model there: variants that differ only in the initial policy are left out."""
    words = (f"--experiment={name}/paper", "--gin_file=platform/h100_8.gin", "--seeds=0", "--output_dir=out")
    points = points_of(name, *words)
    runs = []
    for point in points:
        assert point.command != ("sft",)
        configure(point.gin_files, point.bindings)
        found = gin_files.values(*point.gin_files, bindings=point.bindings)
        assert not str(found.get("policy.folder")).startswith("atlas/")
        runs.append((point.command, {key: found[key] for key in found.keys() - {"Method.name", "evaluate.label"}}))
    assert all(one not in runs[:place] for place, one in enumerate(runs))
    assert not {"from_long_sft-0", "before-from_long_sft"} & {point.folder.name for point in points}


def test_options_choose_what_is_run():
    words = ("--experiment=mine.gin", "--only=gated", "--seeds=4", "--gin.STEPS=3", "--gin_file=model/lora.gin")
    start, before, trained = points_of("translate_r1", *words)
    assert start.gin_files == ("mine_sft.gin",)
    assert before.gin_files == trained.gin_files == ("mine.gin", "model/lora.gin")
    assert bound(trained)["STEPS"] == 3
    assert bound(trained)["SEED"] == 4
    for file in ("platform/h200.gin", "gin/platform/laptop.gin"):
        [platform] = points_of("lcrl_curves", "--only=lcrl", "--seeds=0", f"--gin_file={file}")
        assert platform.gin_files == (file, "lcrl/atlas_study.gin")
    assert len(points_of("lcrl_curves", "--only=lcrl", "--seeds=0,0")) == 1


@pytest.mark.parametrize("experiment", ["lcrl/atlas_study", "lcrl/paper"])
def test_table_1_is_over_all_collections_and_has_rows_of_the_native_one(experiment):
    points = {
        point.folder.name: gin_files.values(*point.gin_files, bindings=point.bindings)
        for point in points_of("lcrl_tables", "--seeds=0", f"--experiment={experiment}")
    }
    for program, name in (("rag", "RAG"), ("ircot", "IRCoT"), ("search_o1", "Search-o1")):
        everywhere, native = points[f"{program}-0"], points[f"{program}_native-0"]
        assert (everywhere["Method.name"], native["Method.name"]) == (name, f"{name}, native")
        assert (everywhere[f"{program}.route"], native.get(f"{program}.route")) == ("@all_at_once", None)
    for row, collections in (("sft", "@largest_collections"), ("sft_native", "@native_collection")):
        assert points[f"{row}-0"]["Method.collections"] == collections
        assert points[f"{row}-0"]["rag.route"] == "@all_at_once"
        assert points[f"{row}-0"]["rag.observation_tokens"] == 5 * 2 * 200
        assert (points[f"{row}-0"]["largest_collections.count"], points[f"{row}-0"]["rag.passages"]) == (5, 2)
    assert points["d_rag-0"]["golden_answers.writer"] == "@GoldenArguments"


@pytest.mark.parametrize(
    ("experiment", "tuning"), [("lcrl/atlas_study", "lcrl/atlas_study"), ("lcrl/paper", "lcrl/paper_sft")]
)
def test_methods_that_are_fine_tuned_are_points_of_the_figures(experiment, tuning):
    words = ("--seeds=0", "--only=sft,d_rag", f"--experiment={experiment}", "--gin_file=platform/h200.gin")
    tuned, *evaluated = [point for point in points_of("lcrl_collections", *words) if "d_rag" in point.folder.name]
    assert (tuned.command, {point.command for point in evaluated}) == (("sft",), {("evaluate",)})
    assert bound(tuned)["sft.evaluation"] is None
    for point in evaluated:
        assert (point.needs, bound(point)["policy.folder"]) == ((tuned.folder,), f"{tuned.folder}/policy")
    for point in (tuned, *evaluated, *points_of("lcrl_data", *words), *points_of("lcrl_training_languages", *words)):
        assert f"{tuning}.gin" in point.gin_files
        configure(point.gin_files, point.bindings)
    shares = [bound(point)["train/golden_answers.question_share"] for point in points_of("lcrl_data", *words)]
    assert shares == [0.25, 0.5, 0.75, 1.0] * 2


@pytest.mark.parametrize("name", ["flare", "sure", "iter_retgen", "rag", "ircot", "search_o1", "adaptive_rag"])
@pytest.mark.parametrize("study_name", ["lcrl_collections", "lcrl_retrieval"])
def test_prompted_methods_search_what_figure_3_allows(study_name, name):
    points = points_of(study_name, "--seeds=0", f"--only={name}")
    routed = ("rag", "ircot") if name == "adaptive_rag" else (name,)
    assert {bound(point)[f"{each}.route"] for point in points for each in routed} == {"@all_at_once"}
    for point in points:
        names = [binding.partition(" = ")[0] for binding in point.bindings]
        assert len(set(names)) == len(names), "none is bound twice"
    assert all(bound(point)["Method.collections"] for point in points)
    last = points_of(study_name, "--seeds=0", f"--only={name}", "--experiment=lcrl/paper")[-1]
    wanted = "@chosen_collections" if study_name == "lcrl_retrieval" else "@largest_collections"
    assert bound(last)["Method.collections"] == wanted, "an index may hold more languages than the data set"


def test_every_seed_of_rag_r1_has_its_own_stages():
    points = points_of("rag_r1", "--seeds=0,1")
    for seed, (demonstrations, tuned, selection, trained) in enumerate((points[:4], points[4:])):
        assert bound(tuned)["demonstration_files.files"] == (f"{demonstrations.folder}/rows.jsonl",)
        assert bound(selection)["selection.demonstrated"] == str(demonstrations.folder)
        assert bound(trained)["train/jsonl_questions.files"] == (f"{selection.folder}/train.jsonl",)
        assert bound(selection)["policy.folder"] == bound(trained)["policy.folder"] == f"{tuned.folder}/policy"
        assert {bound(each)["SEED"] for each in (demonstrations, tuned, selection, trained)} == {seed}
    assert len({point.folder for point in points}) == len(points)
    found = {point.folder.name: point for point in points_of("rag_r1_ablations")}
    assert bound(found["without_selection-0"])["train/jsonl_questions.files"][0].endswith("/unfiltered.jsonl")
    assert "policy.folder" not in bound(found["without_sft-0"])
    assert found["without_rl-0"].command == ("evaluate",)
    assert "made/single" in bound(found["single-0"])["policy.folder"]
    single = {point.folder.name: bound(point) for point in points_of("rag_r1_single_ablations")}
    assert {values["rag_r1.queries"] for values in single.values()} == {1}
    assert "policy.folder" not in single["single_without_sft-0"]
    [unfiltered] = single["single_without_selection-0"]["train/jsonl_questions.files"]
    assert unfiltered.endswith("single-0/selection/unfiltered.jsonl")


@pytest.fixture
def study(tmp_path, monkeypatch, capfd):
    """Runs a study with a pretended `lcrag`: its exit status, its calls, and what it wrote to standard error."""
    (tmp_path / "pretended.py").write_text(PRETENDED)
    monkeypatch.setattr(studying, "LCRAG", (sys.executable, "pretended.py"))
    monkeypatch.chdir(tmp_path)

    def runs(*words, fails=""):
        (tmp_path / "fails").write_text(fails)
        (tmp_path / "calls").write_text("")
        status = main.run(["study", *words])
        lines = (tmp_path / "calls").read_text().splitlines()
        return status, [arguments_of(*line.split("\t")) for line in lines], capfd.readouterr().err

    return runs


def test_points_are_run_once_and_then_reported(study):
    words = ("r_search", "--seeds=0,1", "--only=grpo,ppo,without_evidence,rag", "--jobs=3", "--output_dir=out")
    status, calls, _ = study(*words)
    assert status == 0
    done = sorted(call.command for call in calls[:-1])  # in any order
    assert done == ["evaluate"] * 3 + ["report"] * 9 + ["sft"] * 2 + ["train"] * 6
    assert calls[-1].command == "report"
    assert calls[-1].words == ("out/records/r_search",)
    assert (calls[-1].output_dir.parent / "study" / "ppo-1.log").is_file()
    status, again, _ = study(*words)
    assert status == 0
    assert [call.command for call in again] == ["report"]
    words = ("lcrl_penalties", "--seeds=0", "--output_dir=other")
    for only, against in (("floor_0.5", None), ("floor_0.02", "LcRL, penalty 0.02")):
        _, calls, _ = study(*words, f"--only={only}")
        assert calls[-1].options.get("--against") == against, "once this method has a record"


def test_what_is_recorded_is_kept_without_the_runs(study, tmp_path):
    words = ("r_search", "--seeds=1", "--only=grpo,ppo,rag", "--output_dir=out", "--records=kept")
    study(*words)
    recorded = {path.name for path in (tmp_path / "kept").iterdir()}
    assert recorded == {"before-grpo.json", "grpo-1.json", "ppo-1.json", "rag.json"}
    shutil.rmtree(tmp_path / "out")
    _, again, _ = study(*words)
    assert [call.words for call in again] == [("kept",)], "no cold start is trained for runs that have a record"
    (tmp_path / "kept" / "ppo-1.json").unlink()
    _, one, _ = study(*words)
    assert [call.command for call in one] == ["sft", "train", "report", "report"]
    (tmp_path / "kept" / "ppo-1.json").unlink()
    _, finished, _ = study(*words)
    assert [call.words for call in finished] == [("out/study/ppo-1",), ("kept",)], "a finished run is only recorded"


def test_a_record_of_another_command_is_refused(study):
    words = ("r_search", "--seeds=0", "--only=ppo", "--records=kept")
    study(*words, "--output_dir=out", "--gin.STEPS=5")
    status, calls, _ = study(*words, "--output_dir=elsewhere", "--gin.STEPS=5")
    assert status == 0
    assert [call.command for call in calls] == ["report"], "another output folder is no difference"
    for others in (words, ("rag_r1", "--records=kept")):  # of the same study, and of another
        status, calls, error = study(*others, "--output_dir=out")
        assert (status, calls) == (2, [])
        assert "kept/before-grpo.json" in error
    words = ("lcrl_tables", "--seeds=0", "--records=tables", "--output_dir=out")
    assert study(*words, "--only=sft", "--experiment=lcrl/paper_sft")[0] == 0
    assert study(*words, "--only=lcrl")[0] == 0, "the baseline SFT may have an experiment of its own"


@pytest.mark.parametrize(
    ("jobs", "point", "said"), [(1, "grpo", "out of luck"), (3, "ppo-1", "out of luck"), (1, "grpo,\n\n", "nothing")]
)
def test_the_first_failure_ends_the_study_and_names_the_log(study, jobs, point, said):
    status, calls, error = study("r_search", "--seeds=0,1", f"--jobs={jobs}", "--output_dir=out", fails=point)
    assert status == 2
    assert error.startswith("lcrag: error: out/")
    assert f"{point.partition(',')[0]}.log" in error
    assert said in error
    assert ("out/records/r_search",) not in [call.words for call in calls], "there is no report on some of the runs"


DOCUMENTED = [
    shlex.split(line)[1:]
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for line in page.read_text(encoding="utf-8").splitlines()
    if line.startswith("lcrag study") and "--records=docs/results" in line
]


@pytest.mark.parametrize("words", DOCUMENTED, ids=lambda words: f"{words[1]} {words[2]}")
def test_records_of_the_results_are_of_the_present_studies(words, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert main.run([*words, "--dry_run"]) == 0
    reports = [line for line in capsys.readouterr().out.splitlines() if "--records=" in line]
    folder = settings_of(STUDIES[words[1]], arguments_of(*words)).output / STUDIES[words[1]].reported
    assert len(reports) < sum(folder in point.folder.parents for point in points_of(*words[1:]))


def test_training_languages():
    for count, point in enumerate(tables.ROWS["training_languages"].values(), start=1):
        values = gin_files.values("quickstart.gin", bindings=point.bound("quickstart"))
        assert values["train/atlas_questions.languages"] == LCRL_TRAINING[:count] == values["Evaluation.seen_languages"]
        group = count * values["Method.samples"]
        assert group >= 5
        assert abs(values["train.questions_per_step"] * group - 96) <= 2, "as many episodes as the quickstart's step"
