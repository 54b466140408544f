"""The folder of a run: continued, refused, incomplete lines, and nothing lost, also on a full disk."""

import concurrent.futures
import contextlib
import errno
import json
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from joined_processes import free_port
from rich.live import Live
from support import tiny_config
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lcrag import runs
from lcrag.errors import UserError
from lcrag.evaluation import Row, read_rows
from lcrag.files import full_disk, matching_files
from lcrag.learning.checkpoints import Checkpoints, abstract_state
from lcrag.policy import initialise, load_hugging_face, save_hugging_face
from lcrag.runs.display import make_console, progress_display
from lcrag.runs.processes import find_processes
from lcrag.train.evaluation import add_rows, answers_path

CONFIG = "# Parameters for train:\ntrain.steps = 3\ntrain.sampler = @Sampler()\nSampler.slots = 4\n"
ABOUT = {"seed": 0, "command": ["lcrag", "train"], "hashes": {"rows": "a", "policy": "b"}}


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def assert_refused(part, path, config=CONFIG, about=ABOUT, **options):
    with pytest.raises(UserError, match=part), runs.open_run(path, config=config, about=about, **options):
        pass


@pytest.fixture
def run(tmp_path):
    with runs.open_run(tmp_path / "a" / "run", config=CONFIG, about=ABOUT) as run:
        run.write_episodes(1, [{"answer": "東京"}])
    return run.path


def test_the_same_run_is_continued(run):
    assert "continued" not in json.loads((run / "run.json").read_text())
    (run / "episodes" / "step_2.jsonl.123.tmp").write_text("of a killed process")
    with runs.open_run(run, config=CONFIG.replace("3", "6"), about=ABOUT, may_change=("train.steps",)):
        pass
    assert [path.name for path in (run / "episodes").iterdir()] == ["step_1.jsonl"]
    assert "東京" in (run / "episodes" / "step_1.jsonl").read_text()
    assert len(json.loads((run / "run.json").read_text())["continued"]) == 1
    assert "steps = 6" in (run / "config.gin").read_text()


def test_of_several_processes_the_first_one_writes(tmp_path, monkeypatch):
    with runs.open_run(tmp_path / "run", config=CONFIG, about=ABOUT) as run, run.metrics() as log:
        log.write(0, {"loss": 1.0})
        before = contents(tmp_path)
        monkeypatch.setattr(jax, "process_index", lambda: 1)
        assert runs.is_writer(), "a single process is the writer, without a look at JAX's devices"
        monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
        with runs.open_run(run.path, config=CONFIG, about=ABOUT) as other, other.metrics(0) as unwritten:
            unwritten.write(1, {"loss": 0.5})
            other.write_episodes(1, [{"answer": "東京"}])
            other.write_rows([{"answer": "東京"}])
            assert other.checkpoints == run.checkpoints
    assert before == contents(tmp_path)


ALL_DIFFERENCES = "Sampler.slots is 4 there and 8 here, train.sampler is @Sampler.* there and @Other.* here; choose"


@pytest.mark.parametrize(
    ("config", "about", "part"),
    [
        (CONFIG.replace("4", "8").replace("@Sampler", "@Other").replace("steps = 3", "steps = 6"), {}, ALL_DIFFERENCES),
        (CONFIG + "train.more = 1\n", {}, "train.more is not set there"),
        (CONFIG, {"seed": 1}, "seed is 0 there and 1 here"),
        (CONFIG, {"hashes": {"rows": "c", "policy": "b", "web": "the web, by there"}}, "content of its rows differs"),
        (CONFIG, {"hashes": {"rows": "a", "collection/fi": "c"}}, "content of its collection/fi, policy differs"),
    ],
)
def test_another_run_is_refused_and_left_alone(run, config, about, part):
    before = contents(run)
    assert_refused(part, run, config, ABOUT | about, may_change=("train.steps",))
    assert before == contents(run)


@pytest.mark.parametrize(
    ("command", "config", "part"),
    [
        ("train", "train.steps = 6\ntrain.steps = 7\nOther.slots = 9\n", None),
        ("train", "SLOTS = 8\nSampler.slots = %SLOTS\ntrain.sampler = @Other()\n", "slots is 4 .* train.sampler is @S"),
        ("sft", "sft.steps = 6\n", "another command than sft"),
    ],
)
def test_what_is_known_before_anything_is_built(run, command, config, part):
    before = contents(run)
    with pytest.raises(UserError, match=part) if part else contextlib.nullcontext():
        runs.check_folder(run, command, config, may_change=("train.steps",))
    assert before == contents(run)


