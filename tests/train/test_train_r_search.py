"""R-Search end to end: trained with another architecture's model as the reader, its ablations, and its cold start."""

import json

import jax
import pytest
from experiment_parts import TOKENIZER, changed, json_lines, one_device, run
from support import tiny_config

from lcrag.commands.studies import R_SEARCH as VARIANTS
from lcrag.curation.playing import play
from lcrag.data.questions import Question
from lcrag.episodes import Chat
from lcrag.episodes.running_episode import ContextTokenizer
from lcrag.methods.r_search import EvidenceReader, r_search, r_search_reward
from lcrag.models.completers import LocalModel
from lcrag.policy import initialise, load_hugging_face, load_tokenizer, parameter_fingerprint, save_hugging_face
from lcrag.rewards import token_f1
from lcrag.sampling import generate
from lcrag.train.method import Method, values_of

GIN = "r_search/atlas.gin"
SIZES = (
    "train.evaluation=None",
    "STEPS=1",
    "TRAINING_LANGUAGES=('fi', 'ja')",
    "train.questions_per_step=2",
    "Method.samples=4",
    "Runner.answer_room=16",
    "r_search.observation_tokens=48",
    "r_search_reward.reader=@EvidenceReader()",
    "EvidenceReader.wording='atlas'",
    "local_model.mesh=@one_device()",
    "local_model.slots=4",
    "local_model.context=96",
    "local_model.block=8",
    "local_model.append_rows=(4,)",
    "local_model.append_tokens=(48,)",
    "EvidenceReader.max_tokens=4",
)


@pytest.fixture(scope="module")
def reader_folder(tmp_path_factory):
    """A random Llama with the atlas's tokenizer."""
    folder, tokenizer = tmp_path_factory.mktemp("reader"), load_tokenizer(TOKENIZER)
    config = tiny_config(family="llama", vocabulary_size=tokenizer.vocabulary_size, layers=1, tie_embeddings=False)
    save_hugging_face(folder, config, initialise(config, jax.random.key(5)), eos_ids=tokenizer.eos_ids)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    return folder


EVIDENCES = ("Peru: capital: Lima", None, "Peru: capital: Cusco", "Lima")


def written(question, turns, request):
    """A policy that searches, and gives its evidence of `EVIDENCES` if it has one."""
    evidence = EVIDENCES[int(question.id)]
    if len(turns) == 1:
        return "<search> Peru </search>"
    return f"<original_evidence>{evidence}</original_evidence>" * bool(evidence) + "<answer>Lima</answer>"


def test_a_second_checkpoint_reads_all_evidence_of_a_step_at_once(reader_folder):
    """Its answers are those of `generate` with the same checkpoint, and their scores are the evidence reward."""
    model = LocalModel(str(reader_folder), one_device(), slots=2, context=96, block=8, append_tokens=(48,))
    batches = []

    def remembered(requests):
        batches.append(requests)
        return model(requests)

    reader = EvidenceReader(remembered, "atlas", temperature=0.0, max_tokens=5)
    method = Method(
        name="R-Search", program=r_search, reward=r_search_reward(reader), coupling="independent", samples=4
    )
    (config, params), tokenizer = load_hugging_face(reader_folder), load_tokenizer(reader_folder)
    asked = [Question(id=str(n), dataset="d", language="en", text="Capital?", answers=("Lima",)) for n in range(4)]
    played = [(question, r_search(question, ("en",), wording="atlas")) for question in asked]
    search = lambda queries, languages, passages: [[] for _ in queries]  # noqa: E731
    scored = method.score(play(played, written, search, ContextTokenizer(tokenizer, Chat()), context=400), step=3)
    for batch, stop in zip(batches, (("\n", "</answer>"), ("</answer>",)), strict=True):
        prompts = [prompt for prompt, _ in batch]
        assert [prompt.split("\n")[2].strip() for prompt in prompts] == [text for text in EVIDENCES if text]
        texts = generate(config, params, tokenizer, prompts, stop=stop, max_tokens=5, temperature=0.0)
        assert [completion.text for completion in model(batch)] == [completion.text for completion in texts]
    answers = [completion.text.partition("</answer>")[0].strip() for completion in texts]
    expected = token_f1(answers, [["Lima"]] * 3)
    assert values_of(scored, "evidence").tolist() == [expected[0], 0.0, *expected[1:]]
    assert values_of(scored, "format").tolist() == pytest.approx([0.4, 0.2, 0.4, 0.4])


