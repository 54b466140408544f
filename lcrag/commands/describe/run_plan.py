"""Reads the programs, prompts, episodes and budgets of a command from its composed arguments."""

import dataclasses
import functools
import inspect
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from lcrag.commands.describe.named_parts import NamedParts, PolicyShape, Source
from lcrag.commands.describe.training_draw import composed_draw
from lcrag.composition.components import configured_chat
from lcrag.composition.stand_ins import Composition
from lcrag.data.questions import Question
from lcrag.episodes import Chat, Completion
from lcrag.episodes.programs import is_program, program_name, program_settings
from lcrag.episodes.requests import Complete, FittedText, Observe, Request, Retrieve
from lcrag.train.checks import check_rewarded
from lcrag.train.method import Method

EXAMPLE = Question(id="example", dataset="example", language="en", text="Where is this city?", answers=("?",))
NO_LIMIT = 2**40
LOOK_AHEAD = 20  # requests of a program before it opens its dialogue


def plain(value: Any) -> Any:
    """Returns a value that JSON can hold: functions and objects by their names."""
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if inspect.isroutine(value) or isinstance(value, functools.partial):
        settings = program_settings(value) if is_program(value) else {}
        return {program_name(value): plain(settings)} if settings else program_name(value)
    return value if isinstance(value, str | int | float | bool | None) else getattr(value, "name", type(value).__name__)


def episodes(composition: Composition, parts: NamedParts) -> dict[str, Any]:
    """Returns prompts, samples and episodes of a training step, or of a whole evaluation; None where unknown."""
    arguments = composition.arguments
    if composition.command == "train":
        return _training_step(arguments, parts)
    evaluation = arguments.get("evaluation")
    if composition.command != "evaluate" or evaluation is None:
        return {"prompts_per_step": None, "samples": None, "episodes_per_step": None}
    prompts, rounds = len(evaluation.questions) or None, sum(evaluation.decodings.values())
    return {
        "prompts_per_step": prompts,
        "samples": rounds,
        "episodes_per_step": prompts and prompts * rounds,
    }


def _training_step(arguments: Mapping[str, Any], parts: NamedParts) -> dict[str, Any]:
    method, couplings = arguments["method"], arguments["questions_per_step"]
    absent = [each for each in parts.sources if each.absent and each.name.startswith("train/")]
    if not absent and (arguments["questions"] or not any(each.absent for each in parts.sources)):
        draw = composed_draw(arguments)
        draw.groups(step=0)  # rejects a table that is too small
        check_rewarded(method.reward, draw.questions)
        method, couplings = draw.method, draw.couplings
        size: float | None = sum(map(len, draw.table)) / len(draw.table)
    else:
        method, couplings = (method, couplings) if arguments["critic"] else method.with_baseline(couplings)
        size = _size_of_absent(method, absent)
    prompts = size and round(couplings * size)
    return {
        "prompts_per_step": prompts,
        "samples": method.samples,
        "episodes_per_step": prompts and prompts * method.samples,
        "couplings": couplings,
        "prompts_per_coupling": size,
    }


def _size_of_absent(method: Method, absent: Sequence[Source]) -> float | None:
    """Returns the prompts per coupling of questions whose files are missing; None if it varies."""
    if method.coupling == "independent":
        return 1
    if method.coupling == "parallel" and len(absent) == 1 and absent[0].is_parallel:
        return len(absent[0].arguments["languages"])
    return None


def by_language(questions: Sequence[Question]) -> dict[str, int]:
    """Counts questions by language."""
    return dict(Counter(question.language for question in questions))


