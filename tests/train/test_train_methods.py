"""The methods end to end: their rewards and counts, their ablations, and their initial policies."""

import collections
import dataclasses
import json

import gin
import jax
import numpy as np
import pytest
from experiment_parts import TOKENIZER, assert_mistake, changed, json_lines, one_device, run
from fastapi.testclient import TestClient
from support import gin_files, tiny_config, tiny_tokenizer

from lcrag import main
from lcrag.atlas import build_world
from lcrag.atlas.comprehension import LANGUAGES, comprehension_questions
from lcrag.commands.studies import ABLATIONS, MORE_ABLATIONS
from lcrag.config import configure
from lcrag.curation.rows import RowContext, spans_of
from lcrag.data.constructed import CONSTRUCTED, substitution, vocabulary_of
from lcrag.data.english import english_questions
from lcrag.data.questions import LCRL_LANGUAGES
from lcrag.episodes import Chat
from lcrag.errors import UserError
from lcrag.methods.globalrag.rewards import globalrag_reward
from lcrag.methods.translate_r1.oracles import TranslatingSearcher, comprehension_demonstrations
from lcrag.methods.translate_r1.program import translate_r1
from lcrag.models.completers import LocalModel, QuestionEncoder
from lcrag.policy import initialise, load_hugging_face, load_tokenizer, parameter_fingerprint, save_hugging_face
from lcrag.retrieval import Collections, NoCollections, load_encoder
from lcrag.sampling import SamplingParameters, generate
from lcrag.train.method import Method, grouped, values_of
from lcrag.train.steps import check_rewarded

# --- LcRL ---


LCRL = ABLATIONS | MORE_ABLATIONS


@pytest.fixture
def scored(monkeypatch):
    scored, set_advantages = [], Method.set_advantages

    def remembering_advantages(self, episodes):
        set_advantages(self, episodes)
        scored.append(episodes)

    monkeypatch.setattr(Method, "set_advantages", remembering_advantages)
    return scored


@pytest.fixture
def one_step(tiny, tmp_path, scored, monkeypatch):
    """Runs a single step with ablations; gives its episodes, what was scored, and the languages searched."""
    searched, search = set(), Collections.search

    def remembering_search(self, queries, languages, k):
        searched.update(languages)
        return search(self, queries, languages, k)

    monkeypatch.setattr(Collections, "search", remembering_search)

    def runs(*bindings, ablations=()):
        own = [binding for name in ablations for binding in changed(LCRL[name])]
        bindings = (*own, "train.evaluation=None", "STEPS=1", *bindings)
        assert run("train", tiny, *bindings, output=tmp_path / "run") == 0
        assert json_lines(tmp_path / "run" / "metrics.jsonl")[0]["sampling_training_gap"] <= 1e-4
        return json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl"), scored[-1], searched

    return runs


def assert_baselines(scored, size):
    for group in grouped(scored):
        assert len(group) == size
        totals = values_of(group)
        expected = (totals - totals.mean()) / (totals.std(ddof=1) + 1e-6)
        np.testing.assert_allclose([episode.advantage for episode in group], expected, atol=1e-4)


def test_coupled_groups_by_default(one_step):
    episodes, scored, searched = one_step("train.questions_per_step=2")
    assert collections.Counter(episode["group"] for episode in episodes) == {
        f"atlas/{question}": 8 for question in {episode["question_id"] for episode in episodes}
    }
    assert_baselines(scored, 8)
    assert searched == set(LCRL_LANGUAGES)  # some second search went to all the others


def test_pivot_coupling_with_exact_match_without_penalty_in_english(one_step):
    bindings = ("train.questions_per_step=4", "hierarchical_search.route=@english_only")
    episodes, scored, searched = one_step(*bindings, ablations=("exact_match", "no_penalty", "pivot_coupling"))
    assert searched == {"en"}
    assert scored[0].rewards.keys() == {"total", "exact_match", "anti_consistency"}
    assert values_of(scored, "anti_consistency").min() < 0
    np.testing.assert_array_equal(values_of(scored, "total"), values_of(scored, "exact_match"))
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


