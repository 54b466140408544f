"""A teacher behind an OpenAI-compatible endpoint: the assistant of a chat in which the environment is the user."""

from collections.abc import Sequence

from lcrag.data.questions import Question
from lcrag.episodes import Generate, Turn
from lcrag.models.endpoint import ChatEndpoint


class EndpointTeacher:
    """Asks a chat model for each turn; a `Teacher` that may be called on several threads.

    Args:
      endpoint: The model.
      temperature: Of every turn that names none itself.
      max_tokens: Longest turn that names no limit itself.
    """

    def __init__(self, endpoint: ChatEndpoint, *, temperature: float, max_tokens: int):
        self._endpoint, self._temperature, self._max_tokens = endpoint, temperature, max_tokens

    def __call__(self, question: Question, turns: Sequence[Turn], request: Generate) -> str:
        """The next turn, with the stop string that ended it.

        Raises:
          UserError: the endpoint stays away or refuses, or gives no text.
        """
        said = self._endpoint.say(
            messages(turns),
            temperature=self._temperature if request.temperature is None else request.temperature,
            max_tokens=self._max_tokens if request.max_tokens is None else request.max_tokens,
            stop=list(request.stop),
        )
        return with_stop(said.text, request.stop)


def messages(turns: Sequence[Turn]) -> list[dict[str, str]]:
    """A dialogue as a chat: what the environment says is the user's; neighbours of one side are one message."""
    said: list[dict[str, str]] = []
    for turn in turns:
        role = "assistant" if turn.by == "policy" else "user"
        if said and said[-1]["role"] == role:
            said[-1]["content"] += turn.text
        else:
            said.append({"role": role, "content": turn.text})
    return said


def with_stop(text: str, stop: Sequence[str]) -> str:
    """A turn with the stop string that endpoints leave out: the closing of the tag that was opened last.

    A text in which no such tag is open ended by itself, and stays as it is; what follows a stop string is cut off.
    """
    ends = [place + len(end) for end in stop if (place := text.find(end)) >= 0]
    if ends:
        return text[: min(ends)]
    opened = {end: text.rfind(end.replace("</", "<")) for end in stop if end.startswith("</")}
    last = max(opened, key=opened.__getitem__, default="")
    return text + last if last and opened[last] >= 0 else text