class BytesOfText:
    """A `TextTokenizer` whose tokens are the bytes of a text."""

    def encode(self, text: str) -> Sequence[int]:
        """Returns the bytes."""
        return text.encode()

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of some bytes."""
        return bytes(ids).decode(errors="replace")


def opening(method: Method, questions: Sequence[Question], languages: Sequence[str]) -> Observe | None:
    """Returns the text that opens the first question's dialogue, or else the first prompt outside of a dialogue.

    Searches before it find nothing, and completions are empty. None: the policy is given no text.
    """
    question = next(iter(questions), EXAMPLE)
    program = method.on(languages or (question.language,))(question)
    answer: Any = None
    prompts: list[Observe] = []
    for _ in itertools.repeat(None, LOOK_AHEAD):
        try:
            request = program.send(answer)
        except StopIteration:
            break
        if isinstance(request, Observe):
            return dataclasses.replace(request, text=_whole(request.text))
        prompts += [Observe(_whole(each.prompt)) for each in _each(request) if isinstance(each, Complete)]
        answer = _nothing(request)
    return prompts[0] if prompts else None


def _each(request: Request | tuple[Request, ...]) -> tuple[Request, ...]:
    return request if isinstance(request, tuple) else (request,)


def _whole(text: str | FittedText) -> str:
    """Returns the full text of a prompt or of a `FittedText`."""
    return text if isinstance(text, str) else text.fit(BytesOfText(), NO_LIMIT) or ""


def _nothing(request: Request | tuple[Request, ...]) -> Any:
    """Returns an empty answer to a request."""
    if isinstance(request, tuple):
        return [_nothing(each) for each in request]
    if isinstance(request, Retrieve):
        return [[[] for _ in request.languages] for _ in request.queries]
    if isinstance(request, Complete):
        return Completion(text="", finish_reason="eos", tokens=0)
    return ""


def opening_text(opened: Observe | None) -> str:
    """Returns the text of an opening, instructions first."""
    return "" if opened is None else "\n\n".join(str(text) for text in (opened.system, opened.text) if text)


def prompt_tokens(opened: Observe | None, policy: PolicyShape) -> int | None:
    """Returns the length of an opening in the policy's tokens, chat template included; None without a tokenizer."""
    if opened is None or policy.tokenizer is None:
        return None
    chat: Chat = configured_chat()
    return len(chat.opening(policy.tokenizer, str(opened.text), opened.system).ids)


def budgets(method: Method, *, generation_tokens: int, context_tokens: int, prompt: int | None) -> dict[str, Any]:
    """Returns the budgets of an episode, in tokens where names say so, and the longest episode that they allow.

    Args:
      method: The method with the program.
      generation_tokens: Limit of a generation.
      context_tokens: Size of a slot.
      prompt: Tokens of the opening; None: unknown, and left out of the comparison with the context.
    """
    settings = _longest(program_settings(method.program))
    searches, observed = _searches(settings), _observation(settings)
    calls = settings.get("calls", 0)
    longest = (
        (searches + calls + 1) * generation_tokens + searches * observed + calls * settings.get("response_tokens", 0)
    )
    return {
        "searches": searches,
        "passages": settings.get("passages"),
        "observation_tokens": observed or None,
        "generation_tokens": generation_tokens,
        "context_tokens": context_tokens,
        "prompt_tokens": prompt,
        "invalid_actions": settings.get("invalid_limit"),
        "tool_calls": calls or None,
        "longest_tokens": longest + (prompt or 0),
        "fits_context": longest + (prompt or 0) <= context_tokens,
        "settings": plain(program_settings(method.program)),
    }


def _longest(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the settings; of a program that chooses among several, those of the one that searches most."""
    others = [program_settings(each) for each in settings.get("programs", {}).values()]
    return max(others, key=_searches) if others else settings


def _searches(settings: Mapping[str, Any]) -> int:
    """Returns the largest number of searches of an episode; one for a program with passages but without a budget."""
    for name in ("budget", "attempts", "sentences"):
        if name in settings:
            return settings[name]
    return 1 if "passages" in settings else 0


def _observation(settings: Mapping[str, Any]) -> int:
    """Returns the largest number of tokens of one search's observation."""
    if "query_tokens" in settings:
        return settings["query_tokens"] * settings.get("queries", 1)
    return settings.get("observation_tokens", 0)