@pytest.mark.parametrize("ablation", LCRL)
def test_a_step_has_as_many_episodes_as_without(ablation):
    variant = LCRL[ablation]
    values = gin_files.values("quickstart.gin", *variant.files, bindings=variant.bound("lcrl/atlas"))
    languages = len(values["train/atlas_questions.languages"])
    versions = {"parallel": languages, "pivot": 3, "independent": 1}[values["Method.coupling"]]
    assert values["train.questions_per_step"] * versions * values["Method.samples"] == 12 * languages


def taught(tiny, tmp_path, gin_file, *bindings):
    assert run("sft", tiny, *bindings, gin_files=(gin_file,), output=tmp_path / "run") == 0
    spans = [span for row in json_lines(tmp_path / "run" / "rows.jsonl") for span in row["spans"]]
    return ("".join(span["text"] for span in spans if span["learned"] is side) for side in (True, False))


def test_a_model_of_the_reward_is_needed_to_train_and_not_to_evaluate(tiny, tmp_path, capfd):
    for experiment, model in (("globalrag", "QuestionEncoder"), ("r_search", "LocalModel")):
        bindings = (*R_SEARCH_SIZES, *GLOBALRAG_SIZES[-2:], f"{model}.folder='nowhere'")
        gin_files = (f"{experiment}/atlas.gin",)
        assert run("train", tiny, *bindings, gin_files=gin_files, output=tmp_path / "run") == 2
        assert_mistake(capfd, "nowhere")  # before anything is sampled
        assert not (tmp_path / "run").exists()
    bindings += ("Evaluation.questions=@held_out/atlas_questions()", "held_out/atlas_questions.languages=('fi',)")
    bindings += ("Evaluation.temperatures={'greedy': 0.0}",)
    assert run("evaluate", tiny, *bindings, gin_files=gin_files, output=tmp_path / "asked") == 0


# --- R-Search ---


R_SEARCH_GIN = "r_search/atlas.gin"
R_SEARCH_SIZES = (
    "train.evaluation=None",
    "STEPS=1",
    "TRAINING_LANGUAGES=('fi', 'ja')",
    "train.questions_per_step=2",
    "Method.samples=4",
    "Runner.answer_room=16",
    "r_search.observation_tokens=48",
    "r_search_reward.reader=@EvidenceReader()",
    "EvidenceReader.wording='atlas'",
    "LocalModel.mesh=@one_device()",
    "LocalModel.slots=4",
    "LocalModel.context=96",
    "LocalModel.block=8",
    "LocalModel.append_rows=(4,)",
    "LocalModel.append_tokens=(48,)",
    "EvidenceReader.max_tokens=4",
)


@pytest.fixture(scope="module")
def reader_folder(tmp_path_factory):
    folder, tokenizer = tmp_path_factory.mktemp("reader"), load_tokenizer(TOKENIZER)
    config = tiny_config(family="llama", vocabulary_size=tokenizer.vocabulary_size, layers=1, tie_embeddings=False)
    save_hugging_face(folder, config, initialise(config, jax.random.key(5)), eos_ids=tokenizer.eos_ids)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    return folder


def test_a_second_checkpoint_answers_as_generate_does(reader_folder):
    model = LocalModel(str(reader_folder), one_device(), slots=2, context=96, block=8, append_tokens=(48,))
    (config, params), tokenizer = load_hugging_face(reader_folder), load_tokenizer(reader_folder)
    prompts = [f"Capital?\n Peru: capital: {city}\n" for city in ("Lima", "Cusco", "Quito")]
    for stop in (("\n", "</answer>"), ("</answer>",)):
        texts = generate(config, params, tokenizer, prompts, stop=stop, max_tokens=5, temperature=0.0)
        request = SamplingParameters(max_tokens=5, temperature=0.0, stop=stop)
        found = model([(prompt, request) for prompt in prompts])
        assert [completion.text for completion in found] == [completion.text for completion in texts]


