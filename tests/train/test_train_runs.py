"""Runs of each kind (GRPO, PPO, adapters, one step ahead): what they learn and leave, and that stops change nothing."""

import contextlib
import dataclasses
import io
import itertools
import json
import random
import shutil
import signal
import time

import gin
import jax
import numpy as np
import pytest
from evaluation_trials import asked
from experiment_parts import (
    assert_mistake,
    assert_same_bits,
    contents,
    json_lines,
    measured,
    run,
    saved_state,
    written_episodes,
)
from support import tiny_config, tiny_tokenizer
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lcrag import main
from lcrag.commands.compile import AbstractRun
from lcrag.data.questions import LCRL_LANGUAGES, Question
from lcrag.errors import UserError
from lcrag.evaluation import read_rows
from lcrag.files import Journal, write_json_lines
from lcrag.learning import Critic, Layout, PolicyGradient, Trajectory, adamw
from lcrag.learning.learners import Learner
from lcrag.policy import (
    Lora,
    Policy,
    add_lora,
    initialise,
    load_hugging_face,
    load_tokenizer,
    log_probabilities,
    make_mesh,
)
from lcrag.retrieval import Collections
from lcrag.sampling import Sampler
from lcrag.train.evaluation import Evaluation, answers_path, tables
from lcrag.train.method import Method
from lcrag.train.rollout import Lanes

# Kind -> gin files, number of steps, bindings: everything that could forget where it was.
KINDS = {
    "grpo": (
        (),
        4,
        *("train.checkpoint_every=2", "train.updates_per_rollout=2", "PolicyGradient.kl_coefficient=0.01"),
        *("adamw.steps=6", "adamw.warmup_share=0.5"),
    ),
    "ppo": (
        ("objective/ppo.gin",),
        3,
        *("train.checkpoint_every=1", "train.updates_per_rollout=2", "train.passes_per_rollout=2"),
        *("PolicyGradient.importance_cap=2.0", "adamw.steps=12", "KL_COEFFICIENT=1e-3"),
    ),
    "lora": (
        ("model/lora.gin",),
        2,
        *("train.checkpoint_every=1", "PolicyGradient.kl_coefficient=0.01", "adamw.learning_rate=0.01"),
        *("adamw.steps=2", "Lora.rank=2", "Method.reward=@lengths()"),
    ),
    "ahead": (
        (),
        4,
        *("train.staleness=1", "train.checkpoint_every=2", "train.updates_per_rollout=2"),
        *("PolicyGradient.importance_cap=2.0", "adamw.steps=4", "Method.reward=@lengths()"),
    ),
}


def train(kind, folder, output, *more, steps=None):
    gin_files, all_steps, *bindings = KINDS[kind]
    common = ("train.evaluation=None", "train.episodes_every=1", f"train.steps={steps or all_steps}")
    return run("train", folder, *common, *bindings, *more, gin_files=gin_files, output=output)


@pytest.fixture(scope="module")
def straight(tiny, tmp_path_factory):
    folders = {kind: tmp_path_factory.mktemp(kind) / "run" for kind in KINDS}
    for kind, folder in folders.items():
        assert train(kind, tiny, folder) == 0
    return folders


def assert_same(folder, other, steps):
    """Neither the train state, nor any number that is no timing, nor an episode differs; no record is doubled."""
    assert_same_bits(saved_state(folder, steps), saved_state(other, steps))
    assert measured(folder) == measured(other)
    assert len(measured(folder)) == steps
    for step in range(steps):
        assert written_episodes(folder, f"step_{step}") == written_episodes(other, f"step_{step}")


