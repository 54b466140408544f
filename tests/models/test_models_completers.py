"""Models behind an OpenAI-compatible endpoint, retried and never silently empty; and a model that judges."""

import concurrent.futures
import dataclasses
import functools
import json
import re
import threading
import time

import jax
import pytest
import tokenizers
from support import tiny_config
from support.chat_models import folder_of
from support.local_server import scripted

from lcrag.episodes import Completion, GenerationFailure
from lcrag.errors import UserError
from lcrag.models.completers import CompletionJudge, EndpointCompleter, LocalModel, without_thought
from lcrag.policy import initialise, load_tokenizer, save_hugging_face
from lcrag.policy.config import make_mesh
from lcrag.retries import Patience
from lcrag.sampling import SamplingParameters

# What is no chat completion, or not of the right shape.
SHAPES = (
    *("<html>", "{", "null", "[]", "{}", '{"choices": 5}', '{"choices": [{}]}', '{"choices": [{"message": null}]}'),
    '{"choices": [{"message": {"content": "a"}}], "usage": {"completion_tokens": "many"}}',
)
ASKED = [
    (f"prompt {number}", SamplingParameters(max_tokens=7, temperature=0.1, seed=3, episode=number))
    for number in range(9)
]
OVERLOADED = (503, {}, {"error": {"message": "overloaded"}})


def says(content, usage=None):
    """An answer with a text, or that which a function makes of the prompt; it is cut at its token limit."""

    def answer(body):
        text = content(body["messages"][-1]["content"]) if callable(content) else content
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
        return {"id": "1", "object": "chat.completion", "choices": [choice], "usage": usage or {"completion_tokens": 5}}

    return 200, {}, answer


@pytest.fixture(autouse=True)
def haste(monkeypatch):
    hasty = functools.partial(Patience, first_wait_seconds=0.001)
    monkeypatch.setattr("lcrag.models.completers.Patience", hasty)


GOOD = says(lambda prompt: f"{prompt[::-1]}</answer> and more")


def test_a_batch_is_completed_in_order_and_not_all_at_once():
    running, most = [], []

    def slowly(body):
        running.append(None)
        most.append(len(running))
        time.sleep(0.02)
        running.pop()
        return GOOD

    with scripted(slowly) as (url, asked):
        completions = EndpointCompleter("good", f"{url}/v1", concurrency=3)(ASKED)
        stopped = EndpointCompleter("good", f"{url}/v1/")(
            [("ab", SamplingParameters(max_tokens=7, stop=("</answer>",)))]
        )
    assert [completion.text for completion in completions] == [
        f"{prompt[::-1]}</answer> and more" for prompt, _ in ASKED
    ]
    assert {(completion.finish_reason, completion.tokens) for completion in completions} == {("length", 5)}
    assert 1 < max(most) <= 3
    bodies = [body for *_, body in asked[:-1]]
    assert {(body["model"], body["temperature"], body["max_tokens"]) for body in bodies} == {("good", 0.1, 7)}
    assert len({body["seed"] for body in bodies}) == len(ASKED)
    assert {path for _, path, _ in asked} == {"/v1/chat/completions"}
    assert (stopped[0].text, stopped[0].finish_reason) == ("ba</answer>", "stop")


@pytest.mark.parametrize(
    "first", [(OVERLOADED, OVERLOADED), (says(None),), (says("<think>let me see"),), (says("<think>so</think>"),)]
)
def test_requests_are_retried(first):
    with scripted(*first, GOOD) as (url, asked):
        assert EndpointCompleter("model", url, attempts=4)(ASKED[:1])[0].text.startswith("0 tpmorp")
    assert len(asked) == len(first) + 1


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (OVERLOADED, "overloaded"),
        (says(None), "finish_reason length"),
        (says([{"type": "text", "text": "a"}]), "without a text"),
        *(((200, {}, shape.encode()), "it is no chat completion") for shape in SHAPES),
        (says("<think>let me see"), "was cut after 7 tokens"),
        (says(""), "was cut after 7 tokens"),
    ],
)
def test_a_request_that_fails_in_every_attempt_is_a_failure_and_no_empty_text(answer, reason):
    with scripted(answer) as (url, asked):
        [failure] = EndpointCompleter("model", url, attempts=2)(ASKED[:1])
    assert isinstance(failure, GenerationFailure)
    assert reason in failure.reason
    assert len(asked) == 2


