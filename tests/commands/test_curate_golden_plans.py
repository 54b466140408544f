"""`lcrag curate golden_plans`: what is written, continued and refused, and that training reads it."""

import dataclasses
import json
import shutil

import pytest
from curation_parts import TOKENIZER, WORLD, interrupted_after, results
from experiment_parts import ExactCollections, json_lines, run
from support.local_server import served, stand_in_chat
from support.pretended_collections import PretendedCollections

from lcrag.atlas.independent_facts import comparison_questions
from lcrag.commands.curate import golden_plans
from lcrag.curation.playing import play
from lcrag.curation.text_writers import WritingTeacher, endpoint_teacher
from lcrag.data.jsonl_questions import jsonl_questions
from lcrag.data.questions import Question
from lcrag.episodes import Chat
from lcrag.errors import UserError
from lcrag.methods.globalrag.golden_trajectory import golden_trajectory
from lcrag.methods.globalrag.oracle import plan_teacher
from lcrag.methods.globalrag.plans import golden_plans as plans_in

CHAINS, COMPARED = WORLD.questions("train", ["en"], hops=(2,))[:15], comparison_questions(WORLD, "train", ["en"])[:15]
QUESTIONS = [*WORLD.questions("train", ["en"])[:15], *CHAINS, *COMPARED]
SMALL = dataclasses.replace(WORLD, facts=WORLD.facts[:5], chains=())  # its fingerprint takes no time
CONTEXT = 3000


@dataclasses.dataclass
class Two:
    """Knows every answer, and another plan at each attempt."""

    hashes = {"teacher": "two"}

    def play(self, cast, search, *, temperature, attempt, progress):
        def write(question, turns, request):
            ends = {"</plan>": f'<plan>{{"Q1": ["way {attempt % 2}?", "#1"]}}</plan>'}
            ends |= {"</subAnswer>": "<subAnswer> #1 = it </subAnswer>"}
            return ends.get(request.stop[-1], f"<answer> {question.answers[0]}</answer>")

        return play([(question, program) for question, program, _ in cast], write, search, TOKENIZER, context=CONTEXT)


def program(question, languages):
    return golden_trajectory(question, languages, wording="atlas", attempts=2, passages=1)


def teacher():
    """The atlas's teacher, whose texts are counted with the tiny tokenizer."""
    told = plan_teacher("atlas/cold_start", Chat(), CONTEXT, budget=2, careless=0.2, world=lambda: SMALL)
    return dataclasses.replace(told, tokenizer=TOKENIZER)


def curate(output, asked=QUESTIONS, **options):
    parts = {
        "program": program,
        "collections": ExactCollections(("en",)),
        "teacher": teacher(),
        "batch": 16,
        "held_out": CHAINS[:2],
    }
    golden_plans(output, questions=asked, **(parts | options))


@pytest.fixture(scope="module")
def curated(tmp_path_factory):
    output = tmp_path_factory.mktemp("curated") / "run"
    curate(output)
    return output


def test_what_golden_plans_are(curated):
    rows, kept = json_lines(curated / "trajectories.jsonl"), json_lines(curated / "questions.jsonl")
    report = json.loads((curated / "report.json").read_text())
    assert (report["questions"], report["held_out"], report["trajectories"]) == (45, 2, len(rows))
    assert len(rows) == 43
    assert sum(report["removed"].values()) + report["kept"] == 43
    assert report["golden"]["questions"] == len(kept)
    removed = {name for name, count in report["removed"].items() if count}
    assert removed >= {"a bad plan: cyclic", "a bad plan: inconsistent order", "an unresolved sub-question"}
    assert set(report["golden"]["by_sub_questions"]) == {"1", "2"}
    assert len(kept) > 10
    page = (curated / "report.md").read_text()
    assert "| a bad plan: cyclic |" in page
    assert f"| questions with a golden plan | {len(kept)} |" in page


def test_the_questions_are_read_as_they_are(curated):
    questions = jsonl_questions([curated / "questions.jsonl"], dataset="golden_plans")
    by_id = {each.coupling: each for each in QUESTIONS}
    for question in questions:
        asked = by_id[question.id]
        assert (question.text, question.answers) == (asked.text, asked.answers)
        [golden] = plans_in(question.extra)
        steps = list(question.extra["golden_plans"][0].values())
        assert all(support.startswith("en/") for step in steps for support in step["supports"])
        if "plan" in asked.extra:  # the atlas's own golden plan is what its teacher plans
            [own] = plans_in(asked.extra)
            assert golden.plan == own.plan
            if "type" not in asked.extra:
                assert {*asked.answers} <= {*golden.answers["Q2"]}, "aliases of the answer are golden as well"


def test_several_plans_of_a_question(tmp_path):
    curate(tmp_path / "run", QUESTIONS[:3], teacher=Two(), trajectories=3, temperature=1.0, held_out=[])
    rows = json_lines(tmp_path / "run" / "questions.jsonl")
    assert [[graph["Q1"]["query"] for graph in row["extra"]["golden_plans"]] for row in rows] == [
        ["way 1?", "way 0?"]
    ] * 3
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report["golden"]["by_graphs"] == {"2": 3}
    assert report["trajectories"] == 9


