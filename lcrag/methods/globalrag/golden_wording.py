"""What the environment says to the teacher of golden plans, in our own words (GlobalRAG, appendix D)."""

import dataclasses
from collections.abc import Mapping

from lcrag.data.languages import language_of
from lcrag.data.questions import Question
from lcrag.episodes.prompts import answer_language, atlas
from lcrag.episodes.tags import neutralise

_INSTRUCTIONS = (
    "You solve a multi-hop question with a search engine, step by step. First analyse the question: its constraints, "
    "and whether it needs a bridge, a comparison or a composition. Then decompose it into sub-questions and write them "
    "once, between <plan> and </plan>, as a JSON object: a key Q1, Q2, ... for each sub-question, in the order of "
    "answering, its value a list of the sub-question and the placeholder of its answer, #1, #2, ... Each sub-question "
    "must be short and answerable by itself; one that needs an earlier answer names its placeholder. Example: "
    '<plan> {"Q1": ["Who directed the film Jaws?", "#1"], "Q2": ["Where was #1 born?", "#2"]} </plan>\n'
    "Afterwards you are given the sub-questions one by one. For each, write <search> query </search> and read what is "
    "found between <information> and </information>, as often as you need. As soon as the passages tell the answer, "
    "write <subAnswer> #1 = value </subAnswer> with the placeholder of that sub-question and nothing but the value. "
    "Rely on the passages alone; if they do not tell the answer whatever you search for, write unknown as the value. "
    "At last you are asked for the answer to the question: write it between <answer> and </answer>, as short as can be."
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Wording:
    """How the environment speaks.

    Attributes:
      instructions: The system message; None: none.
      style: How passages are written down.
      asks: Whether it says at every step what is wanted.
    """

    instructions: str | None
    style: str
    asks: bool

    def task(self, question: Question) -> str:
        """What opens the dialogue."""
        if not self.asks:
            return atlas(question)
        wanted = answer_language(question)
        note = "" if wanted == "en" else f" The answers must be in {language_of(wanted).name}."
        return f"Question: {neutralise(question.text)}{note}\nWrite the plan.\n"

    def step(self, key: str, asked: str) -> str:
        """What hands out a sub-question, the answers that it names in their places."""
        placeholder = f"#{key.removeprefix('Q')}"
        wanted = f"Search, or write <subAnswer> {placeholder} = value </subAnswer>.\n" if self.asks else ""
        return f"\n{key}: {neutralise(asked)}\n{wanted}"

    def last(self, question: Question, sub_answers: Mapping[str, str]) -> str:
        """What asks for the answer."""
        known = "".join(f"#{key.removeprefix('Q')} = {neutralise(value)}\n" for key, value in sub_answers.items())
        wanted = "Write the answer to the question between <answer> and </answer>: " if self.asks else ""
        return f"\n{known}{wanted}{neutralise(question.text)}\n"


WORDINGS = {
    "full": Wording(instructions=_INSTRUCTIONS, style="rag_r1", asks=True),
    "atlas": Wording(instructions=None, style="atlas", asks=False),
}
