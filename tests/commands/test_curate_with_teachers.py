"""`lcrag curate demonstrations`, `selection` and `golden_plans`: what is written, continued and refused."""

import contextlib
import dataclasses
import functools
import json
import shutil

import gin
import pytest
from experiment_parts import ExactCollections, assert_mistake, contents, json_lines, run
from support import tiny_tokenizer
from support.local_server import served, stand_in_chat
from support.pretended_collections import PretendedCollections

from lcrag.atlas import build_world
from lcrag.atlas.world import comparison_questions, conjunction_questions
from lcrag.commands.curate import demonstrations, golden_plans, selection
from lcrag.curation.playing import WritingTeacher, endpoint_teacher, play
from lcrag.data.questions import Question
from lcrag.data.rows import jsonl_questions
from lcrag.episodes import Chat
from lcrag.episodes.running_episode import ContextTokenizer
from lcrag.errors import UserError
from lcrag.methods.globalrag.golden import golden_trajectory, plan_teacher
from lcrag.methods.globalrag.plans import golden_plans as plans_in
from lcrag.methods.rag_r1.curation import KINDS, oracle_teacher
from lcrag.methods.rag_r1.program import rag_r1

WORLD = build_world(0)
SMALL = dataclasses.replace(WORLD, facts=WORLD.facts[:5], chains=())  # its fingerprint takes no time
TOKENIZER = ContextTokenizer(tiny_tokenizer(), Chat())
CHAINS, COMPARED = WORLD.questions("train", ["en"], hops=(2,)), comparison_questions(WORLD, "train", ["en"])[:15]
QUESTIONS = [*CHAINS[:20], *COMPARED, *conjunction_questions(WORLD, "train", ["en"])[:5]]
PLANNED = [*WORLD.questions("train", ["en"])[:15], *CHAINS[:15], *COMPARED]


@dataclasses.dataclass
class Scripted:
    """Writes what a function of (question, request, attempt) says; Ctrl-C after some batches."""

    script: object
    name: str = "scripted"
    batches: int | None = None
    played: list = dataclasses.field(default_factory=list)

    @property
    def hashes(self):
        return {"teacher": self.name}

    def play(self, jobs, search, *, temperature, attempt, progress):
        if self.batches == 0:
            raise KeyboardInterrupt
        self.batches = None if self.batches is None else self.batches - 1
        self.played.append((temperature, attempt))
        programs = [(question, program) for question, program, _ in jobs]
        write = lambda question, turns, request: self.script(question, request, attempt)  # noqa: E731
        return play(programs, write, search, TOKENIZER, context=3000)


def guess(question, request, attempt):
    """Answers a comparison with one of the two; which one depends on the attempt."""
    names = question.extra.get("entities", ["nothing"])
    return f"<answer> {names[(attempt + len(question.id)) % len(names)]}</answer>"


def two_plans(question, request, attempt):
    """Knows every answer, and another plan at each attempt."""
    ends = {"</plan>": f'<plan>{{"Q1": ["way {attempt % 2}?", "#1"]}}</plan>'}
    ends |= {"</subAnswer>": "<subAnswer> #1 = it </subAnswer>"}
    return ends.get(request.stop[-1], f"<answer> {question.answers[0]}</answer>")


def guessing(**options):
    return Scripted(guess, **options)


@functools.cache
def rule_based(planned):
    """The atlas's teachers, writing with the tiny tokenizer."""
    make, options = (plan_teacher, {"budget": 2, "careless": 0.2}) if planned else (oracle_teacher, {})
    told = make(
        "atlas/cold_start", Chat(), 3000 if planned else 1500, world=lambda: SMALL if planned else WORLD, **options
    )
    return dataclasses.replace(told, tokenizer=TOKENIZER)


def curated(command, output, teacher, program, **options):
    gin.clear_config()  # what earlier tests have used is no part of this configuration
    command(output, **({"program": program, "collections": ExactCollections(("en",)), "teacher": teacher} | options))


def searching(question, languages):
    return rag_r1(question, languages, wording="atlas", passages=1)


def planning(question, languages):
    return golden_trajectory(question, languages, wording="atlas", attempts=2, passages=1)


