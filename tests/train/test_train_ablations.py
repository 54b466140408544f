"""Each ablation is a few bindings on top of the quickstart, and changes what its name says."""

import collections

import numpy as np
import pytest
from experiment_parts import changed, json_lines, run
from support import gin_files

from lcrag.commands.studies import ABLATIONS, MORE_ABLATIONS
from lcrag.data.questions import LCRL_LANGUAGES
from lcrag.retrieval import Collections
from lcrag.train.method import Method, group_ids, values_of

VARIANTS = ABLATIONS | MORE_ABLATIONS


@pytest.fixture
def one_step(tiny, tmp_path, monkeypatch):
    """Runs a single step with an ablation; gives its episodes, what was scored, and the languages searched."""
    scored, searched = [], set()
    set_advantages, search = Method.set_advantages, Collections.search

    def remembering_advantages(self, episodes):
        set_advantages(self, episodes)
        scored.append(episodes)

    def remembering_search(self, queries, languages, k):
        searched.update(languages)
        return search(self, queries, languages, k)

    monkeypatch.setattr(Method, "set_advantages", remembering_advantages)
    monkeypatch.setattr(Collections, "search", remembering_search)

    def runs(*bindings, ablation=None):
        own = changed(VARIANTS[ablation]) if ablation else ()
        bindings = (*own, "train.evaluation=None", "STEPS=1", *bindings)
        assert run("train", tiny, *bindings, output=tmp_path / "run") == 0
        assert json_lines(tmp_path / "run" / "metrics.jsonl")[0]["sampling_training_gap"] <= 1e-4
        return json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl"), scored[-1], searched

    return runs


def assert_baselines(scored, size):
    """Groups of `size`, each with advantages around its own mean."""
    totals, ids = values_of(scored, "total"), group_ids(scored)
    advantages = np.array([episode.advantage for episode in scored])
    for group in np.unique(ids):
        members = ids == group
        assert members.sum() == size
        expected = (totals[members] - totals[members].mean()) / (totals[members].std(ddof=1) + 1e-6)
        np.testing.assert_allclose(advantages[members], expected, atol=1e-4)


def test_coupled_groups_by_default(one_step):
    episodes, scored, searched = one_step("train.questions_per_step=2")
    assert collections.Counter(episode["group"] for episode in episodes) == {
        f"atlas/{question}": 8 for question in {episode["question_id"] for episode in episodes}
    }
    assert_baselines(scored, 8)
    assert searched == set(LCRL_LANGUAGES)  # some second search went to all the others


def test_independent_groups(one_step):
    episodes, scored, _ = one_step("Method.samples=4", ablation="independent_groups")
    prompts = collections.Counter((episode["group"], episode["prompt"]) for episode in episodes)
    assert list(prompts.values()) == [4] * 8  # a question in eight languages
    assert all(group.endswith(f"/{e['language']}") for e in episodes for group in [e["group"]])
    assert_baselines(scored, 4)


def test_pivot_coupling(one_step):
    episodes, scored, _ = one_step("train.questions_per_step=4", ablation="pivot_coupling")
    assert_baselines(scored, 3)
    for number in range(4):
        group = episodes[3 * number : 3 * number + 3]
        (native,) = {episode["question_id"].partition("@")[2] for episode in group}
        assert len({episode["group"] for episode in group}) == 1
        assert len({e["language"] for e in group}) == 3
        assert {"en", native} <= {episode["language"] for episode in group}
        assert len({each.record.question.answers for each in scored[3 * number : 3 * number + 3]}) == 1
        for episode in group:
            assert episode["prompt"].endswith(f" [{native}]\n") == (episode["language"] != native)


def test_no_penalty_and_exact_match(one_step):
    _, scored, _ = one_step("train.questions_per_step=2", *changed(ABLATIONS["no_penalty"]), ablation="exact_match")
    assert scored[0].rewards.keys() == {"total", "exact_match", "anti_consistency"}
    assert set(values_of(scored, "exact_match")) <= {0.0, 1.0}
    assert values_of(scored, "anti_consistency").min() < 0
    np.testing.assert_array_equal(values_of(scored, "total"), values_of(scored, "exact_match"))


@pytest.mark.parametrize(
    ("ablation", "bindings", "languages"),
    [("native_only", (), {"fi", "ja"}), (None, ("hierarchical_search.route=@english_only",), {"en"})],
)
def test_routes(one_step, ablation, bindings, languages):
    bindings += ("TRAINING_LANGUAGES=('fi', 'ja')", "train.questions_per_step=6")
    _, _, searched = one_step(*bindings, ablation=ablation)
    assert searched == languages


@pytest.mark.parametrize("ablation", VARIANTS)
def test_a_step_has_as_many_episodes_as_without(ablation):
    variant = VARIANTS[ablation]
    values = gin_files.values("quickstart.gin", *variant.files, bindings=variant.bindings)
    languages = len(values["train/atlas_questions.languages"])
    versions = {"parallel": languages, "pivot": 3, "independent": 1}[values["Method.coupling"]]
    assert values["train.questions_per_step"] * versions * values["Method.samples"] == 12 * languages
