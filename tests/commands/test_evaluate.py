"""`lcrag evaluate`, and every baseline, a gin file on top of the quickstart; the episodes and rewards of answers."""

import collections
import json
import pathlib
import re

import gin
import pytest
from experiment_parts import assert_mistake, json_lines, run

from lcrag.config import configure
from lcrag.data.questions import Question
from lcrag.evaluation import read_rows
from lcrag.files import write_json_lines
from lcrag.retrieval import Collections
from lcrag.train.evaluation import answers_path, read_answers

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
GIN = pathlib.Path(__file__).parents[2] / "gin"
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
    text = (GIN / "baselines" / f"{method}.gin").read_text()
    settings = re.findall(r"^(\w+)\.(\w+) = (.*)$", text, re.MULTILINE)
    values = {value for target, _, value in settings if target in PROGRAMS and not value.startswith("%")}
    of_its_own = {"@all_at_once", "2", "2000"} if method == "sft" else set()
    assert values == of_its_own, "a program's settings are the experiment's macros; SFT has passages of its own"
    configure(("quickstart.gin", f"baselines/{method}.gin"), ())
    built = gin.get_configurable("Method")()
    assert built.name == name
    assert built.program.__name__ == program
    assert type(next(built.program(QUESTION, ("en", "fi")))).__name__ == request


@pytest.mark.parametrize("method", ["direct", "adaptive_rag"])
def test_a_baseline_is_evaluated(method, tiny, tmp_path, searched):
    name, *_ = BASELINES[method]
    bindings = ["Evaluation.temperatures={'greedy': 0.0}", "held_out/atlas_questions.languages=('fi', 'ja')"]
    bindings += ["rag.observation_tokens=40", "ircot.observation_tokens=40"]
    assert run("evaluate", tiny, *bindings, gin_files=(f"baselines/{method}.gin",), output=tmp_path) == 0
    rows = [row for row in read_rows(tmp_path / "evaluation.json") if row.method == f"{name}, greedy"]
    assert {"fi", "ja"} <= {row.language for row in rows}
    assert "c3_recall" in {row.metric for row in rows}
    assert len(json_lines(tmp_path / "answers" / f"{name.replace(' ', '_')}_greedy.jsonl")) == 2
    assert set(searched) <= (set() if method == "direct" else {"fi", "ja"})


def test_a_trained_baseline(tiny, tmp_path, searched):
    bindings = ("train.evaluation=None", "STEPS=1", "TRAINING_LANGUAGES=('fi', 'ja')", "train.questions_per_step=2")
    bindings += ("Method.samples=4", "BUDGET=1")
    assert run("train", tiny, *bindings, gin_files=("baselines/msearch_r1.gin",), output=tmp_path / "run") == 0
    (measured,) = json_lines(tmp_path / "run" / "metrics.jsonl")
    groups = collections.defaultdict(list)
    for episode in json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl"):
        groups[episode["group"]].append(episode)
        assert episode["rewards"].keys() == {"total", "exact_match"}
        assert episode["rewards"]["total"] == episode["rewards"]["exact_match"]
    assert [len(own) for own in groups.values()] == [4] * 4
    assert all(len({episode["prompt"] for episode in own}) == 1 for own in groups.values())
    assert "reward/exact_match" in measured
    assert set(searched) <= {"fi", "ja"}
    assert measured["episode/searches"] > 0


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


@pytest.fixture(scope="module")
def evaluated(tiny, tmp_path_factory):
    """The output folder of an evaluation whose answers are scored."""
    output = tmp_path_factory.mktemp("evaluated")
    bindings = ("Evaluation.runs=2", "Evaluation.reward=@language_coupled()", "evaluate.label='my policy'")
    assert run("evaluate", tiny, *bindings, output=output) == 0
    return output


def test_episodes_are_those_of_the_answers_in_the_format_of_training(evaluated, finished):
    names = {f"my_policy_{name}.jsonl" for name in ("greedy", "sampled", "sampled_run_2")}
    assert {path.name for path in (evaluated / "episodes").iterdir()} == names
    for name in names:
        answers, episodes = (json_lines(evaluated / folder / name) for folder in ("answers", "episodes"))
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
    problems.mkdir()
    for language in ("en", "sw"):
        (problems / f"mgsm_{language}.tsv").write_text(f"{language} one\t1\n{language} two\t2\n")
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
    end = lines[next(n for n, line in enumerate(lines) if line.startswith("Translate-R1: test questions")) :]
    assert max(map(len, end[:-2])) <= 80
    assert end[-2:] == [f"The report is in {tmp_path / 'out' / 'report.md'}", f"next: lcrag view {tmp_path / 'out'}"]
    assert "**Translate-R1, greedy: mgsm, test**" in (tmp_path / "out" / "report.md").read_text()


@pytest.mark.parametrize(
    ("command", "extra", "clue"),
    [
        ("train", {"domain": "maths"}, "'maths'"),
        ("evaluate", {"domain": "instruction_following"}, "Input should be a valid list"),
        ("held_out", {}, "extra.domain"),
        ("sft", {}, "extra.domain"),
    ],
)
def test_a_question_that_cannot_be_rewarded_is_refused_before_any_is_asked(command, extra, clue, tiny, tmp_path, capfd):
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
    files = ("baselines/direct.gin",)
    if command == "sft":
        files = ("baselines/sft.gin", *files, "data/demonstrations.gin")
        rows = [{"prompt": f"{number}?", "turns": [{"by": "policy", "text": "1"}]} for number in range(40)]
        write_json_lines(tmp_path / "rows.jsonl", rows)
        bindings += (f"demonstration_files.files=('{tmp_path / 'rows.jsonl'}',)", "sft.rows_per_step=1")
        bindings += ("demonstration_files.validation_share=0.5", "sft.collections=@load_collections()")
    word = "train" if command == "held_out" else command
    assert run(word, tiny, *bindings, gin_files=files, output=tmp_path / "out") == 2
    assert_mistake(capfd, "question mine/8 in en ('Name two.') ", clue)
    assert not (tmp_path / "out").exists()
