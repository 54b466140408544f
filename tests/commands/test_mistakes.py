"""A mistake in a command is exit status 2 and one line on standard error, which names the binding or the file."""

import errno
import inspect
import json
import os
import re
from unittest import mock

import gin
import pytest
from experiment_parts import assert_mistake, contents

from lcrag import config, main
from lcrag.errors import UserError
from lcrag.files import WEIGHTS

# Without collections, whose passages would be embedded before the function is called.
QUICKSTART = "--gin_file=quickstart.gin --gin.COLLECTIONS=@NoCollections()"
OUTPUT = "--output_dir=out"
NOWHERE = "--gin.policy.folder='nowhere'"
ROW = '{"id": "1", "language": "en", "question": "Why?", "answers": ["So."]}\n'
SEVERAL = "".join(
    json.dumps({"id": str(number), "language": code, "question": f"Question {number}?", "answers": ["a", "b"]}) + "\n"
    for number in range(4)
    for code in ("en", "fi")
)
FILES = {
    "broken_module.py": "def (\n",
    "module.gin": "import broken_module\n",
    "broken.jsonl": ROW + '{"id": "2",\n',
    "good.jsonl": ROW,
    "config.json": (WEIGHTS / "cold_start" / "config.json").read_text(),
    "empty.jsonl": "\n",
    "several.jsonl": SEVERAL,
    "ninth.jsonl": SEVERAL + '{"id": "8"}\n',
    "line.gin": "STEPS = 1\ntrain.steps = = 2\n",
    "unquoted.gin": "include 'quickstart.gin'\n\nSEED = 1\nMethod.name = (1,\n    hello)\nSTEPS = 3\n",
    "includes.gin": "SEED = 2\ninclude 'unquoted.gin'\n",
    "loop.gin": "include 'loop.gin'\n",
    "bracket.gin": "include 'quickstart.gin'\nEvaluation.languages = ('en',\n",
    "macro.gin": "include 'quickstart.gin'\nUNUSED = 1\n",
    "mark.gin": "\ufeffinclude 'quickstart.gin'\n",
    "marked.gin": "include 'mark.gin'\n",
}
QUESTIONS = "--gin.Evaluation.questions=@jsonl_questions()"
OWN = (
    "train --gin_file=lcrl/atlas.gin --gin_file=data/jsonl.gin --gin.train.questions_per_step=2"
    " --gin.train/jsonl_questions.files=('several.jsonl',) --gin.held_out/jsonl_questions.files=('good.jsonl',)"
    f" {OUTPUT}"
)
TRANSLATIONS = (
    "curate translations --gin_file=translate_r1/pipeline.gin --gin.source/jsonl_questions.files=['good.jsonl']"
    f" --gin.translator/EndpointModel.model='m' --gin.judge/EndpointModel.model='m' {OUTPUT}"
)
MISTAKES = [
    ("trane", "train"),
    ("train", "--gin_file"),
    ("train --gin_file=gone.gin --output_dir=out", "gone.gin"),
    ("train --gin_file=line.gin --output_dir=out", "line.gin:2: "),
    ("train --gin_file=unquoted.gin --output_dir=out", "unquoted.gin:5: 'hello' is no value; a text needs quotes"),
    ("train --gin_file=includes.gin --output_dir=out", "unquoted.gin:5: 'hello' is no value"),
    ("train --gin_file=loop.gin --output_dir=out", "loop.gin"),
    ("train --gin_file=module.gin --output_dir=out", "broken_module.py:1: Python does not read this line"),
    ("train --gin_file=macro.gin --output_dir=out", "UNUSED"),
    ("train --gin_file=marked.gin --output_dir=out", "mark.gin begins with a byte order mark"),
    ("train --gin_file=bracket.gin --output_dir=out", "bracket.gin: a bracket, or"),
    (f"train {QUICKSTART} --gin.STEPS=%STEPS {OUTPUT}", "a macro is set to itself"),
    (f"train {QUICKSTART} --gin.train.steps=[1,2 {OUTPUT}", "--gin.train.steps=[1,2: a bracket, or"),
    (f"train {QUICKSTART} --output_dir=", "a variable of the shell"),
    (f"train {QUICKSTART}", "--output_dir"),
    (f"train {QUICKSTART} --output_dir=good.jsonl", "good.jsonl"),
    (f"train {QUICKSTART} --gin.tain.steps=3 {OUTPUT}", "tain"),
    (f"train {QUICKSTART} --gin.rag.budget=3 {OUTPUT}", "budget"),
    (f"train {QUICKSTART} {NOWHERE} {OUTPUT}", "nowhere"),
    (f"train {QUICKSTART} --nothing {OUTPUT}", "--nothing"),
    ("train --skip_rows", "did you mean --skip_bad_rows"),
    (f"train {QUICKSTART} --gin.train.question_share=1.5 {OUTPUT}", "train.question_share is 1.5"),
    (f"train {QUICKSTART} --gin.Evaluation.limit=0 {OUTPUT}", "Evaluation.limit is 0"),
    ("train --gin.A.b", "--gin.A.b"),
    ("train --gin.A.b='http://a:b@c'", "A.b"),
    (f"train {QUICKSTART} --epochs=3 {OUTPUT}", "no option --epochs; a parameter is bound by --gin.NAME.epochs=VALUE"),
    (f"train {QUICKSTART} --gin_files=3 {OUTPUT}", "did you mean --gin_file?"),
    (f"train {QUICKSTART} --gin.STEPS=0 {OUTPUT}", "steps, which STEPS sets, is 0: "),
    ("train --gin_file=lcrl/method.gin --output_dir=out", "name the file of an experiment before"),
    (f"sft {QUICKSTART} --gin_file=data/demonstrations.gin --gin.sft/Layout.rows=8 {OUTPUT}", "files"),
    (f"sft {QUICKSTART} --gin_file=baselines/sft.gin --gin.sft.steps=-1.5 {OUTPUT}", "sft.steps"),
    (f"train {QUICKSTART} --output_dir=gs://", "bucket"),
    (f"train {QUICKSTART} --output_dir=gs://b/lr[1]", "lr[1]"),
    (f"train {QUICKSTART} --output_dir=https://h/x", "https://h/x"),
    (f"train {QUICKSTART} --gin.policy.folder='https://h/x' {OUTPUT}", "https://h/x"),
    ("train --gin_file=/proc/self/mem --output_dir=out", "/proc/self/mem cannot be read"),
    (f"evaluate {QUICKSTART}", "--output_dir"),
    (f"evaluate {QUICKSTART} --output_dir={{finished}}", "holds a run"),
    (f"evaluate {QUICKSTART} {QUESTIONS} --gin.jsonl_questions.files=('gone.jsonl',) {OUTPUT}", "gone.jsonl"),
    (f"evaluate {QUICKSTART} {QUESTIONS} --gin.jsonl_questions.files=('broken.jsonl',) {OUTPUT}", "broken.jsonl"),
    (f"evaluate {QUICKSTART} --gin.evaluate.metrics=('beauty',) {OUTPUT}", "beauty"),
    ("sample Why?", "--gin_file"),
    (f"sample Why? {QUICKSTART} --gin.sample.language='xx'", "'xx'"),
    (f"sample Why? {QUICKSTART} --gin.Chat.system='Brief.'", "Chat.system"),
    (f"sample Why? {QUICKSTART} --gin.Chat.turns='messages'", "Chat.turns"),
    (
        "sample Why? --gin_file=quickstart.gin --gin.COLLECTIONS=@remote_collections()"
        " --gin.remote_collections.url='http://127.0.0.1:9' --gin.remote_collections.patience=@Patience()"
        " --gin.Patience.first_wait_seconds=0.01",
        "127.0.0.1:9",
    ),
    (
        "sample Why? --gin_file=quickstart.gin --gin.COLLECTIONS=@web_collections()"
        " --gin.web_collections.languages=('en',) --gin.web_collections.engine=@SerpApi()"
        " --gin.SerpApi.key_variable='NOT_SET_ANYWHERE'",
        "NOT_SET_ANYWHERE",
    ),
    (f"train {QUICKSTART} --gin.train.question_per_step=3 {OUTPUT}", "did you mean questions_per_step?"),
    (f"train {QUICKSTART} --gin.train.steps=many {OUTPUT}", "'many' is no value; a text needs quotes"),
    # Before anything is built: there is no such policy.
    (f"train {QUICKSTART} {NOWHERE} --gin.train.steps=2.5 {OUTPUT}", "train.steps has a wrong type"),
    (f"train {QUICKSTART} {NOWHERE} --gin.adamw.steps='ten' {OUTPUT}", "'ten' not None or int"),
    (f"evaluate {QUICKSTART} {NOWHERE} --gin.other/Sampler.slots=3 {OUTPUT}", "other/Sampler"),
    (
        f"train {QUICKSTART} {NOWHERE} --gin.train.evaluation=None --gin.atlas_questions.languages=('fi',) {OUTPUT}",
        "train/atlas_questions.languages comes before it",
    ),
    (
        f"evaluate {QUICKSTART} {NOWHERE} --gin.Evaluation.questions=@a/xquad_questions()"
        f" --gin.a/xquad_questions.folder='gone' --gin.a/xquad_questions.split='test' {OUTPUT}",
        "there is no folder gone with the files of xquad",
    ),
    (f"sft {QUICKSTART} {NOWHERE} --gin.train.steps=3 {OUTPUT}", "train.steps has no effect"),
    (f"train {QUICKSTART} --gin.train.policy=@trec_judgements() {OUTPUT}", "trec_judgements.dataset has no value"),
    (f"sample Why? {QUICKSTART} --gin.sample.language=3", "sample.language"),
    ("index fi --output_dir=out --gin.index.sources={}", "index"),
    ("index --output_dir=out --gin.index.encoder='nowhere' --gin.index.sources={'fi':'gone.xml'}", "gone.xml|nowhere"),
    (
        f"index fi --gin.index.sources={{'fi':'empty.jsonl'}} --gin.index.kind='passages' {OUTPUT}",
        "index.encoder names no encoder: ",
    ),
    (
        "index fi --gin.index.sources={'fi':'empty.jsonl'} --gin.index.kind='squad' --gin.load_encoder.max_tokens=96"
        f" --gin.index.encoder='{WEIGHTS / 'encoder'}' {OUTPUT}",
        "kind",
    ),
    ("serve", "no collection in"),
    ("serve --stdio --gin_file=quickstart.gin", "--tool"),
    (
        f"serve --tool {QUICKSTART} --gin.serve.tool_limits=@ToolLimits() --gin.ToolLimits.answer_seconds=0.0",
        "_seconds",
    ),
    ("serve --gin.serve.collections=@NoCollections() --gin.serve.port='x'", "serve.port"),
    ("curate demonstrations --gin_file=rag_r1/atlas.gin", "--output_dir"),
    ("curate nonsense", "nonsense"),  # before a configuration is asked for
    ("curate --gin_file=rag_r1/atlas.gin --output_dir=out", "curate was given 'nothing'"),
    (f"{TRANSLATIONS} --gin.translations.attempts=0", "translations.attempts is 0"),
    (f"{TRANSLATIONS} --gin.translations.translator=None", "translator/EndpointModel.model has no effect"),
    (f"{TRANSLATIONS} --gin.translations.thresholds=@Thresholds() --gin.Thresholds.copy=2.0", "Thresholds.copy"),
    (
        f"{TRANSLATIONS} --gin.LANGUAGES=('am',) --gin.translations.places=@tier_places()"
        " --gin.tier_places.quotas={'high':2}",
        "tier low",
    ),
    (f"{OWN} --gin.held_out/jsonl_questions.files=('several.jsonl',)", "8 of 8 held-out questions are also trained on"),
    (f"{OWN} --gin.policy.folder='.'", "no tokenizer in"),  # the folder has no weights either, which are read later
    (f"describe {OWN} --gin.policy.folder='.'", "no tokenizer in"),
    (f"{OWN} --gin.Sampler.context=20", "holds 20"),
    (f"{OWN} --gin.Runner.temperature=0.0", "learning needs a positive one"),
    (f"{OWN} --gin.train.staleness=1", "only a correction makes right"),
    (f"{OWN} --gin.train/jsonl_questions.files=('ninth.jsonl',)", "line 9"),
    ("describe bake", "bake"),
    ("describe serve --gin_file=quickstart.gin", "train"),
    ("describe train --gin_file=quickstart.gin --gin.train.nothing=1", "nothing"),
    ("describe train --gin_file=quickstart.gin --gin.train.questions_per_step=5000", "5000"),
    ("describe train --gin_file=quickstart.gin --gin.mesh.fsdp=0", "mesh.fsdp"),
    ("describe train --gin_file=quickstart.gin --gin.ircot.route=@native_only", "ircot.route"),
    ("compile --topology=v9:4", "v9"),
    ("compile --topology=h100:8", "h100:8"),
    ("compile --topology=v5e:3x3", "v5e:3x3|libtpu"),
    ("compile update walk", "walk"),
    ("compile --gin_file=quickstart.gin --gin.mesh.data=3 --gin.mesh.fsdp=3", "data=3"),
    ("compile --gin_file=quickstart.gin --gin.mesh.data=4 --gin.mesh.fsdp=2 --gin.Layout.rows=6", "Layout.rows"),
    ("benchmark --gin.benchmark.repeats='x'", "benchmark.repeats"),
    ("export", "RUN"),
    ("export nowhere --output_dir=out", "nowhere"),
    ("export {finished}/episodes --output_dir=out", "is no run of lcrag: it holds no config.gin"),
    ("export {finished} 7 --output_dir=out", "step 7"),
    ("export {finished} 1 2 --output_dir=out", "STEP"),
    ("export {finished} --output_dir={finished}", "is not empty"),
    ("export {finished} --to=atf --output_dir=out", "no format atf"),
    ("export {finished} 7 --to=atif --output_dir=out", "holds no step_7.jsonl"),
    ("export {finished}/episodes --to=atif --output_dir=out", "holds no episodes/*.jsonl"),
    ("export {finished} --to=atif --gin.SEED=1 --output_dir=out", "takes no configuration"),
    ("export {finished} --to=atif --output_dir={finished}", "is not empty"),
    ("report nowhere --output_dir=out", "nowhere"),
    ("report --against=X", "report|output_dir"),
    ("view nowhere", "nowhere"),
    ("view", "RUN"),
    ("view .", "has no episodes"),
    ("view {finished} --steps=0", "--steps takes a whole number of 1 or more"),
    ("view {finished} --gin_file=quickstart.gin", "leave --gin out"),
    ("view {finished} --output={finished}/episodes", "cannot read or write {finished}/episodes"),
    ("convert", "takes a file and the folder"),
    ("convert absent.gguf made", "there is no file"),
    ("convert good.jsonl .", "is not empty"),
    ("convert good.jsonl made --dtype=int8", "choose float32 or bfloat16"),
    ("convert good.jsonl made", "is not a whole GGUF file"),
    ("convert gs://bucket/a.gguf made", "is in object storage"),
    ("study", "NAME|lcrl"),
    ("study poems --output_dir=out", "lcrl"),
    ("study lcrl_data --only=rag --output_dir=out", "--only=rag"),
    ("study lcrl_tables --only=long_sft --experiment=lcrl/paper --output_dir=out", "long_sft begins with a policy"),
    ("study r_search --only=from_long_sft --experiment=r_search/paper --output_dir=out", "from_long_sft differs from"),
]


