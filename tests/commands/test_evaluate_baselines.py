"""Every baseline is a gin file on top of the quickstart, and the trained ones learn as they say."""

import json

import gin
import numpy as np
import pytest
from experiment_parts import json_lines, run

import lcrag.composition.commands  # noqa: F401  registers all configurables
from lcrag.composition.configuration import configure, read_configuration
from lcrag.composition.gin_files import read_file
from lcrag.data.questions import Question
from lcrag.evaluation import read_rows
from lcrag.retrieval import Collections
from lcrag.train.method import Method

# File of the method -> its name in tables, the configurable of its program, its first request.
BASELINES = {
    "direct": ("Direct inference", "direct_inference", "Observe"),
    "rag": ("RAG", "rag", "Retrieve"),
    "ircot": ("IRCoT", "ircot", "Retrieve"),
    "iter_retgen": ("Iter-Retgen", "iter_retgen", "Retrieve"),
    "flare": ("FLARE", "flare", "Complete"),
    "sure": ("SuRe", "sure", "Retrieve"),
    "adaptive_rag": ("Zero-shot Adaptive-RAG", "adaptive_rag", "Complete"),
    "search_o1": ("Search-o1", "search_o1", "Observe"),
    "d_rag": ("D-RAG", "d_rag", "Retrieve"),
    "d_rag_sft": ("D-RAG, fine-tuned", "d_rag", "Retrieve"),
    "sft": ("SFT", "rag", "Retrieve"),
    "search_r1": ("Search-R1", "search_r1", "Observe"),
    "step_search": ("StepSearch", "step_search", "Observe"),
    "msearch_r1": ("mSearch-R1", "hierarchical_search", "Observe"),
}
PROGRAMS = {program for _, program, _ in BASELINES.values()}
QUESTION = Question(id="1", dataset="d", language="fi", text="Missä?", answers=("x",))


@pytest.fixture
def searched(monkeypatch):
    """The languages of every search."""
    languages, search = [], Collections.search

    def remembering(self, queries, codes, k):
        languages.extend(codes)
        return search(self, queries, codes, k)

    monkeypatch.setattr(Collections, "search", remembering)
    return languages


@pytest.mark.parametrize("method", BASELINES)
def test_a_file_binds_the_method_and_leaves_the_programs_settings_to_the_experiment(method):
    """Otherwise a file given after the quickstart would undo what its tiny policy needs."""
    name, program, request = BASELINES[method]
    assert not {binding.key.partition(".")[0] for binding in read_file(f"baselines/{method}.gin")} & PROGRAMS
    gin.clear_config()
    configure(read_configuration(("quickstart.gin", f"baselines/{method}.gin"), ()))
    built = gin.get_configurable("Method")()
    assert built.name == name
    assert built.program.__name__ == program
    assert type(next(built.program(QUESTION, ("en", "fi")))).__name__ == request


@pytest.mark.parametrize(
    ("method", "name"), [("direct", "Direct inference"), ("adaptive_rag", "Zero-shot Adaptive-RAG")]
)
def test_a_baseline_is_evaluated(method, name, tiny, tmp_path, searched):
    bindings = ["Evaluation.temperatures={'greedy': 0.0}", "held_out/atlas_questions.languages=('fi', 'ja')"]
    bindings += ["rag.observation_tokens=40", "ircot.observation_tokens=40"]
    assert run("evaluate", tiny, *bindings, gin_files=(f"baselines/{method}.gin",), output=tmp_path) == 0
    rows = [row for row in read_rows(tmp_path / "evaluation.json") if row.method == f"{name}, greedy"]
    assert {"fi", "ja"} <= {row.language for row in rows}
    assert "c3_recall" in {row.metric for row in rows}
    assert len(json_lines(tmp_path / "answers" / f"{name.replace(' ', '_')}_greedy.jsonl")) == 2
    assert set(searched) <= (set() if method == "direct" else {"fi", "ja"})


@pytest.mark.parametrize(("method", "languages"), [("search_r1", {"en"}), ("msearch_r1", {"fi", "ja"})])
def test_the_trained_baselines(method, languages, tiny, tmp_path, monkeypatch, searched):
    scored, score = [], Method.scored
    monkeypatch.setattr(Method, "scored", lambda self, *args: scored.append(score(self, *args)) or scored[-1])
    bindings = ("train.evaluation=None", "STEPS=1", "TRAINING_LANGUAGES=('fi', 'ja')", "train.questions_per_step=2")
    bindings += ("Method.samples=4", "BUDGET=1")
    assert run("train", tiny, *bindings, gin_files=(f"baselines/{method}.gin",), output=tmp_path / "run") == 0
    (measured,) = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert set(scored[0].rewards) == {"total", "exact_match"}
    assert "reward/exact_match" in measured
    np.testing.assert_array_equal(scored[0].rewards["total"], scored[0].rewards["exact_match"])
    assert [np.sum(scored[0].group_ids == group) for group in np.unique(scored[0].group_ids)] == [4] * 4
    assert all(len({record.prompt for record in _members(scored[0], group)}) == 1 for group in set(scored[0].groups))
    assert set(searched) <= languages
    assert measured["episode/searches"] > 0


def _members(scored, group):
    return [record for record, own in zip(scored.records, scored.groups, strict=True) if own == group]


def test_completions_are_measured(tiny, tmp_path):
    """A baseline that consults fresh contexts can be sampled in training; what is written there is not learned."""
    bindings = ("train.evaluation=None", "STEPS=1", "TRAINING_LANGUAGES=('fi', 'ja')", "d_rag.observation_tokens=40")
    assert run("train", tiny, *bindings, gin_files=("baselines/d_rag.gin",), output=tmp_path / "run") == 0
    (measured,) = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert measured["episode/completions"] == 13
    assert measured["episode/completion_tokens"] > 0
    assert measured["episode/policy_tokens"] <= 20  # a line and the answer, of at most ten tokens each
    assert measured["sampling_training_gap"] <= 1e-4
    (episode, *_) = json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl")
    assert len(episode["completions"]) == 13
    assert json.dumps(episode)


def test_completions_outside_the_dialogue_are_printed(tiny, capsys):
    bindings = ("d_rag.observation_tokens=40", "sample.language='fi'")
    assert run("sample", tiny, *bindings, gin_files=("baselines/d_rag.gin",), words=("Missä?",)) == 0
    out = capsys.readouterr().out
    assert out.count("outside the dialogue, by the policy") == 13
    assert out.index("outside the dialogue") < out.index("\nanswer: ")