def interrupt():
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("kind", "stops"),
    [
        (
            "grpo",
            [
                ("score", 4, interrupt, 130, 3, 2),  # in step 3, after the checkpoint of step 2
                ("learn", 1, signal.SIGINT, 130, 3, 3),  # in the update of step 2
            ],
        ),
        (
            "ahead",
            [
                ("score", 2, signal.SIGTERM, 143, 1, 1),  # step 1 is sampled while the update of step 0 runs
                ("learn", 2, signal.SIGINT, 130, 3, 3),
            ],
        ),
        ("ppo", [("learn", 1, signal.SIGTERM, 143, 1, 1)]),
        ("lora", [("learn", 1, signal.SIGTERM, 143, 1, 1)]),
    ],
)
def test_stops_and_slow_searches_change_nothing(kind, stops, straight, tiny, tmp_path, monkeypatch):
    """A stop abandons a rollout or waits for an update, and saves the last finished step."""
    output, search, delays = tmp_path / "run", Collections.search, random.Random(0)

    def slow(self, *arguments):
        time.sleep(delays.random() * 0.02)
        return search(self, *arguments)

    monkeypatch.setattr(Collections, "search", slow)
    owners = {"score": Method, "learn": Learner}
    for name, call, event, status, done, saved in stops:
        calls, method = itertools.count(1), getattr(owners[name], name)

        def disturbed(*arguments, calls=calls, call=call, event=event, method=method, **options):
            if next(calls) == call:
                event() if event is interrupt else signal.raise_signal(event)
            return method(*arguments, **options)

        with monkeypatch.context() as patch, contextlib.redirect_stderr(io.StringIO()) as errors:
            patch.setattr(owners[name], name, disturbed)
            assert train(kind, tiny, output) == status
        assert "the same command continues" in errors.getvalue()
        assert [record["step"] for record in json_lines(output / "metrics.jsonl")] == list(range(done))
        assert max(int(path.name) for path in (output / "checkpoints").iterdir()) == saved
    assert train(kind, tiny, output) == 0
    assert_same(output, straight[kind], KINDS[kind][1])


def test_evaluations_between_steps_change_nothing_and_continue(straight, tiny, tmp_path, monkeypatch):
    between = ("train.evaluation=@Evaluation()", "train.evaluate_every=2", "Evaluation.before=False")
    between = (*between, "Evaluation.temperatures={'sampled': 1.0}")
    ask, titles = Evaluation._ask, []

    def interrupted(self, rollouts, title, *arguments, **options):
        titles.append(title)
        if len(titles) == 1:  # after step 2, whose state is saved by the stop
            raise KeyboardInterrupt
        return ask(self, rollouts, title, *arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Evaluation, "_ask", interrupted)
        assert train("grpo", tiny, tmp_path / "run", *between) == 130
        assert train("grpo", tiny, tmp_path / "run", *between) == 0
    assert titles == [f"{label}, sampled" for label in ("after step 2", "after step 2", "after")]
    assert_same(tmp_path / "run", straight["grpo"], 4)
    answered = {row.method for row in read_rows(tmp_path / "run" / "evaluation.json") if row.metric == "answered"}
    assert answered == {"after step 2, sampled", "after, sampled"}


def test_a_finished_run_has_learned_something_and_has_nothing_left_to_do(tiny, straight):
    folder = straight["grpo"]
    metrics, policies = json_lines(folder / "metrics.jsonl"), [tiny / "policy", folder / "policy"]
    assert max(record["gradient_norm"] for record in metrics) > 0
    assert max(record["loss/kl"] for record in metrics) > 0
    assert all(record["sampling_training_gap"] <= 1e-4 for record in metrics)
    assert len({(policy / "model.safetensors").read_bytes() for policy in policies}) == 2
    before = contents(folder)
    assert train("grpo", tiny, folder) == 0
    changed = {path.name for path, content in contents(folder).items() if before.get(path) != content}
    assert all(name in ("run.json", "report.md", "training.png") or "tfevents" in name for name in changed)


def test_a_run_continues_on_another_mesh(tiny, straight, tmp_path):
    """From one device to four: the same questions in the same order, and numbers that differ by rounding only."""
    output = shutil.copytree(straight["grpo"], tmp_path / "run")
    shutil.rmtree(output / "checkpoints" / "4")
    four = ("policy.mesh=@four_devices()", "Sampler.slots=8", "Sampler.append_rows=(8,)")
    assert train("grpo", tiny, output, *four) == 0
    found, expected = (written_episodes(each, "step_2") for each in (output, straight["grpo"]))
    names = ("question_id", "language", "group", "prompt", "turns", "advantage")
    assert [[row[name] for name in names] for row in found] == [[row[name] for name in names] for row in expected]
    for row, other in zip(found, expected, strict=True):
        tokens, others = row["tokens"], other["tokens"]
        assert tokens["ids"] == others["ids"]
        np.testing.assert_allclose(tokens["log_probabilities"], others["log_probabilities"], rtol=0, atol=1e-5)
    state, straight_state = saved_state(output, 4), saved_state(straight["grpo"], 4)
    for name, array in state.items():
        np.testing.assert_allclose(array, straight_state[name], rtol=1e-3, atol=1e-5, err_msg=name)
    metrics = measured(output)
    assert [record["step"] for record in metrics] == list(range(4))
    assert max(record["sampling_training_gap"] for record in metrics) <= 1e-4


