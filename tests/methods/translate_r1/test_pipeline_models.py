"""Models are asked once, side by side and in batches."""

import asyncio
import json
import threading

import pytest

from lcrag.episodes import Completion
from lcrag.errors import UserError
from lcrag.methods.translate_r1.pipeline.models import CompleterModel, ModelRequest, RequestCache


class Counting:
    """A model that counts, and how many of its requests are in flight at most."""

    name, in_flight = "counting", 3

    def __init__(self):
        self.asked, self.now, self.most = [], 0, 0

    async def answer(self, request):
        self.asked.append(request.prompt)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.002)
        self.now -= 1
        return request.prompt.upper()


def ask(prompt, role="translator", number=0):
    return ModelRequest(role=role, prompt=prompt, max_tokens=9, number=number)


def test_what_was_asked_is_not_asked_again():
    model, rows = Counting(), []

    async def asking(answered, prompts):
        async with RequestCache({"translator": model}, answered, rows.extend) as asked:
            return await asyncio.gather(*(asked(ask(prompt)) for prompt in prompts))

    assert asyncio.run(asking({}, list("abcabc"))) == list("ABCABC")
    assert sorted(model.asked) == list("abc")
    assert model.most == 3
    answered = {row["key"]: row["answer"] for row in rows}
    assert asyncio.run(asking(answered, list("abcd"))) == list("ABCD")
    assert model.asked[3:] == ["d"]
    assert len({ask("a").key("m"), ask("a").key("n"), ask("a", "judge").key("m"), ask("a", number=1).key("m")}) == 4
    with pytest.raises(UserError, match="there is no judge to ask"):
        asyncio.run(RequestCache({}, {}, rows.extend)(ask("a", "judge")))


def test_rows_are_written_together_and_before_an_answer_is_used():
    written_rows, calls, main = [], [], threading.get_ident()

    def keep(rows):
        assert threading.get_ident() != main
        calls.append(len(rows))
        written_rows.extend(json.loads(json.dumps(rows)))

    async def asking():
        model = Counting()
        model.in_flight = 50
        async with RequestCache({"translator": model}, {}, keep) as asked:

            async def one(number):
                answer = await asked(ask(str(number)))
                assert answer in [row["answer"] for row in written_rows]

            await asyncio.gather(*map(one, range(50)))

    asyncio.run(asking())
    assert sum(calls) == 50
    assert len(calls) < 50


def test_a_local_model_is_asked_in_batches():
    batches = []

    def completer(requests):
        batches.append([generation.temperature for _, generation in requests])
        if any("bad" in prompt for prompt, _ in requests):
            raise UserError("a prompt leaves no room")
        return [Completion(text=prompt * 2, finish_reason="eos", tokens=1) for prompt, _ in requests]

    async def saying(*asks):
        model = CompleterModel(completer)
        return await asyncio.gather(*map(model.answer, asks), return_exceptions=True)

    assert asyncio.run(saying(*(ask(f"p{n}", number=n % 2) for n in range(9)))) == [f"p{n}" * 2 for n in range(9)]
    assert sum(map(len, batches)) == 9
    assert len(batches) <= 2
    assert set(sum(batches, [])) == {0.0, 0.7}
    assert all(isinstance(each, UserError) for each in asyncio.run(saying(ask("bad"), ask("good"))))
    with pytest.raises(UserError, match="in_flight is 0"):
        RequestCache({"judge": CompleterModel(completer, in_flight=0)}, {}, batches.extend)
