"""Compositions of papers' experiments, baselines and real rows play episodes with a real tokenizer, and are scored."""

import dataclasses
import itertools
import json
import shutil

import jax
import numpy as np
import pytest
from prepared_data import prepared
from support import tiny_config
from support.pretended_collections import PretendedCollections
from test_composition_matrix import BASELINES, OBJECTIVES, PROGRAMS, pairwise

from lcrag.commands.describe.run_plan import program_name
from lcrag.commands.rehearse.episodes import play_script
from lcrag.commands.rehearse.planned_run import planned_run
from lcrag.commands.rehearse.rehearsing import sampled
from lcrag.commands.rehearse.scripted_policy import Script, ScriptedSampler
from lcrag.commands.rehearse.tiny_parts import TinyParts
from lcrag.composition.commands import compose
from lcrag.composition.components import configured_sampler, make_runner
from lcrag.composition.stand_ins import standing_in
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.errors import UserError
from lcrag.policy import Policy, load_tokenizer, make_mesh
from lcrag.sampling import Sampler

SLOTS = 4
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_act": "silu",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "tie_word_embeddings": True,
    "vocab_size": 151_936,
}
TAGS = 64  # tokens around an observation's passages
# The rows of each data set, and what is bound for files so small.
DATA = {
    "english": ("english_questions.limit = 6",),
    "jsonl": (),
    "mkqa": tuple(f"mkqa_questions.{split} = 4" for split in ("test", "validation", "train")),
    "xor_tydi": ("train/xor_tydi_questions.train = 4", "TRAINING_LANGUAGES = ('fi', 'ja')"),
    "xquad": ("xquad_questions.limit = 4",),
}
DOMAIN = {"extra": {"domain": "mathematics"}}
SERVICES = {"translate_r1": ("translator/service.gin", "retrieval/service.gin")}
# Rewards that read more of a question than these rows have.
UNSCORED = {("globalrag", rows): "needs a golden plan of every question" for rows in DATA} | {
    ("translate_r1", rows): "has no domain" for rows in DATA if rows != "jsonl"
}
STAND_INS = {"collections": lambda call: PretendedCollections(LCRL_LANGUAGES)}
# Programs whose dialogue is the policy's own: each of its searches is an observation.
DIALOGUES = {"hierarchical_search", "r_search", "rag_r1", "globalrag", "search_r1", "search_o1"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder as LCRAG_DATA names it, of real rows under the official names."""
    folder = tmp_path_factory.mktemp("data")
    for name in ("mkqa", "xor_tydi", "xquad", "2wikimultihopqa"):
        (folder / name).mkdir()
    shutil.copy(prepared("mkqa_standin/standin_bmlama53_13lang.jsonl.gz"), folder / "mkqa" / "mkqa.jsonl.gz")
    for name in ("xor_train_full.jsonl", "xor_dev_full_v1_1.jsonl"):
        shutil.copy(prepared("xor_tydi/xor_dev_full_v1_1.subset.jsonl"), folder / "xor_tydi" / name)
    shutil.copy(prepared("tydiqa/goldp.en.json"), folder / "xor_tydi" / "tydiqa-goldp-v1.1-train.json")
    for file in prepared("xquad").glob("xquad.*"):
        shutil.copy(file, folder / "xquad")
    for name in ("train.json", "dev.json"):
        shutil.copy(prepared("2wikimultihopqa/2wiki.subset.json"), folder / "2wikimultihopqa" / name)
    rows = [
        {"id": str(number), "language": code, "question": f"{number}?", "answers": [str(number)], **DOMAIN}
        for number in range(4)
        for code in ("en", "fi")
    ]
    for name in ("train", "held_out"):
        own = [row | {"id": f"{name}-{row['id']}"} for row in rows]
        (folder / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in own))
    return folder


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    """A folder with Qwen's tokenizer and a configuration, without weights."""
    source, folder = prepared("tokenizers/qwen"), tmp_path_factory.mktemp("qwen")
    shutil.copy(source / "tokenizer.qwen3.json", folder / "tokenizer.json")
    shutil.copy(source / "tokenizer_config.qwen3.json", folder / "tokenizer_config.json")
    (folder / "config.json").write_text(json.dumps(QWEN))
    return folder


@pytest.fixture(scope="module")
def policy(qwen):
    """A policy without weights that has Qwen's tokenizer."""
    mesh = make_mesh(1, 1, 1, devices=jax.devices()[:1])
    return Policy("qwen", tiny_config(), {}, load_tokenizer(qwen), mesh)


@pytest.fixture
def composition(data, monkeypatch):
    """Composes a training on real rows, of which two prompts are to be played."""
    monkeypatch.setenv("LCRAG_DATA", str(data))

    def composition(stand_ins, experiment, baseline, rows, *others):
        files = [f"{experiment}/paper.gin", f"data/{rows}.gin", *SERVICES.get(experiment, ())]
        files += [f"baselines/{baseline}.gin"] if baseline else []
        own = [
            f"{scope}/jsonl_questions.files = ({str(data / file)!r},)"
            for scope, file in (("train", "train.jsonl"), ("held_out", "held_out.jsonl"))
        ]
        bindings = [*(own if rows == "jsonl" else ()), *DATA[rows]]
        return planned_run(compose("train", ["platform/single_gpu.gin", *files, *others], bindings, stand_ins), 2)

    return composition


@pytest.fixture
def played(composition, policy):
    """Plays the script on the first prompts of a composition, and returns (planned run, episodes)."""

    def play(*names):
        stand_ins = STAND_INS | TinyParts().stand_ins | {"policy": lambda call: policy}
        run = composition(stand_ins, *names)
        script, context = Script(questions={}, generated_tokens=32), configured_sampler().context
        sampler = ScriptedSampler(policy.tokenizer, script, slots=SLOTS, context=context)
        with standing_in(stand_ins):
            runner = make_runner(sampler, policy, run.collections, run.seed)
        settings = {"generated_tokens": 32, "queries": run.settings.get("queries", 1)}
        settings |= {"calls": run.settings.get("calls", 0)}
        return run, play_script(run.prompts, run.program, runner, policy.tokenizer, slots=SLOTS, **settings)

    return play


# Every experiment scores all rows that it can learn from, and every baseline plays some; all pairs are slow.
UNCOUPLED = [("lcrl", "", "english"), ("lcrl", "", "xor_tydi")]
FEW = [row for row in itertools.product(PROGRAMS, ("",), DATA) if row not in UNCOUPLED]
FEW += zip(itertools.cycle(PROGRAMS), [*BASELINES][1:], itertools.cycle(DATA))
MORE = [pytest.param(*row, marks=pytest.mark.slow) for row in pairwise((PROGRAMS, BASELINES, DATA)) if row not in FEW]


@pytest.mark.parametrize(("experiment", "baseline", "rows"), [*FEW, *MORE])
def test_a_composition_plays_and_scores_its_episodes(played, experiment, baseline, rows):
    run, episodes = played(experiment, baseline, rows)
    name = BASELINES[baseline] or PROGRAMS[experiment]
    assert program_name(run.method.program) == name
    assert len(episodes.played) >= 2
    for each in episodes.played:
        read = each.record.prompt + "".join(str(text.shown) for text in each.texts)
        assert each.record.question.text in read
        if name in DIALOGUES:
            assert each.record.counts["retrieval_rounds"] <= run.settings["budget"]
            assert max(each.turn_tokens("environment"), default=0) <= most_observed(run.settings) + TAGS
    records = [each.record for each in episodes.played]
    if (name, rows) in UNSCORED:
        with pytest.raises(UserError, match=UNSCORED[name, rows]):
            run.method.score(records, 0)
    else:
        assert np.isfinite(run.method.score(records, 0).rewards["total"]).all()


def most_observed(settings):
    """Tokens of passages that one search may show."""
    return (
        settings["query_tokens"] * settings["queries"] if "query_tokens" in settings else settings["observation_tokens"]
    )


TRAINED = {"": "", "msearch_r1": "", "search_r1": ""}
STEPS = [row for row in pairwise((PROGRAMS, TRAINED, OBJECTIVES)) if row[:2] != ("globalrag", "")]


@pytest.mark.slow
@pytest.mark.parametrize(("experiment", "baseline", "objective"), STEPS)
def test_a_composition_takes_a_training_step(composition, qwen, experiment, baseline, objective):
    """A tiny random policy of the family samples, and learns from, one group by the composition's own parts."""
    tiny = TinyParts()
    stand_ins = tiny.stand_ins | STAND_INS | {"policy": lambda call: tiny.policy(in_folder(call, qwen))}
    rows = "jsonl" if experiment == "translate_r1" else "xquad"
    run = composition(stand_ins, experiment, baseline, rows, *([f"objective/{objective}.gin"] if objective else []))
    settings = dataclasses.replace(configured_sampler(), slots=SLOTS)
    sampler = Sampler(run.policy.config, run.policy.params, run.policy.tokenizer, settings, run.policy.mesh)
    with standing_in(stand_ins):
        runner = make_runner(sampler, run.policy, run.collections, run.seed)
    metrics = sampled(run, runner, most_tokens=4)["metrics"]
    assert metrics["sampled tokens"] >= metrics["episodes"] >= 2
    assert metrics["largest difference of log-probabilities, sampler and trainer"] < 1e-3


def in_folder(call, folder):
    """The same call of `policy`, of this folder."""
    return dataclasses.replace(call, arguments=dict(call.arguments) | {"folder": str(folder)}, missing=())
