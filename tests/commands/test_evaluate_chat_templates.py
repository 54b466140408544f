"""A policy whose folder has a chat template: what gin says of it, and what an episode looks like."""

import shutil

import pytest
from experiment_parts import run

TEMPLATE = (
    "{% for message in messages %}#{{ message.role }}: {{ message.content }}{% endfor %}#assistant:"
    "{% if enable_thinking is defined %} thinking {{ enable_thinking }}{% endif %}\n"
)


@pytest.fixture
def chatting(tiny, tmp_path):
    """The tiny policy with a chat template; its collections beside it."""
    shutil.copytree(tiny / "policy", tmp_path / "policy")
    (tmp_path / "policy" / "chat_template.jinja").write_text(TEMPLATE)
    (tmp_path / "collections").symlink_to(tiny / "collections")
    return tmp_path


@pytest.mark.parametrize(
    ("bindings", "shown"),
    [
        ((), "#user: Where?\n#assistant:\n"),
        (("Chat.template=False",), "Where?\n"),
        (
            ("Chat.system='Be brief.'", "Chat.enable_thinking=False"),
            "#system: Be brief.#user: Where?\n#assistant: thinking False\n",
        ),
    ],
)
def test_the_opening_is_as_configured(bindings, shown, chatting, capsys):
    assert run("sample", chatting, *bindings, words=("Where?",)) == 0
    out = capsys.readouterr().out
    assert shown in out.split("[policy]")[0]
    assert ("#user" in out) == ("#user" in shown)


def test_a_setting_without_a_template_is_one_line(tiny, capsys):
    assert run("sample", tiny, "Chat.system='Be brief.'", words=("Where?",)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "Chat.system is set, but the policy's tokenizer has no chat template" in error


def test_the_tokenizer_of_another_model_is_one_line(chatting, capsys):
    path = chatting / "policy" / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    added = '"added_tokens": ['
    more = f'{added}{{"id": 4096, "content": "<more>", "single_word": false, "lstrip": false, "rstrip": false,'
    path.write_text(text.replace(added, more + ' "normalized": false, "special": true},', 1), encoding="utf-8")
    assert run("sample", chatting, words=("Where?",)) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "has 4097 tokens, but the model embeds only 4096" in error