# One step ahead.


def test_each_step_is_sampled_by_the_policy_before_the_last_update(straight):
    records = json_lines(straight["ahead"] / "metrics.jsonl")
    assert [record["staleness/mean"] for record in records] == [0, 1, 1, 1]
    assert [record["staleness/share_1"] for record in records] == [0, 1, 1, 1]
    assert all(0 <= record[f"idle/{who}"] <= 1 for record in records for who in ("sampler", "trainer"))
    rows = [written_episodes(straight["ahead"], f"step_{step}") for step in range(4)]
    assert [{row["policy_version"] for row in own} for own in rows] == [{0}, {0}, {1}, {2}]
    assert len({row["episode"] for own in rows for row in own}) == sum(map(len, rows))
    assert max(record["gradient_norm"] for record in records) > 0


def test_a_finished_run_goes_on_as_if_it_had_not_ended_and_does_no_fewer_steps(straight, tiny, tmp_path, capfd):
    for steps in (2, 4):
        assert train("ahead", tiny, tmp_path / "run", steps=steps) == 0
    assert_same(tmp_path / "run", straight["ahead"], 4)
    capfd.readouterr()
    assert train("ahead", tiny, tmp_path / "run", steps=3) == 2
    assert_mistake(capfd, "has done 4 steps")


def test_two_lanes_sample_ahead_and_evaluate_what_was_learned(straight, tiny, tmp_path):
    """The evaluation at the end uses the lanes, which have ended their last rollout."""
    evaluated = ("train.evaluation=@Evaluation()", "held_out/atlas_questions.languages=('en',)")
    evaluated += ("Evaluation.temperatures={'greedy': 0.0}", "Evaluation.before=False")
    assert train("ahead", tiny, tmp_path / "run", "Lanes.count=2", *evaluated, steps=2) == 0
    assert (tmp_path / "run" / "evaluation.json").is_file()
    for step in range(2):
        found, expected = (written_episodes(each, f"step_{step}") for each in (tmp_path / "run", straight["ahead"]))
        assert [row["episode"] for row in found] == [row["episode"] for row in expected]


def test_sampling_on_devices_of_its_own_changes_nothing(straight, tiny, tmp_path):
    meshes = ("policy.mesh=@mesh()", "mesh.devices=(0,)", "Lanes.mesh=@sampler/mesh()", "sampler/mesh.devices=(1,)")
    assert train("ahead", tiny, tmp_path / "run", *meshes) == 0
    assert_same(tmp_path / "run", straight["ahead"], 4)


def test_a_failure_of_sampling_ends_the_run(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(Method, "score", lambda self, records, step: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train("ahead", tiny, tmp_path / "run")


# A critic.


def test_a_critic_is_learned_logged_and_kept_with_its_policy(straight, tiny):
    metrics = json_lines(straight["ppo"] / "metrics.jsonl")
    names = ("loss/value", "value/mean", "value/clipped", "value/explained_variance", "return/mean", "advantage/std")
    names += ("critic/gradient_norm", "critic/learning_rate", "critic/skipped", "reward/kl_penalty", "importance/mean")
    assert all(np.isfinite(record[name]) for record in metrics for name in names)
    assert all(record["sampling_training_gap"] <= 1e-4 and record["update/skipped"] == 0 for record in metrics)
    assert metrics[0]["reward/kl_penalty"] == pytest.approx(0, abs=1e-6)
    assert metrics[0]["return/mean"] == pytest.approx(metrics[0]["advantage/mean"])  # a new critic's values are all 0
    assert metrics[-1]["critic/gradient_norm"] > 0
    first, last = (saved_state(straight["ppo"], step) for step in (1, 3))
    assert last["['step']"] == last["['critic']['step']"] == 12
    head, body = "['critic']['params']['value_head']['kernel']", "['layers']['mlp']['up']['kernel']"
    _, before = load_hugging_face(tiny / "policy")
    for one, other in (
        (first[head], last[head]),
        (last[f"['critic']['params']{body}"], last[f"['params']{body}"]),
        (last[f"['params']{body}"], before["layers"]["mlp"]["up"]["kernel"]),
    ):
        assert np.abs(one - other).max() > 0


@pytest.mark.parametrize("lora", [None, Lora(rank=2)], ids=["full", "lora"])
def test_lcrag_compile_has_the_arrays_of_a_learner(lora):
    mesh, layout = make_mesh(fsdp=2, tensor=2), Layout(rows=8, row_lengths=(64,))
    config = tiny_config(compute_dtype="bfloat16", tie_embeddings=False)
    optimizer = adamw(learning_rate=1e-3, steps=5)
    critic, objective = Critic(optimizer=optimizer, kl_in_reward=0.01), PolicyGradient()
    sampler = Sampler(slots=8, context=64, block=4, append_rows=(4,), append_tokens=(16,))
    abstract = AbstractRun(
        tiny_config(compute_dtype="bfloat16", tie_embeddings=False, lora=lora),
        mesh,
        Lanes(sampler=sampler, runner=print),
        objective=objective,
        optimizer=optimizer,
        layout=layout,
        critic=critic,
    )
    params = initialise(config, jax.random.key(0), mesh)
    if lora is not None:
        params = jax.tree.map(lambda leaf: leaf.astype("bfloat16"), params)
        config, params = add_lora(config, params, lora, jax.random.key(1), mesh)
    learner = Learner(Policy("tiny", config, params, tiny_tokenizer(), mesh), objective, optimizer, layout, 1.0, critic)
    described = [
        jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype, leaf.sharding), state)
        for state in (abstract.critic_state, learner.state.critic)
    ]
    assert described[0] == described[1]
    on_a_device = [leaf.addressable_shards[0].data.nbytes for leaf in jax.tree.leaves(learner.state.critic)]
    assert abstract.residents["critic's train state"] == sum(on_a_device)


