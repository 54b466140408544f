"""What tests of `lcrag curate` share: the atlas, a tokenizer, and interrupted teachers."""

import contextlib

import pytest
from experiment_parts import contents
from support import tiny_tokenizer

from lcrag.atlas import build_world
from lcrag.curation.text_writers import WritingTeacher
from lcrag.episodes import Chat
from lcrag.episodes.context_text import ContextTokenizer

WORLD = build_world(0)
TOKENIZER = ContextTokenizer(tiny_tokenizer(), Chat())


def results(folder):
    """All files of a run except those that record when, by which call and how it was made."""
    about = "run.json", "config.gin"
    return {path.name: content for path, content in contents(folder).items() if path.name not in about}


@contextlib.contextmanager
def interrupted_after(batches, monkeypatch):
    """Expects a Ctrl-C after some batches of a `WritingTeacher`."""
    whole, left = WritingTeacher.play, iter(range(batches))

    def play(self, *arguments, **options):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return whole(self, *arguments, **options)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(WritingTeacher, "play", play)
        yield
