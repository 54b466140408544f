"""`lcrag describe`: what would run, without weights; its figures are those of the command itself."""

import json

import gin
import jax
import pytest
from support.row_files import write_rows

from lcrag.commands.bindings import plain, value_of
from lcrag.commands.compile import AbstractRun, lower
from lcrag.commands.describe import PAPERS, SILENT, budgets, description, stated, step_seconds
from lcrag.commands.plan import Plan
from lcrag.config import configure
from lcrag.episodes import Observe
from lcrag.errors import UserError
from lcrag.learning import PolicyGradient
from lcrag.main import run
from lcrag.policy import make_mesh
from lcrag.policy.config import ACCELERATORS, accelerator_named
from lcrag.policy.parameters import decode_bytes, update_flops
from lcrag.train.method import Method

PLATFORM = "platform/h100_8.gin"
FOLDERS = {"LcRL": "lcrl", "R-Search": "r_search", "RAG-R1": "rag_r1", "GlobalRAG": "globalrag"}
FOLDERS |= {"Translate-R1": "translate_r1"}


@pytest.fixture(autouse=True)
def no_data(monkeypatch):
    monkeypatch.delenv("LCRAG_DATA", raising=False)


def read(*gin_files, bindings=()):
    gin.clear_config()
    configure(gin_files, bindings)


def described(command, *gin_files, bindings=()):
    read(*gin_files, bindings=bindings)
    return description(command)


def of_paper(method, *gin_files, command="train", bindings=()):
    return described(command, PLATFORM, f"{FOLDERS[method]}/paper.gin", *gin_files, bindings=bindings)


