"""`lcrag curate`: what every kind writes, continues after a kill, and refuses."""

import codecs
import collections
import contextlib
import dataclasses
import functools
import json
import os
import re
import shutil
import signal
import threading

import gin
import pytest
from experiment_parts import ExactCollections, assert_mistake, contents, json_lines
from support import tiny_tokenizer
from support.local_server import served, stand_in_chat
from support.pretended_collections import PretendedCollections
from support.row_files import write_rows

from lcrag import main
from lcrag.atlas import build_world
from lcrag.atlas.world import atlas_comparisons, atlas_conjunctions
from lcrag.commands.curate import curated as compared
from lcrag.commands.curate import demonstrations, golden_plans, selection
from lcrag.curation.playing import WritingTeacher, endpoint_teacher, play
from lcrag.data.questions import Question
from lcrag.data.rows import jsonl_questions
from lcrag.episodes import Chat
from lcrag.episodes.chat import ContextTokenizer
from lcrag.errors import AbsentError, UserError
from lcrag.methods.globalrag.golden import golden_trajectory, plan_teacher
from lcrag.methods.globalrag.plans import golden_plans as plans_in
from lcrag.methods.rag_r1.curation import KINDS, oracle_teacher
from lcrag.methods.rag_r1.program import rag_r1
from lcrag.methods.translate_r1.pipeline import ModelRequest
from lcrag.rewards import token_f1
from lcrag.train.evaluation import Evaluation

WORLD = build_world(0)
SMALL = dataclasses.replace(WORLD, facts=WORLD.facts[:5], chains=())  # its fingerprint takes no time
TOKENIZER = ContextTokenizer(tiny_tokenizer(), Chat())
CHAINS, COMPARED = WORLD.questions("train", ["en"], hops=(2,)), atlas_comparisons("train", ["en"])[:15]
QUESTIONS = [*CHAINS[:20], *COMPARED, *atlas_conjunctions("train", ["en"])[:5]]
PLANNED = [*WORLD.questions("train", ["en"])[:15], *CHAINS[:15], *COMPARED]


@dataclasses.dataclass
class Scripted:
    """Writes what a function of (question, request, attempt) says; Ctrl-C after some batches."""

    script: object
    name: str = "scripted"
    batches: int | None = None
    failure: str | None = None
    played: list = dataclasses.field(default_factory=list)

    @property
    def hashes(self):
        return {"teacher": self.name}

    def play(self, jobs, search, *, temperature, attempt):
        if self.batches == 0:
            raise KeyboardInterrupt
        self.batches = None if self.batches is None else self.batches - 1
        self.played.append((temperature, attempt))
        programs = [(question, program) for question, program, _ in jobs]
        write = lambda question, turns, request: self.script(question, request, attempt)  # noqa: E731
        records = play(programs, write, search, TOKENIZER, context=3000)
        return [dataclasses.replace(record, failure=self.failure) for record in records]


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
    """All files of a run except those that record when, by which call and how it was made; journals in any order."""
    files = {path.name: content for path, content in contents(folder).items()}
    journals = {"episodes.jsonl", "rollouts.jsonl", "trajectories.jsonl", "requests.jsonl"} & files.keys()
    about = dict.fromkeys(("run.json", "config.gin"))
    return files | {name: sorted(files[name].splitlines()) for name in journals} | about


def report_of(folder):
    return json.loads((folder / "report.json").read_text())


@contextlib.contextmanager
def interrupted_after(episodes, monkeypatch):
    """Expects a Ctrl-C after some episodes of a `WritingTeacher`."""
    whole, left = WritingTeacher.play, iter(range(episodes))

    def play(self, *arguments, **options):
        for record in whole(self, *arguments, **options):
            if next(left, None) is None:
                raise KeyboardInterrupt
            yield record

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(WritingTeacher, "play", play)
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
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


