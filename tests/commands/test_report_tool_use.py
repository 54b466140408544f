"""Rewards by domain and calls of a tool from the evaluation and the training log to the report of several runs."""

import dataclasses
import json

import gin
import numpy as np
import pytest
from experiment_parts import json_lines, run
from run_standins import training_run

from lcrag import main
from lcrag.commands.study import translate_r1
from lcrag.composition import lanes
from lcrag.data.questions import Question
from lcrag.episodes import EpisodeRecord, Outcome
from lcrag.evaluation import Answered, read_rows
from lcrag.methods.translate_r1.tool_use import tool_rates
from lcrag.rewards import domain_reward
from lcrag.runs.answers import answers_path, read_answers
from lcrag.runs.files import write_json_lines
from lcrag.train import sft as fine_tuning
from lcrag.train.evaluation import Evaluation, _answered
from lcrag.train.run_report import tables

PNG = b"\x89PNG"
FILES = ("translate_r1/method.gin", "data/mgsm.gin", "translator/lookup.gin")
COUNTED = ("searches", "retrieval_rounds", "policy_tokens", "completion_tokens")
TIERS = {"en": "high", "fi": "low", "de": "low"}


@pytest.fixture
def problems(tmp_path):
    """Two of MGSM's problems in two languages."""
    folder = tmp_path / "mgsm"
    folder.mkdir()
    for language in ("en", "sw"):
        (folder / f"mgsm_{language}.tsv").write_text(f"{language} one\t1\n{language} two\t2\n")
    return folder


def test_an_evaluation_notes_rewards_and_calls(tiny, problems, tmp_path, capsys):
    bindings = (
        "evaluate.collections=@NoCollections()",
        f"mgsm_questions.folder='{problems}'",
        "held_out/mgsm_questions.languages=('en', 'sw')",
        "Evaluation.languages=('en', 'sw')",
        "english_vocabulary.questions=@held_out/mgsm_questions()",
        "translate_r1.wording='atlas'",
    )
    assert run("evaluate", tiny, *bindings, gin_files=FILES, output=tmp_path / "out") == 0
    answered = read_answers(answers_path(tmp_path / "out", "Translate-R1", "greedy"))
    assert [(each.domain, each.tier) for each in answered] == [("mathematics", "high"), ("mathematics", "low")] * 2
    assert all(each.reward == 0.0 and each.tool_calls == 0 for each in answered)
    assert answered[1].subsets == ("mathematics", "low", "mathematics/low")
    rows = {(row.split, row.language, row.metric) for row in read_rows(tmp_path / "out" / "evaluation.json")}
    for split in ("test", "test/mathematics", "test/low", "test/mathematics/low"):
        assert {(split, "all", "reward"), (split, "all", "tool_rate")} <= rows
    assert "Translate-R1, greedy: mgsm, test" in capsys.readouterr().out


@pytest.fixture
def nothing_is_sampled(monkeypatch):
    def refuse(*parts):
        raise AssertionError("a sampler was made")

    for module in (lanes, fine_tuning):
        monkeypatch.setattr(module, "make_sampler", refuse)


def demonstrated(folder):
    """Bindings of fine-tuning on a few rows."""
    rows = [{"prompt": f"{number}?", "turns": [{"by": "policy", "text": "1"}]} for number in range(40)]
    write_json_lines(folder / "rows.jsonl", rows)
    return (
        f"demonstration_files.files=('{folder / 'rows.jsonl'}',)",
        "demonstration_files.validation_share=0.5",
        "sft.rows_per_step=1",
        "sft.collections=@load_collections()",
    )


NO_DOMAIN = "has no domain, which domain_reward needs: set its extra.domain to one of mathematics, "


@pytest.mark.parametrize(
    ("command", "extra", "clue"),
    [
        (
            "train",
            {"domain": "maths"},
            "has the unknown domain 'maths', which domain_reward needs",
        ),
        ("evaluate", {"domain": "instruction_following"}, "is wrong (Input should be a valid list): correct it"),
        ("held_out", {}, NO_DOMAIN),
        ("sft", {}, NO_DOMAIN),
    ],
)
def test_a_question_that_cannot_be_rewarded_is_refused_before_any_is_asked(
    command, extra, clue, tiny, tmp_path, capfd, nothing_is_sampled
):
    row = {"language": "en", "answers": ["2"]}
    sound = row | {"id": "7", "question": "What is 1 + 1?", "extra": {"domain": "mathematics"}}
    rows = [sound, row | {"id": "8", "question": "Name two.", "extra": extra}]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
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
    files, fine_tuned = ("baselines/direct.gin",), ()
    if command == "sft":
        files, fine_tuned = ("baselines/sft.gin", *files, "data/demonstrations.gin"), demonstrated(tmp_path)
    word = "train" if command == "held_out" else command
    assert run(word, tiny, *bindings, *fine_tuned, gin_files=files, output=tmp_path / "out") == 2
    said = capfd.readouterr().err
    assert said.startswith("lcrag: error: the ")
    assert "question mine/8 in en ('Name two.') " in said
    assert clue in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def record(language, tier, calls):
    question = Question(id="1", dataset="d", language=language, text="?", answers=("1",),
                        extra={"domain": "mathematics", "tier": tier} if tier else {})  # fmt: skip
    empty = np.zeros(0, np.int32)
    return EpisodeRecord(
        question=question, prompt="", turns=(), tokens=empty, by_policy=empty.astype(bool),
        log_probabilities=empty.astype(np.float32), turn=empty, policy_version=0, outcome=Outcome(answer="1"),
        counts=dict.fromkeys(COUNTED, 0) | ({} if calls is None else {"tool_calls": calls}), finished=True, episode=0,
    )  # fmt: skip