def trained(tiny, folder, output, *bindings, gin_files=()):
    reader = f"local_model.folder='{folder}'"
    assert run("train", tiny, *SIZES, reader, *bindings, gin_files=(GIN, *gin_files), output=output) == 0
    return json_lines(output / "metrics.jsonl")[0]


def test_it_trains_and_logs_every_reward_and_count(tiny, reader_folder, tmp_path):
    measured = trained(tiny, reader_folder, tmp_path / "run")
    terms = ("mixed_f1", "evidence", "format")
    assert measured["reward/total"] == pytest.approx(sum(measured[f"reward/{name}"] for name in terms))
    counts = {"evidence", "unfounded_evidence", "malformed_evidence", "malformed_answer", "malformed_search"}
    assert {f"episode/{name}" for name in (*counts, "forged_observation")} <= set(measured)
    assert measured["sampling_training_gap"] <= 1e-4
    assert measured["episode/valid_searches"] > 0
    (episode, *_) = json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl")
    assert set(episode["rewards"]) == {"total", *terms}
    hashes = json.loads((tmp_path / "run" / "run.json").read_text())["hashes"]
    expected = parameter_fingerprint(load_hugging_face(reader_folder)[1])
    assert hashes["reader/parameters"] == expected != hashes["policy"]
    assert hashes["reader/tokenizer"] == hashes["tokenizer"]


@pytest.mark.parametrize(
    ("name", "terms"), [("without_evidence", {"mixed_f1", "format"}), ("ppo", {"mixed_f1", "evidence", "format"})]
)
def test_the_ablation_and_ppo(tiny, reader_folder, tmp_path, name, terms):
    bindings = [binding for binding in changed(VARIANTS[name]) if not binding.startswith("train.questions_per_step")]
    measured = trained(tiny, reader_folder, tmp_path / "run", *bindings, gin_files=VARIANTS[name].files)
    rewards = {metric for metric in measured if metric.startswith("reward/")} - {"reward/kl_penalty"}
    assert rewards == {f"reward/{term}" for term in ("total", *terms)}
    assert ("loss/value" in measured) == (name == "ppo")


def test_a_reader_is_needed_to_train_and_not_to_evaluate(tiny, tmp_path, capfd):
    nowhere = "local_model.folder='nowhere'"
    assert run("train", tiny, *SIZES, nowhere, gin_files=(GIN,), output=tmp_path / "run") == 2
    assert "no model in nowhere" in capfd.readouterr().err  # before anything is sampled
    assert not (tmp_path / "run").exists()
    bindings = (*SIZES[1:], nowhere, "held_out/atlas_questions.languages=('fi',)")
    assert run("evaluate", tiny, *bindings, gin_files=(GIN,), output=tmp_path / "asked") == 0


@pytest.mark.parametrize("evidence", [True, False])
def test_the_cold_start_is_learned_from_a_player_that_gives_evidence(tiny, tmp_path, evidence):
    bindings = (
        "SFT_STEPS=2",
        "TRAINING_LANGUAGES=('en', 'fi')",
        "sft.rows_per_step=4",
        "sft.collections=@exact_collections()",
        "r_search.observation_tokens=48",
        "train/oracle_demonstrations.count=12",
        "validation/oracle_demonstrations.count=4",
        "train/atlas_questions.copyable=None",
        "train/atlas_questions.limit=40",
    )
    if not evidence:
        bindings += (*changed(VARIANTS["without_evidence"]), "RandomReasoner.evidence=False")
    assert run("sft", tiny, *bindings, gin_files=("r_search/atlas_sft.gin",), output=tmp_path / "run") == 0
    spans = [span for row in json_lines(tmp_path / "run" / "rows.jsonl") for span in row["spans"]]
    learned, given = ("".join(span["text"] for span in spans if span["learned"] is side) for side in (True, False))
    assert "<observation>" in given
    assert "<observation>" not in learned
    assert "<search>" in learned
    assert ("</original_evidence><answer>" in learned) is evidence