def test_rejection_sampling_keeps_what_earned_enough(tmp_path):
    options = {"questions": QUESTIONS, "samples": 3, "temperature": 1.0, "segmented": False}
    options |= {"answer": "token_f1", "min_reward": 0.5}
    with pytest.raises(KeyboardInterrupt):
        demonstrate(tmp_path / "run", guessing(batches=4), **options)
    for batches in (None, 0):  # it goes on, and then there is nothing left
        demonstrate(tmp_path / "run", guessing(batches=batches), **options)
    episodes, rows = (json_lines(tmp_path / "run" / f"{name}.jsonl") for name in ("episodes", "rows"))
    attempts = collections.defaultdict(list)
    for episode in episodes:
        score = token_f1([episode["answer"]], [episode["golds"]])[0]
        assert (episode["verdict"] == "kept") == (score >= 0.5)
        attempts[episode["key"]].append((episode["attempt"], episode["verdict"] == "kept"))
    assert {*attempts} == {question.key for question in QUESTIONS}
    for tried in attempts.values():  # until one is kept
        assert [number for number, _ in tried] == list(range(len(tried)))
        assert not any(kept for _, kept in tried[:-1])
        assert tried[-1][1] or len(tried) == 3
    assert {len(tried) for tried in attempts.values() if tried[-1][1]} > {1}
    assert [row["kind"] for row in rows] == ["episode"] * sum(tried[-1][1] for tried in attempts.values())


def test_episodes_with_tool_calls_are_not_cut(tmp_path):
    call = '<tool_call>{"name": "search"}</tool_call>'
    teacher = Scripted(lambda question, *_: f"{call} <answer> {question.answers[0]}</answer>")
    options = {"teacher": teacher, "questions": QUESTIONS[:1]}
    for _ in range(2):
        with pytest.raises(UserError, match="segmented"):
            demonstrate(tmp_path / "run", **options)
    demonstrate(tmp_path / "run", **options, segmented=False)
    assert report_of(tmp_path / "run")["episodes"] == 1


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
    assert report["context_full"] == sum(row["context_full"] for row in rollouts) == 0
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
    report = report_of(planned)
    assert (report["questions"], report["held_out"], report["trajectories"]) == (45, 2, len(rows))
    assert sum(report["removed"].values()) + report["kept"] == len(rows) == 43
    assert report["golden"]["questions"] == len(questions) > 10
    removed = {name for name, count in report["removed"].items() if count}
    assert removed >= {"a bad plan: cyclic", "a bad plan: inconsistent order", "an unresolved sub-question"}
    assert set(report["golden"]["by_sub_questions"]) == {"1", "2"}


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


@pytest.mark.parametrize(("kind", "episodes"), [("demonstrated", 0), ("demonstrated", 19), ("planned", 7)])
def test_it_goes_on_after_a_kill(kind, episodes, finished, tmp_path, monkeypatch):
    output = tmp_path / "run"
    call, journal = (demonstrate, "episodes") if kind == "demonstrated" else (plan, "trajectories")
    with interrupted_after(episodes, monkeypatch):
        call(output)
    if episodes:
        assert len(json_lines(output / f"{journal}.jsonl")) == episodes
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
        (demonstrate, {"teacher": guessing(failure="no route")}, "no route"),
    ],
)
def test_what_cannot_be_is_refused(call, options, clue, finished, tmp_path):
    output = tmp_path / "run"
    if clue in ("questions", "held_out"):
        shutil.copytree(finished / ("demonstrated" if call is demonstrate else "planned"), output)
    with pytest.raises(UserError, match=clue):
        call(output, **options)


# --- Translations ---

NOWHERE = "http://127.0.0.1:9"
# A name in the problem says what goes wrong with it, and at which stage.
FAILURES = {
    "Silva": "forward translation",
    "Ecco": "heuristics",
    "Muto": "back-translation",
    "Lossy": "back-translation",
    "Dirk": "judge",
}
SOUND = ("Anna", "Bert", "Cleo", "Dora", "Emil", "Faye", "Gina")
NAMES = (*FAILURES, *SOUND)


def problem(name):
    return f"{name} has 3 apples and buys 5 more at the market in town. How many apples does {name} have now?"


def turned(text):
    """What the stand-in calls a translation, and its back-translation too."""
    return codecs.encode(text, "rot13")


