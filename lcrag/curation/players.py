"""Players of search programs that need no model: they know the golden answers of a data set, and what answers need.

A player is a text writer (see `playing`). It answers only what a shown passage holds, so its episodes teach to search
and to read, and "unknown" is an answer.
"""

import collections
import dataclasses
import re
import zlib
from collections.abc import Callable, Sequence

import gin

from lcrag.curation.playing import (
    TextWriter,
    WritingTeacher,
    check_dialogue,
    context_tokenizer,
    golden_answer,
    greedy,
    unknown_in,
)
from lcrag.data.questions import Question, records_fingerprint
from lcrag.episodes import Chat, Complete, Generate, Turn
from lcrag.episodes.programs import answer_language
from lcrag.episodes.searches import sentences_of
from lcrag.episodes.tags import INFORMATION, OBSERVATION, SEARCH, closing, neutralise
from lcrag.errors import typed
from lcrag.rewards.matching import VERDICTS, holds_answer

# Plain thoughts, so that a policy learns the form and little else; {place} is "Doc 2", or "A passage".
FIRST = ("I need to look this up.", "I do not know this, so I search for it.", "Let me search for this.")
AGAIN = (
    "These passages do not say it. I search again.",
    "The answer is not in these passages, so I need another search.",
    "I have not found it yet. Let me search again.",
)
READ = ("{place} answers this.", "The answer is in {place}.", "{place} says it.")
MISSING = (
    "No passage says it, so I cannot answer.",
    "The answer is in none of the passages.",
    "I have not found the answer.",
)
_BLOCK = re.compile(rf"<({INFORMATION}|{OBSERVATION})>(.*?)</\1>", re.DOTALL)
_HEAD = re.compile(r"(Doc \d+)(?:\(Title: .*?\)|:)\s*")
_SEARCHED = re.compile(rf"<{SEARCH}>(.*?)</{SEARCH}>", re.DOTALL)


def varied(texts: Sequence[str], *key: str) -> str:
    """Returns one of some texts, a function of the key."""
    return texts[zlib.crc32("\0".join(key).encode()) % len(texts)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hop:
    """A piece of information that the answer needs."""

    queries: tuple[str, ...]  # in the order in which they are tried, until a passage holds it
    golds: tuple[str, ...]  # that a passage must hold, as `holds_answer` reads it
    passages: tuple[str, ...] = ()  # golden ones, of which a sentence must be shown; empty: any passage counts


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Where an observation holds what a hop needs."""

    sentence: str
    place: str  # "Doc 2", or "A passage" where passages have no numbers


def evidence_in(observations: Sequence[str], hop: Hop) -> Evidence | None:
    """Returns the first sentence of the passages in some observations that holds a hop's information."""
    golden = [
        sentence.strip()
        for text in hop.passages
        for sentence in sentences_of(neutralise(" ".join(text.split())))
        if holds_answer([sentence], hop.golds)
    ]
    for block in (match[2] for text in observations for match in _BLOCK.finditer(text)):
        for line in map(str.strip, block.splitlines()):
            if not holds_answer([line], hop.golds):
                continue
            sentences = map(str.strip, sentences_of(_HEAD.sub("", line)))
            if hop.passages:
                found = next((sentence for sentence in golden if sentence in line), None)
            else:  # the whole passage, if its title holds the answer or the answer crosses a full stop
                found = next((sentence for sentence in sentences if holds_answer([sentence], hop.golds)), line)
            if found is not None:
                named = _HEAD.match(line)
                return Evidence(found, named[1] if named else "A passage")
    return None


@gin.register
class GoldenSearcher:
    """Plays LcRL's and Search-R1's programs from golden answers, without a model.

    It searches for the question, and answers with the golden answer once a shown passage holds one in any language.
    Otherwise it searches again, and when it may not, or has no other query, it answers "unknown". What it never does is
    to answer what no passage has shown.

    Args:
      questions: The questions, in all languages whose versions are queries and whose answers count in a passage.
      repeats: Whether the question is asked twice in the same words, as LcRL's route sends it to other collections;
        then, or at once, it is asked in English, if it has an English version.
    """

    def __init__(self, questions: Sequence[Question], repeats: bool = True):
        self._golds = collections.defaultdict[str, dict[str, None]](dict)
        self._english = {question.coupling: question.text for question in questions if question.language == "en"}
        for question in questions:
            self._golds[question.coupling] |= dict.fromkeys(question.answers)
        self._repeats = repeats

    def __call__(self, question: Question, turns: Sequence[Turn], request: Generate | Complete) -> str:
        """Returns a thought and a search, or a thought and the answer."""
        check_dialogue(question, request)
        observations = [turn.text for turn in turns[1:] if turn.by == "environment"]
        searched = _SEARCHED.findall("".join(turn.text for turn in turns if turn.by == "policy"))
        hop, key = self.hop(question), (question.key, str(len(searched)))
        if evidence := evidence_in(observations, hop):
            thought = varied(READ, *key).format(place=evidence.place)
            return f"<think> {thought} </think>\n<answer> {golden_answer(question)} </answer>"
        left = hop.queries[len(searched) :]
        if left and closing(SEARCH) in request.stop:
            return f"<think> {varied(AGAIN if searched else FIRST, *key)} </think>\n<search> {left[0]} </search>"
        unknown = unknown_in(answer_language(question))
        return f"<think> {varied(MISSING, *key)} </think>\n<answer> {unknown} </answer>"

    def hop(self, question: Question) -> Hop:
        """Returns what the answer to a question needs."""
        own, english = map(neutralise, (question.text, self._english.get(question.coupling, question.text)))
        queries = (own, own) if self._repeats else (own,)
        return Hop(
            queries=(*queries, english) if english != own else queries,
            golds=tuple(gold for gold in self._golds[question.coupling] if gold.lower() not in VERDICTS),
            passages=tuple(question.extra.get("golden_passages", ())),
        )


@gin.configurable
@typed
def player_teacher(
    player: Callable[[Sequence[Question]], TextWriter],
    questions: Sequence[Question],
    tokenizer: str,
    chat: Chat,
    context: int,
) -> WritingTeacher:
    """Returns a player as the teacher, which needs no model.

    Args:
      player: Makes the player from the questions: `@GoldenSearcher`.
      questions: The demonstrated questions, in all languages.
      tokenizer, chat, context: As of `endpoint_teacher`.
    """
    writer, hashes = player(questions), {"player_questions": records_fingerprint(questions)}
    encoder = context_tokenizer(tokenizer, chat)
    return WritingTeacher(writer=greedy(writer, "a player"), tokenizer=encoder, context=context, hashes=hashes)
