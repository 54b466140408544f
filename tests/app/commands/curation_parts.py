"""What tests of `lcrag curate` search: the atlas's English passages, each found by its own title and label only."""

from lcrag.atlas import build_world
from lcrag.episodes import Chat
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.retrieval import Hit
from lcrag.testing import tiny_tokenizer
from lcrag.testing.pretended_collections import PretendedCollections

WORLD = build_world(0)
FOUND = {f"{each.title} {each.text.partition(':')[0]}": each for each in WORLD.passages("en")}
TOKENIZER = ContextTokenizer(tiny_tokenizer(), Chat())


class Atlas(PretendedCollections):
    """Finds the passage whose title and label are asked for, and nothing else."""

    def hits(self, query, language, k):
        found = FOUND.get(query)
        return [Hit(id=found.id, title=found.title, text=found.text, score=1.0, language="en")] if found else []
