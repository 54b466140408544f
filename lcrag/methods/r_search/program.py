"""R-Search's program (section 3.2.1), the frozen reader of its reward (3.2.2), and R-Search as a tool (5.1)."""

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress

import gin

from lcrag.data.questions import Question
from lcrag.episodes import Completer
from lcrag.episodes.programs import (
    RETHINK,
    TRY_AGAIN,
    Complete,
    ConfiguredProgram,
    ContextFull,
    LoggedSearch,
    Observe,
    Outcome,
    Program,
    Retrieve,
    SearchTurns,
    atlas,
    log_searches,
    user_message,
)
from lcrag.episodes.searches import Framed, Route, Style, information, native_only
from lcrag.episodes.tags import answer_in, boxes_in, neutralise
from lcrag.errors import lookup, typed
from lcrag.models.completers import complete_prompts
from lcrag.sampling import SamplingParameters

# System messages: on searching, on evidence (which can be left out), on answering.
_SYSTEM = {
    # Table 1.
    "full": (
        "You are a helpful assistant that can solve the given question step by step. For each step, start by "
        "explaining your thought process. If additional information is needed, provide a specific query enclosed in "
        "<search> and </search>. The system will return the top search results within <observation> and "
        "</observation>. You can perform multiple searches as needed. ",
        "When you know the final answer, use <original_evidence> and </original_evidence> to provide all potentially "
        "relevant original information from the observations. Ensure the information is complete and preserves the "
        "original wording without modification. If no searches were conducted or observations were made, omit the "
        "evidence section. ",
        "Finally, provide the final answer within <answer> and </answer> tags.",
    ),
    "paraphrase": (
        "You are a helpful assistant that solves the given question step by step. Begin each step by explaining your "
        "thoughts. If you need more information, give a specific query between <search> and </search>; the system "
        "returns the top search results between <observation> and </observation>. You can search as many times as you "
        "need. ",
        "Once you know the final answer, give all original information from the observations that may be relevant "
        "between <original_evidence> and </original_evidence>. It must be complete and keep the original wording "
        "without changes. If you made no search or there were no observations, leave the evidence out. ",
        "Finally, give the final answer between <answer> and </answer>.",
    ),
}
# The text before the passages of a search, how they are written, and the text after them.
_OBSERVATION = (
    "\n\n<observation>",
    Style(before="", after="", passage=lambda number, title, text: f'(Title: "{title}") {text}\n'),
    "</observation>\n\n",
)
_WORDINGS = {
    "full": _OBSERVATION,
    "paraphrase": _OBSERVATION,
    "atlas": (
        "<observation>\n",
        Style(before="", after="", passage=lambda number, title, text: f" {title}: {text}\n"),
        "</observation>\n",
    ),
}


@gin.configurable(denylist=["question", "collections"])
def r_search(
    question: Question,
    collections: Sequence[str],
    *,
    budget: int = 4,
    passages: int = 3,
    invalid_limit: int = 3,
    route: Route = native_only,
    wording: str = "full",
    evidence: bool = True,
    observation_tokens: int = 1800,
) -> Program:
    """The evidence program (R-Search, section 3.2.1): reason, search, give the evidence, answer.

    The outcome's `extra` has what rewards need; its `evidence` is None unless it is well-formed and follows an
    observation.

    Args:
      passages: The paper has 3 in training, 5 in evaluation.
      wording: "full" is table 1, "paraphrase" says the same in other words, "atlas" is for the built-in policies.
      evidence: Whether evidence is asked for and read; False is the ablation "w/o Evidence".
    """
    before, style, after = lookup(_WORDINGS, wording, "wording of R-Search")
    turns = SearchTurns(budget, invalid_limit, correction=RETHINK if wording == "atlas" else TRY_AGAIN)
    blind: int | None = None  # turns before the first observation
    with suppress(ContextFull):
        if wording == "atlas":  # the built-in tiny model gets the question alone
            yield Observe(atlas(question))
        else:
            searching, asking, answering = _SYSTEM[wording]
            yield Observe(user_message(question), system=searching + asking * evidence + answering)
        while search := (yield from turns.next_action()):
            languages = route(turns.searches, question.language, collections)
            found = yield Retrieve((search.query,), languages, passages)
            # The budget is the passages' own: the tags come on top, so that no cut can lose them.
            yield Observe(Framed(before, information(found, style, observation_tokens), after))
            blind = blind or len(turns.texts)
    answers, evidences = (boxes_in(turns.texts, tag) for tag in ("answer", "original_evidence"))
    # Evidence that was given before any observation is made up, and spoils all that follows.
    unfounded = len(boxes_in(turns.texts[:blind], "original_evidence").contents)
    given = evidences.sole if evidence and not unfounded else None
    return Outcome(
        answer=answer_in(turns.texts[-1]) if turns.texts else None,
        invalid_actions=turns.invalid,
        counts={
            "valid_searches": turns.searches,
            "evidence": int(given is not None),
            "unfounded_evidence": unfounded,
            "malformed_evidence": evidences.malformed,
            "malformed_answer": answers.malformed,
            "malformed_search": boxes_in(turns.texts, "search").malformed,
            "forged_observation": boxes_in(turns.texts, "observation").tags,
        },
        extra={
            "evidence": given,
            "valid_searches": turns.searches,
            "well_formed_answer": answers.sole is not None,
        },
    )


# --- Other models that answer from evidence ---


