"""Runs whose folder is in object storage: a store on loopback, what is there after a checkpoint, and what continues."""

import datetime
import hashlib
import json
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import fsspec
import jax.numpy as jnp
import numpy as np
import pytest
from etils.epath import backend
from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, Response
from orbax.checkpoint._src.path import gcs_utils
from support.local_server import served

from lcrag.commands.describe import description
from lcrag.config import configure
from lcrag.errors import UserError
from lcrag.files import WEIGHTS, is_remote, local_files, remote_path
from lcrag.learning.checkpoints import Checkpoints
from lcrag.main import parse
from lcrag.runs import open_run
from lcrag.runs.folder import local_copy, stored, upload_copies

gcsfs = pytest.importorskip("gcsfs", reason="needs lcrag[gcs]")

LOCKED = "locked"  # a bucket in which nobody may write
FOLDER = "@"  # the file that stands for the empty object `folder/`, which the console makes for a new folder


def generation(path: Path) -> str:
    return str(int(hashlib.sha256(path.read_bytes()).hexdigest()[:12], 16) + 1)


def json_api(root: Path) -> FastAPI:
    """The part of the JSON API of Google Cloud Storage that TensorStore, gcsfs and Google's client call."""
    api = FastAPI()
    of_bucket, of_object = "/{version:path}/b/{bucket}", "/{version:path}/b/{bucket}/o/{name:path}"

    def described(bucket: str, path: Path) -> dict[str, str]:
        about, name = path.stat(), str(path.relative_to(root / bucket)).removesuffix(FOLDER)
        updated = datetime.datetime.fromtimestamp(int(about.st_mtime), datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        facts = {"generation": generation(path), "size": str(about.st_size), "updated": updated, "timeCreated": updated}
        return {"bucket": bucket, "name": name, **facts}

    @api.get(of_bucket)
    def bucket_of(bucket: str) -> dict[str, str]:
        return {"kind": "storage#bucket", "name": bucket}

    @api.get(f"{of_bucket}/o")
    def listed(bucket: str, prefix: str = "", delimiter: str = "") -> dict[str, list[Any]]:
        """All objects with this prefix; those that have the delimiter after it are only counted as folders."""
        objects = [described(bucket, path) for path in sorted((root / bucket).rglob("*")) if path.is_file()]
        items, folders = [], set()
        for each in objects:
            first, found, _ = each["name"].removeprefix(prefix).partition(delimiter or "//")
            if each["name"].startswith(prefix):
                folders.add(f"{prefix}{first}{found}") if found else items.append(each)
        return {"items": items, "prefixes": sorted(folders)}

    @api.get(of_object)
    def read(bucket: str, name: str, alt: str = "") -> Any:
        path = root / bucket / name
        if not path.is_file():
            return Response(status_code=404)
        return FileResponse(path, headers={"x-goog-generation": generation(path)}) if alt else described(bucket, path)

    @api.post(f"{of_bucket}/o")
    async def write(bucket: str, request: Request) -> Any:
        asked, content = request.query_params, await request.body()
        if bucket == LOCKED:
            return Response(status_code=403)
        if asked["uploadType"] == "resumable" and "content-range" not in request.headers:
            return Response(headers={"Location": str(request.url)})
        name = asked.get("name")
        if asked["uploadType"] == "multipart":
            boundary = re.findall('boundary="(.*)"', request.headers["content-type"])[0].encode()
            about, content = (part.partition(b"\n\n")[2] for part in content.split(b"--" + boundary)[1:3])
            name, content = json.loads(about)["name"], content.removesuffix(b"\n")
        path = root / bucket / name
        if asked.get("ifGenerationMatch") == "0" and path.exists():
            return Response(status_code=412)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return described(bucket, path)

    @api.post("/{version:path}/b/{bucket}/o/{name:path}/moveTo/o/{target:path}")
    def move(bucket: str, name: str, target: str) -> Any:
        if not (root / bucket / name).is_file():
            return Response(status_code=404)
        (root / bucket / target).parent.mkdir(parents=True, exist_ok=True)
        return described(bucket, (root / bucket / name).rename(root / bucket / target))

    @api.delete(of_object)
    def delete(bucket: str, name: str) -> Any:
        if not (root / bucket / name).is_file():
            return Response(status_code=404)
        (root / bucket / name).unlink()
        return Response(status_code=204)

    return api


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """`gs://bucket`, and the folder whose files are its objects."""
    root = tmp_path / "store"
    (root / "bucket").mkdir(parents=True)
    backend.fsspec_backend._get_filesystem.cache_clear()
    # Without the kind of a bucket, which its subclass asks over gRPC.
    fsspec.register_implementation("gcs", gcsfs.core.GCSFileSystem, clobber=True)
    gcsfs.core.GCSFileSystem.clear_instance_cache()
    gcs_utils.get_bucket.cache_clear()
    with served(json_api(root)) as address:
        for name in ("STORAGE_EMULATOR_HOST", "TENSORSTORE_GCS_HTTP_URL"):
            monkeypatch.setenv(name, address)
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "token")
        yield Path("gs://bucket"), root / "bucket"
    backend.fsspec_backend._get_filesystem.cache_clear()


CONFIG = "train.steps = 4\n"
ABOUT = {"seed": 0, "hashes": {}}


def test_addresses_are_told_from_folders():
    for place in ("gs://bucket/run", Path("gs://bucket/run")):
        assert is_remote(place)
        assert str(remote_path(place)) == "gs://bucket/run"
    assert not any(map(is_remote, ("runs/first", "a:b/c", "gs:")))