def test_a_failed_request_leaves_the_others_and_an_unknown_model_ends_the_step(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")

    def picky(body):
        refused = body["messages"][-1]["content"].endswith("1")
        return (400, {}, {"error": {"message": "too long"}}) if refused else GOOD

    with scripted(picky) as (url, _):
        completions = EndpointCompleter("picky", url)(ASKED[:3])
    assert [isinstance(completion, GenerationFailure) for completion in completions] == [False, True, False]
    unknown = (404, {}, {"error": {"message": "no such model"}})
    with scripted(unknown) as (url, asked), pytest.raises(UserError, match="no such model") as caught:
        EndpointCompleter("unknown", url, concurrency=2, attempts=2)(ASKED * 5)
    assert "secret" not in str(caught.value)
    assert len(asked) < 20  # the other requests were cancelled


@pytest.mark.parametrize(
    ("text", "opened", "said"),
    [
        ("a b", None, "a b"),
        ("<think>x</think> a", None, "a"),
        ("<think>x", None, None),
        ("x</think>a<think>b", None, None),
        ("", None, ""),
        ("x</think> a", "<think>", "a"),
        ("x", "<think>", None),
        ("", "<think>", None),
        ("x</think> a <think> y", "<think>", None),
        ("x</think> a", "<thinking>", None),
        ("x</thinking>\n\na", "<thinking>", "a"),
        ("x[/THINK]a", "[THINK]", "a"),
    ],
)
def test_thoughts_are_no_part_of_what_a_model_says(text, opened, said):
    assert without_thought(text, opened) == said


def test_a_reader_whose_template_opens_a_thought_or_ends_turns_by_another_token(tmp_path):
    """It writes the end of its turn only, first inside of its thought, then without one."""
    template = "{% for m in messages %}<|from|>{{ m.content }}<|over|>{% endfor %}<|from|>"
    folder_of(tmp_path, template, ("<|from|>", "<|over|>", "<|endoftext|>"), eos_token="<|endoftext|>")
    tokenizer = load_tokenizer(tmp_path)
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, tie_embeddings=False)
    params = jax.tree.map(jax.numpy.zeros_like, initialise(config, jax.random.key(0)))
    params |= jax.tree.map(jax.numpy.ones_like, {name: params[name] for name in ("embedding", "final_norm")})
    over = tokenizer.backend.token_to_id("<|over|>")
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


@pytest.mark.parametrize("usage", [{"other": 1}, {"completion_tokens": None}, {"completion_tokens": 0.5}])
def test_no_missing_statistic_throws_an_answer_away(usage):
    with scripted(says("a\ud800", usage)) as (url, _):  # nor half of a character
        [said] = EndpointCompleter("model", url, attempts=1)(ASKED[:1])
    assert (said.text[0], said.tokens) == ("a", 0)


def test_an_endpoint_that_is_missing_busy_or_late():
    with pytest.raises(UserError, match="127.0.0.1:9/v1 does not answer"):
        EndpointCompleter("model", "http://127.0.0.1:9/v1", attempts=1)(ASKED[:1])
    for answer, part in (
        ((429, {"retry-after": "3600"}, {"error": {"message": "quota"}}), "quota.* in 3,600 seconds"),
        (lambda _: time.sleep(0.5) or GOOD, "timed out"),
    ):
        with scripted(answer) as (url, _):
            [said] = EndpointCompleter("model", url, attempts=1, seconds=0.1)(ASKED[:1])
        assert re.search(part, said.reason)
        assert "address" not in said.reason


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
