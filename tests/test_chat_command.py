"""`plait chat` and `engine.chat` with random weights: in a pipe, on a terminal, and from Python."""

from __future__ import annotations

import asyncio
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest
from calling_generate import ENVIRONMENT
from chat_models import assistant, user
from generating import variant, write_model

import plait
from plait.cli import chat_repl
from plait.cli.main import _status
from plait.engine.events import Result, Token
from plait.engine.sampling import Sampling
from plait.errors import UsageError

TEMPLATE = """\
{%- for m in messages %}{{ '<s>' ~ m.role ~ '\\n' ~ m.content ~ '</s>' ~ '\\n' }}{% endfor -%}
{%- if add_generation_prompt %}{{ '<s>assistant\\n' ~ (mood or '') }}{% endif -%}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A random model with a chat template."""
    directory = write_model(tmp_path_factory.mktemp("chat") / "model")
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@pytest.fixture
def engine(model):
    return plait.load(model)


def ask(engine, chat, **request):
    *events, result = engine.chat(chat, **{"max_tokens": 12, "ignore_eos": True, **request})
    assert isinstance(result, Result)
    return events, result


def test_events_end_in_a_result_and_the_next_turn_goes_on_from_it(engine):
    chat = [user("first question")]
    events, result = ask(engine, chat, sampling=Sampling(temperature=1.5, seed=7))
    assert tuple(event.id for event in events if isinstance(event, Token)) == result.tokens
    prompt = engine.encode_chat(chat)
    assert result.usage.prompt == len(prompt)
    following = engine.encode_chat([*chat, assistant(result.text), user("more")])
    if engine.tokenizer.decode(result.tokens, control=True, start=False) == result.text:
        assert following[: len(prompt) + len(result.tokens)] == prompt + result.tokens
    assert engine.encode_chat([user("other")])[:2] == prompt[:2]
    _, second = ask(engine, [*chat, assistant(result.text), user("more")])
    assert second.usage.prompt == len(following)
    assert second.usage.reused > 0


def test_the_answer_is_that_of_generate_on_the_same_tokens(engine):
    chat = [user("first question")]
    _, result = ask(engine, chat)
    *_, other = engine.generate(engine.encode_chat(chat), max_tokens=12, ignore_eos=True)
    assert result.tokens == other.tokens


def test_an_answer_that_is_stopped_is_remembered_as_far_as_it_came(engine):
    chat = [user("first question")]
    events = engine.chat(chat, max_tokens=12, ignore_eos=True, sampling=Sampling(temperature=1.5, seed=3))
    came = []
    for event in events:
        if isinstance(event, Token):
            came.append(event.id)
        if len(came) == 3:
            break
    events.close()
    assert engine.chats.replies.recall([*chat, assistant("x")])[1][0].tokens == tuple(came)


def test_the_async_twin_gives_the_same_events(engine):
    async def collect():
        return [event async for event in engine.achat([user("hi")], max_tokens=5, ignore_eos=True)]

    events = asyncio.run(collect())
    assert events[-1].tokens == ask(engine, [user("hi")], max_tokens=5)[1].tokens


def test_variables_are_honoured_or_refused(engine):
    assert engine.encode_chat([user("hi")], mood="glad")[-4:] != engine.encode_chat([user("hi")])[-4:]
    with pytest.raises(UsageError, match="variable 'temperature'.*mood"):
        engine.chat([user("hi")], temperature=1.0)


def test_a_model_without_a_template_says_so(tmp_path):
    engine = plait.load(write_model(tmp_path / "plain"))
    with pytest.raises(UsageError, match="no chat template"):
        engine.chat([user("hi")])


# The command, in this process, fed from a pipe


@pytest.fixture
def talk(model, monkeypatch, capsys):
    def run(*lines, options=(), end="\n"):
        text = "\n".join(lines) + end
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode("utf-8", "surrogateescape"))))
        code = _status(["chat", str(model), "-n", "6", "--seed", "5", "--temperature", "1.2", *options])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_pipe_gets_answers_alone(talk):
    code, out, err = talk("hello", "and more")
    assert code == 0
    assert err.count("tokens/s") >= 2 and out and "tokens" not in out
    first, second = (line for line in err.splitlines() if line.startswith("[prompt"))
    assert "reused" not in first and re.search(r"\([1-9]\d* reused\)", second)


def test_retry_gives_the_same_answer_for_the_same_seed(talk):
    _, out, _ = talk("hello", "/retry")
    half = len(out) // 2
    assert out[:half] == out[half:]


def test_undo_new_and_system_change_what_is_there(talk):
    _, _, err = talk("hello", "/undo", "/history", "one", "/new", "/history", "/system be short", "/history", "/system")
    assert "0 messages left" in err and "user: " not in err
    assert "system: be short" in err and "no instructions" in err


def test_a_chat_is_saved_and_loaded(talk, tmp_path):
    file = tmp_path / "chat.json"
    code, _, err = talk("hello é", f"/save {file}", "/new", f"/load {file}", "/history", "more")
    assert code == 0, err
    saved = json.loads(file.read_text(encoding="utf-8"))["messages"]
    assert [message["role"] for message in saved] == ["user", "assistant"] and saved[0]["content"] == "hello é"
    assert "2 messages" in err and "user: hello é" in err
    assert re.search(r"\([1-9]\d* reused\)", err)


def test_messages_of_many_lines(talk):
    _, _, err = talk("one\\", "two", "/history", '"""', "three", "", "four", '"""', "/history", "//slash", "/history")
    assert "user: one\ntwo" in err and "user: three\n\nfour" in err and "user: /slash" in err