def test_a_checkpoint_is_saved_and_restored(bucket):
    address, objects = bucket
    state = {"params": {"w": jnp.arange(6.0)}, "step": jnp.asarray(1)}
    with Checkpoints(address / "run", keep=1) as checkpoints:
        checkpoints.save(1, state, validation_loss=0.5)
        checkpoints.save(2, state, validation_loss=0.7)
        checkpoints.wait()
    assert (objects / "run" / "2" / "default" / "manifest.ocdbt").is_file()
    (objects / "run" / "3").mkdir()
    (objects / "run" / "3" / "part").write_text("of a killed process")
    with Checkpoints(address / "run") as checkpoints:
        assert checkpoints.best_step() == 1
        step, restored = checkpoints.continue_from(state | {"params": {"w": jnp.zeros(6)}})
        assert step == 2
        np.testing.assert_array_equal(restored["params"]["w"], np.arange(6.0))
        checkpoints.save(3, restored)
        checkpoints.wait()
        assert checkpoints.latest_step() == 3


def test_what_was_written_before_a_checkpoint_is_there_and_continues(bucket):
    address, objects = bucket
    run = address / "run"
    with pytest.raises(RuntimeError), local_copy(run) as local:
        with open_run(local, config=CONFIG, about=ABOUT) as opened, opened.metrics() as log:
            log.write(0, {"reward": 1.0})
            opened.write_episodes(0, [{"question_id": "a"}])
            upload_copies()
            before = (objects / "run" / "metrics.jsonl").read_text()
            log.write(1, {"reward": 2.0})
            assert (objects / "run" / "metrics.jsonl").read_text() == before
            assert stored(opened.path / "x") == opened.checkpoints.parent / "x" == run / "x"
        raise RuntimeError("the run ends")
    assert (objects / "run" / "metrics.jsonl").read_text().count("\n") == 2
    assert (objects / "run" / "episodes" / "step_0.jsonl").exists()
    assert not local.exists()
    (objects / "run" / "checkpoints" / "1").mkdir(parents=True)
    (objects / "run" / "checkpoints" / "1" / "part").write_text("")
    for name in ("report.md", "wandb_run.txt"):
        (objects / "run" / name).write_text("earlier")
    with local_copy(run) as local, open_run(local, config=CONFIG, about=ABOUT) as opened, opened.metrics(0) as log:
        log.write(1, {"reward": 3.0})
        assert (local / "report.md").read_text() == (local / "wandb_run.txt").read_text() == "earlier"
    assert (objects / "run" / "metrics.jsonl").read_text().count("\n") == 2
    assert "3.0" in (objects / "run" / "metrics.jsonl").read_text()
    with pytest.raises(UserError, match="gs://bucket/run holds another run"), local_copy(run) as local:
        with open_run(local, config="train.steps = 5\n", about=ABOUT):
            pass


def test_inputs_are_copied_once(bucket, tmp_path, monkeypatch):
    address, objects = bucket
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (objects / "policy" / "deep").mkdir(parents=True)
    (objects / "policy" / "config.json").write_text("{}")
    (objects / "policy" / "deep" / "x").write_text("y")
    (objects / "policy" / "deep" / FOLDER).touch()
    local_files.cache_clear()
    local = local_files("gs://bucket/policy")
    assert local == tmp_path / "cache" / "lcrag" / "objects" / "gs" / "bucket" / "policy"
    assert (local / "deep" / "x").read_text() == "y"
    copied = (local / "config.json").stat().st_ino
    (objects / "policy" / "deep" / "x").write_text("longer")
    local_files.cache_clear()
    assert (local_files("gs://bucket/policy") / "deep" / "x").read_text() == "longer"
    assert (local / "config.json").stat().st_ino == copied
    assert local_files("gs://bucket/policy/config.json").read_text() == "{}"


def test_what_is_not_there_or_without_rights_is_refused_in_a_line(bucket):
    address, objects = bucket
    with pytest.raises(UserError, match="gs://bucket/nowhere"):
        local_files("gs://bucket/nowhere")
    place = Path(f"gs://{LOCKED}/run")
    with pytest.raises(UserError, match=f"gs://{LOCKED}/run: Forbidden[^\n]+$"), local_copy(place):
        pass


def test_the_recipe_of_pods_reads_policy_questions_and_collections_from_the_bucket(bucket, tmp_path, monkeypatch):
    _, objects = bucket
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("LCRAG_DATA", raising=False)
    local_files.cache_clear()
    shutil.copytree(WEIGHTS / "cold_start", objects / "Qwen2.5-3B-Instruct")
    for name in ("mkqa", "indexes"):
        (objects / name).mkdir()
        (objects / name / "other").write_text("no questions, no collections")
    page = (Path(__file__).parents[2] / "docs" / "pods.md").read_text(encoding="utf-8").replace("\\\n", " ")
    [command] = re.findall(r"bash launch/pod.sh (.*gs://.*)", page)
    arguments = parse(shlex.split(command.replace("gs://BUCKET", "gs://bucket")))
    configure(arguments.gin_files, arguments.bindings)
    found = description(arguments.command)
    assert found["policy"]["here"]
    assert found["collections"]["where"] == "gs://bucket/indexes"
    copies = tmp_path / "cache" / "lcrag" / "objects" / "gs" / "bucket"
    assert all(str(copies / "mkqa") in source["absent"] for source in found["data"])
    assert (copies / "indexes" / "other").exists()
    assert str(arguments.output_dir) == "gs:/bucket/runs/lcrl"