def tiny_learner(objective=PolicyGradient(), **settings):  # noqa: B008
    config, mesh = tiny_config(layers=1), make_mesh(devices=jax.devices()[:1])
    policy = Policy("tiny", config, initialise(config, jax.random.key(0), mesh), tiny_tokenizer(), mesh)
    layout = Layout(rows=1, row_lengths=(8,), policy_shares=(1.0,))
    return Learner(policy, objective, adamw(learning_rate=1e-3, steps=5), layout, **settings)


TINY_EPISODE = Trajectory(np.arange(5), np.arange(5) > 2, np.full(5, -3.0, np.float32), advantage=1.0)


def test_a_small_rollout_has_fewer_mini_batches():
    """Dynamic sampling may leave fewer episodes than `updates_per_rollout`."""
    learner = tiny_learner(parts=3)
    learner.learn([TINY_EPISODE, TINY_EPISODE])
    assert (int(learner.state.step), learner.policy_version) == (2, 1)  # a rollout is learned from as a whole


def test_episodes_of_another_policy_or_temperature_are_refused():
    current, older, newer, unknown = (
        dataclasses.replace(TINY_EPISODE, policy_version=version) for version in (4, 3, 5, None)
    )
    cooler = dataclasses.replace(current, temperatures=(0.7, 1.0))
    for objective in (PolicyGradient(), PolicyGradient(ratio="sequence")):  # which corrects for rounding only
        learner = tiny_learner(objective)
        learner.policy_version = 4
        for other in (older, newer):
            with pytest.raises(UserError, match=f"by version {other.policy_version} of the policy, but version 4"):
                learner.learn([current, unknown, other])
        with pytest.raises(UserError, match="at the temperature 0.7, but the loss is computed at 1: give"):
            learner.learn([current, cooler])
    learner = tiny_learner(PolicyGradient(importance_cap=2.0))
    with pytest.raises(UserError, match="temperature"):  # which nothing corrects for; the version it takes
        learner.learn([older, cooler])
    assert learner.policy_version == 0


# Adapters.


def test_adapters_are_sampled_with_learned_saved_and_merged_into_the_exported_policy(straight, tiny):
    learned = straight["lora"]
    metrics = json_lines(learned / "metrics.jsonl")
    assert all(record["sampling_training_gap"] <= 1e-4 for record in metrics)
    assert metrics[0]["loss/kl"] == pytest.approx(0, abs=1e-6)
    assert metrics[1]["loss/kl"] > 0
    state = saved_state(learned, 2)
    assert not any("kernel" in name or "embedding" in name for name in state)
    (config, before), (after_config, after) = (load_hugging_face(path / "policy") for path in (tiny, learned))
    assert after_config == config
    np.testing.assert_array_equal(after["embedding"], before["embedding"])
    down, up = (state[f"['params']['layers']['mlp']['up']['{name}']"] for name in ("lora_a", "lora_b"))
    expected = before["layers"]["mlp"]["up"]["kernel"] + 32.0 / 2 * down @ up
    assert np.abs(up).max() > 0
    np.testing.assert_allclose(after["layers"]["mlp"]["up"]["kernel"], expected, atol=1e-6)


