"""Caches translations in a file of JSON lines."""

import contextlib
import fcntl
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import gin

from lcrag.data.rows import BadRows, Row, Text, parsed_rows
from lcrag.episodes import Translated, TranslationFailure, Translator
from lcrag.errors import UserError
from lcrag.limits import Count, limited


class _Translation(Row):
    source: Text | None
    target: Text
    text: str
    translation: Text


def _row(text: str, answer: str, source: str | None, target: str) -> _Translation:
    if not answer.strip():
        raise UserError(f"the translator says nothing for {text!r} from {source} to {target}: choose another one")
    return _Translation(source=source, target=target, text=text, translation=answer)


def _whole_rows(path: pathlib.Path) -> list[_Translation]:
    """Returns the rows of a file, without a partial line that a killed process left at its end."""
    content = path.read_bytes() if path.exists() else b""
    lines = content[: _whole_bytes(content)].splitlines()
    return [row for _, row in parsed_rows(path, lines, _Translation, BadRows())] if lines else []


def _whole_bytes(content: bytes) -> int:
    return content.rfind(b"\n") + 1


@gin.register
class TranslationCache:
    """A translator with a cache in a file.

    Lines are appended after every batch: a killed process loses at most the batch it was waiting for, and the same call
    continues where it stopped. Failures are not cached.

    Args:
      path: The file, created if missing.
      translator: Translates texts that the file lacks; None: such texts are an error.
      batch: Most texts in one call of the translator.

    Raises:
      UserError: a line of the file is no translation; in calls also: texts are missing and there is no translator, or
        another process is writing to the file.
    """

    @limited
    @limited
    def __init__(self, path: str | pathlib.Path, translator: Translator | None = None, batch: Count = 64):
        self._path, self._translator, self._batch = pathlib.Path(path), translator, batch
        self._known: dict[tuple[str | None, str, str], str] = {}
        self._remember(_whole_rows(self._path))

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        missing = [text for text in dict.fromkeys(texts) if (source, target, text) not in self._known]
        failures = self._add(missing, source, target) if missing else {}
        return [failures[text] if text in failures else self._known[source, target, text] for text in texts]

    def _add(self, texts: Sequence[str], source: str | None, target: str) -> dict[str, TranslationFailure]:
        """Translates and caches texts; returns the failures."""
        if self._translator is None:
            raise UserError(
                f"{self._path} lacks {len(texts)} translations from {source} to {target}, the first of"
                f" {texts[0]!r}: name a translator, such as TranslationCache.translator = @EndpointTranslator()"
            )
        failures: dict[str, TranslationFailure] = {}
        with self._opened() as file:
            for start in range(0, len(texts), self._batch):
                batch = texts[start : start + self._batch]
                answers = dict(zip(batch, self._translator(batch, source, target), strict=True))
                failures |= {text: each for text, each in answers.items() if isinstance(each, TranslationFailure)}
                rows = [_row(text, each, source, target) for text, each in answers.items() if isinstance(each, str)]
                file.write("".join(f"{json.dumps(row.model_dump(), ensure_ascii=False)}\n" for row in rows).encode())
                file.flush()
                os.fsync(file.fileno())
                self._remember(rows)
        return failures

    def _remember(self, rows: Sequence[_Translation]) -> None:
        self._known.update({(row.source, row.target, row.text): row.translation for row in rows})

    @contextlib.contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"another process is adding to {self._path}: wait for it, or use another file"
                ) from error
            os.truncate(self._path, _whole_bytes(self._path.read_bytes()))
            yield file