def test_json_has_what_outside_checks_read(capsys):
    # Macros of the command line are used, as they are by the command that is described.
    assert run(["describe", "train", "--gin_file=quickstart.gin", "--gin.STEPS=30", "--gin.SEED=1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = {
        "program": "hierarchical_search",
        "evaluated_program": "hierarchical_search",
        "encoder": "atlas/encoder",
        "prompts_per_step": 96,
        "samples": 1,
        "episodes_per_step": 96,
        "episodes_per_update": 48,
        "steps": 30,
    }
    assert {name: found[name] for name in expected} == expected
    assert {"collections", "budgets", "mesh"} <= found.keys()
    assert found["objective"]["aggregation"] == "sequence_mean"
    assert [each["questions"] for each in found["data"]] == [650, 17888]


def test_tables_name_what_runs_and_what_is_missing(capsys):
    files = (f"--gin_file={name}" for name in (PLATFORM, "lcrl/paper.gin"))
    assert run(["describe", "train", *files]) == 0
    screen = " ".join(capsys.readouterr().out.split())
    for part in ("prompts per step 512", "longest tokens 2,824", "learning rate 1e-6", "policy.folder has no value"):
        assert part in screen


@pytest.mark.parametrize(
    ("method", "prompts", "samples"),
    [("LcRL", 512, 3), ("R-Search", 256, 5), ("RAG-R1", 512, 1), ("GlobalRAG", 256, 5), ("Translate-R1", 768, 8)],
)
def test_a_papers_file_is_described_without_its_weights_and_data(method, prompts, samples):
    found = of_paper(method)
    assert (found["prompts_per_step"], found["samples"]) == (prompts, samples)
    assert found["episodes_per_step"] == prompts * samples
    assert found["memory"]["device_bytes"] > 2**30
    assert any("policy" in sentence for sentence in found["lacking"])
    if method == "GlobalRAG":
        assert found["budgets"]["longest_tokens"] + 900 <= found["budgets"]["context_tokens"]
    if method == "Translate-R1":  # which has a translator instead of collections
        assert (found["collections"], found["budgets"]["searches"]) == (None, 0)
        assert any("Runner.translator" in sentence for sentence in found["lacking"])


@pytest.mark.parametrize(
    ("files", "episodes"),
    [
        (("lcrl/paper.gin",), 256),
        (("r_search/paper.gin",), 256),
        (("r_search/paper.gin", "r_search/ppo.gin"), 256),
        (("baselines/published/search_r1.gin",), 256),
        (("globalrag/paper.gin",), 128),
    ],
)
def test_an_update_has_the_episodes_of_its_trainer(files, episodes):
    assert described("train", PLATFORM, *files)["episodes_per_update"] == episodes


def test_a_step_has_as_many_prompts_however_many_languages_a_question_has():
    found = of_paper("LcRL", "data/xor_tydi.gin", "baselines/msearch_r1.gin")
    assert (found["prompts_per_step"], found["samples"]) == (512, 3)
    for name, prompts in (("smollm2", 6), ("gemma_xquad", 12)):  # two questions in three languages, and in six
        assert described("train", f"lcrl/{name}.gin")["prompts_per_step"] == prompts


def test_an_evaluations_own_settings_are_its_budgets():
    found = of_paper("R-Search")
    assert [found[name]["passages"] for name in ("budgets", "evaluated_budgets")] == [3, 5]
    assert of_paper("R-Search", command="evaluate")["budgets"]["passages"] == 5
    baseline = of_paper("R-Search", "baselines/rag.gin", command="evaluate")
    assert (baseline["program"], baseline["evaluated_program"], baseline["budgets"]["searches"]) == ("rag", "rag", 1)
    assert "Where is this city?" in baseline["opening"]


def test_every_query_of_a_search_has_its_own_observation_and_a_long_episode_is_said_not_to_fit():
    for queries, longest in ((3, 4 * 3 * 1000 + 5 * 500), (1, 4 * 1000 + 5 * 500)):
        found = of_paper("RAG-R1", bindings=[f"rag_r1.queries = {queries}"])["budgets"]
        assert (found["observation_tokens"], found["longest_tokens"]) == (1000 * queries, longest)
    budgets = described("train", "lcrl/atlas.gin")["budgets"]
    assert budgets["longest_tokens"] == budgets["prompt_tokens"] + 2 * (80 + 144) + 80
    assert not budgets["fits_context"]
    longer = ["Sampler.context = 800", "Layout.row_lengths = (800,)"]
    assert described("train", "lcrl/atlas.gin", bindings=longer)["budgets"]["fits_context"]


def test_learning_is_told_in_numbers():
    found = of_paper("LcRL", "objective/dr_grpo.gin", bindings=["PolicyGradient.constant_length = 72"])
    assert (found["objective"]["aggregation"], found["objective"]["constant_length"]) == ("constant", 72)
    assert found["advantages"] == {"advantage_group": "coupled", "normalise_std": False, "min_std": 0.0}
    assert (found["steps"], found["updates_per_step"]) == (225, 6)
    assert found["optimizer"]["adamw"].items() >= {"learning_rate": 1e-6, "steps": 1005, "decay": "constant"}.items()
    found = described("sft", "quickstart.gin", "baselines/sft.gin")
    assert (found["rows"]["rows"], found["objective"]["aggregation"]) == ("golden_answers", "token_mean")
    found = of_paper("RAG-R1", command="sft", bindings=["demonstration_files.files = ('rows.jsonl',)"])
    assert (found["steps"], found["rows"]["epochs"]) == (None, 5)
    critic = described("train", "quickstart.gin", "objective/ppo.gin")["critic"]["Critic"]
    assert critic["optimizer"]["critic/adamw"]["learning_rate"] > 0


def test_the_judge_of_translate_r1_is_a_difference_until_it_is_named_and_its_domains_are_refused(tmp_path):
    judge = ["judge/EndpointCompleter.model = 'a judge'"]
    for files, bindings, value in (((), [], None), (("translate_r1/judge.gin",), judge, "@CompletionJudge()")):
        differing = {row["setting"]: row for row in of_paper("Translate-R1", *files, bindings=bindings)["differences"]}
        assert differing["domain_reward.judge"]["value"] == value
        assert "domain_reward.stand_in" not in differing
    summary = {"id": "1", "language": "en", "question": "An article.", "answers": ["A summary."]}
    (tmp_path / "own.jsonl").write_text(json.dumps(summary | {"extra": {"domain": "summarisation"}}))
    own = [f"{part}/jsonl_questions.files = ({str(tmp_path / 'own.jsonl')!r},)" for part in ("train", "held_out")]
    with pytest.raises(UserError, match="domain summarisation, which a judge scores"):
        of_paper("Translate-R1", bindings=own)
    own += ["train.questions_per_step = 1", "Evaluation.allow_overlap = True"]
    of_paper("Translate-R1", "translate_r1/judge.gin", bindings=[*judge, *own])
    found = of_paper("Translate-R1", bindings=[*own, "domain_reward.stand_in = True"])["differences"]
    assert "domain_reward.stand_in" in [row["setting"] for row in found]


@pytest.mark.parametrize("method", PAPERS)
def test_a_papers_file_and_the_page_of_the_method_agree_with_its_table(method, request):
    read(f"{FOLDERS[method]}/paper.gin")
    table = PAPERS[method]
    names = [row["setting"] for row in table if plain(value_of(row["setting"])) != row.get("ours", stated(row))]
    assert not names
    alone = [row for row in table if "ours" in row or (row["paper"] in SILENT and "code" not in row)]
    assert all("why" in row for row in alone)
    assert not [row for row in table if (row["paper"] != "not stated") != ("section" in row)]
    page = (request.config.rootpath / "docs" / "methods" / f"{FOLDERS[method]}.md").read_text(encoding="utf-8")
    stated_by_others = (row for row in table if row["paper"] not in SILENT or "code" in row)
    *names, last = [f"`{row['setting']}`" for row in stated_by_others if "ours" in row]
    assert f"It differs in {', '.join(names)} and {last}." in " ".join(page.split())


def test_values_are_found_by_name():
    read("rag_r1/paper.gin")
    values = {
        "train.steps": 500,  # a macro
        "rag_r1.passages": 3,  # a macro of all programs
        "hierarchical_search.style": "search_r1",  # a default
        "selection/rag_r1.budget": 10,
        "selection/rag_r1.queries": 3,  # of the outer scope
        "Evaluation.references": {},  # a default that is made
        "STEPS": 500,
    }
    assert {name: value_of(name) for name in values} == values


def test_what_differs_from_the_paper_is_listed():
    differing = of_paper("R-Search", bindings=["train.questions_per_step = 12"])["differences"]
    by_name = {each["setting"]: each for each in differing}
    row = by_name["train.questions_per_step"]
    assert (row["paper"], row["value"], row["why"]) == (256, 12, "")
    assert "train.steps" not in by_name
    assert by_name["ENCODER"]["why"]
    assert not [row for row in of_paper("LcRL", "data/xquad.gin")["differences"] if "mkqa" in row["setting"]]


# --- What the command would refuse is refused before anything is loaded.


def question(number, language="en", text="Question {}?"):
    return {"id": str(number), "language": language, "question": text.format(number), "answers": ["a", "b"]}


@pytest.fixture
def own(tmp_path):
    """Writes questions of one's own; returns the files and bindings of an experiment on the atlas that asks them."""

    def written(trained, held_out):
        sides, bindings = {"train": trained, "held_out": held_out}, ["train.questions_per_step = 2"]
        for side, rows in sides.items():
            path = write_rows(tmp_path / f"{side}.jsonl", *rows)
            bindings.append(f"{side}/jsonl_questions.files = ({str(path)!r},)")
        return bindings

    return written


OWN = ("lcrl/atlas.gin", "data/jsonl.gin")
SEVERAL = [question(number, code) for number in range(4) for code in ("en", "fi")]
HELD_OUT = [question(number, text="Is {} held out?") for number in range(9, 12)]


def test_an_overlap_can_be_allowed_and_languages_are_those_that_are_trained(own):
    read(*OWN, bindings=[*own(SEVERAL, SEVERAL), "Evaluation.allow_overlap = True"])
    plan = Plan("train")
    evaluation, about = plan.given["evaluation"].after_training(plan.given["questions"])
    assert about["overlap"].startswith("8 of 8")
    assert set(about["seen_languages"]) == {"en", "fi"} == set(evaluation.languages_seen)


@pytest.mark.parametrize(
    "row", [{"question": "Question 1?", "language": "en"}, {"opening": ["Question: question 1\n"]}]
)
def test_rows_of_demonstrations_that_ask_a_held_out_question_are_refused(row, own, tmp_path):
    turns = [{"by": "policy", "text": "<answer> a</answer>"}]
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "P", "turns": turns} | row) + "\n")
    files = (*OWN, "baselines/sft.gin", "data/demonstrations.gin")
    bindings = [f"demonstration_files.files = ({str(tmp_path / 'rows.jsonl')!r},)"]
    with pytest.raises(UserError, match="[12] of 8 held-out questions"):
        described("sft", *files, bindings=[*own(HELD_OUT, SEVERAL), *bindings])
    described("sft", *files, bindings=[*own(SEVERAL, HELD_OUT), *bindings])


