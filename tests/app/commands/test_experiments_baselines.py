"""Every baseline is evaluated by one gin file on top of the quickstart, and the trained ones learn as they say."""

import json

import numpy as np
import pytest
from experiment_parts import json_lines, run

from lcrag.app.composition.gin_files import read_file
from lcrag.app.composition.method import Method
from lcrag.evaluation import read_rows
from lcrag.retrieval import Collections

# Method's file -> its name in tables, the configurable of its program.
BASELINES = {
    "direct": ("Direct inference", "direct_inference"),
    "rag": ("RAG", "rag"),
    "ircot": ("IRCoT", "ircot"),
    "iter_retgen": ("Iter-Retgen", "iter_retgen"),
    "flare": ("FLARE", "flare"),
    "sure": ("SuRe", "sure"),
    "adaptive_rag": ("Adaptive-RAG", "adaptive_rag"),
    "search_o1": ("Search-o1", "search_o1"),
    "d_rag": ("D-RAG", "d_rag"),
    "sft": ("SFT", "rag"),
    "search_r1": ("Search-R1", "search_r1"),
    "msearch_r1": ("mSearch-R1", "hierarchical_search"),
}
PROGRAMS = {program for _, program in BASELINES.values()}
WITHOUT_PASSAGES = ("direct_inference", "search_r1", "hierarchical_search")
EVALUATED = [name for name in BASELINES if name not in ("sft", "msearch_r1")]


@pytest.fixture
def searched(monkeypatch):
    """The languages of every search."""
    languages, search = [], Collections.search

    def remembering(self, queries, codes, k):
        languages.extend(codes)
        return search(self, queries, codes, k)

    monkeypatch.setattr(Collections, "search", remembering)
    return languages


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The folder in which all baselines leave their numbers."""
    return tmp_path_factory.mktemp("compared")


@pytest.mark.parametrize("method", EVALUATED)
def test_a_baseline_is_evaluated_by_one_file(method, tiny, compared, searched):
    name, program = BASELINES[method]
    bindings = ["Evaluation.temperatures={'greedy': 0.0}", "held_out/atlas_questions.languages=('fi', 'ja')"]
    reading = {"adaptive_rag": ("rag", "ircot")}.get(program, () if program in WITHOUT_PASSAGES else (program,))
    bindings += [f"{each}.observation_tokens=40" for each in reading]
    assert run("evaluate", tiny, *bindings, gin_files=(f"baselines/{method}.gin",), output=compared) == 0
    rows = [row for row in read_rows(compared / "evaluation.json") if row.method == f"{name}, greedy"]
    assert {"fi", "ja"} <= {row.language for row in rows} and "c3_recall" in {row.metric for row in rows}
    assert len(json_lines(compared / "answers" / f"{name.replace(' ', '_')}_greedy.jsonl")) == 2
    native = dict.fromkeys(("rag", "iter_retgen", "sure"), {"fi", "ja"})
    always = {**native, "d_rag": {"en", "fi", "fr", "ja"}}.get(program, set())
    assert always <= set(searched) and (program != "direct_inference" or not searched)


@pytest.mark.parametrize(("method", "languages"), [("search_r1", {"en"}), ("msearch_r1", {"fi", "ja"})])
def test_the_trained_baselines(method, languages, tiny, tmp_path, monkeypatch, searched):
    scored, score = [], Method.score
    monkeypatch.setattr(Method, "score", lambda self, *args: scored.append(score(self, *args)) or scored[-1])
    bindings = ("train.evaluation=None", "STEPS=1", "TRAINING_LANGUAGES=('fi', 'ja')", "train.couplings=2")
    bindings += ("Method.samples=4", "hierarchical_search.budget=1")
    assert run("train", tiny, *bindings, gin_files=(f"baselines/{method}.gin",), output=tmp_path / "run") == 0
    (measured,) = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert set(scored[0].rewards) == {"total", "exact_match"} and "reward/exact_match" in measured
    np.testing.assert_array_equal(scored[0].rewards["total"], scored[0].rewards["exact_match"])
    assert [np.sum(scored[0].group_ids == group) for group in np.unique(scored[0].group_ids)] == [4, 4]
    assert all(len({record.prompt for record in _members(scored[0], group)}) == 1 for group in set(scored[0].groups))
    assert set(searched) <= languages and measured["episode/searches"] > 0


def _members(scored, group):
    return [record for record, own in zip(scored.records, scored.groups, strict=True) if own == group]


def test_completions_are_measured(tiny, tmp_path):
    """A baseline that consults fresh contexts can be sampled in training; what is written there is not learned."""
    bindings = ("train.evaluation=None", "STEPS=1", "TRAINING_LANGUAGES=('fi', 'ja')", "d_rag.observation_tokens=40")
    assert run("train", tiny, *bindings, gin_files=("baselines/d_rag.gin",), output=tmp_path / "run") == 0
    (measured,) = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert measured["episode/completions"] == 13 and measured["episode/completion_tokens"] > 0
    assert measured["episode/policy_tokens"] <= 10 and measured["sampling_training_gap"] <= 1e-4
    (episode, *_) = json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl")
    assert len(episode["completions"]) == 13 and json.dumps(episode)


@pytest.mark.parametrize("method", BASELINES)
def test_a_methods_file_leaves_the_programs_settings_to_the_experiment(method):
    """Otherwise a file given after the quickstart would undo what its tiny policy needs."""
    bound = {binding.key.partition(".")[0] for binding in read_file(f"baselines/{method}.gin")}
    assert not bound & PROGRAMS
    assert any(binding.key == "Method.name" for binding in read_file(f"baselines/{method}.gin"))


def test_what_is_completed_beside_a_dialogue_is_printed(tiny, capsys):
    bindings = ("d_rag.observation_tokens=40", "sample.language='fi'")
    assert run("sample", tiny, *bindings, gin_files=("baselines/d_rag.gin",), words=("Missä?",)) == 0
    out = capsys.readouterr().out
    assert out.count("beside the dialogue, by the policy") == 13 and out.index("beside") < out.index("\nanswer: ")