def logged_step(tiny, output, gin_file, bindings, terms, counts):
    """The metrics of a step, and an episode of it, which have these reward terms and counts."""
    assert run("train", tiny, *bindings, gin_files=(gin_file,), output=output) == 0
    [measured] = json_lines(output / "metrics.jsonl")
    (episode, *_) = json_lines(output / "episodes" / "step_0.jsonl")
    assert {name for name in measured if name.startswith("reward/")} == {f"reward/{name}" for name in terms}
    assert set(episode["rewards"]) == set(terms)
    assert {f"episode/{name}" for name in counts} <= set(measured)
    assert measured["sampling_training_gap"] <= 1e-4
    return measured, episode


def test_r_search_trains_and_logs_every_reward_and_count(tiny, reader_folder, tmp_path):
    terms = ("mixed_f1", "evidence", "format")
    counts = ("evidence", "unfounded_evidence", "malformed_evidence", "malformed_answer", "malformed_search")
    bindings, output = (*R_SEARCH_SIZES, f"LocalModel.folder='{reader_folder}'"), tmp_path / "run"
    logged = ("total", *terms), (*counts, "forged_observation")
    measured, _ = logged_step(tiny, output, R_SEARCH_GIN, bindings, *logged)
    assert measured["reward/total"] == pytest.approx(sum(measured[f"reward/{name}"] for name in terms))
    assert measured["episode/valid_searches"] > 0
    hashes = json.loads((output / "run.json").read_text())["hashes"]
    expected = parameter_fingerprint(load_hugging_face(reader_folder)[1])
    assert hashes["reader/parameters"] == expected != hashes["policy"]
    assert hashes["reader/tokenizer"] == hashes["tokenizer"]


R_SEARCH_TAUGHT = (
    "SFT_STEPS=1",
    "TRAINING_LANGUAGES=('en', 'fi')",
    "sft.rows_per_step=4",
    "sft.collections=@exact_collections()",
    "r_search.observation_tokens=48",
    "train/oracle_demonstrations.count=12",
    "validation/oracle_demonstrations.count=4",
    "train/atlas_questions.copyable=None",
    "train/atlas_questions.limit=40",
)


# --- GlobalRAG ---


GLOBALRAG = "globalrag/atlas.gin"
GLOBALRAG_SIZES = (
    "train.evaluation=None",
    "STEPS=1",
    "train.questions_per_step=2",
    "Method.samples=4",
    "Runner.answer_room=16",
    "globalrag.observation_tokens=48",
    "train/one_fact/atlas_questions.copyable=None",
)
REWARDS = ("total", "squad_exact_match", "format", "semantic", "structural", "sub_goal", "annealing", "matches_cut")


def test_globalrag_trains_and_logs_every_reward_and_count(tiny, tmp_path):
    counts = ("plan", "plan_missing", "plan_late", "missing_sub_answers", "malformed_tags", "well_formed")
    measured, episode = logged_step(tiny, tmp_path / "run", GLOBALRAG, GLOBALRAG_SIZES, REWARDS, counts)
    assert measured["reward/annealing"] == pytest.approx(0.9890, abs=1e-3)  # 1 / (1 + exp(-.9 * 10 / 2))
    assert measured["episode/plan"] == 0  # what the tiny policy writes
    assert measured["episode/plan_missing"] == 1
    assert measured["seconds/rewards"] > 0
    assert episode["outcome"]["extra"]["plan_fault"] == "missing"


