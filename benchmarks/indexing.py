"""Times building a collection: `python benchmarks/indexing.py DUMP [--encoder=FOLDER]`, on an idle machine.

DUMP is a Wikimedia dump of some megabytes, `.xml.bz2`. Prints JSON lines: each stage alone; the whole pipeline, from
the dump to a searchable collection, relative to the sum of its stages (below 1.0, since cleaning and embedding
overlap); resuming with every tenth shard missing, relative to the whole; and building passages in shards, relative to
`build_collection`. Each runs once before it is timed, since encoders compile.
"""

import argparse
import bz2
import json
import pathlib
import shutil
import tempfile
import time
from collections.abc import Sequence

from timing import timed

from lcrag.data.corpora.chunking import passages_of
from lcrag.data.corpora.dump import clean, read_pages
from lcrag.data.corpora.local import CorpusPlan, make_plan, make_shards
from lcrag.data.corpora.source import find_source
from lcrag.data.rows import BadRows
from lcrag.retrieval import Encoder, build_collection, load_encoder
from lcrag.retrieval.building import build_from_rows
from lcrag.retrieval.passages import Passage, passage_text
from lcrag.retrieval.shards import open_shards

ENCODER = pathlib.Path(__file__).parent.parent / "lcrag" / "atlas" / "weights" / "encoder"
LANGUAGE = "en"


def stages(dump: pathlib.Path, encoder: Encoder) -> tuple[dict[str, float], list]:
    """Returns the seconds of reading, cleaning, cutting and embedding in this process, and the passages."""
    with bz2.open(dump) as file:
        pages, reading = timed(lambda: tuple(read_pages(file, dump)))
    (articles, _), cleaning = timed(lambda: clean(pages))
    list(passages_of(articles[:8], "words"))  # imports tensorflow-text
    passages, cutting = timed(lambda: list(passages_of(articles, "words")))
    texts = [passage_text(passage) for passage in passages]
    encoder.encode(texts, "passage")  # compiles
    _, embedding = timed(lambda: encoder.encode(texts, "passage"))
    characters = sum(len(page.wikitext) for page in pages)
    print(json.dumps({"pages": len(pages), "wikitext_characters": characters, "passages": len(passages)}))
    return {"read": reading, "clean": cleaning, "cut": cutting, "embed": embedding}, passages


def build(plan: CorpusPlan, encoder: Encoder, root: pathlib.Path, workers: int) -> float:
    """Returns the seconds from the source, or from existing shards, to a collection."""
    start = time.perf_counter()
    with open_shards(root, LANGUAGE, plan.identity()) as shards:
        make_shards(plan, shards, encoder, bad_rows=BadRows(), workers=workers)
        build_from_rows(shards.rows(), encoder, root, LANGUAGE, "benchmark")
    return time.perf_counter() - start


def in_shards(passages: Sequence[Passage], encoder: Encoder, folder: pathlib.Path) -> float:
    """Returns the seconds from a file of passages to a collection built in shards."""
    path = folder / "passages.jsonl"
    rows = ({"docid": passage.id, "title": passage.title, "text": passage.text} for passage in passages)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    plan = make_plan(LANGUAGE, find_source(str(path), documents_per_block=128))
    build(plan, encoder, folder / "passages_warm", 0)
    return build(plan, encoder, folder / "passages_timed", 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dump", type=pathlib.Path)
    parser.add_argument("--encoder", type=pathlib.Path, default=ENCODER)
    parser.add_argument("--documents_per_shard", type=int, default=16)
    parser.add_argument("--workers", type=int, default=1)
    arguments = parser.parse_args()
    encoder = load_encoder(arguments.encoder)
    seconds, passages = stages(arguments.dump, encoder)
    source = find_source(str(arguments.dump), documents_per_block=arguments.documents_per_shard)
    plan = make_plan(LANGUAGE, source, "words")
    with tempfile.TemporaryDirectory() as name:
        root = pathlib.Path(name)
        build(plan, encoder, root / "warm", arguments.workers)
        whole = build(plan, encoder, root / "timed", arguments.workers)
        for record in sorted((root / "timed").glob(".*.shards/[!.]*/shard.json"))[::10]:
            shutil.rmtree(record.parent)
        resumed = build(plan, encoder, root / "timed", arguments.workers)
        shards = in_shards(passages, encoder, root)
        _, one_go = timed(lambda: build_collection(passages, encoder, root / "one_go", language=LANGUAGE))
    rates = {f"{stage}_seconds": round(value, 3) for stage, value in seconds.items()}
    print(json.dumps(rates | {"passages_per_second_embedded": round(len(passages) / seconds["embed"])}))
    print(json.dumps({"whole_seconds": round(whole, 3), "ratio_to_stages": round(whole / sum(seconds.values()), 3)}))
    print(json.dumps({"resumed_ratio_to_whole": round(resumed / whole, 3)}))
    print(json.dumps({"shards_seconds": round(shards, 3), "ratio_to_one_go": round(shards / one_go, 3)}))


if __name__ == "__main__":
    main()
