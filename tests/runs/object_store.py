"""An object store on loopback, whose objects are files of a local folder, for `gs://` through etils and TensorStore."""

import contextlib
import hashlib
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import fsspec
from etils.epath import backend, gpath
from fsspec.implementations.local import LocalFileSystem
from orbax.checkpoint._src.path import gcs_utils


def files_of(root: Path) -> type[LocalFileSystem]:
    """The client of Python code: paths of buckets are paths in a folder, as far as etils uses them."""

    class Objects(LocalFileSystem):
        cachable = False
        protocol = ("gs", "gcs")

        def __init__(self, **options):
            super().__init__(auto_mkdir=True)

        @classmethod
        def _strip_protocol(cls, path, *rest):
            if isinstance(path, list):
                return [cls._strip_protocol(each) for each in path]
            text = str(path)
            return str(root / text.removeprefix("gs://")) if text.startswith("gs://") else text.rstrip("/")

        def glob(self, path, **options):
            return [str(Path(each).relative_to(root)) for each in super().glob(path, **options)]

    return Objects


class JsonApi(BaseHTTPRequestHandler):
    """The part of the JSON API of Google Cloud Storage that TensorStore calls."""

    root: Path

    def _answer(self, status: int, content: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _parts(self) -> tuple[Path, str, dict[str, str]]:
        url = urllib.parse.urlsplit(self.path)
        bucket, _, name = url.path.partition("/b/")[2].partition("/o")
        query = {key: values[0] for key, values in urllib.parse.parse_qs(url.query).items()}
        return self.root / bucket, urllib.parse.unquote(name.removeprefix("/")), query

    def _described(self, bucket: Path, path: Path) -> dict[str, str]:
        name = str(path.relative_to(bucket))
        return {"name": name, "generation": generation(path), "size": str(path.stat().st_size)}

    def do_GET(self) -> None:
        bucket, name, query = self._parts()
        if not name:
            paths = sorted(path for path in bucket.rglob("*") if path.is_file())
            described = (self._described(bucket, path) for path in paths)
            items = [each for each in described if each["name"].startswith(query.get("prefix", ""))]
            self._answer(200, json.dumps({"items": items}).encode())
        elif not (bucket / name).is_file():
            self._answer(404)
        else:
            content = (bucket / name).read_bytes()
            first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
            part, headers = content, {"x-goog-generation": generation(bucket / name)}
            if first:
                part = content[int(first) : int(last) + 1 if last else None]
                headers["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
            self._answer(206 if first else 200, part, **headers)

    def do_POST(self) -> None:
        bucket, _, query = self._parts()
        content = self.rfile.read(int(self.headers["Content-Length"]))
        path = bucket / query["name"]
        if query.get("ifGenerationMatch") == "0" and path.exists():
            self._answer(412)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        self._answer(200, json.dumps(self._described(bucket, path)).encode())

    def do_DELETE(self) -> None:
        bucket, name, _ = self._parts()
        (bucket / name).unlink(missing_ok=True)
        self._answer(204)

    def log_message(self, *words: object) -> None:
        """Says nothing."""


def generation(path: Path) -> str:
    """The version of an object, which its content decides."""
    return str(int(hashlib.sha256(path.read_bytes()).hexdigest()[:12], 16) + 1)


@contextlib.contextmanager
def object_store(root: Path, monkeypatch) -> Iterator[str]:
    """Yields `gs://bucket`, whose objects are files of `root/bucket`."""
    (root / "bucket").mkdir(parents=True)
    fsspec.register_implementation("gcs", files_of(root), clobber=True)
    backend.fsspec_backend._get_filesystem.cache_clear()
    server = ThreadingHTTPServer(("localhost", 0), type("Api", (JsonApi,), {"root": root}))
    # Orbax asks Google's client, which tests do not install, whether the bucket has folders.
    monkeypatch.setattr(gcs_utils, "get_bucket", lambda name: object())
    monkeypatch.setattr(gpath, "_is_tf_installed", lambda: False)  # which remembers its first answer
    monkeypatch.setenv("TENSORSTORE_GCS_HTTP_URL", f"http://localhost:{server.server_address[1]}")
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "token")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield "gs://bucket"
    finally:
        server.shutdown()
        server.server_close()
        backend.fsspec_backend._get_filesystem.cache_clear()