def test_folders_that_are_refused(run, tmp_path):
    runs.check_folder(tmp_path / "new" / "run", "train", CONFIG)
    assert not (tmp_path / "new").exists()
    thesis = tmp_path / "other" / "thesis.tex"
    thesis.parent.mkdir()
    thesis.write_text("x")
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with runs.open_run(run, config=CONFIG, about=ABOUT):  # a lock belongs to an open file, not to a process
        for path, part in (
            (tmp_path / "other", "thesis.tex"),
            (thesis / "run", "cannot write"),
            (circle, "cannot write"),
            (circle / "run", "cannot write"),
            (run, "another process"),
        ):
            assert_refused(part, path)
            with pytest.raises(UserError, match=part):
                runs.check_folder(path, "train", CONFIG)
    (run / "run.json").unlink()
    assert_refused("run.json", run)


def test_values_compare_by_meaning():
    for other in ("train.languages = \\\n    ('en',\n     'fi')\n", "X = 'fi'\ntrain.languages = ['en', %X]\n"):
        assert runs.differences(other, "train.languages = ('en', 'fi')\n") is None


def test_metrics_continue_without_doubles(tmp_path):
    with runs.MetricsLog(tmp_path) as log:
        for step in range(5):
            log.write(step, {"reward/total": np.float32(step), "loss/policy": float("nan")})
    with runs.MetricsLog(tmp_path, after_step=2) as log:
        log.write(3, {"reward/total": 30.0})
    assert [record["step"] for record in runs.read_metrics(tmp_path)] == [0, 1, 2, 3]
    assert runs.read_metrics(tmp_path)[1] == {"step": 1, "reward/total": 1.0, "loss/policy": None}
    events = EventAccumulator(str(tmp_path)).Reload().Scalars("reward/total")
    assert [(event.step, event.value) for event in events] == [(0, 0), (1, 1), (2, 2), (3, 30)]


@pytest.mark.parametrize("torn", ['{"step": 2, "rew', '{"step": 2}garbage', '{"step": 2, "x": "\udce2'])
def test_an_incomplete_last_line_is_left_out(tmp_path, torn):
    (tmp_path / "metrics.jsonl").write_bytes(('{"step": 0}\n{"step": 1}\n' + torn).encode("utf-8", "surrogateescape"))
    assert [record["step"] for record in runs.read_metrics(tmp_path)] == [0, 1]
    with runs.MetricsLog(tmp_path, after_step=1) as log:
        log.write(2, {"x": 3.0})
    assert [record["step"] for record in runs.read_metrics(tmp_path)] == [0, 1, 2]


def test_a_journal_is_continued(tmp_path):
    path = tmp_path / "journal.jsonl"
    runs.Journal(path).append([{"a": 1}, {"b": "ä"}])
    with path.open("a") as file:
        file.write('{"torn": ')
    journal = runs.Journal(path)
    assert journal.rows == [{"a": 1}, {"b": "ä"}]
    journal.append([{"c": (1, 2)}])
    assert runs.Journal(path).rows == journal.rows == [{"a": 1}, {"b": "ä"}, {"c": [1, 2]}]
    assert path.read_text() == '{"a": 1}\n{"b": "ä"}\n{"c": [1, 2]}\n'
    path.write_text(path.read_text(), encoding="utf-8-sig")  # by an editor
    assert runs.Journal(path).rows == journal.rows
    path.write_text('{"a": 1}\n{"b": 2}\n', newline="\r")  # by an old one
    assert runs.Journal(path).rows == [{"a": 1}, {"b": 2}]


STEPS = ["{}", '{"step": true}', '{"step": "1"}', '{"step": -1}', '{"step": 1, "a": "b"}']  # no record of metrics


@pytest.mark.parametrize("line", ["what", "[1]", "3", "null", "\udcff", "[" * 100_000, *STEPS])
def test_a_broken_line_is_named(tmp_path, line):
    for name in ("metrics.jsonl", "journal.jsonl"):
        (tmp_path / name).write_bytes(f'{{"step": 0}}\n{line}\n'.encode("utf-8", "surrogateescape"))
    readers = [(runs.read_metrics, tmp_path), (runs.MetricsLog, tmp_path)]
    for reader, argument in readers + [(runs.Journal, tmp_path / "journal.jsonl")] * (line not in STEPS):
        with pytest.raises(UserError, match=r"\.jsonl, line 2, is not"):
            reader(argument)


@pytest.mark.parametrize("name", ["run.json", "config.gin"])
@pytest.mark.parametrize(
    "content",
    [b"3", b"{}", b"[]", b"\xff", b"{", b"[" * 100_000, b'{"seed": "0"}', b'{"seed": 0, "command": 3, "hashes": {}}'],
    ids=lambda content: content[:40],
)
def test_a_damaged_record_of_a_run_is_named(run, name, content):
    (run / name).write_bytes(content)
    assert_refused(f"{name}|another run", run)