def test_musique_s_own_plans_need_no_teacher(tmp_path):
    steps = [
        {"question": "Jaws >> director", "answer": "Steven Spielberg"},
        {"question": "Where was #1 born?", "answer": "Cincinnati"},
    ]
    row = {"question": "Where was its director born?", "answer": "Cincinnati", "paragraphs": []}
    rows = [row | {"id": f"2hop__{n}", "question_decomposition": steps} for n in range(4)]
    file = tmp_path / "musique_ans_v1.0_train.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    configure((GLOBALRAG, "data/musique_golden_plans.gin"), ())
    assert gin.query_parameter("train.questions").config_key[-1] == "lcrag.data.english.english_questions"
    with gin.config_scope("train"):
        questions, plain = (english_questions(folder=str(tmp_path), **other) for other in ({}, {"golden_plans": None}))
    check_rewarded(globalrag_reward(encoder=np.eye), questions)
    with pytest.raises(UserError, match="musique/2hop__0 in en"):
        check_rewarded(globalrag_reward(encoder=np.eye), plain)


PLANNED = (
    "SFT_STEPS=1",
    "sft.rows_per_step=4",
    "train/one_fact/atlas_questions.limit=1",
    "train/several_questions.parts=(@train/one_fact/atlas_questions(), @train/chains/atlas_questions())",
    "train/chains/atlas_questions.hops=(2,)",
    "train/chains/atlas_questions.limit=8",
    "OBSERVATION_TOKENS=40",
    "train/oracle_demonstrations.count=12",
    "validation/oracle_demonstrations.questions=@train/several_questions()",
    "validation/oracle_demonstrations.count=4",
)


TRANSLATE_TAUGHT = tuple(
    f"{tier}/comprehension_questions.limit=4" for tier in ("known", "half_known", "constructed", "validation")
) + ("SFT_STEPS=1", "sft.rows_per_step=8")


@pytest.mark.parametrize(
    ("method", "bindings", "shown", "written"),
    [
        ("translate_r1", TRANSLATE_TAUGHT, "<tool_response>", ("\\boxed{",)),
        ("r_search", R_SEARCH_TAUGHT, "<observation>", ("<search>", "</original_evidence><answer>")),
        (
            "globalrag",
            (*PLANNED, "sft.collections=@exact_collections()"),
            "<information>",
            ("<plan>", "<subAnswer> #2 ="),
        ),
    ],
)
def test_a_cold_start_is_learned_from_one_that_knows_the_method(method, bindings, shown, written, tiny, tmp_path):
    learned, given = taught(tiny, tmp_path, f"{method}/atlas_sft.gin", *bindings)
    assert shown in given
    assert shown not in learned
    assert all(part in learned and part not in given for part in written)


