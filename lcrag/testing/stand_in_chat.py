"""A stand-in for a chat model behind an OpenAI-compatible endpoint: any function of the prompt answers."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse

# prompt -> what the model says; a number: the HTTP status with which the request is refused
Speaker = Callable[[str], str | int]


def stand_in_chat(speak: Speaker) -> FastAPI:
    """An application that answers `/v1/chat/completions`; several requests are answered at a time.

    Args:
      speak: Called with the last message of each request, on threads.
    """
    application = FastAPI()

    @application.post("/v1/chat/completions")
    def complete(body: dict[str, Any]) -> Any:
        said = speak(body["messages"][-1]["content"])
        if isinstance(said, int):
            return JSONResponse({"error": {"message": "not now"}}, said)
        choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
        return {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}

    return application
