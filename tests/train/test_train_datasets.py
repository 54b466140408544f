"""Questions of data sets through gin and the command line: packaged configurations run, and ask what they say."""

import collections
import functools
import gzip
import json
import shutil

import gin
import pytest
from experiment_parts import SIZES, json_lines, run
from prepared_data import prepared
from support import gin_files

from lcrag.atlas.independent_facts import atlas_comparisons, atlas_conjunctions
from lcrag.atlas.world import atlas_questions
from lcrag.commands.curate import translations
from lcrag.commands.serve.serving import open_search_tool
from lcrag.config import configure
from lcrag.data.batches import several_questions
from lcrag.data.collections import english_collections, xquad_collections
from lcrag.data.domain_sets import GLOBAL_MMLU_LANGUAGES, MGSM_LANGUAGES
from lcrag.data.english import QUESTION_SETS, english_questions
from lcrag.data.languages import LCRL_LANGUAGES
from lcrag.data.multilingual import mkqa_questions, xor_tydi_questions
from lcrag.errors import UserError
from lcrag.evaluation import read_rows
from lcrag.models.completers import CompletionJudge
from lcrag.rewards import domain_reward

ONE_STEP = ("STEPS=1", "train.evaluation=None")
BROKEN = '{"id": "9", "language": "fi", "question": "Missä?"}'


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A folder as LCRAG_DATA names it, with a folder for each data set."""
    for name in ("mkqa", "xor_tydi", "xquad", *QUESTION_SETS):
        (tmp_path / "data" / name).mkdir(parents=True)
    monkeypatch.setenv("LCRAG_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "data"


def own_questions(path, *languages, count=3):
    """Questions whose versions in all languages have one id."""
    rows = [
        {"id": number, "language": code, "question": f"{number}?", "answers": [" Botswana", str(number)]}
        for number in range(count)
        for code in languages
    ]
    for file in (path, path.with_name("held_out.jsonl")):
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def own(path):
    held_out = path.with_name("held_out.jsonl")
    return (f"train/jsonl_questions.files=['{path}']", f"held_out/jsonl_questions.files=['{held_out}']")


def test_one_s_own_questions_train_and_are_evaluated(tiny, tmp_path):
    path = own_questions(tmp_path / "mine.jsonl", "fi", "ja")
    bindings = (*own(path), "STEPS=1", "Evaluation.temperatures={'greedy': 0.0}")
    output = tmp_path / "run"
    assert run("train", tiny, *bindings, gin_files=("data/jsonl.gin",), output=output) == 0
    episodes = json_lines(output / "episodes" / "step_0.jsonl")
    assert [(e["dataset"], e["language"]) for e in episodes] == [("jsonl", "fi"), ("jsonl", "ja")]
    assert len({episode["group"] for episode in episodes}) == 1
    rows = json.loads((output / "evaluation.json").read_text())["rows"]
    assert {row["language"] for row in rows} >= {"fi", "ja"}
    assert {row["dataset"] for row in rows} == {"jsonl"}
    hashes = json.loads((output / "run.json").read_text())["hashes"]
    assert len(hashes["questions"]) == 16


def test_bad_rows_stop_the_command_unless_they_are_skipped(tiny, tmp_path, capsys):
    path = own_questions(tmp_path / "mine.jsonl", "fi", "ja")
    path.write_text(BROKEN + "\n" + path.read_text())
    options = {"gin_files": ("data/jsonl.gin",), "output": tmp_path / "run"}
    assert run("train", tiny, *own(path), *ONE_STEP, **options) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lcrag: error: {path}, line 1, field answers: field required")
    assert error.count("\n") == 1
    assert run("train", tiny, *own(path), *ONE_STEP, words=("--skip_bad_rows",), **options) == 0
    assert f"lcrag: 1 bad row was left out; the first: {path}, line 1, field answers" in capsys.readouterr().err
    assert "BadRows.skip = True" in (tmp_path / "run" / "config.gin").read_text()


def test_mkqa_has_coupled_groups_of_the_training_languages(files):
    with pytest.raises(UserError, match="no mkqa.jsonl.gz"):
        mkqa_questions("test")
    shutil.copy(prepared("mkqa_standin/standin_bmlama53_13lang.jsonl.gz"), files / "mkqa" / "mkqa.jsonl.gz")
    assert len(mkqa_questions("test", test=20, train=15, validation=5)) == 20 * 13
    configure(("quickstart.gin", "data/mkqa.gin"), ("mkqa_questions.test = 20", "mkqa_questions.validation = 5"))
    with gin.config_scope("train"):
        questions = gin.get_configurable("mkqa_questions")(train=15)
    assert {each.language for each in questions} == {"en", "ar", "fi", "fr", "ja", "it", "ru", "zh"}
    assert len({each.id for each in questions}) == 15


def mirrored(texts, source, target):
    """A translator without mistakes."""
    return [text[::-1] for text in texts]


def test_xor_tydi_has_groups_of_one_language_until_it_is_translated(tiny, tmp_path, files, capsys):
    source = prepared("xor_tydi/xor_dev_full_v1_1.subset.jsonl")
    for name in ("xor_train_full.jsonl", "xor_dev_full_v1_1.jsonl"):
        shutil.copy(source, files / "xor_tydi" / name)
    sizes = ("TRAINING_LANGUAGES=('fi', 'ja')", "train/xor_tydi_questions.train=4", *ONE_STEP)
    options = {"output": tmp_path / "run"}
    assert run("train", tiny, *sizes, gin_files=("data/xor_tydi.gin",), **options) == 2
    assert "groups of one have no baseline to learn from" in capsys.readouterr().err
    gin.clear_config()
    questions = xor_tydi_questions("train", ("fi", "ja"), train=4)
    parts = {"questions": questions, "languages": ("fi", "ja"), "exact": dict.fromkeys(("fi", "ja"), mirrored)}
    translations(tmp_path / "made", places=len(questions), together=True, **parts)
    made = f"train/jsonl_questions.files=['{tmp_path / 'made' / 'questions.jsonl'}']"
    found = json_lines(tmp_path / "made" / "questions.jsonl")
    assert len(found) == 16
    assert all(row["id"] == found[0]["id"] for row in found[:2])
    assert run("train", tiny, *sizes, made, gin_files=("data/xor_tydi.gin", "data/jsonl_training.gin"), **options) == 0
    episodes = json_lines(tmp_path / "run" / "episodes" / "step_0.jsonl")
    assert [e["language"] for e in episodes] == ["fi", "ja"]
    assert len({e["question_id"] for e in episodes}) == 1


def test_xquad_brings_its_own_collections(tiny, tmp_path, files):
    for language in ("en", "th"):  # the first three articles are enough
        with gzip.open(prepared(f"xquad/xquad.{language}.json.gz"), "rt") as file:
            content = json.load(file)
        content["data"] = content["data"][:3]
        (files / "xquad" / f"xquad.{language}.json").write_text(json.dumps(content))
    encoder = f"xquad_collections.encoder='{tiny / 'collections' / 'encoder'}'"
    small = ("LANGUAGES=('en', 'th')", encoder, "xquad_questions.test_articles=1", "Runner.max_tokens=4")
    collections = (f"{name}.collections=@xquad_collections()" for name in ("train", "evaluate", "sample"))
    options = {"gin_files": ("data/xquad.gin",), "output": tmp_path / "run"}
    assert run("train", tiny, *small, *collections, *ONE_STEP, **options) == 0
    hashes = json.loads((tmp_path / "run" / "run.json").read_text())["hashes"]
    assert {"collection/en", "collection/th"} <= hashes.keys()
    gin.clear_config()
    opened = xquad_collections(("en", "th"), encoder=str(tiny / "collections" / "encoder"))
    assert opened.content_hashes().items() <= hashes.items()  # found where they were kept
    [[hit]] = opened.search(["Panthers"], ["th"], k=1)
    assert hit.language == "th"
    assert hit.id.split("/")[0] in ("Super Bowl 50", "Warsaw", "Normans")


def hotpotqa(tiny, files):
    """Bindings for HotpotQA, whose development rows stand for its training rows too."""
    with gzip.open(prepared("hotpotqa/hotpot_dev_distractor_v1.subset.json.gz"), "rt", encoding="utf-8") as file:
        rows = json.load(file)
    for name, part in (("hotpot_train_v1.1.json", rows[:20]), ("hotpot_dev_distractor_v1.json", rows[20:26])):
        (files / "hotpotqa" / name).write_text(json.dumps(part))
    encoder = f"english_collections.encoder='{tiny / 'collections' / 'encoder'}'"
    collections_of = (f"{name}.collections=@english_collections()" for name in ("train", "evaluate", "sample"))
    return ("TRAINED_ON='hotpotqa'", "TESTED_ON='hotpotqa'", encoder, *collections_of)


def test_hotpotqa_brings_its_own_paragraphs(tiny, tmp_path, files, capsys):
    bindings = (
        *hotpotqa(tiny, files),
        "Evaluation.temperatures={'greedy': 0.0}",
        "hierarchical_search.route=@english_only",
    )
    options = {"gin_files": ("data/english.gin",), "output": tmp_path / "run"}
    assert run("evaluate", tiny, *bindings, **options) == 0
    shown = capsys.readouterr().out
    assert all(part in shown for part in ("hotpotqa, test", "all languages", "bridge", "seconds a question")), shown
    assert "trained on" not in shown, "one language, and the metrics of an English set"
    assert "recall" not in shown, "one language, and the metrics of an English set"
    rows = read_rows(tmp_path / "run" / "evaluation.json")
    assert {row.dataset for row in rows} == {"hotpotqa"}
    assert {row.split for row in rows} > {"test", "test/bridge"}
    assert {"squad_exact_match", "squad_f1", "squad_accuracy"} <= {row.metric for row in rows}
    hashes = json.loads((tmp_path / "run" / "answers" / "LcRL_run.json").read_text())["hashes"]
    assert "collection/en" in hashes
    gin.clear_config()
    opened = english_collections(("hotpotqa",), ("train", "test"), encoder=str(tiny / "collections" / "encoder"))
    assert opened.content_hashes().items() <= hashes.items()  # found where they were kept
    question = english_questions("hotpotqa", "test")[0]
    (hits,) = opened.search([question.text], ["en"], k=260)
    assert set(question.extra["supports"]) <= {hit.id for hit in hits}


def test_a_tool_searches_the_paragraphs(tiny, files):
    bindings = [*SIZES, f"policy.folder='{tiny / 'policy'}'", *hotpotqa(tiny, files), "search_tool.warm_up=False"]
    tool = open_search_tool("quickstart.gin", "data/english.gin", bindings=bindings)
    assert tool.languages == ["en"]
    assert len(tool(["Which magazine was first?"])) == 1


def test_several_sets_are_joined_and_limited(tiny, files):
    hotpotqa(tiny, files)
    shutil.copy(prepared("nq_open/NQ-open.dev.subset.jsonl"), files / "nq_open" / "NQ-open.dev.jsonl")
    one, two = english_questions("hotpotqa", "train", limit=5), english_questions("nq_open", "test", limit=7)
    assert [question.dataset for question in several_questions([one, two])] == ["hotpotqa"] * 5 + ["nq_open"] * 7
    assert set(one[0].extra) >= {"type", "supports"}
    assert english_questions("nq_open", "test", limit=7, seed=1) != two
    with pytest.raises(UserError, match="nq_open comes without paragraphs"):
        english_collections(("nq_open",), encoder="atlas/encoder")
    with pytest.raises(UserError, match="no popQA.tsv in .*popqa: download"):
        english_questions("popqa", "test")


@pytest.mark.parametrize(("name", "count"), [("multi_hop", 5), ("seven_sets", 7)])
def test_files_of_several_sets_name_known_ones(name, count):
    named = {}
    for key, value in gin_files.bound(f"data/{name}.gin").items():
        scope, _, parameter = key.rpartition("/english_questions.")
        if parameter in ("dataset", "split"):
            named.setdefault(scope, {})[parameter] = value
    assert all(each["split"] in QUESTION_SETS[each["dataset"]].files for each in named.values())
    tested = {each["dataset"] for scope, each in named.items() if scope.startswith("held_out")}
    assert len(tested) == count


def bound(file):
    return gin_files.bound(file)


def test_the_files_name_all_languages():
    assert set(bound("data/mgsm.gin")["held_out/mgsm_questions.languages"]) == set(MGSM_LANGUAGES)
    assert set(bound("data/global_mmlu.gin")["LANGUAGES"]) == set(GLOBAL_MMLU_LANGUAGES)


@pytest.mark.parametrize(
    ("file", "model"), [("judge/endpoint.gin", "judge/EndpointCompleter"), ("judge/local.gin", "judge/local_model")]
)
def test_judges(file, model):
    bindings = bound(file)
    assert bindings["domain_reward.judge"].strip("@()") == "CompletionJudge"
    assert bindings["CompletionJudge.model"].strip("@()") == model
    judge = CompletionJudge(lambda requests: [])
    assert domain_reward(judge=judge).models == {"judge": judge}


def test_limits_keep_every_language_of_a_question_together():
    questions = atlas_questions("held_out", limit=12)
    versions = collections.Counter(question.id for question in questions)
    assert len(versions) == 12
    assert set(versions.values()) == {len(LCRL_LANGUAGES)}
    assert [question.language for question in questions[:13]] == list(LCRL_LANGUAGES)
    assert len({question.extra["kind"] for question in questions}) > 4  # spread over the split, not its beginning


def test_copyable_answers_and_translated_ones_are_all_there_is():
    everything, copyable, translated = (
        {question.id for question in atlas_questions("held_out", ("en",), copyable=kept)}
        for kept in (None, True, False)
    )
    assert copyable | translated == everything
    assert not copyable & translated
    assert len(copyable) < len(translated)


@pytest.mark.parametrize(
    "questions",
    [functools.partial(atlas_questions, hops=(2, 3), copyable=False), atlas_comparisons, atlas_conjunctions],
)
def test_limits_beyond_what_there_is_repeat_nothing(questions):
    everything = questions("validation", ("en",))
    assert questions("validation", ("en",), limit=len(everything) + 9) == everything
    assert len({each.id for each in questions("validation", ("en",), limit=20)}) == 20
