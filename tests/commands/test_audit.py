"""An audit against its definition, and answers that are reported by what it found."""

import dataclasses
import functools

import gin
import pytest
from experiment_parts import json_lines, run
from run_standins import LANGUAGES, answers, evaluation, training_run
from support import tiny_tokenizer
from support.pretended_collections import PretendedCollections

from lcrag.commands.audit import auditing
from lcrag.commands.audit.searching import observations, search
from lcrag.commands.audit.tables import counts, tables
from lcrag.commands.report import reporting
from lcrag.commands.report.run_folders import sources, trials_of
from lcrag.composition.atlas import atlas_questions
from lcrag.composition.stand_ins import Composition
from lcrag.data.questions import Question
from lcrag.episodes.routing import local_first
from lcrag.errors import UserError
from lcrag.evaluation import read_rows, to_markdown
from lcrag.evaluation.answerable import ROWS, STRATA, Audited, Golds, holds
from lcrag.evaluation.scoreboard import Scoreboard
from lcrag.methods.lcrl import hierarchical_search
from lcrag.retrieval import load_collections
from lcrag.retrieval.passages import passage_text
from lcrag.rewards.terms import answer_only
from lcrag.runs.files import write_json_lines
from lcrag.train.evaluation import Evaluation
from lcrag.train.method import Method

QUICK = ("audit.searches=2", "audit.cuts=(1, 4)", "train/atlas_questions.limit=2")


@pytest.fixture(scope="module")
def audited(tiny, tmp_path_factory):
    """The folder of an audit."""
    output = tmp_path_factory.mktemp("audits") / "audit"
    assert run("audit", tiny, *QUICK, output=output) == 0
    return output


def test_collections_hold_what_reading_every_passage_finds(tiny, audited):
    rows = {row["language"]: row for row in json_lines(audited / ROWS) if row["split"] == "held_out"}
    gin.clear_config()
    questions = atlas_questions("held_out", limit=1)
    collections, golds = load_collections(tiny / "collections"), Golds(questions)
    assert rows.keys() == {question.language for question in questions}
    for language in ("en", "ja"):
        texts = list(map(passage_text, collections.collection(language).corpus))
        for question in questions:
            held = holds(texts, golds.of(question, language))
            assert (language in rows[question.language]["held"]) == held


def test_an_audit_counts_searches_and_observations(audited):
    text = (audited / "audit.md").read_text()
    for part in (
        "**Golds that searches find: train**",
        "native@4",
        "3 passages of each searched language, the best 3 of them, in 48",
    ):
        assert part in text


def test_an_audit_again_does_not_read_the_passages_again(tiny, audited, monkeypatch):
    before = (audited / ROWS).read_bytes()
    monkeypatch.setattr(auditing, "held_golds", None)
    assert run("audit", tiny, *QUICK, output=audited) == 0
    assert (audited / ROWS).read_bytes() == before


@pytest.mark.parametrize("content", ["{", "[]", "{}"])
def test_a_damaged_file_of_what_a_collection_holds_is_made_again(tiny, audited, content):
    held, before = next((audited / auditing.HELD).iterdir()), (audited / ROWS).read_bytes()
    held.write_text(content)
    assert run("audit", tiny, *QUICK, output=audited) == 0
    assert (audited / ROWS).read_bytes() == before
    assert "golds" in held.read_text()


def asked(language, *golds):
    return Question(id="1", dataset="set", language=language, text="Kuka?", answers=golds)


FINNISH, ENGLISH = asked("fi", "Kuka in fi 1"), asked("en", "in en 2")
GOLDS = Golds([FINNISH, ENGLISH])


def searched(tokens=900, passages=3, shown=None):
    """The row of the Finnish question; the pretended hit at rank n + 1 ends with the number n."""
    settings = {"passages": passages, "observation_tokens": tokens, "shown": shown}
    program = functools.partial(hierarchical_search, **settings, route=local_first, style="search_r1")
    method = Method(name="LcRL", program=program, reward=answer_only("exact_match"))
    observed = observations(method, tiny_tokenizer(), "end")
    row = Audited(split="test", dataset="set", question_id="1", language="fi")
    [found] = search([(FINNISH, row)], PretendedCollections(("de", "en", "fi")), GOLDS, 4, observed)
    return found


def test_ranks_are_those_of_the_first_passage_that_holds_a_gold():
    assert searched().ranks == {"fi": 2, "en": 3}


@pytest.mark.parametrize(
    ("tokens", "passages", "shown", "observed"),
    [
        (900, 3, None, {"1": (True, True), "2": (True, True)}),
        (900, 2, None, {"1": (True, True), "2": (False, False)}),  # the English passage is the third
        (40, 3, None, {"1": (True, False), "2": (True, False)}),
        (900, 3, 2, {"1": (True, True), "2": (True, False)}),  # and among the first two of German and English it is not
    ],
)
def test_observations_within_a_budget(tokens, passages, shown, observed):
    assert searched(tokens, passages, shown).observed == observed


def test_a_method_without_searches_has_no_observations():
    method = Method(name="none", program=lambda question, languages: None, reward=answer_only("exact_match"))
    assert observations(method, tiny_tokenizer(), "end") is None


def row(number, language="fi", **values):
    return Audited(split="test", dataset="set", question_id=str(number), language=language, **values).stratified()


