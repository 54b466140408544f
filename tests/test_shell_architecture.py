"""Dependencies point one way, gin and TensorFlow stay out of the engine, and every module says its subject."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lcrag"
# From the ground up: a room imports only rooms of earlier rows. Methods do not import each other.
RANKS = (
    ("errors",),
    ("files", "collectives", "retries"),
    ("policy", "rewards"),
    ("sampling", "learning", "retrieval"),
    ("data",),
    ("episodes",),
    ("models",),
    ("atlas",),
    ("curation", "evaluation"),
    ("runs",),
    ("methods", "train"),
    ("config",),
    ("commands",),
    ("main",),
)
RANK_OF = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}
ENGINE = ("policy", "rewards", "sampling", "learning")
# A method's program knows its requests and prompts, not what runs it.
HIDDEN_FROM_PROGRAMS = ("lcrag.sampling", "lcrag.policy", "lcrag.retrieval", "lcrag.episodes.runner", "jax")
PLAIN_RECORDS = ("lcrag.retrieval.passages", "lcrag.sampling.SamplingParameters")
REQUESTS = ("Observe", "Generate", "Retrieve", "Complete")
VAGUE_NAMES = ("utils", "util", "helpers", "common", "misc")

TREES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}


def imports_of(tree: ast.Module) -> set[str]:
    """Full names of every module that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{'.' * node.level}{node.module}.{alias.name}" for alias in node.names}
    return names


IMPORTS = {path: imports_of(tree) for path, tree in TREES.items()}


def room_of(parts: tuple[str, ...]) -> tuple[str, ...]:
    """The room of a module, and of a method its own folder."""
    return parts[:2] if parts[0] == "methods" else parts[:1]


def imported(path: Path, *packages: str) -> list[str]:
    return sorted(
        name for name in IMPORTS[path] if name.startswith(tuple(f"{each}." for each in packages)) or name in packages
    )


def test_rooms_import_only_what_stands_below_them():
    upward = []
    for path, names in IMPORTS.items():
        own = room_of(path.relative_to(PACKAGE).with_suffix("").parts)
        if own == ("__init__",):
            continue
        assert own[0] in RANK_OF, f"the room {own[0]} has no rank"
        assert not any(name.startswith(".") for name in names), f"{path}: imports are absolute"
        for name in names:
            parts = tuple(name.split(".")[1:]) if name.startswith("lcrag.") else ()
            if parts and room_of(parts) != own and RANK_OF.get(parts[0], len(RANKS)) >= RANK_OF[own[0]]:
                upward.append(f"{path.relative_to(ROOT)} imports {name}")
    assert not upward


def test_no_two_modules_import_each_other():
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts) for path in TREES}
    found = {path: {name.rpartition(".")[0] for name in names} | names for path, names in IMPORTS.items()}
    graph = {name: found[path] & set(names.values()) - {name} for path, name in names.items()}
    assert not {(a, b) for a in graph for b in graph[a] if a in graph[b]}


def test_no_gin_in_the_engine():
    rooms = [PACKAGE / room for room in ENGINE]
    assert not [path for path in TREES if set(rooms) & set(path.parents) and imported(path, "gin")]


def test_tensorflow_is_for_seqio_tasks():
    """Its import takes seconds, and it takes the memory of the accelerators."""
    slow = ("tensorflow", "tensorflow_text", "tensorflow_datasets", "seqio", "clu")
    tasks = {PACKAGE / "data" / "seqio_tasks.py", PACKAGE / "atlas" / "tasks.py"}
    assert {path for path in TREES if imported(path, *slow, "lcrag.data.seqio_tasks")} - tasks == {
        PACKAGE / "curation" / "rows.py"  # which imports the tasks to read demonstrations of one
    }


LITTLE = """
import sys
from pathlib import Path

folder, collections = sys.argv[1:]

def check(*absent):
    assert not set(absent) & set(sys.modules), set(absent) & set(sys.modules)

import lcrag
check("jax", "numpy", "gin")
import lcrag.retrieval
check("jax", "pyarrow", "scann")  # the room's names are cheap to import
from lcrag import config, main
main.run(["train", "--help"])
check("jax", "numpy", "tensorboard", "fastapi", "lcrag.train")
config.register()
check("matplotlib", "scipy.stats")  # which take two of a command's first seconds
from lcrag.runs.folder import MetricsLog, Trackers
with MetricsLog(Path(folder), settings=Trackers(names=("tensorboard",))) as log:
    log.write(0, {"reward/total": 1.0})
lcrag.retrieval.load_collections(collections).search(["x"], ["en"], 1)
check("tensorflow", "tensorflow_text", "tensorflow_datasets", "seqio", "clu")
assert all(getattr(lcrag, name) is not None for name in lcrag.__all__)
assert not hasattr(lcrag, "load_polcy")
"""


def test_little_is_imported(tiny, tmp_path):
    words = [sys.executable, "-c", LITTLE, str(tmp_path), str(tiny / "collections")]
    answer = subprocess.run(words, capture_output=True, text=True, cwd=ROOT)
    assert answer.returncode == 0, answer.stderr


def is_program(tree: ast.Module) -> bool:
    calls = (node.value for node in ast.walk(tree) if isinstance(node, ast.Yield) and isinstance(node.value, ast.Call))
    return any(isinstance(call.func, ast.Name) and call.func.id in REQUESTS for call in calls)


def test_programs_do_not_know_the_engine():
    programs = [path for path in TREES if is_program(TREES[path])]
    assert len(programs) > 5
    for path in programs:
        known = imported(path, *HIDDEN_FROM_PROGRAMS)
        assert not [name for name in known if not name.startswith(PLAIN_RECORDS)], path


def test_modules_have_a_subject():
    for path, tree in TREES.items():
        if path.read_text(encoding="utf-8").strip():
            assert ast.get_docstring(tree), f"{path} does not say what it is about"
        assert path.stem not in VAGUE_NAMES, f"{path} has a name without a subject"
