"""Every point of a study is a file of a few bindings, and changes what its name says."""

import pytest
from experiment_parts import run

from lcrag.app.composition.gin_files import Macro, read_file
from lcrag.app.composition.method import Method
from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.data.questions import Question
from lcrag.episodes import routing
from lcrag.retrieval import Collections


def values_of(*names):
    """Every binding of some files, read one after the other, macros followed."""
    values = {binding.key: binding.value for name in names for binding in read_file(name)}
    return {key: values[value.name] if isinstance(value, Macro) else value for key, value in values.items()}


@pytest.mark.parametrize("count", range(1, 9))
def test_training_languages(count):
    values = values_of("quickstart.gin", f"study/training_languages_{count}.gin")
    assert values["train/atlas_questions.languages"] == LCRL_TRAINING[:count] == values["Evaluation.seen_languages"]
    group = count * values["Method.samples"]
    assert group >= 5 and values["Method.coupling"] == "parallel"
    assert abs(values["train.couplings"] * group - 96) <= 2, "a step has as many episodes as the quickstart's"


@pytest.mark.parametrize(("percent", "kept"), [(25, 2), (50, 4), (75, 6), (100, 8)])
def test_data_scale(percent, kept, tiny, tmp_path, capsys):
    """Refused before anything is built: the share has one question too few."""
    bindings = ("train/atlas_questions.limit=8", f"train.couplings={kept + 1}")
    files = (f"study/data_{percent}.gin",)
    assert run("train", tiny, *bindings, gin_files=files, output=tmp_path / "run") == 2
    assert f"a step of {kept + 1} questions cannot be drawn from {kept}" in capsys.readouterr().err


def test_no_such_share(tiny, tmp_path, capsys):
    assert run("train", tiny, "train.question_share=1.5", output=tmp_path / "run") == 2
    assert "a share of 1.5 of the questions does not exist" in capsys.readouterr().err


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 13])
def test_collections(count):
    values = values_of("quickstart.gin", f"study/collections_{count}.gin")
    assert values["Method.collections"].name == "largest_collections" and values["largest_collections.count"] == count


@pytest.mark.parametrize("option", ["native", "english", "native_english", "native_english_high", "all"])
def test_retrieval_options(option):
    values = values_of("quickstart.gin", f"study/retrieval_{option}.gin")
    choice = getattr(routing, values["Method.collections"].name)
    question = Question(id="q", dataset="atlas", language="fi", text="?", answers=("a",))
    given = []

    def program(question, languages):
        given.append(tuple(languages))

    Method(name="m", program=program, reward=lambda episodes: {}, collections=choice).on(LCRL_LANGUAGES)(question)
    (languages,) = given
    expected = {"native": 1, "english": 1, "native_english": 2, "native_english_high": 3, "all": 13}
    assert len(languages) == expected[option] and ("fi" in languages) == (option != "english")
    assert values["hierarchical_search.route"].name == ("english_only" if option == "english" else "local_first")
    assert values["rag.route"].name == "all_at_once"


@pytest.mark.parametrize("methods", [(), ("method/rag.gin",)])
def test_english_only_searches_english_only(methods, tiny, tmp_path, monkeypatch):
    search, searched = Collections.search, set()

    def remembering(self, queries, languages, k):
        searched.update(languages)
        return search(self, queries, languages, k)

    monkeypatch.setattr(Collections, "search", remembering)
    files = ("study/retrieval_english.gin", *methods)
    bindings = ("Evaluation.temperatures={'sampled': 1.0}",)
    assert run("evaluate", tiny, *bindings, gin_files=files, output=tmp_path / "run") == 0
    assert searched == {"en"}
