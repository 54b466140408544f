"""`lcrag evaluate`, and every baseline, a gin file on top of the quickstart; the episodes and rewards of answers."""

import pytest
from experiment_parts import assert_mistake, json_lines, run
from support.row_files import write_rows

from lcrag.evaluation import read_rows
from lcrag.retrieval import Collections
from lcrag.train.evaluation import answers_path, read_answers


@pytest.mark.parametrize(
    ("method", "name"), [("direct", "Direct inference"), ("adaptive_rag", "Zero-shot Adaptive-RAG")]
)
def test_a_baseline_is_evaluated(method, name, tiny, tmp_path, monkeypatch):
    searched, search = [], Collections.search
    noted = lambda self, queries, codes, k: searched.extend(codes) or search(self, queries, codes, k)  # noqa: E731
    monkeypatch.setattr(Collections, "search", noted)
    bindings = ["Evaluation.temperatures={'greedy': 0.0}", "held_out/atlas_questions.languages=('fi', 'ja')"]
    bindings += ["rag.observation_tokens=40", "ircot.observation_tokens=40"]
    assert run("evaluate", tiny, *bindings, gin_files=(f"baselines/{method}.gin",), output=tmp_path) == 0
    rows = [row for row in read_rows(tmp_path / "evaluation.json") if row.method == f"{name}, greedy"]
    assert {"fi", "ja"} <= {row.language for row in rows}
    assert "c3_recall" in {row.metric for row in rows}
    assert len(json_lines(tmp_path / "answers" / f"{name.replace(' ', '_')}_greedy.jsonl")) == 2
    assert set(searched) <= (set() if method == "direct" else {"fi", "ja"})


def test_episodes_are_those_of_the_answers_in_the_format_of_training(tiny, finished, tmp_path):
    bindings = ("Evaluation.runs=2", "Evaluation.reward=@language_coupled()", "evaluate.label='my policy'")
    assert run("evaluate", tiny, *bindings, output=tmp_path) == 0
    names = {f"my_policy_{name}.jsonl" for name in ("greedy", "sampled", "sampled_run_2")}
    assert {path.name for path in (tmp_path / "episodes").iterdir()} == names
    for name in names:
        answers, episodes = (json_lines(tmp_path / folder / name) for folder in ("answers", "episodes"))
        for answer, episode in zip(answers, episodes, strict=True):
            assert all(episode[part] == answer[part] for part in ("question_id", "language", "answer"))
            assert episode["outcome"]["counts"]["searches"] == answer["searches"]
            assert episode["rewards"]["total"] == answer["reward"]
    [learned, *_] = json_lines(finished / "episodes" / "step_0.jsonl")
    assert episodes[0].keys() == learned.keys()
    assert episodes[0]["rewards"].keys() == learned["rewards"].keys()
    assert {turn["by"] for turn in episodes[0]["turns"]} == {"policy", "environment"}
    names = {path.stem for path in (finished / "episodes").iterdir()}
    assert names >= {f"{label}_{decoding}" for label in ("before", "after") for decoding in ("greedy", "sampled")}


def test_an_evaluation_notes_rewards_and_calls(tiny, tmp_path, capsys):
    problems, files = tmp_path / "mgsm", ("translate_r1/method.gin", "data/mgsm.gin", "translate_r1/translator.gin")
    for language in ("en", "sw"):
        write_rows(problems / f"mgsm_{language}.tsv", f"{language} one\t1", f"{language} two\t2")
    bindings = (
        "evaluate.collections=@NoCollections()",
        f"mgsm_questions.folder='{problems}'",
        "held_out/mgsm_questions.languages=('en', 'sw')",
        "Evaluation.languages=('en', 'sw')",
        "english_vocabulary.questions=@held_out/mgsm_questions()",
        "translate_r1.wording='atlas'",
        "Runner.translator=@LookUpTranslator()",
    )
    assert run("evaluate", tiny, *bindings, gin_files=files, output=tmp_path / "out") == 0
    answered = read_answers(answers_path(tmp_path / "out", "Translate-R1", "greedy"))
    assert [(each.domain, each.tier) for each in answered] == [("mathematics", "high"), ("mathematics", "low")] * 2
    assert all(each.reward == 0.0 and each.tool_calls == 0 for each in answered)
    assert answered[1].subsets == ("mathematics", "low", "mathematics/low")
    rows = {(row.split, row.language, row.metric) for row in read_rows(tmp_path / "out" / "evaluation.json")}
    for split in ("test", "test/mathematics", "test/low", "test/mathematics/low"):
        assert {(split, "all", "reward"), (split, "all", "tool_rate")} <= rows
    lines = capsys.readouterr().out.splitlines()
    assert "evaluating Translate-R1: 4 questions, sampled and greedy" in lines
    assert lines[-2:] == [f"The report is in {tmp_path / 'out' / 'report.md'}", f"next: lcrag view {tmp_path / 'out'}"]
    assert "**Translate-R1, greedy: mgsm, test**" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    ("command", "extra", "clue"),
    [
        ("train", {"domain": "maths"}, "'maths'"),
        ("evaluate", {"domain": "instruction_following"}, "Input should be a valid list"),
        ("held_out", {}, "extra.domain"),
    ],
)
def test_a_question_that_cannot_be_rewarded_is_refused_before_any_is_asked(command, extra, clue, tiny, tmp_path, capfd):
    row = {"language": "en", "answers": ["2"]}
    sound = row | {"id": "7", "question": "What is 1 + 1?", "extra": {"domain": "mathematics"}}
    write_rows(tmp_path / "mine.jsonl", sound, row | {"id": "8", "question": "Name two.", "extra": extra})
    asked = "train.questions" if command == "train" else "Evaluation.questions"
    bindings = (
        f"{asked}=@mine/jsonl_questions()",
        f"mine/jsonl_questions.files=['{tmp_path / 'mine.jsonl'}']",
        "mine/jsonl_questions.dataset='mine'",
        "Method.samples=2",
        "Method.reward=@cost()" if command == "train" else "Evaluation.reward=@domain_reward()",
        "cost.reward=@domain_reward()",
        "cost.minimum_native_correct=2",
    )
    word = "train" if command == "held_out" else command
    assert run(word, tiny, *bindings, gin_files=("baselines/direct.gin",), output=tmp_path / "out") == 2
    assert_mistake(capfd, "question mine/8 in en ('Name two.') ", clue)
    assert not (tmp_path / "out").exists()
