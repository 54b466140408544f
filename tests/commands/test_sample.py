"""`lcrag sample`: a question, every line of a pipe, or a conversation; turns are printed as they come, by author."""

import io
import shutil

import gin
import pytest
from experiment_parts import assert_mistake, run, words_of

from lcrag import main
from lcrag.episodes import Generate, Observe, Outcome, Retrieve
from lcrag.retrieval import Collections
from lcrag.sampling import SlotSampler
from lcrag.train.method import Method

TEMPLATE = (
    "{% for message in messages %}#{{ message.role }}: {{ message.content }}{% endfor %}#assistant:"
    "{% if enable_thinking is defined %} thinking {{ enable_thinking }}{% endif %}\n"
)


def test_an_episode_is_printed(tiny, capsys):
    question = "ไนเจอร์ใช้ภาษาอะไร"
    assert run("sample", tiny, "sample.language='th'", words=[question]) == 0
    out, error = capsys.readouterr()
    assert out.index("[environment]") < out.index(question) < out.index("[policy]") < out.index("\nanswer: ")
    assert error == ""


def test_a_terminal_that_knows_ascii_only_ends_nothing(tiny, capsys, monkeypatch):
    """What it cannot show is escaped, and what it cannot read is UTF-8."""
    asked = "¿Dónde está Chad?"
    monkeypatch.setattr("sys.stdout", out := io.TextIOWrapper(io.BytesIO(), encoding="ascii"))
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(asked.encode()), encoding="ascii"))
    assert run("sample", tiny, "sample.language='es'") == 0
    out.flush()
    assert asked.encode("ascii", "backslashreplace") in out.buffer.getvalue()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"D\xf3nde?"), encoding="utf-8"))
    assert run("sample", tiny) == 2
    assert_mistake(capsys, "is not UTF-8")


def test_who_wrote_what_is_in_colour_on_a_terminal(tiny, capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    assert run("sample", tiny, "sample.temperature=1.0", words=("Where?",)) == 0
    out = capsys.readouterr().out
    assert "\x1b[2;36mWhere?" in out
    assert "\x1b[1;32m" in out


@pytest.mark.parametrize(
    ("words", "bindings", "parts"),
    [
        ((), (), ("question",)),
        (("Why?",), ("sample.language='xx'",), ("'xx'",)),
        (("Missä?",), ("load_collections.folder='{folder}'", "sample.language='fi'"), ("fi", "en, fr")),
        (("Where?",), ("Chat.system='Be brief.'",), ("Chat.system",)),
        (("Where?",), ("Chat.turns='messages'",), ("Chat.turns",)),
    ],
)
def test_mistakes_are_one_line(words, bindings, parts, tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO())
    for name in ("encoder", "en", "fr"):
        (tmp_path / name).symlink_to(tiny / "collections" / name)
    bindings = (binding.replace("{folder}", str(tmp_path)) for binding in bindings)
    assert run("sample", tiny, *bindings, words=words) == 2
    assert_mistake(capsys, *parts)


def test_the_collections_of_a_folder(tiny, monkeypatch, capsys):
    """A configuration with one binding more searches what `lcrag index` has left in `indexes`."""
    monkeypatch.chdir(tiny)
    words = words_of("sample", tiny, words=("Which?",))
    named = [*(word for word in words if "collections" not in word), "--gin.COLLECTIONS=@load_collections()"]
    gin.clear_config()
    assert main.run(named) == 2
    assert_mistake(capsys, "no collection in", "lcrag index", "/indexes")
    gin.clear_config()
    assert main.run([*named, "--gin.load_collections.folder='collections'"]) == 0


class Terminal(io.StringIO):
    """Standard input as a person types it: Ctrl-D at its end."""

    def isatty(self):
        return True


@pytest.mark.parametrize("terminal", [False, True])
def test_every_line_is_answered_and_on_a_terminal_a_mistake_ends_nothing(terminal, tiny, capsys, monkeypatch):
    text = "Which one?\n\n  Where? \n" if not terminal else f"{'Which one? ' * 100}\nWhich one?\n\nWhere?\n"
    monkeypatch.setattr("sys.stdin", Terminal(text) if terminal else io.StringIO(text))
    assert run("sample", tiny) == 0
    out = capsys.readouterr().out
    assert out.count("\nanswer: ") == 2
    assert out.index("Which one?") < out.index("\nanswer: ") < out.rindex("Where?")
    assert ("160" in out) == terminal


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
    noted(SlotSampler, "decode")
    monkeypatch.setattr(Method, "program_for", lambda self, languages: program)
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
        (("Chat.template=False",), "\nWhere?\n"),
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


def test_the_tokenizer_of_another_model_is_one_line(chatting, capsys):
    path = chatting / "policy" / "tokenizer.json"
    text = path.read_text(encoding="utf-8")
    added = '"added_tokens": ['
    more = f'{added}{{"id": 4096, "content": "<more>", "single_word": false, "lstrip": false, "rstrip": false,'
    path.write_text(text.replace(added, more + ' "normalized": false, "special": true},', 1), encoding="utf-8")
    assert run("sample", chatting, words=("Where?",)) == 2
    assert_mistake(capsys, "4097", "4096")
