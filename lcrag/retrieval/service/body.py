"""Reads a request's body, but not beyond a limit and not for ever."""

import asyncio

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect


async def read_body(request: Request, most_bytes: int, seconds: float) -> bytes:
    """The body of a request.

    Raises:
      HTTPException: it is longer than `most_bytes` (413), does not arrive within `seconds` (408), or its sender has
        gone (400).
    """
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                body += part
                if len(body) > most_bytes:
                    raise HTTPException(413, f"the body is longer than {most_bytes} bytes: ask in several")
    except TimeoutError as error:
        raise HTTPException(408, f"the request did not arrive within {seconds} seconds") from error
    except ClientDisconnect as error:
        raise HTTPException(400, "the client went away") from error
    return bytes(body)
