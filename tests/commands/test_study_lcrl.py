"""The points of LcRL's studies change what their names say."""

import pytest
from experiment_parts import run

from lcrag.commands.study import lcrl
from lcrag.composition.gin_files import Macro, read_bindings, read_file
from lcrag.data.languages import LCRL_LANGUAGES, LCRL_TRAINING
from lcrag.data.questions import Question
from lcrag.episodes import routing
from lcrag.retrieval import Collections
from lcrag.train.method import Method


def typed(statements):
    return [statement.replace(" = ", "=", 1) for statement in statements]


def values_of(statements):
    """Every binding of the quickstart with some statements, macros followed."""
    values = {each.key: each.value for each in [*read_file("quickstart.gin"), *read_bindings(statements)]}
    return {key: values[value.name] if isinstance(value, Macro) else value for key, value in values.items()}


@pytest.mark.parametrize("count", range(1, 9))
def test_training_languages(count):
    values = values_of(lcrl.TRAINING_LANGUAGES[f"training_languages_{count}"])
    assert values["train/atlas_questions.languages"] == LCRL_TRAINING[:count] == values["Evaluation.seen_languages"]
    group = count * values["Method.samples"]
    assert group >= 5
    assert abs(values["train.questions_per_step"] * group - 96) <= 2, "a step has as many episodes as the quickstart's"


def test_data_scale(tiny, tmp_path, capsys):
    """Refused before anything is built: the share has one question too few."""
    bindings = ("train/atlas_questions.limit=8", "train.questions_per_step=3", *typed(lcrl.DATA["data_25"]))
    assert run("train", tiny, *bindings, output=tmp_path / "run") == 2
    assert "a step of 3 questions cannot be drawn from 2" in capsys.readouterr().err
    assert run("train", tiny, "train.question_share=1.5", output=tmp_path / "run") == 2
    assert "train.question_share must be above 0 and at most 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "count"), [("native", 1), ("english", 1), ("native_english", 2), ("native_english_high", 3), ("all", 13)]
)
def test_retrieval_options(option, count):
    values = values_of(lcrl.RETRIEVAL[f"retrieval_{option}"])
    choice = getattr(routing, values["Method.collections"].name)
    question = Question(id="q", dataset="atlas", language="fi", text="?", answers=("a",))
    given = []

    def program(question, languages):
        given.append(tuple(languages))

    Method(name="m", program=program, reward=lambda episodes: {}, collections=choice).on(LCRL_LANGUAGES)(question)
    (languages,) = given
    assert len(languages) == count
    assert ("fi" in languages) == (option != "english")
    assert values["hierarchical_search.route"].name == ("english_only" if option == "english" else "local_first")


@pytest.mark.parametrize("methods", [(), ("baselines/rag.gin",)])
def test_english_only_searches_english_only(methods, tiny, tmp_path, monkeypatch):
    search, searched = Collections.search, set()

    def remembering(self, queries, languages, k):
        searched.update(languages)
        return search(self, queries, languages, k)

    monkeypatch.setattr(Collections, "search", remembering)
    bindings = ("Evaluation.temperatures={'sampled': 1.0}", *typed(lcrl.RETRIEVAL["retrieval_english"]))
    assert run("evaluate", tiny, *bindings, gin_files=methods, output=tmp_path / "run") == 0
    assert searched == {"en"}