@dataclasses.dataclass(frozen=True)
class ReaderPrompt:
    """How evidence is put to a reader."""

    prompt: str  # with places for {question} and {evidence}
    line: str = "{line}\n"  # of the evidence
    stop: tuple[str, ...] = ()  # strings that end the answer and are not part of it
    answer_prefix: str = ""  # shown after a first line that the reader writes, before its answer; "": no such line

    def of(self, question: str, evidence: str) -> str:
        """Returns the prompt for one question. Tags and control tokens in either text are neutralised."""
        lines = filter(None, (line.strip() for line in neutralise(evidence).splitlines()))
        shown = "".join(self.line.format(line=line) for line in lines)
        return self.prompt.format(question=neutralise(question), evidence=shown)

    def after_line(self, prompt: str, written: str) -> str:
        """Returns the prompt for the answer, after `prompt` and the line that the reader wrote.

        A line without an end is left out: it repeats itself, and may not fit twice.
        """
        line, ended, _ = written.replace(self.answer_prefix, "\n").partition("\n")
        shown = self.line.format(line=neutralise(line.strip())) if ended and line.strip() else ""
        return f"{prompt}{shown}{self.answer_prefix}"

    def answer_in(self, text: str) -> str:
        """Returns the answer in a reader's completion."""
        for stop in self.stop:
            text = text.partition(stop)[0]
        return text.strip()


READER_PROMPTS = {
    # Table 5.
    "full": ReaderPrompt(
        "Answer the question based on the given passages. Only give me the answer and do not output any other words."
        "\n\nThe following are given passages: {evidence}\nQuestion: {question}\n\nAnswer:"
    ),
    # For the built-in policies.
    "atlas": ReaderPrompt(
        "{question}\n<information>\n{evidence}</information>\n",
        line=" {line}\n",
        stop=("</answer>",),
        answer_prefix="<answer>",
    ),
}


@gin.register
@typed
class EvidenceReader:
    """The frozen model of the evidence reward (section 3.2.2): answers many questions in one batch.

    In the wording "atlas" it writes a line first, in a batch of its own.

    Args:
      model: A second checkpoint (`SamplerCompleter`) or an endpoint (`EndpointCompleter`).
      max_tokens: Longest answer, and longest line before it.
    """

    def __init__(
        self, model: Completer, wording: str = "full", temperature: float = 0.1, max_tokens: int = 512, seed: int = 0
    ):
        self._model, self._prompt = model, lookup(READER_PROMPTS, wording, "wording of a reader")
        self._parameters = SamplingParameters(
            stop=self._prompt.stop, max_tokens=max_tokens, temperature=temperature, seed=seed
        )

    @property
    def hashes(self) -> Mapping[str, str]:
        """Fingerprints of the model's files; empty for an endpoint, whose files are unknown."""
        return getattr(self._model, "hashes", {})

    def check(self) -> None:
        """Raises a UserError if the model cannot be loaded."""
        getattr(self._model, "check", lambda: None)()

    def __call__(self, questions: Sequence[str], evidences: Sequence[str]) -> list[str | None]:
        """Returns the answers, in order; None where the model fails or answers nothing."""
        pairs = zip(questions, evidences, strict=True)
        prompts = {number: self._prompt.of(*pair) for number, pair in enumerate(pairs)}
        if self._prompt.answer_prefix:
            parameters = dataclasses.replace(self._parameters, stop=("\n", *self._prompt.stop))
            lines = complete_prompts(self._model, prompts, parameters)
            written = {number: line for number, line in lines.items() if isinstance(line, str)}
            prompts = {number: self._prompt.after_line(prompts[number], line) for number, line in written.items()}
        texts = complete_prompts(self._model, prompts, self._parameters)
        return [
            (self._prompt.answer_in(text) or None) if isinstance(text := texts.get(number), str) else None
            for number in range(len(questions))
        ]


@gin.configurable(denylist=["question", "collections"])
def answer_from_evidence(
    question: Question,
    collections: Sequence[str],
    *,
    searcher: ConfiguredProgram | None,
    reader: str = "reader",
    wording: str = "full",
    evidence_characters: int = 8000,
) -> Program:
    """R-Search as a tool (section 5.1): one program searches, and another model answers from its evidence alone.

    If the searcher writes no evidence, the passages it found are the evidence. The outcome's `extra` has the `evidence`
    that the reader was shown, and the `searcher_answer`.

    Args:
      wording: Of the reader's prompt.
      searcher: The program that searches; None: the reader answers the same prompt without evidence.
      reader: The model that answers: a name in `Runner.completers`.
      evidence_characters: Longest evidence. Whole passages are left out, the last found first.
    """
    prompt, searched = lookup(READER_PROMPTS, wording, "wording of a reader"), Outcome(answer=None)
    log: list[LoggedSearch] = []
    if searcher is not None:
        with suppress(ContextFull):  # the passages of the searches until then are evidence
            searched = yield from log_searches(searcher(question, collections), log)
    evidence = searched.extra.get("evidence") or ""
    if not evidence:  # the passages, one a line, without duplicates
        hits = [" ".join(f"{hit.title}: {hit.text}".split()) for search in log for hit in search.passages]
        for line in dict.fromkeys(hits):
            if evidence and len(evidence) + len(line) > evidence_characters:
                break
            evidence += f"{line}\n"
    shown = evidence[:evidence_characters]
    asked = prompt.of(question.text, shown)
    if prompt.answer_prefix:
        line = yield Complete(prompt=asked, stop=("\n", *prompt.stop), model=reader)
        asked = prompt.after_line(asked, line.text)
    completion = yield Complete(prompt=asked, stop=prompt.stop, model=reader)
    return Outcome(
        answer=prompt.answer_in(completion.text) or None,
        invalid_actions=searched.invalid_actions,
        counts=searched.counts,
        extra={"evidence": shown, "searcher_answer": searched.answer},
    )