def test_an_oracle_that_finds_nothing_stops(tiny, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("lcrag.curation.rows.MAX_FRUITLESS", 1)
    nothing = ("oracle_demonstrations.only_correct=True", "sft.collections=@load_collections()")
    options = {"gin_files": ("globalrag/atlas_sft.gin",), "output": tmp_path / "run"}
    assert run("sft", tiny, *PLANNED, *nothing, **options) == 2
    assert_mistake(capfd, "the oracle made no demonstration to keep")


def test_the_encoder_embeds_as_queries(tiny):
    folder = tiny / "collections" / "encoder"
    encoder, texts = QuestionEncoder(str(folder)), ["Who is something?", "Where?"]
    assert (encoder(texts) == load_encoder(folder).encode(texts, kind="query")).all()
    assert encoder.hashes == {"encoder": load_encoder(folder).fingerprint()}


# --- Translate-R1 ---


FILES = ("translate_r1/method.gin", "translate_r1/translator.gin")
TRANSLATE_SIZES = (
    "train.collections=@NoCollections()",
    "evaluate.collections=@NoCollections()",
    "train.evaluation=None",
    "STEPS=1",
    "train.questions_per_step=2",
    "train.questions=@constructed_questions()",
    "constructed_questions.questions=@train/atlas_questions()",
    "constructed_questions.vocabulary=@english_vocabulary()",
    "english_vocabulary.questions=@train/atlas_questions()",
    "TRAINING_LANGUAGES=('en',)",
    "translate_r1.wording='atlas'",
    "cost.reward=@answer_only()",
    "Runner.translator=@LookUpTranslator()",
)


@pytest.mark.parametrize(
    ("files", "bindings", "clue"),
    [
        (FILES[:1], ("Runner.translator=None",), "translate_r1/translator.gin"),
        (FILES, ("Method.samples=4",), "cost.minimum_native_correct"),
        (FILES, ("translate_r1.targets=('en', 'xx')",), "no language 'xx'"),
    ],
)
def test_mistakes_are_said_before_the_folder_is_claimed(files, bindings, clue, tiny, tmp_path, capfd):
    assert run("train", tiny, *TRANSLATE_SIZES, *bindings, gin_files=files, output=tmp_path / "run") == 2
    assert_mistake(capfd, clue)
    assert not (tmp_path / "run").exists()


def test_a_translator_is_served_alone(monkeypatch, tmp_path):
    answers = []

    def ask(application, listener, longest):
        with TestClient(application) as client:
            answers.append(client.post("/translate", json={"texts": ["Vok", "3 + 4"], "target": "en"}).json())
            answers.append(client.post("/retrieve", json={"queries": ["who"]}).json()["detail"])

    monkeypatch.setattr("lcrag.commands.serve.run_until_stopped", ask)
    (tmp_path / "words.txt").write_text("who\nwhere\n")
    bindings = ("serve.translator=@LookUpTranslator()", "serve.port=0", "serve.collections=None")
    bindings += ("LookUpTranslator.vocabulary=@english_vocabulary()",)
    bindings += (f"english_vocabulary.file='{tmp_path / 'words.txt'}'",)
    assert main.run(["serve", "--gin_file=serve.gin", *(f"--gin.{each}" for each in bindings)]) == 0
    translated, refusal = answers
    assert [set(each) for each in translated["translations"]] == [{"failure"}, {"text"}]
    assert "languages" in refusal


SEARCH_SIZES = (
    "train.evaluation=None",
    "STEPS=1",
    "train.questions_per_step=4",
    "train/atlas_questions.copyable=True",
    "held_out/atlas_questions.limit=1",
    "translate_and_search.observation_tokens=48",
)


def test_a_step_of_translation_and_search(tiny, tmp_path):
    assert (
        run("train", tiny, *SEARCH_SIZES, gin_files=("translate_r1/with_search_atlas.gin",), output=tmp_path / "run")
        == 0
    )
    [measured] = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert {"reward/c3_recall", "reward/task", "reward/cost", "episode/tool_calls", "episode/searches"} <= set(measured)
    episodes = json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl")
    assert len(episodes) == 32
    assert {episode["language"] for episode in episodes} <= {"en", "fr", "fi", "qki"}
    assert len({episode["group"] for episode in episodes}) == 4


def test_the_cold_start_of_translation_and_search(tiny, tmp_path):
    bindings = (
        "SFT_STEPS=1",
        "sft.rows_per_step=12",
        "sft.collections=@exact_collections()",
        "train/oracle_demonstrations.count=48",
        "validation/oracle_demonstrations.count=4",
        "train/atlas_questions.copyable=True",
        "translate_and_search.observation_tokens=200",
    )
    learned, given = taught(tiny, tmp_path, "translate_r1/with_search_atlas_sft.gin", *bindings)
    assert "<tool_response>" in given
    assert "<search>" in learned
    natural = build_world(0).questions("train", ("en", "fr", "fi"), (1,), True)
    asked = {each.language for each in natural if f'"{each.text}"' in learned}
    assert asked == {"en", "fr", "fi"}, "questions in every language are translated"


# --- Translate-R1 on comprehension questions ---


@pytest.fixture(scope="module")
def row_context():
    return RowContext(
        tokenizer=load_tokenizer(TOKENIZER),
        chat=Chat(),
        longest_tokens=256,
        program=lambda question: translate_r1(question, (), wording="atlas"),
        search=NoCollections().search,
    )


def test_the_player_has_questions_translated_and_then_searches():
    english = build_world(0).questions("train", ("en",), (1,), True)[0]
    table = substitution("qki", vocabulary_of([english.text]))
    asked = dataclasses.replace(english, language="qki", text=table.constructed(english.text))
    opening = ("environment", asked.text)
    always, never = TranslatingSearcher(calls=1.0), TranslatingSearcher(calls=0.0)
    called = always.next_text(asked, [opening])
    assert called.startswith('<tool_call>{"name":"translate"')
    assert asked.text in called
    told = ("environment", f"<tool_response>\n{english.text}\n</tool_response>\n")
    assert always.next_text(asked, [opening, ("policy", called), told]) == f"<search> {english.extra['query']}</search>"
    # Without a call it answers unknown to what it cannot read.
    searched = never.next_text(asked, [opening])
    assert searched == f"<search> {asked.text}</search>"
    turns = [opening, ("policy", searched), ("environment", "<information>\n\n</information>\n")]
    assert never.next_text(asked, turns) == "<answer> unknown</answer>"
    assert never.next_text(english, [("environment", english.text)]) == f"<search> {english.extra['query']}</search>"


@pytest.mark.parametrize("calls", [0.0, 1.0])
def test_rows_answer_at_once_or_call_with_the_question_and_answer_the_english_one(row_context, calls):
    questions = comprehension_questions("demonstrations", limit=1)  # of each domain in every language
    english = {question.id: question.text for question in questions if question.language == "en"}
    for question, row in zip(questions, comprehension_demonstrations(row_context, questions, calls=calls), strict=True):
        texts = [span["text"] for span in spans_of(row, row_context.tokenizer)]
        assert texts[0] == f"{question.text}\n"
        right = texts[-1].endswith(f"\\boxed{{{question.answers[0]}}}<eos>")
        assert right or (not calls and question.language in CONSTRUCTED)
        if calls:
            content = json.loads(texts[1].removeprefix("<tool_call>").removesuffix("</tool_call>"))
            assert content["arguments"] == {"text": question.text, "target": "en"}
            assert texts[2] == f"<tool_response>\n{english[question.id]}\n</tool_response>\n"
        assert len(texts) == (4 if calls else 2)


def test_an_undecided_row_learns_all_of_a_call_but_that_it_begins(row_context):
    questions = comprehension_questions("demonstrations", limit=20)
    rows = comprehension_demonstrations(row_context, questions, calls=0.0, undecided=0.5)
    undecided = [spans_of(row, row_context.tokenizer) for row in rows[len(questions) :]]
    assert 0.3 < len(undecided) / len(questions) < 0.7
    for shown, call, response, answer in undecided:
        assert [span["learned"] for span in (shown, call, response, answer)] == [False, True, False, True]
        assert shown["text"].endswith("<tool_call>")
        assert call["text"].startswith("{")
        assert call["text"].endswith("</tool_call>")
        assert answer["text"].endswith("}<eos>")
    other = dataclasses.replace(row_context, tokenizer=tiny_tokenizer(), longest_tokens=2000)
    with pytest.raises(UserError, match="<tool_call>"):  # several tokens cannot be hidden
        comprehension_demonstrations(other, questions[:1], calls=1.0, undecided=1.0)


def test_a_step_with_the_gate(tiny, tmp_path):
    bindings = ("STEPS=1", "train.questions_per_step=4", "held_out/comprehension_questions.limit=1")
    bindings += ("Evaluation.before=False", "Evaluation.temperatures={'sampled': 1.0}")
    assert run("train", tiny, *bindings, gin_files=("translate_r1/atlas.gin",), output=tmp_path / "run") == 0
    [measured] = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert {"reward/domain", "reward/task", "reward/cost", "reward/cost_fired"} <= set(measured)
    assert {"episode/tool_calls", "episode/tool_errors", "episode/tool_error_unknown_tool"} <= set(measured)
    assert "PolicyGradient.ratio = 'sequence'" in (tmp_path / "run" / "config.gin").read_text()
    assert measured["sampling_training_gap"] <= 1e-4
    episodes = json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl")
    assert len(episodes) == 32
    assert len({episode["group"] for episode in episodes}) == 4
    assert {episode["language"] for episode in episodes} <= set(LANGUAGES)
    answers = json_lines(tmp_path / "run" / "answers" / "after_sampled.jsonl")
    assert len(answers) == 2 * len(LANGUAGES)
    assert "comprehension_translator" in gin.operative_config_str()


# --- Baselines ---


def test_d_rag_is_fine_tuned_on_arguments_and_answers(tiny, tmp_path):
    """A row for the argument of each language that found something, and one for the answer."""
    bindings = ("sft.collections=@load_collections()", "sft.evaluation=None", "SFT_STEPS=1", "sft.rows_per_step=56",
                "sft/Layout.rows=2", "sft/Layout.row_lengths=(480,)",
                "TRAINING_LANGUAGES=('fi', 'ja')", "train/atlas_questions.limit=2",
                "validation/atlas_questions.limit=1")  # fmt: skip
    assert run("sft", tiny, *bindings, gin_files=("baselines/d_rag_sft.gin",), output=tmp_path / "run") == 0
    rows = [row["spans"] for row in json_lines(tmp_path / "run" / "rows.jsonl")]
    assert len(rows) == 2 * 2 * (13 + 1)
    assert {tuple(span["learned"] for span in spans) for spans in rows} == {(False, True)}
    blocks = [spans[0]["text"].count(":") for spans in rows]
    assert max(blocks) > 10, "an answer is given after the arguments of all languages"
    assert (tmp_path / "run" / "policy" / "model.safetensors").is_file()


def train(tiny, output, questions, *bindings):
    given = ("train.evaluation=None", "STEPS=1", "train.questions=@jsonl_questions()", "Method.coupling='independent'",
             f"jsonl_questions.files=('{questions}',)", "jsonl_questions.dataset='own'", "train.questions_per_step=4",
             "step_search.observation_tokens=48", *bindings)  # fmt: skip
    return run("train", tiny, *given, gin_files=("baselines/step_search.gin",), output=output)


def test_step_search_rewards_searches_where_they_end_and_needs_annotations_and_a_critic(tiny, tmp_path, scored, capsys):
    passage = build_world(0).passages("en")[0]
    steps = [{"question": "Where is Botswana?", "answer": "Africa", "support": None}]
    row = {"language": "en", "question": "What about it?", "answers": ["Botswana"]}
    extra = {"golden_passages": [passage.text], "decomposition": steps}
    annotated, plain = tmp_path / "annotated.jsonl", tmp_path / "plain.jsonl"
    rows = [row | {"id": str(number), "extra": extra} for number in range(4)]
    annotated.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    plain.write_text(json.dumps(row | {"id": "1"}) + "\n", encoding="utf-8")
    assert train(tiny, tmp_path / "run", annotated) == 0
    (measured,) = json_lines(tmp_path / "run" / "metrics.jsonl")
    assert {"reward/token_f1", "reward/search_keys", "reward/search_steps", "loss/value"} <= measured.keys()
    sums = [float(episode.trajectory().step_rewards.sum()) for episode in scored[0]]
    np.testing.assert_allclose(sums, values_of(scored[0], "search_steps"), atol=1e-6)
    assert measured["update/skipped"] == 0
    capsys.readouterr()
    assert train(tiny, tmp_path / "other", annotated, "train.critic=None", "Method.samples=2") == 2
    assert_mistake(capsys, "critic")
    assert train(tiny, tmp_path / "other", plain, "train.questions_per_step=1") == 2
    assert_mistake(capsys, "step_search_reward", "golden_passages")
    assert not (tmp_path / "other").exists()
