"""Models behind an OpenAI-compatible endpoint, retried and never silently empty; and a model that judges."""

import concurrent.futures
import dataclasses
import json
import logging
import sys
import threading
import time

import jax
import pytest
import tokenizers
from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from support import tiny_config
from support.chat_models import folder_of
from support.local_server import served

from lcrag.episodes import Completion, GenerationFailure
from lcrag.errors import UserError
from lcrag.models import CompletionJudge
from lcrag.models.completers import EndpointCompleter, LocalModel, without_thought
from lcrag.policy import initialise, load_tokenizer, save_hugging_face
from lcrag.policy.config import make_mesh
from lcrag.sampling import SamplingParameters

# What is no chat completion, or not of the right shape.
SHAPES = (
    *("{", "null", "[]", "7", "{}", '{"choices": 5}', '{"choices": [{}]}', '{"choices": [{"message": null}]}'),
    '{"choices": [{"message": {"content": [{"type": "text", "text": "a"}]}}]}',
    '{"choices": [{"message": {"content": "a"}}], "usage": {"completion_tokens": "many"}}',
)


class Model:
    """A chat endpoint whose model's name determines its behaviour; keeps its requests."""

    def __init__(self):
        self.asked, self.running, self.most, self._lock = [], 0, 0, threading.Lock()

    def answer(self, body):
        with self._lock:
            self.asked.append(body)
            number = len(self.asked)
            self.running += 1
            self.most = max(self.most, self.running)
        time.sleep(0.02)
        with self._lock:
            self.running -= 1
        return self._said(body["model"], number, body["messages"][-1]["content"])

    def _said(self, model, number, prompt):
        if model == "unknown":
            return JSONResponse({"error": {"message": "no such model"}}, 404)
        if model == "down" or (model == "starting" and number <= 2):
            return JSONResponse({"error": {"message": "overloaded"}}, 503, {"retry-after-ms": "1"})
        if model == "busy":
            return JSONResponse({"error": {"message": "quota"}}, 429, {"retry-after": "3600"})
        if model == "page":
            return PlainTextResponse("<html>a proxy</html>")
        if model in SHAPES:
            return Response(model, media_type="application/json")
        silent = model == "silent" or (model == "hesitant" and number == 1)
        content = None if silent else f"{prompt[::-1]}</answer> and more"
        if model == "picky" and prompt.endswith("1"):
            return JSONResponse({"error": {"message": "too long"}}, 400)
        if model == "thinking" or (model == "pondering" and number == 1):
            content = "<think>let me see"
        if model in ("empty", "pondering") and content[0] != "<":
            content = "" if model == "empty" else f"<think>so</think> {content}"
        choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "length"}
        if model.startswith("usage "):
            usage = json.loads(model.removeprefix("usage "))
            return {"id": "1", "object": "chat.completion", "created": 0, "choices": [choice], "usage": usage}
        usage = {"completion_tokens": 5, "prompt_tokens": 1, "total_tokens": 6}
        common = {"id": "1", "object": "chat.completion", "created": 0}
        return common | {"model": model, "choices": [choice], "usage": usage}


@pytest.fixture(scope="module")
def server():
    application, models = FastAPI(), []

    @application.post("/{number}/v1/chat/completions")
    def complete(number: int, body: dict):
        return models[number].answer(body)

    with served(application) as url:
        yield url, models


@pytest.fixture
def endpoint(server):
    """A separate address for each test: a request that another test gave up may come late."""
    url, models = server
    models.append(Model())
    return f"{url}/{len(models) - 1}/v1", models[-1]


ASKED = [
    (f"prompt {number}", SamplingParameters(max_tokens=7, temperature=0.1, seed=3, episode=number))
    for number in range(9)
]


