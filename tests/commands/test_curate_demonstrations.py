"""`lcrag curate`: demonstrations and the selection of questions; what is written, continued and refused."""

import dataclasses
import functools
import json
import shutil

import gin
import pytest
from curation_parts import TOKENIZER, WORLD, interrupted_after, results
from experiment_parts import ExactCollections, assert_mistake, json_lines, run

from lcrag.atlas.independent_facts import comparison_questions, conjunction_questions
from lcrag.commands.curate import demonstrations, selection
from lcrag.curation.playing import play
from lcrag.episodes import Chat
from lcrag.errors import UserError
from lcrag.methods.rag_r1.curation import KINDS
from lcrag.methods.rag_r1.oracle import oracle_teacher
from lcrag.methods.rag_r1.program import rag_r1

QUESTIONS = [
    *WORLD.questions("train", ["en"], hops=(2,))[:20],
    *comparison_questions(WORLD, "train", ["en"])[:15],
    *conjunction_questions(WORLD, "train", ["en"])[:5],
]
CONTEXT = 1500


@dataclasses.dataclass
class Guessing:
    """Answers a comparison with one of the two, which one depends on the attempt; Ctrl-C after some batches."""

    hashes = {"teacher": "guessing"}
    batches: int | None = None
    budgets: list = dataclasses.field(default_factory=list)

    def play(self, cast, search, *, temperature, attempt, progress):
        if self.batches == 0:
            raise KeyboardInterrupt
        self.batches = None if self.batches is None else self.batches - 1
        self.budgets.append((temperature, attempt))

        def guess(question, turns, request):
            names = question.extra.get("entities", ["nothing"])
            return f"<answer> {names[(attempt + len(question.id)) % len(names)]}</answer>"

        programs = [(question, program) for question, program, _ in cast]
        return play(programs, guess, search, TOKENIZER, context=CONTEXT)


def program(question, languages):
    return rag_r1(question, languages, wording="atlas", passages=1)


@functools.cache
def oracle():
    """The oracle, writing with the tiny tokenizer; the fingerprint of its world takes seconds."""
    told = oracle_teacher("atlas/cold_start", Chat(), CONTEXT)
    return dataclasses.replace(told, tokenizer=TOKENIZER)


def demonstrate(output, teacher=None, questions=QUESTIONS, **options):
    teacher = teacher or oracle()
    gin.clear_config()  # what earlier tests have used is no part of this configuration
    parts = {"program": program, "collections": ExactCollections(("en",)), "teacher": teacher, "batch": 16}
    demonstrations(output, questions=questions, **(parts | options))


def select(output, demonstrated, teacher=None, **options):
    gin.clear_config()
    parts = {"program": program, "collections": ExactCollections(("en",)), "teacher": teacher or Guessing(), "batch": 4}
    parts |= {"rollouts": 3, "validation_share": 0.3, "demonstrated": str(demonstrated), "questions": QUESTIONS}
    selection(output, **(parts | options))


@pytest.fixture(scope="module")
def demonstrated(tmp_path_factory):
    output = tmp_path_factory.mktemp("demonstrated") / "run"
    demonstrate(output)
    return output


@pytest.fixture(scope="module")
def selected(demonstrated, tmp_path_factory):
    output = tmp_path_factory.mktemp("selected") / "run"
    select(output, demonstrated)
    return output


def test_what_demonstrations_are(demonstrated):
    episodes, rows = json_lines(demonstrated / "episodes.jsonl"), json_lines(demonstrated / "rows.jsonl")
    report = json.loads((demonstrated / "report.json").read_text())
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


def test_what_a_selection_is(demonstrated, selected):
    first = {row["key"]: row["correct"] for row in json_lines(demonstrated / "episodes.jsonl")}
    rollouts = json_lines(selected / "rollouts.jsonl")
    assert rollouts
    assert not any(first[row["key"]] for row in rollouts)
    solved = {row["key"] for row in rollouts if row["correct"]}
    tried = {row["key"] for row in rollouts}
    assert solved
    assert tried - solved
    assert tried == {key for key, right in first.items() if not right}
    for row in rollouts:  # nothing is sampled again once it was right, and nothing more than three times
        earlier = [other for other in rollouts if other["key"] == row["key"] and other["attempt"] < row["attempt"]]
        assert row["attempt"] == len(earlier) + 1 <= 3
        assert not any(other["correct"] for other in earlier)
    questions = [*json_lines(selected / "train.jsonl"), *json_lines(selected / "validation.jsonl")]
    because = [question["extra"]["selected_because"] for question in questions]
    assert because.count("wrong at first") == len(solved)
    assert because.count("right at first") == round(0.25 * sum(first.values()))
    report = json.loads((selected / "report.json").read_text())
    files = ("train.jsonl", "validation.jsonl", "unfiltered.jsonl")
    assert report["written"] == {name: len(json_lines(selected / name)) for name in files}
    assert report["never_right"] == len(tried - solved)


