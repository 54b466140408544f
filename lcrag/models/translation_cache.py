"""Caches translations in a file of JSON lines."""

import fcntl
import json
import os
import pathlib
from collections.abc import Sequence

import gin

from lcrag.data.rows import BadRows, Row, Text, parsed_rows
from lcrag.episodes import Translated, TranslationFailure, Translator
from lcrag.errors import UserError, typed


class _Translation(Row):
    source: Text | None
    target: Text
    text: str
    translation: Text


@gin.register
@typed
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

    def __init__(self, path: str | pathlib.Path, translator: Translator | None = None, batch: int = 64):
        self._path, self._translator, self._batch = pathlib.Path(path), translator, max(1, batch)
        content = self._path.read_bytes() if self._path.exists() else b""
        lines = content[: content.rfind(b"\n") + 1].splitlines()  # without the partial line of a killed process
        rows = [row for _, row in parsed_rows(self._path, lines, _Translation, BadRows())] if lines else []
        self._known = {(row.source, row.target, row.text): row.translation for row in rows}

    def __call__(self, texts: Sequence[str], source: str | None, target: str) -> list[Translated]:
        """Translates texts, each of which is asked for once."""
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
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(f"another process is adding to {self._path}: wait, or use another file") from error
            os.truncate(self._path, self._path.read_bytes().rfind(b"\n") + 1)
            for start in range(0, len(texts), self._batch):
                batch = texts[start : start + self._batch]
                for text, answer in zip(batch, self._translator(batch, source, target), strict=True):
                    if isinstance(answer, TranslationFailure):
                        failures[text] = answer
                        continue
                    if not answer.strip():
                        raise UserError(f"the translator says nothing for {text!r} from {source} to {target}")
                    row = _Translation(source=source, target=target, text=text, translation=answer)
                    file.write(f"{json.dumps(row.model_dump(), ensure_ascii=False)}\n".encode())
                    self._known[source, target, text] = answer
                file.flush()
                os.fsync(file.fileno())
        return failures