@pytest.mark.parametrize(
    ("steps", "checkpoints", "kept", "first", "said"),
    [
        ([0, 1, 2, 3], [2, 4], [0, 1, 2, 3], 4, None),
        ([0, 1, 1, 2, 1, 3], [2, 4], [0, 1, 2, 3], 4, None),  # doubled lines
        ([0, 1, 2], [2, 4], [0, 1], 2, "lacks step 3, so the run continues from step 2; .* called unlogged_4_1"),
        ([0, 2, 3], [2, 4], [], 0, "lacks step 1, .* from step 0; .* unlogged_2_1, unlogged_4_1.*kept as metrics_1.j"),
        ([], [2, 4], [], 0, "lacks step 0, so the run continues from step 0; .* called unlogged_2_1, unlogged_4_1"),
        ([0, 1, 2], [], [], 0, "metrics of 3 steps but no checkpoint, .* anew at step 0; .* kept as metrics_1.jsonl"),
        ([], [], [], 0, None),
    ],
)
def test_metrics_and_checkpoints_fit(run, steps, checkpoints, kept, first, said, capsys):
    lines = "".join(f'{{"step": {step}, "place": {place}}}\n' for place, step in enumerate(steps))
    (run / "metrics.jsonl").write_text(lines)
    for step in checkpoints:
        (run / "checkpoints" / str(step)).mkdir(parents=True)
    with runs.open_run(run, config=CONFIG, about=ABOUT) as opened:
        latest = max((int(path.name) for path in opened.checkpoints.glob("[0-9]*")), default=0)
        with opened.metrics(latest - 1):
            pass
    assert latest == first
    assert [record["step"] for record in runs.read_metrics(run)] == kept
    error = capsys.readouterr().err
    assert re.search(said, error.replace("\n", " ")) if said else not error
    if "metrics_1" in (said or ""):
        assert (run / "metrics_1.jsonl").read_text() == lines


def test_rows_that_several_add_to_one_file_at_once_are_all_there(tmp_path):
    about = {"model": "m", "dataset": "d", "split": "s", "language": "en", "metric": "x", "value": 1.0}

    def add(name):
        for number in range(20):
            add_rows(tmp_path, [Row(method=f"{name} {number}", count=1, seed=0, **about)])

    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(add, "abcd"))
    assert len(read_rows(tmp_path / "evaluation.json")) == 80


def test_run_json_holds_no_secret(monkeypatch):
    monkeypatch.setattr("sys.argv", ["lcrag", "sample", "why http://me:hunter2@host/?", "http://host/?api_key=hunter2"])
    assert runs.provenance(seed=0)["command"] == [
        "lcrag",
        "sample",
        "why http://***@host/?",
        "http://host/?api_key=***",
    ]


def test_the_commit_is_not_that_of_a_repository_around_an_installation(tmp_path, monkeypatch):
    for name in ("thesis.tex", "folder.py"):
        (tmp_path / name).touch()
    for words in ("init", "add thesis.tex", "-c user.name=a -c user.email=a@b commit --message=a"):
        subprocess.run(["git", *words.split()], cwd=tmp_path, check=True, capture_output=True)
    monkeypatch.setattr("lcrag.runs.folder.__file__", str(tmp_path / "folder.py"))
    assert runs.provenance(seed=0)["commit"] is None


def test_processes_join_by_the_command_line_and_end_together(tmp_path):
    words = ["evaluate", "--gin_file=quickstart.gin", f"--output_dir={tmp_path}", "--processes=2"]
    words += [f"--coordinator=localhost:{free_port()}"]
    line = [sys.executable, "-m", "lcrag.main", *words]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen([*line, f"--process={n}", f"--gin.SEED={n}"], **pipes) for n in range(2)]
    for number, process in enumerate(running):
        out, error = process.communicate(timeout=300)
        assert out.startswith(f"lcrag: process {number} of 2: ")
        assert process.returncode == 2, error
        assert "another configuration" in error.splitlines()[-1]
        assert "Traceback" not in error
    with pytest.raises(UserError, match="--coordinator"):
        find_processes({"--processes": "2", "--process": "2", "--coordinator": "a:1"})


@pytest.mark.parametrize(("tasks", "devices"), [("1(x2)", []), ("1", []), ("8(x2)", None), ("1(x2),2", None)])
def test_a_process_alone_on_its_node_has_all_devices_of_it(monkeypatch, tasks, devices):
    monkeypatch.setenv("SLURM_NTASKS", "2")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", tasks)
    found = find_processes({})
    assert found is not None
    assert found.get("local_device_ids") == devices


# --- A full disk: the error names the file, earlier content stays, and no partial file ---


LONG = "x" * 100_000
LIMIT = 20_000