def test_counts_by_language():
    rows = [
        row(1, held={"fi": "exact", "de": "exact"}, ranks={"fi": 2}, observed={"1": (True, False)}),
        row(2, held={"en": "version"}, ranks={"en": 1}, observed={"1": (False, False)}),
        row(3, kind="short_gold", held={"fi": "exact"}),
        row(4, "en"),
    ]
    found = counts(rows, (1,), 3)
    [finnish, _, _, short] = found["held"]
    names = ("native, exact", "English", "others", "nowhere")
    assert [finnish[name]["count"] for name in names] == [1, 1, 1, 0]
    assert [line["questions"] for line in found["held"]] == [2, 1, 3, 1]
    assert (finnish["apart"], short["group"]) == (1, "short golds")
    [recall] = found["recall"][:1]
    assert [recall[name]["count"] for name in ("native@1", "native@3", "English@3", "any@3")] == [0, 1, 1, 2]
    [observed] = found["observed"][:1]
    assert (observed["found"]["count"], observed["lost"]["count"], observed["lost"]["of"]) == (1, 1, 1)
    shown = "".join(map(to_markdown, tables({**found, "observation": "3 passages."})))
    assert "| fi | 2 | 1 | 50 [9–91] |" in shown


def test_questions_without_golds_are_refused():
    questions = [asked("en"), asked("fi", "")]
    with pytest.raises(UserError, match="no question of the experiment has a gold answer to look for"):
        auditing._questions((), Evaluation(questions=questions))


def test_collections_of_a_service_are_refused():
    with pytest.raises(UserError, match="the collections are on another machine"):
        auditing._collections(Composition("evaluate", {"collections": PretendedCollections()}))


@pytest.fixture
def toy_audit(tmp_path):
    """An audit of the answers of `run_standins`: the first third is held natively, the second elsewhere."""
    rows = [
        Audited(split="held_out", dataset="toy", question_id=str(number), language=language, held=held).stratified()
        for number in range(30)
        for language in LANGUAGES
        for held in [{language: "exact"} if number < 10 else {"xx": "exact"} if number < 20 else {}]
    ]
    (tmp_path / "audit").mkdir()
    write_json_lines(tmp_path / "audit" / ROWS, map(dataclasses.asdict, rows))
    return tmp_path / "audit"


def report(*folders, output, audit, compare=lambda output, folders, console: output):
    reporting.report(output, list(map(str, folders)), compare=compare, audit=str(audit))


def test_evaluations_made_before_are_reported_by_an_audit(tmp_path, toy_audit):
    folder = training_run(tmp_path / "run", "LcRL", 0.9, inferences=2, labels={"before": 0.1})
    evaluation(tmp_path / "rag", "RAG", 0.5)
    for _ in range(2):
        report(folder, tmp_path / "rag", output=tmp_path / "report", audit=toy_audit)
    for source, decoding, split in sources(tmp_path / "rag"):
        [trial] = trials_of(source, decoding, split, None)
        assert Scoreboard([trial]).subsets == (*sorted(STRATA[:2]), "copyable", "not_answerable")
    rows = [row for row in read_rows(folder / "evaluation.json") if row.split == "held_out/answerable_elsewhere"]
    found = [row for row in rows if (row.language, row.metric) == ("all", "exact_match")]
    assert [(row.method, row.seed, row.count) for row in found] == [
        ("after, greedy", 0, 30),
        ("after, greedy", "0, run 2", 30),
        ("before, greedy", 0, 30),
        ("before, greedy", "0, run 2", 30),
    ]
    second = [each for each in answers(0.9, (0, 2)) if 10 <= int(each.question_id) < 20]
    assert found[1].value == sum(each.answer == "Helsinki" for each in second) / 30


def test_an_audit_of_other_questions_changes_nothing(tmp_path, toy_audit):
    folder = evaluation(tmp_path / "rag", "RAG", 0.5)
    lines = (toy_audit / ROWS).read_text().splitlines()
    (toy_audit / ROWS).write_text("\n".join(lines[:-1]))
    before = (folder / "evaluation.json").read_bytes()
    with pytest.raises(UserError, match="lacks 1 of the 90 questions, such as toy/29/de"):
        report(folder, output=tmp_path / "report", audit=toy_audit)
    assert (folder / "evaluation.json").read_bytes() == before


def test_an_evaluation_reports_by_its_audit(tiny, audited, tmp_path):
    bindings = (f"Evaluation.audit='{audited}'", "Evaluation.temperatures={'greedy': 0.0}")
    assert run("evaluate", tiny, *bindings, output=tmp_path / "evaluated") == 0
    strata = {row["stratum"] for row in json_lines(audited / ROWS) if row["split"] == "held_out"}
    reported = {row.split for row in read_rows(tmp_path / "evaluated" / "evaluation.json")}
    assert {f"held_out/{stratum}" for stratum in strata} <= reported


def test_several_data_sets_are_counted_apart():
    rows = [row(1), dataclasses.replace(row(2, held={"fi": "exact"}), dataset="other")]
    lines = counts(rows, (1,), None)["held"]
    assert [(line["group"], line["nowhere"]["count"]) for line in lines] == [("set", 1), ("other", 0), ("all", 1)]