def test_a_batch_is_completed_in_order_and_not_all_at_once(endpoint):
    url, model = endpoint
    completions = EndpointCompleter("good", url, concurrency=3)(ASKED)
    assert [completion.text for completion in completions] == [
        f"{prompt[::-1]}</answer> and more" for prompt, _ in ASKED
    ]
    assert {(completion.finish_reason, completion.tokens) for completion in completions} == {("length", 5)}
    assert 1 < model.most <= 3
    assert {(body["temperature"], body["max_tokens"]) for body in model.asked} == {(0.1, 7)}
    assert len({body["seed"] for body in model.asked}) == len(ASKED)
    stopped = EndpointCompleter("good", url)([("ab", SamplingParameters(max_tokens=7, stop=("</answer>",)))])
    assert (stopped[0].text, stopped[0].finish_reason) == ("ba</answer>", "stop")


@pytest.mark.parametrize("model", ["good", "down", "empty"])
def test_passwords_in_addresses_are_not_shown(endpoint, caplog, model):
    url, _ = endpoint
    with caplog.at_level(logging.INFO):
        answers = EndpointCompleter(model, url.replace("//", "//ann:hunter2@"), attempts=2)(ASKED[:1])
    assert (model == "good") != isinstance(answers[0], GenerationFailure)
    assert "hunter2" not in f"{answers} {caplog.text}"


@pytest.mark.parametrize(("model", "requests"), [("starting", 3), ("hesitant", 2), ("pondering", 2)])
def test_requests_are_retried(endpoint, model, requests):
    url, asked = endpoint
    assert EndpointCompleter(model, url, attempts=4)(ASKED[:1])[0].text.startswith("0 tpmorp")
    assert len(asked.asked) == requests


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        ("down", "overloaded"),
        ("silent", "finish_reason length"),
        ("page", "it is no chat completion"),
        *((model, "it is no chat completion") for model in SHAPES),
        ("thinking", "was cut after 7 tokens"),
        ("empty", "was cut after 7 tokens"),
    ],
)
def test_a_request_that_fails_in_every_attempt_is_a_failure_and_no_empty_text(endpoint, model, reason):
    url, asked = endpoint
    [failure] = EndpointCompleter(model, url, attempts=2)(ASKED[:1])
    assert isinstance(failure, GenerationFailure)
    assert reason in failure.reason
    assert len(asked.asked) == 2


def test_a_failed_request_leaves_the_others_and_an_unknown_model_ends_the_step(endpoint, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    url, asked = endpoint
    completions = EndpointCompleter("picky", url)(ASKED[:3])
    assert [isinstance(completion, GenerationFailure) for completion in completions] == [False, True, False]
    with pytest.raises(UserError, match="no such model") as caught:
        EndpointCompleter("unknown", url, concurrency=2, attempts=2)(ASKED * 5)
    assert "secret" not in str(caught.value)
    assert len(asked.asked) < 23  # the other requests were cancelled


@pytest.mark.parametrize(
    ("text", "said"),
    [("a b", "a b"), ("<think>x</think> a", "a"), ("<think>x", None), ("x</think>a<think>b", None), ("", "")],
)
def test_thoughts_are_no_part_of_what_a_model_says(text, said):
    assert without_thought(text) == said


@pytest.mark.parametrize(
    ("text", "opened", "said"),
    [
        ("x</think> a", "<think>", "a"),
        ("x", "<think>", None),
        ("", "<think>", None),
        ("x</think> a <think> y", "<think>", None),
        ("x</think> a", "<thinking>", None),
        ("x</thinking>\n\na", "<thinking>", "a"),
        ("x[/THINK]a", "[THINK]", "a"),
    ],
)
def test_a_thought_that_the_prompt_has_opened(text, opened, said):
    assert without_thought(text, opened) == said


def test_a_reader_whose_template_opens_a_thought_or_ends_turns_by_another_token(tmp_path):
    """It writes the end of its turn only, first inside of its thought, then without one."""
    template = "{% for m in messages %}<|from|>{{ m.content }}<|over|>{% endfor %}<|from|>"
    folder_of(tmp_path, template, ("<|from|>", "<|over|>", "<|endoftext|>"), eos_token="<|endoftext|>")
    tokenizer = load_tokenizer(tmp_path)
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, tie_embeddings=False)
    params = initialise(config, jax.random.key(0))
    over = tokenizer.backend.token_to_id("<|over|>")
    params = jax.tree.map(lambda leaf: 0 * leaf, params) | {"unembedding": params["unembedding"] * 0}
    params["embedding"] = params["embedding"] + 1
    params["final_norm"] = jax.tree.map(lambda leaf: leaf + 1, params["final_norm"])
    params["unembedding"] = params["unembedding"].at[over].set(1.0)
    save_hugging_face(tmp_path, config, params)

    def answered(source):
        settings = {"eos_token": "<|endoftext|>", "chat_template": source}
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
        (tmp_path / "manifest.json").unlink(missing_ok=True)
        model = LocalModel(str(tmp_path), make_mesh(devices=jax.devices()[:1]), slots=1, context=96, block=8)
        model.check()
        return model([("Where?", SamplingParameters(max_tokens=5, temperature=0.0))])[0]

    assert dataclasses.replace(answered(template), log_probabilities=(), pieces=()) == Completion(
        text="", finish_reason="eos", tokens=1
    )
    assert answered(f"{template}<think>\n").reason == "its thought was cut after 1 tokens: allow it more"
    with pytest.raises(UserError, match=r"ends a turn by '<\|end\|>'"):
        answered(template.replace("over", "end"))
    backend = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    backend.add_tokens(["Turku"])
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=f"the tokenizer of .* embeds only {config.vocabulary_size}"):
        answered(template)


