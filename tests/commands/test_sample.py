"""`lcrag sample`: a question, every line of a pipe, or a conversation; turns are printed as they come, by author."""

import io
import shutil

import gin
import pytest
from experiment_parts import assert_mistake, run, words_of
from rich.console import Console

from lcrag import main
from lcrag.commands import sample as sampling
from lcrag.episodes import Generate, Observe, Outcome, Retrieve
from lcrag.errors import UserError
from lcrag.retrieval import Collections
from lcrag.sampling import Sampler
from lcrag.train.method import Method

QUESTIONS = {"ar": "ما هي لغة النيجر؟", "ja": "ニジェールの言語は何ですか？", "th": "ไนเจอร์ใช้ภาษาอะไร"}


@pytest.mark.parametrize("language", QUESTIONS)
def test_an_episode_is_printed(language, tiny, capsys):
    assert run("sample", tiny, f"sample.language='{language}'", words=QUESTIONS[language].split()) == 0
    out, error = capsys.readouterr()
    assert out.index("[environment]") < out.index(QUESTIONS[language]) < out.index("[policy]")
    assert "\nanswer: " in out
    assert error == ""


def test_who_wrote_what_is_in_colour_on_a_terminal(tiny, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert run("sample", tiny, "sample.temperature=1.0", words=("Where?",)) == 0
    out = capsys.readouterr().out
    assert "\x1b[2;36mWhere?" in out
    assert "\x1b[1;32m" in out


@pytest.mark.parametrize(
    ("words", "bindings", "part"),
    [
        ((), (), "needs a question"),
        (("Why?",), ("sample.language='xx'",), "'xx'"),
        (("Why? " * 100,), (), "the context holds 160"),
        (("Why?",), ("load_collections.folder='nowhere'",), "no collection in"),
    ],
)
def test_mistakes_are_one_line(words, bindings, part, tiny, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert run("sample", tiny, *bindings, words=words) == 2
    assert_mistake(capsys, part)


def test_the_collections_of_a_folder(tiny, monkeypatch, capsys):
    """A configuration of one file more searches what `lcrag index` has left in `indexes`."""
    monkeypatch.chdir(tiny)
    words = words_of("sample", tiny, words=("Which?",), gin_files=("retrieval/folder.gin",))
    named = [word for word in words if "collections" not in word]
    gin.clear_config()
    assert main.run(named) == 2
    assert_mistake(capsys, "no collection in", "lcrag index", "/indexes")
    gin.clear_config()
    assert main.run([*named, "--gin.load_collections.folder='collections'"]) == 0


def test_a_language_without_a_collection(tiny, tmp_path, capsys):
    for name in ("encoder", "en", "fr"):
        shutil.copytree(tiny / "collections" / name, tmp_path / name)
    bindings = (f"load_collections.folder='{tmp_path}'", "sample.language='fi'")
    assert run("sample", tiny, *bindings, words=("Missä?",)) == 2
    assert_mistake(capsys, "questions in fi but collections only in en, fr")


class Terminal(io.StringIO):
    """Standard input as a person types it: Ctrl-D at its end."""

    def isatty(self):
        return True


def test_every_line_of_a_pipe_is_answered(tiny, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("Which one?\n\nWhere?\n"))
    assert run("sample", tiny) == 0
    out = capsys.readouterr().out
    assert out.count("\nanswer: ") == 2
    assert out.index("Which one?") < out.index("answer: ") < out.index("Where?")


def test_a_terminal_is_asked_until_its_end(monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal("Which one?\n\n  Where? \n"))
    asked = []
    sampling._converse(asked.append, Console(file=io.StringIO()))
    assert asked == ["Which one?", "Where?"]


def test_a_mistake_in_a_conversation_does_not_end_it(monkeypatch):
    monkeypatch.setattr("sys.stdin", Terminal("too long\nWhere?\n"))
    asked, console = [], Console(file=io.StringIO())

    def answer(text):
        asked.append(text)
        if text == "too long":
            raise UserError("the question does not fit [the context]")

    sampling._converse(answer, console)
    assert asked == ["too long", "Where?"]
    assert "does not fit [the context]" in console.file.getvalue()


def program(question):
    """Searches before it asks, as naive retrieval does."""
    yield Retrieve((question.text,), ("en",))
    yield Observe("Passages. ")
    yield Observe(question.text)
    text = yield Generate(stop=("</a>",))
    return Outcome(answer=text)


def test_turns_are_printed_as_they_come(tiny, monkeypatch, capsys):
    """At the moment of a search, nothing is there; at that of a generation, the prompt is printed."""
    seen, shown = [], []

    def noted(kind, name):
        original = getattr(kind, name)

        def noting(self, *arguments, **options):
            shown.append(capsys.readouterr().out)
            seen.append((name, "".join(shown)))
            return original(self, *arguments, **options)

        monkeypatch.setattr(kind, name, noting)

    noted(Collections, "search")
    noted(Sampler, "decode")
    monkeypatch.setattr(Method, "on", lambda self, languages: program)
    assert run("sample", tiny, words=("Where?",)) == 0
    before_search = next(text for name, text in seen if name == "search")
    last_generation = [text for name, text in seen if name == "decode"][-1]
    assert "[environment]" not in before_search
    assert "[environment]\nPassages. Where?" in last_generation
    assert "[policy]" in capsys.readouterr().out


def test_completions_outside_the_dialogue_are_printed(tiny, capsys):
    bindings = ("d_rag.observation_tokens=40", "sample.language='fi'")
    assert run("sample", tiny, *bindings, gin_files=("baselines/d_rag.gin",), words=("Missä?",)) == 0
    out = capsys.readouterr().out
    assert out.count("outside the dialogue, by the policy") == 13
    assert out.index("outside the dialogue") < out.index("\nanswer: ")


TEMPLATE = (
    "{% for message in messages %}#{{ message.role }}: {{ message.content }}{% endfor %}#assistant:"
    "{% if enable_thinking is defined %} thinking {{ enable_thinking }}{% endif %}\n"
)


@pytest.fixture
def chatting(tiny, tmp_path):
    """The tiny policy with a chat template; the folder also holds its collections."""
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
