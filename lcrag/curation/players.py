"""Players of search programs that need no model: they know the golden answers of a data set, and what answers need.

A player is a text writer (see `playing`). It answers only what a shown passage holds, so its episodes teach to search
and to read, and "unknown" is an answer.
"""

import collections
import dataclasses
import json
import re
import zlib
from collections.abc import Callable, Sequence

import gin

from lcrag.curation.playing import (
    TextWriter,
    WritingTeacher,
    check_dialogue,
    golden_answer,
    rule_based_teacher,
    unknown_in,
)
from lcrag.data.questions import Question, records_fingerprint
from lcrag.episodes import Chat, Complete, Generate, Translator, Turn
from lcrag.episodes.programs import answer_language
from lcrag.episodes.searches import sentences_of
from lcrag.episodes.tags import EVIDENCE, INFORMATION, OBSERVATION, SEARCH, THINK, closing, neutralise, quoted
from lcrag.errors import typed
from lcrag.rewards.matching import VERDICTS, holds_answer

# Plain thoughts, so that a policy learns the form and little else; {place} is "Doc 2", or "a passage".
FIRST = ("I need to look this up.", "I do not know this, so I search for it.", "Let me search for this.")
AGAIN = (
    "These passages do not say it. I search again.",
    "The answer is not in these passages, so I need another search.",
    "I have not found it yet. Let me search again.",
)
NEXT = (
    "{place} says a part of it. I need to know more.",
    "I have found something, but not all that the question asks.",
    "That is one part. Now I search for the next one.",
)
READ = ("{place} answers this.", "The answer is in {place}.", "{place} says it.")
MISSING = (
    "No passage says it, so I cannot answer.",
    "The answer is in none of the passages.",
    "I have not found the answer.",
)
_BLOCK = re.compile(rf"<({INFORMATION}|{OBSERVATION})>(.*?)</\1>", re.DOTALL)
_JSON = re.compile(r'\s*\{\s*"query"')  # RAG-R1's passages
_HEAD = re.compile(r"(?:(Doc \d+)(?:\(Title: (?:[^()]|\([^()]*\))*\)|:)|\(Title: \".*?\"\))\s*")
_REFERENCE = re.compile(r"#(\d+)")
_SEARCHED = re.compile(rf"<{SEARCH}>(.*?)</{SEARCH}>", re.DOTALL)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Hop:
    """A piece of information that the answer needs."""

    queries: tuple[str, ...]  # in the order in which they are tried, until a passage holds it
    golds: tuple[str, ...]  # that a passage must hold, as `holds_answer` reads it
    passages: tuple[str, ...] = ()  # golden ones, of which a sentence must be shown; empty: any passage counts
    # Names that the question or a passage must have held before this is searched for.
    subject: tuple[str, ...] = ()
    # Queries after the others, each once the question or a passage has held it.
    titles: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Where an observation holds what a hop needs."""

    sentence: str
    place: str  # "Doc 2", or "a passage" where passages have no numbers


def thinking(texts: Sequence[str], key: Sequence[str], evidence: Evidence | None = None, tags: bool = True) -> str:
    """Returns one of some thoughts, a function of the key, about evidence if there is any, on a line of its own."""
    text = texts[zlib.crc32("\0".join(key).encode()) % len(texts)]
    text = text.format(place=evidence.place if evidence else "")
    text = f"{text[0].upper()}{text[1:]}"
    return f"<{THINK}> {text} </{THINK}>\n" if tags else f"{text}\n"


def evidence_in(observations: Sequence[str], hop: Hop) -> Evidence | None:
    """Returns the first sentence of the passages in some observations that holds a hop's information."""
    golden = [
        sentence.strip()
        for text in hop.passages
        for sentence in sentences_of(neutralise(" ".join(text.split())))
        if holds_answer([sentence], hop.golds)
    ]
    # The lines of the passages, as all programs write them, RAG-R1's JSON included.
    blocks = [match[2] for text in observations for match in _BLOCK.finditer(text)]
    texts = [json.loads(block)["documents"] if _JSON.match(block) else [block] for block in blocks]
    for line in (line.strip() for documents in texts for document in documents for line in document.splitlines()):
        if not holds_answer([line], hop.golds):
            continue
        sentences = map(str.strip, sentences_of(_HEAD.sub("", line)))
        if hop.passages:
            found = next((sentence for sentence in golden if sentence in line), None)
        else:  # the whole passage, if its title holds the answer or the answer crosses a full stop
            found = next((sentence for sentence in sentences if holds_answer([sentence], hop.golds)), line)
        if found is not None:
            named = _HEAD.match(line)
            return Evidence(found, (named and named[1]) or "a passage")
    return None