def speak(message):
    """A chat model that leaves out stop strings, as endpoints do."""
    if "Write the plan." in message:
        return (
            '<think> a bridge </think><plan> {"Q1": ["Who directed Jaws?", "#1"], "Q2": ["Where was #1 born?", "#2"]}'
        )
    if "Search, or write" in message:
        return f"<search> {message.partition(': ')[2].splitlines()[0]}"
    if "<information>" in message:
        return "<subAnswer> #2 = Cincinnati" if "born" in message else "<subAnswer> #1 = Steven Spielberg"
    return "<answer> Cincinnati"


def test_a_model_behind_an_endpoint(tmp_path):
    asked = Question(id="1", dataset="d", language="en", text="Jaws' director's home?", answers=("Cincinnati",))
    with served(stand_in_chat(speak)) as url:
        model = endpoint_teacher("atlas/cold_start", Chat(), 4000, "stand-in", f"{url}/v1", concurrency=2)
        curate(tmp_path / "run", [asked], teacher=model, program=golden_trajectory, collections=PretendedCollections())
    [row] = json_lines(tmp_path / "run" / "questions.jsonl")
    [graph] = row["extra"]["golden_plans"]
    assert row["id"] == "d/1"
    assert graph["Q1"] == {
        "query": "Who directed Jaws?", "answer": ["Steven Spielberg"], "previous": [], "supports": [],
    }  # fmt: skip
    assert graph["Q2"]["previous"] == ["Q1"]
    [trajectory] = json_lines(tmp_path / "run" / "trajectories.jsonl")
    assert "<search> Where was Steven Spielberg born?</search>" in [turn["text"] for turn in trajectory["turns"]]


def test_more_trajectories_may_follow(tmp_path):
    curate(tmp_path / "run", QUESTIONS[:3], teacher=Two(), held_out=[])
    curate(tmp_path / "run", QUESTIONS[:3], teacher=Two(), held_out=[], trajectories=2)
    attempts = [row["attempt"] for row in json_lines(tmp_path / "run" / "trajectories.jsonl")]
    assert attempts == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("batches", [0, 1, 2])
def test_it_goes_on_after_a_kill(batches, curated, tmp_path, monkeypatch):
    output = tmp_path / "run"
    with interrupted_after(batches, monkeypatch):
        curate(output)
    with (output / "trajectories.jsonl").open("a") as file:
        file.write('{"key": "torn')
    curate(output)
    assert results(output) == results(curated)


def test_a_finished_curation_plays_nothing_again(curated, tmp_path, monkeypatch):
    output = shutil.copytree(curated, tmp_path / "run")
    monkeypatch.setattr(WritingTeacher, "play", lambda *arguments, **options: pytest.fail("it plays again"))
    curate(output)
    assert results(output) == results(curated)


@pytest.mark.parametrize(
    ("options", "clue"),
    [
        ({"temperature": 0.7}, "does not sample at a temperature of 0.7"),
        ({"answer": "guess"}, "answer reward.* 'guess'"),
        ({"asked": []}, "there is no question to curate"),
        ({"asked": QUESTIONS[:1] * 2}, "is there 2 times"),
    ],
)
def test_what_cannot_be_is_refused(options, clue, tmp_path):
    with pytest.raises(UserError, match=clue):
        curate(tmp_path / "run", **options)


def test_another_curation_is_not_mixed_in(curated, tmp_path):
    output = shutil.copytree(curated, tmp_path / "run")
    with pytest.raises(UserError, match="the content of its held_out differs"):
        curate(output, held_out=[])


@pytest.mark.slow
@pytest.mark.parametrize("teacher", ["plan_teacher", "policy_teacher"])
def test_the_command(teacher, tiny, tmp_path):
    """With the rule-based teacher, and with a policy that knows nothing."""
    sizes = ("golden/one_fact/atlas_questions.limit=4", "golden/chains/atlas_questions.limit=4")
    parts = ("golden_plans.collections=@load_collections()", "golden/atlas_comparisons.limit=4")
    parts += (f"golden_plans.teacher=@{teacher}()", "policy_teacher.policy=@policy()")
    options = {"gin_files": ("globalrag/atlas.gin",), "words": ("golden_plans",), "output": tmp_path / "made"}
    assert run("curate", tiny, *sizes, *parts, **options) == 0
    verdicts = [row["verdict"] for row in json_lines(tmp_path / "made" / "trajectories.jsonl")]
    assert len(verdicts) == 12
    assert teacher == "plan_teacher" or set(verdicts) == {"a bad plan: no plan"}
    assert (tmp_path / "made" / "report.md").is_file()


@pytest.mark.slow
def test_training_reads_them(curated, tiny, tmp_path):
    """A step of GlobalRAG on what was curated, by command."""
    files = f"train/jsonl_questions.files=('{curated / 'questions.jsonl'}',)"
    sizes = (
        "STEPS=1",
        "train.questions_per_step=2",
        "Method.samples=2",
        "train.evaluation=None",
        "Runner.answer_room=16",
    )
    sizes += ("train/jsonl_questions.dataset='golden_plans'",)
    options = {"gin_files": ("globalrag/atlas.gin", "data/jsonl_training.gin"), "output": tmp_path / "run"}
    assert run("train", tiny, files, *sizes, **options) == 0
    [record] = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert {"reward/structural", "reward/semantic", "reward/sub_goal"} <= record.keys()
    [first, *_] = json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl")
    assert first["dataset"] == "golden_plans"
    assert first["question_id"].startswith("atlas/")
    assert "Time of a training step" in (tmp_path / "run" / "report.md").read_text()