def test_settings(talk):
    code, _, err = talk(
        "/set temperature=0 max_tokens=3 mood=glad", "/set", "hello", "/stats", "/help", "/exit", "unheard"
    )
    assert code == 0
    assert "temperature=0.0" in err and "max_tokens=3" in err and 'mood="glad"' in err
    assert "decode 3 tokens" in err or "ended by stop" in err
    assert "remembered answers" in err and "Ctrl-C" in err and "unheard" not in err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/nothing", "no command /nothing"),
        ("/undo", "no message yet"),
        ("/retry now", "takes nothing more"),
        ("/set temperature=hot", "temperature"),
        ("/set nonsense=1", "setting 'nonsense'"),
        ("/set messages=[]", "setting 'messages'"),
        ("/set max_tokens=0", "max_tokens"),
        ("/set 'x", "/set"),
        ("/set x", "NAME=VALUE"),
        ("/save", "needs a file"),
        ("/load nowhere.json", "cannot be read"),
        ("/save /nowhere/at/all", "cannot be written"),
        ("\udcff", "not UTF-8"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_status_2(talk, line, words):
    code, out, err = talk(line)
    assert code == 2 and out == ""
    assert words in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--set", "x=1"), "variable 'x'"),
        (("--json",), "--json goes with --lint"),
        (("--template", "no"), "chat template 'no'"),
    ],
)
def test_wrong_options_are_told_before_the_first_message(talk, options, words):
    code, out, err = talk("hello", options=options)
    assert code == 2 and out == "" and words in err


@pytest.mark.parametrize(
    "content", ["{", "[1]", '{"messages": [{"role": "user"}]}', '[{"role": "assistant", "content": 3}]']
)
def test_a_broken_chat_file_changes_nothing(talk, tmp_path, content):
    file = tmp_path / "chat.json"
    file.write_text(content)
    code, _, err = talk(f"/load {file}")
    assert code == 2 and str(file) in err


# On a terminal


class Terminal:
    def __init__(self, *arguments):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "plait", "chat", *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env={**ENVIRONMENT, "TERM": "xterm", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
            preexec_fn=lambda: __import__("fcntl").ioctl(0, __import__("termios").TIOCSCTTY, 0),
        )
        os.close(slave)
        self.seen = ""

    def until(self, pattern, seconds=90):
        """Read until a pattern is seen; what was read up to there."""
        end = time.monotonic() + seconds
        while (found := re.search(pattern, self.seen, re.DOTALL)) is None:
            assert time.monotonic() < end, self.seen
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    self.seen += os.read(self.master, 65536).decode(errors="replace")
                except OSError:
                    assert re.search(pattern, self.seen, re.DOTALL), self.seen
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def send(self, text):
        os.write(self.master, text.encode())


@pytest.fixture
def endless(model, tmp_path):
    """A model without a token that ends an answer."""
    target = variant(model, tmp_path / "endless", eos_token_id=None)
    settings = json.loads((target / "tokenizer_config.json").read_text())
    (target / "tokenizer_config.json").write_text(json.dumps({**settings, "eos_token": None}))
    return target


def test_a_terminal_has_a_prompt_and_ctrl_c_stops_the_answer_only(endless):
    terminal = Terminal(endless, "-n", "20000", "--temperature", "1.5", "--seed", "1")
    try:
        terminal.until("/help lists commands.*> ")
        terminal.send("/set max_tokens=100000\n")
        terminal.until("set.*> ")
        terminal.send("hello\n")
        terminal.until("hello\r\n.+")
        time.sleep(0.5)
        terminal.send("\x03")
        terminal.until(r"\[stopped after \d+ tokens\].*> ")
        terminal.send("/nothing\n")
        terminal.until("error: no command /nothing.*> ")
        terminal.send("/set max_tokens=2\n")
        terminal.until("set.*> ")
        terminal.send("again\n")
        terminal.until(r"\([1-9]\d* reused\).*> ")
        # At the prompt it throws away what was typed. The prompt is printed a moment before the line is edited.
        time.sleep(1)
        terminal.send("half a line")
        terminal.until("half a line")
        time.sleep(1)
        terminal.send("\x03")
        terminal.until("\n> ")
        terminal.send("/exit\n")
        assert terminal.process.wait(30) == 0
    finally:
        if terminal.process.poll() is None:
            terminal.process.send_signal(signal.SIGKILL)
            terminal.process.wait()
        os.close(terminal.master)


def test_ctrl_c_between_the_answer_and_the_prompt_does_not_end_the_chat(engine, monkeypatch):
    class Keyboard(io.StringIO):
        def isatty(self):
            return True

    lines = iter(["hello", "/exit", "unread"])
    monkeypatch.setattr(sys, "stdin", Keyboard())
    monkeypatch.setattr(sys, "stdout", Keyboard())
    monkeypatch.setattr("builtins.input", lambda _: next(lines))
    chat = chat_repl.Chat(engine, sampling=Sampling(), max_tokens=3)
    say, said = chat.say, []

    def interrupted(text):
        said.append(text)
        if text.startswith("[") and len(said) == 2:
            raise KeyboardInterrupt
        say(text)

    chat.say = interrupted
    chat_repl.talk(chat)
    assert next(lines) == "unread" and len(said) == 2
    assert [message["role"] for message in chat.messages] == ["user", "assistant"]


@pytest.mark.parametrize("command", ["/system be brief", "/set mood=glad temperature=1"])
def test_ctrl_c_while_settings_are_tried_leaves_them_as_they_were(engine, monkeypatch, command):
    chat = chat_repl.Chat(engine, sampling=Sampling(), max_tokens=3, system="be long", say=print)
    before = list(chat.messages), chat.sampling, dict(chat.variables)

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(chat_repl.Chat, "_check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        chat.line(command)
    assert (chat.messages, chat.sampling, chat.variables) == before
