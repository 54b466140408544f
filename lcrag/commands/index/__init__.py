"""`lcrag index`: builds collections from corpora, and measures their retrieval."""

from lcrag.commands.index.indexing import index
from lcrag.commands.index.judging import trec_judgements
