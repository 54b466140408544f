"""The rooms keep to themselves: dependencies point one way, modules stay small and have a subject."""

import ast
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lcrag"
MODULES = sorted(PACKAGE.rglob("*.py"))
ROOTS = ("experiments", "main")

# What each room may import of lcrag, beside itself and `errors`. The roots, which compose, may import all.
ALLOWED = {
    "policy": set(),
    "sampling": {"policy"},
    "plans": set(),
    "episodes": {"sampling", "policy", "retrieval", "data", "plans"},
    "retrieval": {"policy"},
    "rewards": {"policy", "plans"},
    "learning": {"policy"},
    "data": {"policy", "retrieval", "episodes", "plans"},
    "artifacts": {"curation", "data", "episodes", "learning", "policy", "retrieval", "rewards", "runs", "sampling"},
    "evaluation": {"rewards", "data", "episodes", "plans", "runs"},
    "curation": {"data", "episodes", "plans", "policy", "retrieval", "rewards", "sampling"},
    "tool": {"data", "episodes", "retrieval"},
    "runs": {"cli"},
    "cli": set(),
    "display": set(),
    "testing": {"policy", "sampling", "retrieval", "data", "episodes"},
}
# A method's program knows its requests and prompts, never what runs it.
PROGRAM_FORBIDDEN = {"lcrag.sampling", "lcrag.policy", "lcrag.retrieval", "lcrag.episodes.runner", "jax"}
WITHOUT_TENSORFLOW = ("policy", "sampling", "rewards", "learning", "episodes", "retrieval", "plans")
SLOW = {"tensorflow", "tensorflow_text", "seqio"}


def imports_of(path: Path) -> set[str]:
    """Full names of every module that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_root(room: str) -> bool:
    return room.startswith(ROOTS) or room == "__init__"


def lcrag_rooms(names: set[str]) -> set[str]:
    return {name.split(".")[1] for name in names if name.startswith("lcrag.")}


IMPORTS = {path: imports_of(path) for path in MODULES}


@pytest.mark.parametrize("room", sorted({room_of(path) for path in MODULES} - {"errors"}))
def test_dependencies_point_one_way(room):
    if is_root(room):
        return
    assert room in ALLOWED, f"the room {room} is not in the picture of the rooms"
    for path in MODULES:
        if room_of(path) == room:
            strangers = lcrag_rooms(IMPORTS[path]) - ALLOWED[room] - {room, "errors"}
            assert not strangers, f"{path.relative_to(ROOT)} imports {sorted(strangers)}"


def test_no_two_modules_import_each_other():
    """At module level, a cycle means that one subject lies in two places."""
    names = {path: ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in MODULES}
    graph = defaultdict(set)
    for path, name in names.items():
        if path.name != "__init__.py":
            graph[name] = IMPORTS[path] & set(names.values()) - {name}
    cycles = {tuple(sorted((a, b))) for a in list(graph) for b in graph[a] if a in graph.get(b, ())}
    assert not cycles


def test_programs_know_nothing_of_the_engine():
    for path in (PACKAGE / "episodes").rglob("*.py"):
        if any(
            isinstance(node, ast.Yield)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
            and node.value.func.id in ("Observe", "Generate", "Retrieve", "Complete")
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        ):
            known = {
                name for name in PROGRAM_FORBIDDEN if any(i == name or i.startswith(f"{name}.") for i in IMPORTS[path])
            }
            # Plain records of what a search returns are no engine.
            known -= {"lcrag.retrieval"} if _only_passages(IMPORTS[path]) else set()
            assert not known, f"{path.relative_to(ROOT)} is a program and imports {sorted(known)}"


def _only_passages(names: set[str]) -> bool:
    return all(name.startswith("lcrag.retrieval.passages") for name in names if name.startswith("lcrag.retrieval"))


@pytest.mark.parametrize("room", WITHOUT_TENSORFLOW)
def test_no_tensorflow_in_the_room(room):
    for path in (PACKAGE / room).rglob("*.py"):
        found = {name.split(".")[0] for name in IMPORTS[path]} & SLOW
        assert not found, f"{path.relative_to(ROOT)} imports {sorted(found)}"


def test_importing_the_device_rooms_imports_no_tensorflow():
    rooms = [
        room for room in ("policy", "sampling", "learning", "rewards") if (PACKAGE / room / "__init__.py").exists()
    ]
    program = f"import sys, {', '.join(f'lcrag.{room}' for room in rooms)}; print(sorted({SLOW!r} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=True)
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_modules_are_small_and_have_a_subject(path):
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    assert ast.get_docstring(tree) or not text.strip(), "the first line says what the module is about"
    assert path.stem not in ("utils", "util", "helpers", "common", "misc"), "find its contents their real home"
    assert text.count("\n") <= 400, "split it by subject"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
            assert node.end_lineno - first.lineno < 60, f"{node.name} is long: split it by subject"
