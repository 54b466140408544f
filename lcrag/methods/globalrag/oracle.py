"""The rule-based policies of the atlas: `PlanOracle` plays GlobalRAG's program, `PlanTeacher` makes golden plans.

Both read the question's kind, subjects and golden plan, the names of all entities, and what the searches have shown,
but no facts of the world. They are therefore wrong where a collection lacks a fact or holds an outdated one.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Sequence

import gin

from lcrag.atlas.facts import UNKNOWN, query_text
from lcrag.atlas.oracle import NeededFact, SearchState, read_texts
from lcrag.atlas.world import World, atlas_world
from lcrag.curation.playing import WritingTeacher, rule_based_teacher
from lcrag.data.questions import Question, in_share
from lcrag.episodes import Chat
from lcrag.errors import typed
from lcrag.methods.globalrag.golden_trajectory import GIVEN_UP
from lcrag.methods.globalrag.plans import QuestionPlan, placeholder, plan_of, with_own_plan


@gin.register
@dataclasses.dataclass(frozen=True)
class PlanOracle:
    """Plays an episode of `globalrag` in its atlas wording, one text at a time.

    Attributes:
      budget: Maximum searches; then it answers with what it has.
      careless: Share of the questions whose plan it writes without references between sub-questions, and executes so:
        every sub-question is then asked of the first subject.
      seed: Selects these questions.
    """

    budget: int = 4
    careless: float = 0.0
    seed: int = 0

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the policy's next text.

        Args:
          question: An atlas question over one fact or a chain, or a comparison.
          turns: (by, text) of the turns so far, with or without the opening prompt; by is "policy" or "environment".
        """
        known = _known(question, turns)
        searches = sum("</search>" in text for by, text in turns if by == "policy")
        plan = with_own_plan(question).extra["plan"]
        careless = in_share(question.coupling, self.careless, self.seed)
        if careless:
            name = question.extra.get("entity", "")
            plan = {key: [re.sub("#[0-9]+", name, text), variable] for key, (text, variable) in plan.items()}

        # The fact of each sub-question; where the bridge entity was not found, that of an entity called "unknown".
        unknown = UNKNOWN[question.language]
        if careless:
            others = [dataclasses.replace(known.given[0], relation=relation) for relation in known.relations]
            facts = known.given if len(known.given) > 1 else others
        else:
            path = known.path({}, guess=False, asked=())
            facts = [*path, *(NeededFact(relation, "", unknown) for relation in known.relations[len(path) :])]

        def sub_plan(wanted: NeededFact) -> str:
            """The beginning of a sub-plan, up to its search."""
            query = query_text(question.language, wanted.relation, wanted.name)
            return f"<subPlan><think> {wanted.name}</think><search> {query}</search>"

        if not searches:
            subjects = ", ".join(wanted.name for wanted in known.given)
            written = json.dumps(plan, ensure_ascii=False)
            return f"<think> {subjects}</think><plan> {written}</plan>{sub_plan(facts[0])}"
        resolving = facts[searches - 1]
        value = known.value(resolving) or unknown
        resolved = f"<think> {known.note(resolving)}</think><subAnswer> #{searches} = {value}</subAnswer></subPlan>"
        if searches < min(len(plan), self.budget):
            return resolved + sub_plan(facts[searches])
        answer = value if careless and len(known.given) == 1 else known.answer()
        return f"{resolved}<think> {answer}</think><answer> {answer}</answer>"


def _known(question: Question, turns: Sequence[tuple[str, str]]) -> SearchState:
    return SearchState(question, read_texts(text for by, text in turns if by == "environment"))


@dataclasses.dataclass(frozen=True)
class PlanTeacher:
    """Plays an episode of `golden_trajectory` in its atlas wording, one text at a time.

    Attributes:
      budget: Maximum searches for a sub-question; then it gives up.
      careless: Share of the questions whose plan it makes cyclic.
      seed: Selects these questions.
    """

    budget: int = 2
    careless: float = 0.0
    seed: int = 0

    def next_text(self, question: Question, turns: Sequence[tuple[str, str]]) -> str:
        """Returns the teacher's next text; arguments as for `PlanOracle`, with the opening prompt in `turns`."""
        plan = plan_of_question(question)
        keys = list(plan.questions)
        written = [text for by, text in turns if by == "policy"]
        if not written:
            if in_share(question.coupling, self.careless, self.seed):
                cyclic = f"{plan.questions[keys[0]]} {placeholder(keys[-1])}"
                plan = QuestionPlan({**plan.questions, keys[0]: cyclic})
            return f"<think> {question.text}</think><plan> {plan.as_json()}</plan>"
        known = _known(question, turns)
        resolved = [place for place, text in enumerate(written) if "</subAnswer>" in text]
        if len(resolved) == len(keys):
            return f"<answer> {known.answer()}</answer>"
        path = known.path({}, guess=False, asked=())
        wanted = path[min(len(resolved), len(path) - 1)]
        value = known.value(wanted)
        searches = sum("</search>" in text for text in written[resolved[-1] + 1 if resolved else 0 :])
        if value is None and searches < self.budget:
            return f"<search> {query_text(question.language, wanted.relation, wanted.name)}</search>"
        return f"<subAnswer> {placeholder(keys[len(resolved)])} = {value or GIVEN_UP}</subAnswer>"


def plan_of_question(question: Question) -> QuestionPlan:
    """Returns the golden plan of an atlas question; a one-hop question is its own plan."""
    return plan_of(question.extra.get("plan", {"Q1": [question.text, "#1"]}))


@gin.configurable
@typed
def plan_teacher(
    tokenizer: str,
    chat: Chat,
    context: int,
    budget: int = 2,
    careless: float = 0.0,
    seed: int = 0,
    world: Callable[[], World] = atlas_world,
) -> WritingTeacher:
    """Returns the rule-based teacher of golden plans for questions of the atlas.

    Args:
      tokenizer: Folder of the policy whose tokenizer counts tokens.
      chat: How its openings are given to a model with a chat template.
      context: Length of a context, in tokens.
      budget, careless, seed: As in `PlanTeacher`.
      world: Builds the atlas.
    """
    teacher = PlanTeacher(budget=budget, careless=careless, seed=seed)
    return rule_based_teacher(teacher, tokenizer, chat, context, world().fingerprint())