def hops_of(question: Question, golds: Sequence[str], queries: Sequence[str]) -> tuple[Hop, ...]:
    """Returns what the answer to a question needs, as far as its data set says so.

    MuSiQue has sub-questions with their answers, 2WikiMultiHopQA the facts as triples, HotpotQA the titles of the
    passages: a comparison needs two. Other questions have one hop, for which the question itself is searched for.

    Args:
      golds: Golden answers that count in a passage.
      queries: What a question with one hop is searched for.
    """
    extra, whole = question.extra, neutralise(question.text)
    wanted = tuple(gold for gold in golds if gold.lower() not in VERDICTS)
    passages = tuple(extra.get("golden_passages", ()))
    if steps := extra.get("decomposition"):
        answers = [step["answer"] for step in steps]

        def named(text: str) -> list[str]:
            places = (int(number) - 1 for number in _REFERENCE.findall(text))
            return [answers[place] for place in places if 0 <= place < len(answers)]

        def query(text: str) -> str:
            text = _REFERENCE.sub(lambda match: (named(match[0]) or [match[0]])[0], text)
            return text.replace(" >> ", " ")  # between a subject and its relation

        return tuple(
            Hop(
                queries=(query(step["question"]), whole),
                golds=(step["answer"], *(wanted if step is steps[-1] else ())),
                passages=passages,
                subject=tuple(named(step["question"])),
            )
            for step in steps
        )
    if facts := extra.get("evidences"):
        return tuple(
            Hop(queries=(f"{subject} {relation}", subject), golds=(value,), subject=(subject,))
            for subject, relation, value in facts
        )
    titles = tuple(dict.fromkeys(title for title, _ in extra.get("supporting_facts", ())))
    if extra.get("type") == "comparison" and titles:
        return tuple(Hop(queries=(title,), golds=(title,), subject=(title,)) for title in titles)
    return (Hop(queries=tuple(queries), golds=wanted, passages=passages, titles=titles),)


@gin.register
class GoldenSearcher:
    """Plays search programs from golden answers, without a model: LcRL's, Search-R1's, R-Search's and RAG-R1's.

    It searches for the question, or for its hops (see `hops_of`), and answers with the golden answer once a shown
    passage holds one in any language, and each hop. Otherwise it searches again, and when it may not, or has no other
    query, it answers "unknown". What it never does is to answer what no passage has shown.

    Args:
      questions: The questions, in all languages whose versions are queries and whose answers count in a passage.
      repeats: Whether the question is asked twice in the same words, as LcRL's route sends it to other collections;
        then, or at once, it is asked in English, if it has an English version.
      queries: Maximum number of queries in one search (RAG-R1); above 1, commas separate them.
      thinks: Whether thoughts stand between tags.
      evidence: Whether the sentences that hold the hops precede the answer (R-Search).
    """

    def __init__(
        self,
        questions: Sequence[Question],
        repeats: bool = True,
        queries: int = 1,
        thinks: bool = True,
        evidence: bool = False,
    ):
        self._golds = collections.defaultdict[str, dict[str, None]](dict)
        self._english = {question.coupling: question.text for question in questions if question.language == "en"}
        for question in questions:
            self._golds[question.coupling] |= dict.fromkeys(question.answers)
        self._repeats, self._queries, self._thinks, self._evidence = repeats, queries, thinks, evidence
        self._write: Callable[[str], str] = quoted if queries > 1 else str

    def __call__(self, question: Question, turns: Sequence[Turn], request: Generate | Complete) -> str:
        """Returns a thought and a search, or a thought and the answer."""
        check_dialogue(question, request)
        observations = [turn.text for turn in turns[1:] if turn.by == "environment"]
        searched = _SEARCHED.findall("".join(turn.text for turn in turns if turn.by == "policy"))
        key, golds = (question.key, str(len(searched))), tuple(self._golds[question.coupling])
        whole, english = map(neutralise, (question.text, self._english.get(question.coupling, question.text)))
        wordings = (whole, whole) if self._repeats else (whole,)
        hops = hops_of(question, golds, wordings if english == whole else (*wordings, english))
        found = [evidence_in(observations, hop) for hop in hops]
        if all(found):
            sentences = "\n".join(dict.fromkeys(evidence.sentence for evidence in found if evidence))
            evidence = f"<{EVIDENCE}>\n{sentences}\n</{EVIDENCE}>\n" if self._evidence else ""
            return f"{self._thought(READ, key, found[-1])}{evidence}<answer> {golden_answer(question)} </answer>"
        seen = (question.text, *observations)
        ready = []  # the next query of each hop, which is asked as often as the hop lists it
        for hop, read in zip(hops, found, strict=True):
            if read is None and all(holds_answer(seen, [name]) for name in hop.subject):
                queries = (*hop.queries, *(title for title in hop.titles if holds_answer(seen, [title])))
                for place, query in enumerate(queries, start=1):
                    written = self._write(query)
                    asked_in = (
                        f", {written}, " in f", {text.strip()}, " if self._queries > 1 else written == text.strip()
                        for text in searched
                    )
                    if sum(asked_in) < queries[:place].count(query):
                        ready.append(query)
                        break
        if not ready and not any(whole in content for content in searched):
            ready = [whole]  # where the question does not name what its data set says of it
        if ready and closing(SEARCH) in request.stop:
            before = [evidence_in(observations[:-1], hop) for hop in hops]
            new = next((now for now, then in zip(found, before, strict=True) if now and not then), None)
            thought = self._thought(NEXT if new else AGAIN if searched else FIRST, key, new)
            asked = ", ".join(map(self._write, list(dict.fromkeys(ready))[: self._queries]))
            return f"{thought}<search> {asked} </search>"
        return f"{self._thought(MISSING, key)}<answer> {unknown_in(answer_language(question))} </answer>"

    def _thought(self, texts: Sequence[str], key: tuple[str, ...], evidence: Evidence | None = None) -> str:
        return thinking(texts, key, evidence, tags=self._thinks)


@gin.configurable
@typed
def player_teacher(
    player: Callable[[Sequence[Question]], TextWriter],
    questions: Sequence[Question],
    tokenizer: str,
    chat: Chat,
    context: int,
    translator: Translator | None = None,
) -> WritingTeacher:
    """Returns a player as the teacher, which needs no model.

    Args:
      player: Makes the player from the questions: `@GoldenSearcher`.
      tokenizer, chat, context: As of `endpoint_teacher`.
    """
    hashes = {"player_questions": records_fingerprint(questions)}
    return rule_based_teacher(player(questions), tokenizer, chat, context, hashes, translator)