def test_nothing_is_claimed_of_a_program_of_ones_own(capsys):
    def look_up(question, languages, *, passages: int = 2):
        yield Observe(question.text)

    method = Method(name="own", program=look_up, reward=lambda episodes: {})
    found = budgets(method, generation=10, context=100, prompt=5)
    assert [found[name] for name in ("searches", "longest_tokens", "fits_context")] == [None] * 3


def test_the_seconds_of_a_step_are_bounded_by_its_operations_and_bytes():
    assert {"h100", "h200"} <= set(of_paper("LcRL")["step_seconds"]) <= {card.name for card in ACCELERATORS}
    about = {
        "budgets": {"longest_tokens": 100, "searches": 1, "tool_calls": None, "generation_tokens": 20},
        "episodes_per_step": 8000, "updates_per_step": 2, "episodes_per_update": 4.0,
        "sampling": {"slots": 4}, "memory": {"device_bytes": 100 * 2**30},
    }  # fmt: skip
    config = Plan("train").config
    seconds = step_seconds(config, about, reference=True, devices=1)
    assert set(seconds) == {"h200"}  # the others have less memory
    card = accelerator_named("h200")
    flops = 8000 * update_flops(config, 100, attended=50.5, unembedded=40) / card.flops_per_second
    steps = 8000 / 4 * 40  # of decoding, each of which reads all parameters
    least = flops + steps * decode_bytes(config, 4, 50) / card.bytes_per_second
    assert seconds["h200"] == pytest.approx(least, rel=0.1)
    assert step_seconds(config, about, reference=False, devices=1)["h200"] < seconds["h200"]
    assert step_seconds(config, about, reference=True, devices=8)["h200"] < seconds["h200"]


@pytest.mark.parametrize(("command", "remat"), [("train", "none"), ("train", "full"), ("sft", "none")])
def test_the_bound_of_the_memory_holds_by_xlas_own_account(command, remat):
    files = ("lcrl/atlas_sft.gin" if command == "sft" else "lcrl/atlas.gin",)
    found = described(command, *files, bindings=[f"Computation.remat = '{remat}'", "mesh.data = 1"])["memory"]
    plan = Plan(command)
    run = AbstractRun(
        plan.config,
        make_mesh(devices=jax.devices()[:1]),
        plan.lanes,
        objective=PolicyGradient(),
        optimizer=plan.given["optimizer"],
        layout=plan.given["layout"],
    )
    temporaries = lower(run, "update")[0].compile().memory_analysis().temp_size_in_bytes
    assert temporaries <= sum(found["update_bytes"].values()) <= 4 * temporaries
    assert found["peak_bytes"] == found["device_bytes"] + sum(found["update_bytes"].values())
    assert found["fits_machine"]