def test_a_step_s_rates_by_tier():
    records = [record("en", "high", 0), record("en", "high", 2), record("ha", "low", 1), record("fi", "", 1)]
    earned = {"total": np.array([0.0, 0.5, 1.0, 1.0]), "task": np.array([1.0, 1.0, 0.5, 1.0])}
    assert tool_rates(records, earned) == {
        "tools/high/rate": 0.5, "tools/high/reward": 1.0, "tools/mathematics/high/rate": 0.5,
        "tools/mathematics/high/reward": 1.0, "tools/low/rate": 1.0, "tools/low/reward": 0.5,
        "tools/mathematics/low/rate": 1.0, "tools/mathematics/low/reward": 0.5,
    }  # fmt: skip
    assert tool_rates(records[2:3], {"total": np.array([0.25])})["tools/low/reward"] == 0.25
    assert tool_rates([record("en", "high", None)], {"total": np.zeros(1)}) == {}


def test_a_run_s_own_report_compares_rewards_and_rates_by_domain_and_tier(tmp_path):
    questions = [record(language, TIERS[language], 0).question for language in ("en", "fi")]
    evaluation = Evaluation(
        questions=questions, temperatures={"greedy": 0.0}, languages=("en", "fi"), reward=domain_reward()
    )
    for label, calls in (("before", 0), ("after", 2)):
        path = answers_path(tmp_path, label, "greedy")
        path.parent.mkdir(exist_ok=True)
        answered = [_answered(record(each.language, each.tier, calls), (), {"total": calls / 2}) for each in questions]
        write_json_lines(path, map(dataclasses.asdict, answered))
    comparison, policies, *_ = tables(tmp_path, evaluation, seed=0)
    assert comparison.header[1:] == ("reward", "difference", "tool rate", "tool calls")
    lines = {line[0].text: [cell.text for cell in line[1:]] for section in comparison.sections for line in section}
    reward, _, rate, calls = lines["mathematics/low"]
    assert (reward, rate, calls) == (".000 → 1.00", ".000 → 1.00", ".000 → 2.00")
    assert {"mathematics", "high", "low", "mathematics/high"} <= set(lines)
    assert policies.header[1] == "reward"


def with_a_tool(folder, rate, inferences):
    """Makes a training run's folder one of a program with a tool, which calls it at a rate in the low tier."""
    for number in range(1, inferences + 1):
        path = answers_path(folder, "after", "greedy", number)
        write_json_lines(path, [dataclasses.asdict(_called(each, rate, number)) for each in read_answers(path)])
    log = [{**row, "tools/low/rate": rate, "tools/high/rate": 0.1} for row in json_lines(folder / "metrics.jsonl")]
    write_json_lines(folder / "metrics.jsonl", log)
    return folder


def _called(answered: Answered, rate: float, number: int) -> Answered:
    tier = TIERS[answered.language]
    calls = int(tier == "low" and (int(answered.question_id) + number) % 4 < 4 * rate)
    return dataclasses.replace(
        answered, domain="mathematics", tier=tier, tool_calls=calls, reward=float(calls or tier == "high"),
        subsets=("mathematics", tier, f"mathematics/{tier}"),
    )  # fmt: skip


def report(runs, output, option="--output_dir"):
    gin.clear_config()
    words = translate_r1.STUDIES["translate_r1"].report
    return main.run(["report", str(runs), *words, f"{option}={output}"])


def test_several_runs_give_one_report(tmp_path, capsys):
    for method, rate in (("Free tool", 1.0), ("Gated", 0.5), ("No tool", 0.0)):
        for seed in (0, 1):
            folder = training_run(tmp_path / "runs" / f"{method}-{seed}", method, 0.5, seed=seed, inferences=4)
            with_a_tool(folder, rate, 4)
    assert report(tmp_path / "runs", tmp_path / "report") == 0
    text = (tmp_path / "report" / "report.md").read_text()
    assert "| mathematics, low | 0.0 | 0.0 | 100.0 | 100.0 | 50.0 | 50.0 |" in text
    assert "**Pareto share by tier, toy, greedy**" in text
    assert "| Free tool | **33** | **100** |" in text
    assert "**Questions by tool rate, toy, greedy**" in text
    assert "| Gated | 50.0 | 50.0 | 0.0 |" in text
    for name in ("pareto_toy_greedy", "selectivity_toy_greedy", "tool_rates"):
        assert f"({name}.png)" in text
        assert (tmp_path / "report" / f"{name}.png").read_bytes().startswith(PNG)
    assert "Reward and tool rate by domain and tier" in (tmp_path / "report" / "tables.tex").read_text()
    assert "Pareto share" in capsys.readouterr().out
    assert report(tmp_path / "runs", tmp_path / "records", "--records") == 0
    assert report(tmp_path / "records", tmp_path / "again") == 0
    searches = "![Searches per question by data set, greedy](searches_greedy.png)\n\n"  # no metric of this study
    assert (tmp_path / "again" / "report.md").read_text() == text.replace(searches, ""), "from the records alone"