def test_adapters_continue_on_the_same_base_only(straight, tiny, tmp_path, monkeypatch, capsys):
    output = shutil.copytree(straight["lora"], tmp_path / "run")
    monkeypatch.setattr("lcrag.train.rl.frozen_fingerprint", lambda policy: "another base")
    assert train("lora", tiny, output) == 2
    assert_mistake(capsys, "its frozen weights are")


# --- What a run leaves, and what evaluate and report do with it ---


WALL_TIME = {
    "rollout": ("append", "decode", "retrieval_wait", "programs"),
    "step": ("rollout", "rewards", "update", "rest"),
}


def test_metrics_and_times(finished):
    records = json_lines(finished / "metrics.jsonl")
    assert [record["step"] for record in records] == [0, 1]
    for record in records:
        assert record["tokens_per_second/sampled"] > 0
        assert record["sampling_training_gap"] <= 1e-4
        assert 0 < record["slots/occupancy"] <= 1
        assert record["episode/finished"] == 1
        for whole, parts in WALL_TIME.items():
            assert sum(record[f"seconds/{part}"] for part in parts) == pytest.approx(record[f"seconds/{whole}"])
    assert "Wall time of a training step" in (finished / "report.md").read_text()
    events = EventAccumulator(str(finished)).Reload().Scalars("reward/total")
    np.testing.assert_allclose([event.value for event in events], [record["reward/total"] for record in records])


def test_configuration_checkpoints_policy_and_evaluations_are_there(finished):
    about = json.loads((finished / "run.json").read_text())
    assert about["hashes"].keys() >= {"tokenizer", "encoder", *(f"collection/{code}" for code in LCRL_LANGUAGES)}
    config = (finished / "config.gin").read_text()
    for line in ("train.questions_per_step = 1", "BUDGET = 2", "language_coupled.margin = 0.5"):
        assert line in config
    gin.parse_config(config)  # is a configuration itself
    assert {path.name for path in (finished / "checkpoints").iterdir()} == {"1", "2"}
    config, params = load_hugging_face(finished / "policy")
    tokens = np.asarray([load_tokenizer(finished / "policy").encode("Where is Chad?")], np.int32)
    assert np.isfinite(log_probabilities(config, params, tokens[:, :-1], tokens[:, 1:])).all()
    rows = json.loads((finished / "evaluation.json").read_text())["rows"]
    assert {row["method"] for row in rows} == {
        f"{side}, {decoding}" for side in ("before", "after") for decoding in ("sampled", "greedy")
    }
    whole = {row["language"] for row in rows if row["split"] == "held_out"}
    assert whole == {*LCRL_LANGUAGES, "all", "seen", "zero_shot"}
    assert {row["metric"] for row in rows} >= {"c3_recall", "flexible_exact_match", "correct_language", "searches"}
    report = (finished / "report.md").read_text()
    assert "Held-out questions, greedy" in report
    assert "training.png" in report
    assert (finished / "training.png").read_bytes().startswith(b"\x89PNG")


def test_the_report_is_written_again(finished, tiny, tmp_path, capsys):
    """With the settings in the run's config.gin; it ends with one table of 80 columns and what to do next."""
    output = shutil.copytree(finished, tmp_path / "run")
    (output / "report.md").unlink()
    gin.clear_config()
    assert main.run(["report", str(output)]) == 0
    assert (output / "report.md").read_text() == (finished / "report.md").read_text()
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [f"The report is in {output / 'report.md'}", f"next: lcrag view {output}"]
    assert max(map(len, lines[:-2])) <= 80
    assert {"before", "after", "difference"} <= {word for line in lines for word in line.split()}
    assert sum("c3 recall (BERGEN)" in line for line in lines) == 2  # sampled and greedy
    assert not any("Wall time" in line for line in lines)
    assert run("report", tiny, output=output) == 0
    assert (output / "report.md").read_text() == (finished / "report.md").read_text()
    shutil.rmtree(output / "answers")
    assert main.run(["report", str(output)]) == 0
    assert "Held-out questions" not in (output / "report.md").read_text()