def translate_or_fail(prompt):
    """A model that translates by turning letters, and fails as the names want it."""
    if "<original>" in prompt:
        return f"Let me see. <verdict>{'DIFFERENT' if 'Dirk' in prompt else 'same'}</verdict>"
    text = re.search(r"<input>\n(.*)\n</input>", prompt, re.DOTALL)[1]
    if "from English to" in prompt:
        said = text if "Ecco" in text else turned(text)
        return "I cannot." if "Silva" in text else f"<output>{said}</output>"
    lossy = "Lossy" in turned(text)
    said = "Nothing at all is left." if lossy else turned(text).replace("at the market ", "")
    return "I cannot." if "Muto" in turned(text) else f"<output>{said}</output>"


class Served:
    """Answers as a translator, and counts the requests by their prompts; `before` is called with the number of each."""

    def __init__(self, before=lambda number: None):
        self.prompts, self._before, self._lock = collections.Counter(), before, threading.Lock()

    def __call__(self, prompt):
        with self._lock:
            self.prompts[prompt] += 1
            number = self.prompts.total()
        return self._before(number) or translate_or_fail(prompt)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A file of problems, of which one is too short of language and one in two languages."""
    rows = [
        {"id": name, "language": "en", "question": problem(name), "answers": ["8"], "extra": {"domain": "mathematics"}}
        for name in NAMES
    ]
    rows.append(rows[-1] | {"id": "formula", "question": "$1 + 2 = 3$ + 4"})
    rows.append(rows[-2] | {"language": "fi", "question": "Montako omenaa Ginalla on?"})
    return write_rows(tmp_path_factory.mktemp("source") / "source.jsonl", *rows)


def translate(source, output, url, *bindings):
    gin.clear_config()
    given = (
        f"source/jsonl_questions.files=['{source}']",
        "LANGUAGES=('en', 'fi', 'am')",
        "translations.places=5",
        "translator/EndpointModel.model='strong'",
        "judge/EndpointModel.model='stern'",
        f"EndpointModel.url='{url}/v1'",
        "EndpointModel.attempts=1",
    )
    line = ["curate", "translations", "--gin_file=translate_r1/pipeline.gin", f"--output_dir={output}"]
    return main.run(line + [f"--gin.{binding}" for binding in (*given, *bindings)])


@pytest.fixture(scope="module")
def translated(source, tmp_path_factory):
    """The output of a whole run; later calls find nothing to do in it."""
    output = tmp_path_factory.mktemp("translated") / "run"
    with served(stand_in_chat(chat := Served())) as url:
        assert translate(source, output, url) == 0
    assert set(chat.prompts.values()) <= {1, 4}
    return output


def test_every_stage_removes_and_every_place_is_filled(translated):
    report = report_of(translated)
    assert report["sources"] == {"mathematics": {"read": 13, "removed": {"too little natural language": 1}}}
    english, finnish, amharic = report["languages"]
    assert (english["filled"], english["attempts"]) == (5, 5)
    assert english["chrf"] is None
    for language in (finnish, amharic):
        assert language["filled"] == language["places"] == 5
        removed = sum(sum(causes.values()) for causes in language["removed"].values())
        assert language["attempts"] == 5 + removed
        assert 0.8 < language["chrf"] < 1
    attempts = json_lines(translated / "attempts.jsonl")
    assert all(row["removed_by"] == FAILURES.get(row["id"]) for row in attempts if row["language"] not in ("en",))
    assert (translated / "report.md").read_text().count("| Amharic | 5 | 5 |") == 1
    rows = json_lines(translated / "requests.jsonl")
    assert report["requests"] == dict(sorted(collections.Counter(row["role"] for row in rows).items()))


def test_what_is_written_is_read_as_coupled_questions(translated):
    questions = jsonl_questions([translated / "questions.jsonl"], dataset="made")
    assert collections.Counter(question.language for question in questions) == {"en": 5, "fi": 5, "am": 5}
    by_id = collections.defaultdict(dict)
    for question in questions:
        by_id[question.id][question.language] = question
        assert question.answers == ("8",)
        assert question.domain == "mathematics"
    several = [versions for versions in by_id.values() if len(versions) == 3]
    assert several  # the order of the sources is the same in every language
    assert any("Montako" in versions["fi"].text for versions in by_id.values() if "fi" in versions)
    made = next(versions["am"] for versions in by_id.values() if "am" in versions)
    assert made.extra["original"] == turned(made.text)
    assert made.extra["translated_from"] == "en"


def test_a_stopped_run_goes_on_and_pays_for_nothing_twice(source, tmp_path, translated):
    output, in_flight, stopped_at = tmp_path / "run", 3, 14

    def stop(number):
        if number == stopped_at:
            os.kill(os.getpid(), signal.SIGINT)

    with served(stand_in_chat(chat := Served(before=stop))) as url:
        assert translate(source, output, url, f"EndpointModel.in_flight={in_flight}") == 130
        kept = {row["key"] for row in json_lines(output / "requests.jsonl")}
        assert len(kept) >= stopped_at - 2 * in_flight
        assert not (output / "questions.jsonl").exists()
        with (output / "requests.jsonl").open("a") as file:
            file.write('{"key": "torn')
        assert translate(source, output, url, "EndpointModel.in_flight=8") == 0
    whole = json_lines(output / "requests.jsonl")
    assert len({row["key"] for row in whole}) == len(whole)
    # Only what was in flight, of the translator and of the judge, is asked again, and nothing that was written.
    assert chat.prompts.total() - len(whole) <= 2 * in_flight
    again = [prompt for prompt, count in chat.prompts.items() if count > 1 and "<input>" in prompt]
    assert not kept & {ModelRequest(role="translator", prompt=each, max_tokens=2048).key("strong") for each in again}
    expected, made = results(translated), results(output)
    for name in ("requests.jsonl", "questions.jsonl", "attempts.jsonl", "report.json"):
        assert made[name] == expected[name]


def test_a_finished_run_asks_nothing_and_is_not_mixed_with_another(source, translated, capsys):
    before = results(translated)
    assert translate(source, translated, NOWHERE, "EndpointModel.seconds=1.0") == 0
    assert results(translated)["questions.jsonl"] == before["questions.jsonl"]
    assert results(translated)["requests.jsonl"] == before["requests.jsonl"]
    assert translate(source, translated, NOWHERE, "translator/EndpointModel.model='other'") == 2
    assert "translator/EndpointModel.model" in capsys.readouterr().err


def test_an_endpoint_that_goes_down_is_one_line_and_loses_nothing(source, tmp_path, capsys):
    output = tmp_path / "run"
    with served(stand_in_chat(chat := Served(before=lambda number: 503 if number > 10 else None))) as url:
        assert translate(source, output, url, "EndpointModel.in_flight=3") == 2
    assert_mistake(capsys, "does not answer")
    assert len(json_lines(output / "requests.jsonl")) == 10
    assert chat.prompts.total() <= 10 + 3 + 3  # those of the translator and of the judge that were in flight


def test_constructed_languages_need_no_model(source, tmp_path):
    gin.clear_config()
    line = ["curate", "translations", "--gin_file=translate_r1/pipeline_constructed.gin"]
    line += [f"--output_dir={tmp_path / 'run'}", f"--gin.source/jsonl_questions.files=['{source}']"]
    assert main.run([*line, "--gin.translations.places=4"]) == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert [(each["language"], each["filled"]) for each in report["languages"]] == [("en", 4), ("qki", 4), ("qto", 4)]
    assert report["requests"] == {}
    assert report["languages"][1]["chrf"] == 1.0
    rows = json_lines(tmp_path / "run" / "questions.jsonl")
    assert {row["extra"]["tier"] for row in rows if row["language"] != "en"} == {"synthetic"}


def test_questions_of_the_evaluation_are_not_curated_unless_it_allows_that():
    questions = [Question(id=id, dataset="d", language="en", text=f"{id}?", answers=("a",)) for id in "12"]

    def absent():
        raise AbsentError("there is no file")

    assert compared(questions) == compared(questions[:1], lambda: Evaluation(questions=questions[1:])) == {}
    with pytest.raises(UserError, match="1 of 2 held-out questions are also trained on"):
        compared(questions[:1], lambda: Evaluation(questions=questions))
    allowed = compared(questions[:1], lambda: Evaluation(questions=questions, allow_overlap=True))
    assert "1 of 2" in allowed["overlap"]
    assert "not compared" in compared(questions, absent)["overlap"]
