"""Collections divided over processes: each opens its share, and all find what one process with everything finds."""

import json
import os
import subprocess
import sys
from pathlib import Path

import gin
import pytest
from experiment_parts import build_tiny_collections
from joined_processes import free_port

from lcrag.composition.divided_collections import check_placed, divided_collections, shares
from lcrag.errors import UserError
from lcrag.retrieval import load_collections

LANGUAGES = ("ar", "en", "fi")
QUERIES = [("Botswana", language) for language in LANGUAGES]
PROCESS = """
import json
import sys

import gin
from jax.experimental import multihost_utils

process, port, folder, other, tests = sys.argv[1:]
sys.path.insert(0, tests)
from joined_processes import join

join(process, 2, port)

from lcrag.composition.divided_collections import divided_collections
from lcrag.errors import UserError
from lcrag.retrieval import collections

opened, open_collection = [], collections.open_collection

def watched(path, *options):
    opened.append(path.name)
    return open_collection(path, *options)

collections.open_collection = watched
gin.parse_config(f"load_collections.folder = '{folder}'")
searched = divided_collections()
queries = json.loads(sys.stdin.read())
hits = searched.search(*zip(*queries), 2)
print("\\nfound", json.dumps([opened, searched.content_hashes(), [[hit.id for hit in own] for own in hits]]))
multihost_utils.sync_global_devices("searched")
gin.parse_config(f"load_collections.folder = '{other if process == '1' else folder}'")
try:
    divided_collections()
except UserError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("divided") / "collections"
    build_tiny_collections(folder, LANGUAGES)
    return folder


def found_by(collections):
    hits = collections.search(*zip(*QUERIES, strict=True), 2)
    return [collections.content_hashes(), [[hit.id for hit in own] for own in hits]]


def test_two_processes_open_a_share_each_and_search_everything(folder, tmp_path):
    """Then one of them is given a folder with fewer languages, which both refuse."""
    (tmp_path / "en").symlink_to(folder / "en")
    (tmp_path / "encoder").symlink_to(folder / "encoder")
    port, tests = str(free_port()), str(Path(__file__).parent)
    environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    line = [sys.executable, "-c", PROCESS]
    running = [
        subprocess.Popen([*line, process, port, str(folder), str(tmp_path), tests], env=environment, **options)
        for process in "01"
    ]
    for process in running:
        process.stdin.write(json.dumps(QUERIES))
        process.stdin.close()
        process.stdin = None
    outputs = [process.communicate(timeout=600) for process in running]
    whole, opened = found_by(load_collections(folder)), []
    for output, errors in outputs:
        line = next((line for line in output.splitlines() if line.startswith("found ")), None)  # Gloo may print, too
        assert line, errors
        own, *found = json.loads(line.removeprefix("found "))
        opened += own
        assert found == whole
        assert "process 1 reads another list of collections than process 0" in output
    assert sorted(opened) == sorted(LANGUAGES)


def test_a_process_by_itself_opens_everything(folder):
    gin.parse_config(f"load_collections.folder = '{folder}'")
    assert found_by(divided_collections()) == found_by(load_collections(folder))


def test_shares_are_even_in_size_and_none_is_empty():
    assert shares({"ar": 1, "en": 9, "fi": 3, "ru": 5}, 2) == [["en"], ["ru", "fi", "ar"]]
    assert shares({"en": 9, "fi": 3}, 5) == [["en"], ["fi"], ["en"], ["fi"], ["en"]]
    assert shares({"en": 0, "fi": 0}, 2) == [["en"], ["fi"]]


def test_an_encoder_on_the_devices_that_wait_for_other_processes_is_refused():
    check_placed({"cpu"}, "gpu")
    check_placed({"cpu"}, "cpu")
    with pytest.raises(UserError, match="the query encoder runs on gpu: set load_collections.devices = 'cpu'"):
        check_placed({"gpu"}, "gpu")