@pytest.fixture
def full(monkeypatch):
    """From here on no file grows over 20,000 bytes: the kernel refuses to write as it does on a full disk."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python would keep a part of a module's bytecode
    _, hard = soft_and_hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, soft_and_hard)


WRITERS = {
    "run.json": lambda path, size: runs.write_json(path, {"a": LONG[:size]}),
    "rows.jsonl": lambda path, size: runs.write_json_lines(path, [{"a": LONG[:size]}]),
    "journal.jsonl": lambda path, size: runs.Journal(path).append([{"a": LONG[:size]}]),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_file_is_named_and_keeps_its_content(name, tmp_path, full):
    path = tmp_path / name
    WRITERS[name](path, 50)
    before = path.read_bytes()
    full()
    with pytest.raises(OSError) as failure:
        WRITERS[name](path, len(LONG))
    assert failure.value.errno == errno.EFBIG
    assert failure.value.filename == str(path)
    if name == "journal.jsonl":
        assert len(runs.Journal(path).rows) == 1
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [name]


def test_metrics_keep_their_complete_lines(tmp_path, full):
    with pytest.raises(OSError, match="File too large"), runs.MetricsLog(tmp_path) as log:
        log.write(0, {"loss": 1.0})
        full()
        log.write(1, {f"metric/{number}": 1.0 for number in range(2000)})
    assert [record["step"] for record in runs.read_metrics(tmp_path)] == [0]
    resource.setrlimit(resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE)[1:] * 2)
    with runs.MetricsLog(tmp_path, after_step=0) as log:
        log.write(1, {"loss": 0.5})
    assert [record["step"] for record in runs.read_metrics(tmp_path)] == [0, 1]
    assert not list(tmp_path.glob("*.tmp"))


def test_a_policy_is_replaced_or_kept(tmp_path, full):
    config = tiny_config()
    params = initialise(config, jax.random.key(0))
    save_hugging_face(tmp_path, config, params)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    full()
    with pytest.raises(OSError) as failure:
        save_hugging_face(tmp_path, config, jax.tree.map(lambda leaf: leaf + 1, params))
    assert full_disk(failure.value).filename.endswith("model.safetensors")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    load_hugging_face(tmp_path)


def test_a_checkpoint_is_named_and_the_one_before_it_stays(tmp_path, full):
    small, large = {"a": jnp.zeros(3)}, {"a": jax.random.normal(jax.random.key(0), (200, 200))}
    with pytest.raises(OSError) as failure, Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(1, small)
        checkpoints.wait()
        full()
        checkpoints.save(2, large)
        checkpoints.wait()
    assert full_disk(failure.value).errno == errno.EFBIG
    assert failure.value.filename == str(tmp_path / "2")
    assert [path.name for path in tmp_path.iterdir()] == ["1"]
    with Checkpoints(tmp_path) as checkpoints:
        step, _ = checkpoints.continue_from(small)
        assert (step, abstract_state(small)["a"].shape) == (1, (3,))


TEXTS = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=300)
NAMES = st.text(st.characters(exclude_characters="/", exclude_categories=("Cc", "Cs")), min_size=1, max_size=60)


@settings(deadline=None, max_examples=50)
@given(TEXTS)
@example("a" * 50 + "語" * 300)
@example("lr[1] of {a}*")
@example("../../there")
@example("/etc/there")
@example("a b/../c")
@example("$a$ of \\b$")
def test_a_label_of_any_text_names_files_of_its_own(text):
    with tempfile.TemporaryDirectory() as folder:
        paths = {answers_path(Path(folder), f"{text}{end}", part) for end in ("", "2") for part in ("greedy", "config")}
        assert len(paths) == 4
        for path in paths:
            assert path.resolve().parent == Path(folder).resolve() / "answers"
            runs.write_json_lines(path, [])
        assert {path for path in (Path(folder) / "answers").glob("*_config.jsonl")} < paths


@settings(deadline=None, max_examples=50)
@given(NAMES.filter(lambda name: name.strip(".")))
@example("rows[1]")
@example("a**b")
def test_files_and_folders_of_any_name_are_themselves_and_not_a_pattern(name):
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root) / name
        folder.mkdir()
        (folder / f"{name}.jsonl").touch()
        assert matching_files(folder / f"{name}.jsonl") == matching_files(folder / "*.jsonl") == [*folder.iterdir()]
        assert matching_files(folder) == [folder]


def test_names_and_paths_are_printed_as_they_are(capsys):
    console = make_console()
    with progress_display("a[/b] [red]", 2, console=console) as display:
        display.say("runs/[red]/x[/y]")
        with Live(display, console=console):
            pass
    console.print("The report is in runs/[bold]/[/]")
    shown = capsys.readouterr().out
    assert "runs/[red]/x[/y]" in shown
    assert "runs/[bold]/[/]" in shown
    assert "a[/b] [red]" in shown