def test_a_signal_leaves_what_is_in_flight_and_asks_nothing_more(monkeypatch):
    begun, answer, futures = threading.Barrier(3), threading.Event(), []

    def ask(number):
        begun.wait(60)
        answer.wait(60)
        return number

    def interrupted(asked, return_when):
        begun.wait(60)  # two are in flight
        futures.extend(asked)
        raise KeyboardInterrupt

    try:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(concurrent.futures, "wait", interrupted)
            completer = EndpointCompleter("good", concurrency=2)
            patch.setattr(completer, "_completed", ask)
            completer(ASKED)
        assert [future.cancelled() for future in futures] == [False] * 2 + [True] * 7
        assert not any(future.done() for future in futures[:2])
    finally:
        answer.set()


@pytest.mark.parametrize("usage", [None, {}, {"completion_tokens": None}, {"completion_tokens": 0.5}])
def test_no_missing_statistic_throws_an_answer_away(usage, endpoint):
    [said] = EndpointCompleter(f"usage {json.dumps(usage)}", endpoint[0], attempts=1)(ASKED[:1])
    assert (bool(said.text), said.tokens) == (True, 0)


def test_an_endpoint_that_asks_to_wait_is_not_wrong(endpoint):
    [said] = EndpointCompleter("busy", endpoint[0], attempts=1)(ASKED[:1])
    assert "quota" in said.reason
    assert "in 3,600 seconds" in said.reason
    assert "address" not in said.reason


def test_an_endpoint_or_a_client_that_is_missing_or_late(endpoint, monkeypatch):
    with pytest.raises(UserError, match="127.0.0.1:9/v1 does not answer"):
        EndpointCompleter("model", "http://127.0.0.1:9/v1", attempts=1)(ASKED[:1])
    [late] = EndpointCompleter("good", endpoint[0], attempts=1, seconds=0.001)(ASKED[:1])
    assert "timed out" in late.reason
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(UserError, match="pip install"):
        EndpointCompleter("model")


def test_a_judge_is_greedy_at_first_and_samples_later():
    seen = []

    def model(requests):
        seen.append([generation for _, generation in requests])
        return [Completion(text=prompt.upper(), finish_reason="eos", tokens=1) for prompt, _ in requests]

    assert CompletionJudge(lambda requests: [GenerationFailure("late") for _ in requests])(["a", "b"]) == [None, None]
    judge = CompletionJudge(model, max_tokens=7, seed=3)
    assert (judge(["a", "b"]), judge(["a"], 2), judge([])) == (["A", "B"], ["A"], [])
    assert [[(g.temperature, g.max_tokens, g.seed, g.episode) for g in batch] for batch in seen] == [
        [(0.0, 7, 3, 0), (0.0, 7, 3, 1)],
        [(0.7, 7, 5, 0)],
    ]
    with pytest.raises(UserError, match="CompletionJudge.temperature"):
        CompletionJudge(model, temperature=0)
