"""What rules reach in the atlas experiments of R-Search, GlobalRAG, RAG-R1 and Translate-R1; a minute on one core.

    python benchmarks/method_ceilings.py

In the policy's place rules play each method's program on the same held-out questions, with the same collections and
budgets. They know names and labels, but no facts; they search until they have read what they need, and translate every
question. Prints the measure of the method's table for all questions and by part. `atlas_ceilings.py` is LcRL's.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import gin
import numpy as np
from lcrag.train.scoring import scored_rewards

import lcrag.composition.commands  # noqa: F401  registers what the files name
from lcrag.atlas.comprehension import ComprehensionTasks, ComprehensionTranslator
from lcrag.atlas.oracle import Oracle
from lcrag.atlas.world import atlas_world
from lcrag.composition.collections import atlas_collections
from lcrag.composition.components import policy
from lcrag.composition.configuration import configure, read_configuration
from lcrag.curation.playing import play
from lcrag.curation.text_writers import AtlasOracle, oracle_writer
from lcrag.data.questions import Question
from lcrag.episodes import Chat, EpisodeRecord
from lcrag.episodes.context_text import ContextTokenizer
from lcrag.methods.globalrag.oracle import PlanOracle
from lcrag.methods.rag_r1.oracle import ParallelOracle
from lcrag.methods.translate_r1.oracles import ComprehensionOracle
from lcrag.retrieval import NoCollections, SearchableCollections
from lcrag.rewards import domain_reward, squad_exact_match, token_f1
from lcrag.train.evaluation import Evaluation
from lcrag.train.method import Method

CONTEXT = 4096  # rules need no short context
Scores = Callable[[Sequence[EpisodeRecord]], np.ndarray]


@dataclasses.dataclass(frozen=True)
class EvidencelessOracle:
    """Plays R-Search's program: it searches until it has read every fact of the chain, and gives no evidence."""

    oracle: Oracle

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        return self.oracle.next_text(
            question, [(by, text.replace("observation>", "information>")) for by, text in turns]
        )


class Ceiling(NamedTuple):
    """Rules in the place of an experiment's policy.

    Attributes:
      experiment: The gin file.
      player: Budget of searches -> the rules.
      measure: Scores of episodes.
      searches: Whether the program searches collections.
    """

    experiment: str
    player: Callable[[int], AtlasOracle]
    measure: Scores
    searches: bool = True


def matched(measure: Callable[..., np.ndarray]) -> Scores:
    """Returns the scores of the answers by a comparison with the golden ones."""
    return lambda records: np.asarray(
        measure([each.outcome.answer for each in records], [each.question.answers for each in records])
    )


def rewarded(records: Sequence[EpisodeRecord]) -> np.ndarray:
    return np.asarray(scored_rewards(domain_reward(), records, np.arange(len(records), dtype=np.int32))["total"])


def translating(budget: int) -> ComprehensionOracle:
    return ComprehensionOracle(ComprehensionTasks(atlas_world()), calls=1.0)


CEILINGS = {
    "R-Search, F1": Ceiling("r_search/atlas.gin", lambda budget: EvidencelessOracle(Oracle(budget)), matched(token_f1)),
    "GlobalRAG, exact match": Ceiling("globalrag/atlas.gin", PlanOracle, matched(squad_exact_match)),
    "RAG-R1, exact match": Ceiling(
        "rag_r1/atlas.gin", lambda budget: ParallelOracle(budget=budget), matched(squad_exact_match)
    ),
    "Translate-R1, reward": Ceiling("translate_r1/atlas.gin", translating, rewarded, searches=False),
}


def played(ceiling: Ceiling) -> list[EpisodeRecord]:
    """Plays all held-out questions of an experiment."""
    gin.clear_config()
    configure(read_configuration((ceiling.experiment,), ()))
    evaluation, method = gin.get_configurable(Evaluation)(), gin.get_configurable(Method)()
    collections: SearchableCollections = atlas_collections() if ceiling.searches else NoCollections()
    settings = dict(evaluation.program_settings)
    program = method.with_settings(settings).on(collections.languages)
    budget = settings.get("budget") or gin.query_parameter("BUDGET")
    return play(
        [(question, program(question)) for question in evaluation.questions],
        oracle_writer(ceiling.player(budget)),
        collections.search,
        ContextTokenizer(policy(folder="atlas/cold_start").tokenizer, Chat()),
        context=CONTEXT,
        translator=None if ceiling.searches else ComprehensionTranslator(ComprehensionTasks(atlas_world())),
    )


def part_of(question: Question) -> str:
    """Returns the part of the questions to which one belongs, as the tables name it."""
    hops = question.extra.get("hops", 1)
    return question.tier or question.extra.get("type") or {1: "one fact"}.get(hops, f"{hops} hops")


def main() -> None:
    for name, ceiling in CEILINGS.items():
        records = played(ceiling)
        scores = ceiling.measure(records)
        parts = np.array([part_of(record.question) for record in records])
        print(f"{name}: {scores.mean():.3f} of {len(records)} questions")
        for part in dict.fromkeys(parts):
            print(f"    {part:14} {scores[parts == part].mean():.3f} of {(parts == part).sum()}")


if __name__ == "__main__":
    main()