def demonstrate(output, teacher=None, **options):
    options = {"questions": QUESTIONS, "batch": 16} | options
    curated(demonstrations, output, teacher or rule_based(False), searching, **options)


def select(output, demonstrated, teacher=None, **options):
    options = {"questions": QUESTIONS, "batch": 4, "rollouts": 3, "validation_share": 0.3} | options
    curated(selection, output, teacher or guessing(), searching, demonstrated=str(demonstrated), **options)


def plan(output, teacher=None, **options):
    options = {"questions": PLANNED, "batch": 16, "held_out": CHAINS[:2], "program": planning} | options
    curated(golden_plans, output, teacher or rule_based(True), **options)


def results(folder):
    """All files of a run except those that record when, by which call and how it was made."""
    about = "run.json", "config.gin"
    return {path.name: content for path, content in contents(folder).items() if path.name not in about}


def report_of(folder):
    return json.loads((folder / "report.json").read_text())


@contextlib.contextmanager
def interrupted_after(batches, monkeypatch):
    """Expects a Ctrl-C after some batches of a `WritingTeacher`."""
    whole, left = WritingTeacher.play, iter(range(batches))

    def play(self, *arguments, **options):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return whole(self, *arguments, **options)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(WritingTeacher, "play", play)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The output folders of whole runs."""
    folder = tmp_path_factory.mktemp("finished")
    demonstrate(folder / "demonstrated")
    select(folder / "selected", folder / "demonstrated")
    plan(folder / "planned")
    return folder


def test_what_demonstrations_are(finished):
    demonstrated = finished / "demonstrated"
    episodes, rows = json_lines(demonstrated / "episodes.jsonl"), json_lines(demonstrated / "rows.jsonl")
    report = report_of(demonstrated)
    assert report["questions"] == len(episodes) == len({episode["key"] for episode in episodes}) == 40
    assert sum(report["verdicts"].values()) == 40
    assert report["right"] == sum(each["correct"] for each in episodes)
    kept = [episode for episode in episodes if episode["verdict"] == "kept"]
    assert 10 < len(kept) < 40
    assert {row["question_id"] for row in rows} == {each["question_id"] for each in kept}
    assert report["rows"] == len(rows) == sum(report["kinds"].values())
    assert set(report["kinds"]) == set(KINDS)
    assert all(report["kinds"][kind] > 0 for kind in KINDS[1:4])  # the oracle answers nothing unread
    assert '{"query": [' in rows[-1]["turns"][-2]["text"]
    assert rows[-1]["turns"][-1]["text"].endswith("</answer>")


def test_what_a_selection_is(finished):
    demonstrated, selected = finished / "demonstrated", finished / "selected"
    first = {row["key"]: row["correct"] for row in json_lines(demonstrated / "episodes.jsonl")}
    rollouts, report = json_lines(selected / "rollouts.jsonl"), report_of(selected)
    solved, tried = {row["key"] for row in rollouts if row["correct"]}, {row["key"] for row in rollouts}
    assert solved
    assert tried - solved
    assert tried == {key for key, right in first.items() if not right}
    for row in rollouts:  # nothing is sampled again once it was right, and nothing more than three times
        earlier = [other for other in rollouts if other["key"] == row["key"] and other["attempt"] < row["attempt"]]
        assert row["attempt"] == len(earlier) + 1 <= 3
        assert not any(other["correct"] for other in earlier)
    train, validation, everything = (
        {f"{row['id']}/{row['language']}": row["extra"] for row in json_lines(selected / f"{name}.jsonl")}
        for name in ("train", "validation", "unfiltered")
    )
    because = [extra["selected_because"] for extra in (*train.values(), *validation.values())]
    assert because.count("wrong at first") == len(solved)
    assert because.count("right at first") == round(0.25 * sum(first.values()))
    written = {"train.jsonl": len(train), "validation.jsonl": len(validation), "unfiltered.jsonl": len(everything)}
    assert (report["written"], report["never_right"]) == (written, len(tried - solved))
    # Training without filtering by rollouts has the same questions, and those that were never right.
    wrong = {key.partition("/")[2] for key, right in first.items() if not right}
    assert everything.keys() == (train.keys() | wrong) - validation.keys()
    assert everything.keys() > train.keys()
    assert {key: everything[key] for key in train} == train
    assert {everything[key]["rollouts_to_right"] for key in everything.keys() - train.keys()} == {0}


def test_rollouts_have_their_temperature_and_numbers(finished, tmp_path):
    select(tmp_path / "run", finished / "demonstrated", teacher := guessing(), batch=100)
    assert teacher.played == [(1.2, 1), (1.2, 2), (1.2, 3)]


def test_what_golden_plans_are(finished):
    planned = finished / "planned"
    rows, questions = json_lines(planned / "trajectories.jsonl"), json_lines(planned / "questions.jsonl")
    report, page = report_of(planned), (planned / "report.md").read_text()
    assert (report["questions"], report["held_out"], report["trajectories"]) == (45, 2, len(rows))
    assert sum(report["removed"].values()) + report["kept"] == len(rows) == 43
    assert report["golden"]["questions"] == len(questions) > 10
    removed = {name for name, count in report["removed"].items() if count}
    assert removed >= {"a bad plan: cyclic", "a bad plan: inconsistent order", "an unresolved sub-question"}
    assert set(report["golden"]["by_sub_questions"]) == {"1", "2"}
    assert "| a bad plan: cyclic |" in page
    assert f"| questions with a golden plan | {len(questions)} |" in page


def test_planned_questions_are_read_as_they_are(finished):
    by_id = {each.coupling: each for each in PLANNED}
    for question in jsonl_questions([finished / "planned" / "questions.jsonl"], dataset="golden_plans"):
        asked = by_id[question.id]
        assert (question.text, question.answers) == (asked.text, asked.answers)
        [golden] = plans_in(question.extra)
        steps = list(question.extra["golden_plans"][0].values())
        assert all(support.startswith("en/") for step in steps for support in step["supports"])
        if "plan" in asked.extra:  # the atlas's own golden plan is what its teacher plans
            [known] = plans_in(asked.extra)
            assert golden.plan == known.plan
            if "type" not in asked.extra:
                assert {*asked.answers} <= {*golden.answers["Q2"]}, "aliases of the answer are golden as well"


def test_more_trajectories_may_follow_and_give_several_plans(tmp_path):
    options = {"questions": PLANNED[:3], "held_out": [], "temperature": 1.0}
    for trajectories in (1, 2, 3):
        plan(tmp_path / "run", Scripted(two_plans), trajectories=trajectories, **options)
    attempts = [row["attempt"] for row in json_lines(tmp_path / "run" / "trajectories.jsonl")]
    assert attempts == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    rows, report = json_lines(tmp_path / "run" / "questions.jsonl"), report_of(tmp_path / "run")
    plans = [[graph["Q1"]["query"] for graph in row["extra"]["golden_plans"]] for row in rows]
    assert plans == [["way 1?", "way 0?"]] * 3
    assert (report["golden"]["by_graphs"], report["trajectories"]) == ({"2": 3}, 9)


def speak(message):
    """A chat model that leaves out stop strings, as endpoints do."""
    if "Write the plan." in message:
        return '<plan> {"Q1": ["Who directed Jaws?", "#1"], "Q2": ["Where was #1 born?", "#2"]}'
    if "Search, or write" in message:
        return f"<search> {message.partition(': ')[2].splitlines()[0]}"
    if "<information>" in message:
        return "<subAnswer> #2 = Cincinnati" if "born" in message else "<subAnswer> #1 = Steven Spielberg"
    return "<answer> Cincinnati"


def test_a_model_behind_an_endpoint(tmp_path):
    asked = Question(id="1", dataset="d", language="en", text="Jaws' director's home?", answers=("Cincinnati",))
    options = {"questions": [asked], "program": golden_trajectory, "collections": PretendedCollections()}
    with served(stand_in_chat(speak)) as url:
        plan(
            tmp_path / "run",
            endpoint_teacher("atlas/cold_start", Chat(), 4000, "stand-in", f"{url}/v1", concurrency=2),
            **options,
        )
    [row] = json_lines(tmp_path / "run" / "questions.jsonl")
    [graph] = row["extra"]["golden_plans"]
    assert row["id"] == "d/1"
    assert graph["Q1"] == {
        "query": "Who directed Jaws?", "answer": ["Steven Spielberg"], "previous": [], "supports": [],
    }  # fmt: skip
    assert graph["Q2"]["previous"] == ["Q1"]
    [trajectory] = json_lines(tmp_path / "run" / "trajectories.jsonl")
    assert "<search> Where was Steven Spielberg born?</search>" in [turn["text"] for turn in trajectory["turns"]]


@pytest.mark.parametrize(("kind", "batches"), [("demonstrated", 0), ("demonstrated", 2), ("planned", 1)])
def test_it_goes_on_after_a_kill(kind, batches, finished, tmp_path, monkeypatch):
    output = tmp_path / "run"
    call, journal = (demonstrate, "episodes") if kind == "demonstrated" else (plan, "trajectories")
    with interrupted_after(batches, monkeypatch):
        call(output)
    with (output / f"{journal}.jsonl").open("a") as file:
        file.write('{"key": "torn')
    assert not (output / "report.json").exists()
    call(output)
    assert results(output) == results(finished / kind)
    with monkeypatch.context() as patched:  # finished, it plays nothing again
        patched.setattr(WritingTeacher, "play", lambda *arguments, **options: pytest.fail("it plays again"))
        call(output)
    assert results(output) == results(finished / kind)
    assert len(json.loads((output / "run.json").read_text())["continued"]) == 2


@pytest.mark.parametrize("batches", [0, 4])
def test_a_selection_goes_on_after_a_kill(batches, finished, tmp_path):
    output = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        select(output, finished / "demonstrated", guessing(batches=batches))
    done = json_lines(output / "rollouts.jsonl") if batches else []
    assert len(done) < len(json_lines(finished / "selected" / "rollouts.jsonl"))
    for teacher in (guessing(), guessing(batches=0)):
        select(output, finished / "demonstrated", teacher)
        assert results(output) == results(finished / "selected")


@pytest.mark.parametrize(
    ("call", "options", "clue"),
    [
        (demonstrate, {"questions": QUESTIONS[1:]}, "questions"),  # of another run
        (plan, {"held_out": []}, "held_out"),
        (demonstrate, {"temperature": 0.7}, "0.7"),
        (plan, {"answer": "guess"}, "'guess'"),
        (demonstrate, {"questions": []}, "no question"),
        (plan, {"questions": QUESTIONS[:1] * 2}, "2 times"),
        (demonstrate, {"batch": 0}, "batch"),
    ],
)
def test_what_cannot_be_is_refused(call, options, clue, finished, tmp_path):
    output = tmp_path / "run"
    if clue in ("questions", "held_out"):
        shutil.copytree(finished / ("demonstrated" if call is demonstrate else "planned"), output)
    with pytest.raises(UserError, match=clue):
        call(output, **options)


def test_the_kind_may_be_bound(tiny, tmp_path, capsys):
    bindings = ("curate.kind='selection'", "selection.demonstrated='nowhere'", "COLLECTIONS=@load_collections()")
    assert run("curate", tiny, *bindings, gin_files=("rag_r1/atlas.gin",), output=tmp_path / "run") == 2
    assert_mistake(capsys, "nowhere")


@pytest.mark.slow
def test_a_policy_selects_by_command(tiny, tmp_path):
    """The very commands of the pages, with a policy that knows nothing."""
    sizes = ("CONTEXT=160", "train/one_fact/atlas_questions.limit=4", "train/chains/atlas_questions.limit=4")
    sizes += ("train/atlas_comparisons.limit=8", "train/atlas_conjunctions.limit=4")
    sizes += ("COLLECTIONS=@load_collections()", "selection.validation_share=0.3")
    options = {"gin_files": ("rag_r1/atlas.gin",), "words": ("demonstrations",), "output": tmp_path / "made"}
    assert run("curate", tiny, *sizes, **options) == 0
    named = (f"selection.demonstrated='{tmp_path / 'made'}'", "selection.rollouts=2", "selection.easy_share=1.0")
    options |= {"words": ("selection",), "output": tmp_path / "chosen"}
    assert run("curate", tiny, *sizes, *named, **options) == 0
    assert {row["attempt"] for row in json_lines(tmp_path / "chosen" / "rollouts.jsonl")} <= {1, 2}