def test_the_report_keeps_data_sets_apart(tmp_path):
    questions = [Question(id="1", dataset=name, language="en", text="?", answers=("1999",)) for name in ("nq", "pop")]
    evaluation = Evaluation(questions=questions, temperatures={"greedy": 0.0}, seen_languages=("en",))
    for label, given in (("before", "no"), ("after", "1999")):
        answers = {"nq": "1999", "pop": given}
        sides = [asked(n, answer=answers[name], golds=("1999",), dataset=name) for name in answers for n in range(3)]
        write_json_lines(answers_path(tmp_path, label, "greedy"), map(dataclasses.asdict, sides))
    summary, made = tables(tmp_path, evaluation, 0, "M")
    assert summary.section_titles == ("nq, greedy", "pop, greedy")
    assert [line[3].text.split()[0] for section in summary.sections for line in section[:1]] == ["+0.000", "+1.00"]
    compared = {table.title: table.sections[0][0][1].text for table in made[1:]}
    assert compared == {
        "nq: Held-out questions, greedy": "1.00 → 1.00",
        "pop: Held-out questions, greedy": "0.000 → 1.00",
    }


def test_a_finished_run_is_evaluated_again_only_when_it_goes_on(finished, tiny, tmp_path, monkeypatch):
    output, settings = shutil.copytree(finished, tmp_path / "run"), ("train.checkpoint_every=1",)
    first, labels, evaluate = (output / "report.md").read_text(), [], Evaluation.run
    monkeypatch.setattr(Evaluation, "run", lambda *given, **named: (labels.append(given[2]), evaluate(*given, **named)))
    assert run("train", tiny, "STEPS=2", *settings, output=output) == 0
    assert not labels
    assert run("train", tiny, "STEPS=3", *settings, output=output) == 0
    assert labels == ["after"]
    assert (output / "report_after_step_2.md").read_text().partition("## What was run")[0] == (
        first.partition("## What was run")[0]
    )


def test_an_interrupted_evaluation_continues_with_the_other_questions(tiny, tmp_path, monkeypatch, capsys):
    bindings = ("Evaluation.temperatures={'sampled': 1.0, 'greedy': 0.0}", "Evaluation.reward=@lengths()")
    straight, output = tmp_path / "straight", tmp_path / "run"
    assert run("evaluate", tiny, *bindings, output=straight) == 0
    append, count, total = Journal.append, itertools.count(1), len(json_lines(straight / "answers/LcRL_greedy.jsonl"))

    def interrupted(self, rows):
        append(self, rows)
        if next(count) == total + 6:  # two headers, all answers of the first decoding, and four of the second
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "append", interrupted)
        assert run("evaluate", tiny, *bindings, output=output) == 130
    assert not (output / "evaluation.json").exists()
    capsys.readouterr()
    assert run("evaluate", tiny, *bindings, output=output) == 0
    said = capsys.readouterr().out
    assert f"LcRL, sampled: {total} of {total} answers are saved" in said
    assert f"LcRL, greedy: 4 of {total} answers are saved" in said
    for name in ("sampled", "greedy"):
        found, expected = (json_lines(each / "answers" / f"LcRL_{name}.jsonl") for each in (output, straight))
        assert found == expected
        assert written_episodes(output, f"LcRL_{name}") == written_episodes(straight, f"LcRL_{name}")
    rows, others = (read_rows(each / "evaluation.json") for each in (output, straight))
    assert [repr(row) for row in rows if "seconds" not in row.metric] == [
        repr(row) for row in others if "seconds" not in row.metric
    ]
    assert not list(output.glob("answers/*_saved*"))


def test_several_evaluations_share_a_folder(finished, tiny, tmp_path, capsys):
    assert run("evaluate", tiny, "Evaluation.temperatures={'greedy': 0.0}", output=finished) == 2
    assert "holds a run" in capsys.readouterr().err
    output, greedy = tmp_path / "asked", "Evaluation.temperatures={'greedy': 0.0}"
    assert run("evaluate", tiny, greedy, "evaluate.label='first'", output=output) == 0
    old = read_rows(output / "evaluation.json")
    assert run("evaluate", tiny, greedy, output=output) == 0
    before, new = contents(output), read_rows(output / "evaluation.json")
    assert new[: len(old)] == old
    assert {row.method for row in new[len(old) :]} == {"LcRL, greedy"}
    assert "Evaluation.temperatures" in (output / "answers" / "LcRL_config.gin").read_text()
    assert json.loads((output / "answers" / "LcRL_run.json").read_text())["seed"] == 0
    # the same label for something else
    assert run("evaluate", tiny, "hierarchical_search.budget=1", output=output) == 2
    assert "another evaluation called 'LcRL'" in capsys.readouterr().err
    assert contents(output) == before