# One for each place in which the commands differ: gin or not, a run's folder or any.
WRITING = ["train", "sft", "evaluate", "curate selection", "index fi", "export run", "report run", "view run",
           "study lcrl", "compile", "benchmark"]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize(("line", "named"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_one_line_and_writes_nothing(line, named, folder, monkeypatch, capfd, request):
    finished = request.getfixturevalue("finished") if "{finished}" in line else folder
    line, named = (text.replace("{finished}", str(finished)) for text in (line, named))
    before = contents(finished)
    monkeypatch.chdir(folder)
    gin.clear_config()
    capfd.readouterr()
    assert main.run(line.split()) == 2
    error = capfd.readouterr().err
    assert error.startswith("lcrag: error: ")
    assert error.count("\n") == 1
    assert any(part in error for part in named.split("|")), error
    assert contents(finished) == before
    assert not (folder / "out").exists()


def test_a_file_of_a_python_package_is_named(tmp_path, monkeypatch, capsys):
    (tmp_path / "gin_package").mkdir()
    for name in ("__init__.py", "own.gin"):
        (tmp_path / "gin_package" / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert main.run(["train", "--gin_file=gin_package/own.gin", "--output_dir=out"]) == 2
    assert_mistake(capsys, "gin_package/own.gin is in a Python package")


@pytest.mark.parametrize("name", ["adamw", "policy", "question_judgements", "jsonl_questions"])
def test_a_parameter_without_a_value_is_named(name):
    config.register()
    gin.clear_config()
    with pytest.raises(UserError, match=rf"^{name}\.\w+ has no value"), config.missing_as_sentence():
        gin.get_configurable(name)()


def test_one_text_is_accepted_where_several_are_meant(folder, monkeypatch):
    monkeypatch.chdir(folder)
    [question] = config.configurables()["jsonl_questions"](files="good.jsonl", languages="en")
    assert question.text == "Why?"
    evaluation = config.configurables()["Evaluation"](questions=[question], languages="fi")
    assert evaluation.languages == ("fi",)
    assert config.configurables()["jsonl_questions"](files=["good.jsonl"]) == [question]
    of_caller = ("collections", "languages", "words", "folders", "texts")
    codes = ("targets",)  # in which one code is looked up
    for name, value in config.configurables().items():
        several = [
            each.name
            for each in inspect.signature(value).parameters.values()
            if re.match(r"(collections\.abc|typing)\.(Sequence|Collection|Iterable)\[str", str(each.annotation))
        ]
        assert not set(several).difference(of_caller + codes) or getattr(value, "checks_types", False), name


PLACES = ("good.jsonl", "good.jsonl/out", "n" * 256, "new/" + "語" * 86, "/proc/out", "refused")


@pytest.mark.parametrize(
    ("line", "place"),
    [*zip(WRITING, (PLACES * 2)[: len(WRITING)], strict=True), *(("train", place) for place in PLACES[1:])],
)
def test_a_folder_that_cannot_be_written(line, place, folder, monkeypatch, capfd):
    monkeypatch.chdir(folder)
    if place == "refused":
        refusal = PermissionError(errno.EACCES, "Permission denied")
        monkeypatch.setattr("tempfile.TemporaryFile", mock.Mock(side_effect=refusal))
    assert main.run([*line.split(), "--gin_file=quickstart.gin", f"--output_dir={place}"]) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"lcrag: error: cannot write to the output folder {place}: ")
    assert error.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES)


def test_a_name_that_is_not_unicode_is_refused(capfd):
    assert main.run(["view", os.fsdecode(b"run\xff")]) == 2
    assert r"'run\udcff' is not UTF-8" in capfd.readouterr().err
