"""`lcrag index`: builds collections from corpora, and measures their retrieval."""

from lcrag.app.commands.index.indexing import index
from lcrag.app.commands.index.judging import trec_judgements
