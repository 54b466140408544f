"""`lcrag index`: collections from corpora, and how well they are searched."""

from lcrag.app.commands.index.indexing import index
from lcrag.app.commands.index.judging import trec_judgements