def test_what_training_would_have_without_rollouts(demonstrated, selected):
    first = {row["key"]: row["correct"] for row in json_lines(demonstrated / "episodes.jsonl")}
    train, validation, everything = (
        {f"{row['id']}/{row['language']}": row["extra"] for row in json_lines(selected / f"{name}.jsonl")}
        for name in ("train", "validation", "unfiltered")
    )
    wrong = {key.partition("/")[2] for key, right in first.items() if not right}
    assert everything.keys() == (train.keys() | wrong) - validation.keys()
    assert everything.keys() > train.keys()
    assert {key: everything[key] for key in train} == train
    assert {everything[key]["rollouts_to_right"] for key in everything.keys() - train.keys()} == {0}


def test_rollouts_have_their_temperature_and_numbers_of_their_own(demonstrated, tmp_path):
    teacher = Guessing()
    select(tmp_path / "run", demonstrated, teacher, batch=100)
    assert teacher.budgets == [(1.2, 1), (1.2, 2), (1.2, 3)]


def test_demonstrations_go_on_after_a_kill(demonstrated, tmp_path, monkeypatch):
    output = tmp_path / "run"
    with interrupted_after(1, monkeypatch):
        demonstrate(output)
    assert len(json_lines(output / "episodes.jsonl")) == 16
    assert not (output / "rows.jsonl").exists()
    with (output / "episodes.jsonl").open("a") as file:
        file.write('{"key": "torn')
    demonstrate(output)
    assert results(output) == results(demonstrated)
    assert len(json.loads((output / "run.json").read_text())["continued"]) == 1


@pytest.mark.parametrize("batches", [0, 1, 2, 4])
def test_a_selection_goes_on_after_a_kill(batches, demonstrated, selected, tmp_path):
    output = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        select(output, demonstrated, Guessing(batches=batches))
    done = json_lines(output / "rollouts.jsonl") if batches else []
    assert len(done) < len(json_lines(selected / "rollouts.jsonl"))
    select(output, demonstrated)
    assert results(output) == results(selected)


def test_a_finished_curation_plays_nothing_again(demonstrated, selected, tmp_path):
    output = shutil.copytree(selected, tmp_path / "run")
    select(output, demonstrated, Guessing(batches=0))
    assert results(output) == results(selected)


def test_another_curation_is_not_mixed_in(demonstrated, selected, tmp_path):
    output = shutil.copytree(demonstrated, tmp_path / "demonstrations")
    with pytest.raises(UserError, match="holds another run: the content of its questions"):
        demonstrate(output, questions=QUESTIONS[1:])
    output = shutil.copytree(selected, tmp_path / "selection")
    other = Guessing()
    other.hashes = {"teacher": "another"}
    with pytest.raises(UserError, match="the content of its teacher differs"):
        select(output, demonstrated, other)


@pytest.mark.parametrize(
    ("options", "clue"),
    [
        ({"temperature": 0.7}, "does not sample at a temperature of 0.7"),
        ({"answer": "guess"}, "answer reward.* 'guess'"),
        ({"questions": []}, "there is no question to curate"),
        ({"questions": QUESTIONS[:1] * 2}, "is there 2 times"),
    ],
)
def test_demonstrations_that_cannot_be_are_refused(options, clue, tmp_path):
    with pytest.raises(UserError, match=clue):
        demonstrate(tmp_path / "run", **options)


def test_a_selection_needs_demonstrations(tmp_path):
    with pytest.raises(UserError, match="holds no demonstrations"):
        select(tmp_path / "run", tmp_path / "nowhere")


def test_the_kind_may_be_bound(tiny, tmp_path, capsys):
    bindings = ("curate.kind='selection'", "selection.demonstrated='nowhere'", "COLLECTIONS=@load_collections()")
    assert run("curate", tiny, *bindings, gin_files=("rag_r1/atlas.gin",), output=tmp_path / "run") == 2
    assert_mistake(capsys, "nowhere holds no demonstrations")
    assert run("curate", tiny, words=("selection",), gin_files=("rag_r1/atlas.gin",)) == 2
    assert_mistake(capsys, "needs a folder")


@pytest.mark.slow
def test_a_policy_selects_by_command(tiny, tmp_path):
    """The very commands of the pages, with a policy that knows nothing."""
    sizes = ("CONTEXT=160", "train/one_fact/atlas_questions.limit=4", "train/chains/atlas_questions.limit=4")
    parts = (
        "COLLECTIONS=@load_collections()",
        "train/atlas_comparisons.limit=8",
        "train/atlas_conjunctions.limit=4",
        "selection.validation_share=0.3",
    )
    whole = ("selection.rollouts=2", "selection.easy_share=1.0")
    options = {"gin_files": ("rag_r1/atlas.gin",), "words": ("demonstrations",), "output": tmp_path / "made"}
    assert run("curate", tiny, *sizes, *parts, **options) == 0
    named = f"selection.demonstrated='{tmp_path / 'made'}'"
    options |= {"words": ("selection",), "output": tmp_path / "chosen"}
    assert run("curate", tiny, *sizes, *parts, *whole, named, **options) == 0
    assert {row["attempt"] for row in json_lines(tmp_path / "chosen" / "rollouts.jsonl")} <= {1, 2}
