"""Changes a module in one place at a time, runs tests on it, and prints the changes that no test notices.

It works on a copy of the repository, with a random selection of the places. Survivors that change no result are normal;
each other one needs a test case, best of an oracle or a property.

    python tests/mutate.py lcrag/episodes/tags.py tests/episodes tests/methods --count 20 --seed 0
"""

import argparse
import ast
import contextlib
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SWAPS = {ast.Add: ast.Sub, ast.Mult: ast.Div, ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.In: ast.NotIn}
SWAPS |= {ast.Is: ast.IsNot, ast.And: ast.Or}
SWAPS |= {new: old for old, new in SWAPS.items()}


def change(node: ast.AST) -> bool:
    """Changes a node in place; returns whether it is one that can be changed."""
    match node:
        case ast.BinOp(op=op) | ast.AugAssign(op=op) | ast.BoolOp(op=op) if type(op) in SWAPS:
            node.op = SWAPS[type(op)]()
        case ast.Compare(ops=[op, *others]) if type(op) in SWAPS:
            node.ops = [SWAPS[type(op)](), *others]
        case ast.If() | ast.IfExp() | ast.While():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value) | float(value)):
            node.value = value + 1
        case _:
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("module")
    parser.add_argument("tests", nargs="+")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    source = (ROOT / given.module).read_text(encoding="utf-8")
    places = [place for place, node in enumerate(ast.walk(ast.parse(source))) if change(node)]
    chosen = random.Random(given.seed).sample(places, min(given.count, len(places)))
    command = [sys.executable, "-m", "pytest", "-q", "-x", *given.tests]
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name) / "lcrag"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".git", ".venv", "__pycache__", "runs"))
        options = {"cwd": copy, "env": os.environ | {"PYTHONPATH": str(copy)}, "capture_output": True}
        started, alive = time.monotonic(), 0
        subprocess.run(command, check=True, **options)
        timeout = 10 + 3 * (time.monotonic() - started)
        for place in chosen:
            tree = ast.parse(source)
            node = list(ast.walk(tree))[place]
            before = ast.unparse(node).splitlines()[0]
            change(node)
            (copy / given.module).write_text(ast.unparse(tree), encoding="utf-8")
            with contextlib.suppress(subprocess.SubprocessError):  # a test fails, or none ends
                subprocess.run(command, check=True, timeout=timeout, **options)
                alive += 1
                after = ast.unparse(node).splitlines()[0]
                print(f"{given.module}:{getattr(node, 'lineno', '?')}: {before}  ->  {after}", flush=True)
    print(f"killed {len(chosen) - alive} of {len(chosen)}; {len(places)} places")


if __name__ == "__main__":
    main()
