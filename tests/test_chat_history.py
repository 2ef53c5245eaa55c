"""Histories: answers keep the ids that were generated, and marks tell what the next request will share."""

from __future__ import annotations

import pytest
from chat_models import TOOL, TRACED, assistant, call, chat_model, system, user
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.engine.chat import Replies
from plait.engine.chat.replies import Reply

# How a next turn's prompt goes on behind the answer, by template.
ENDS = {"chatml": "<|im_end|>", "headers": "<|eot_id|>", "turns": "<end_of_turn>", "pieces": "<|end|>"}


def odd_ids(tokenizer, text):
    """Ids of a text as no tokenizer cuts it: one for each byte."""
    single = {tokenizer.token_bytes(t): t for t in range(tokenizer.vocabulary) if len(tokenizer.token_bytes(t)) == 1}
    return tuple(single[bytes((byte,))] for byte in text.encode())


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@pytest.mark.parametrize("name", sorted(ENDS))
@pytest.mark.parametrize("text", ["An answer.", "the é 你好", "two\n\nlines", "with <|im_end|> in it"])
def test_generated_ids_stay_in_the_next_prompt(name, kind, text):
    ours, _ = chat_model(name, kind)
    replies = Replies()
    chat = [user("first question")]
    for turn in range(3):
        prompt = ours.prompt(chat, replies=replies)
        ids = odd_ids(ours.tokenizer, f"{text}{turn}")
        assert ids != tuple(ours.tokenizer.encode(f"{text}{turn}", start=False))
        replies.remember(ours.tokenizer, chat, ids)
        chat = [*chat, assistant(f"{text}{turn}"), user("more")]
        following = ours.prompt(chat, replies=replies)
        assert following.tokens[: len(prompt.tokens) + len(ids)] == prompt.tokens + ids
        assert following.kept == (turn + 1) * len(ids)
        end = ours.tokenizer.encode_markup(ENDS[name], start=False)
        assert list(following.tokens[len(prompt.tokens) + len(ids) :][:1]) == end


@settings(max_examples=40, deadline=None)
@given(data=st.data(), name=st.sampled_from(sorted(ENDS)))
def test_any_generated_ids_stay_where_the_text_is_the_same(data, name):
    ours, _ = chat_model(name)
    tokenizer = ours.tokenizer
    usual = [t for t in range(tokenizer.vocabulary) if t not in tokenizer.control and tokenizer.token_bytes(t)]
    ids = tuple(data.draw(st.lists(st.sampled_from(usual), min_size=1, max_size=8)))
    text = tokenizer.decode(ids, start=False)
    replies = Replies()
    chat = [user("hi")]
    prompt = ours.prompt(chat, replies=replies)
    replies.remember(tokenizer, chat, ids)
    following = ours.prompt([*chat, assistant(text), user("more")], replies=replies)
    assert tokenizer.decode(following.tokens, control=True) == following.text
    if text.strip() == text and "\r" not in text:
        assert following.tokens[: len(prompt.tokens) + len(ids)] == prompt.tokens + ids


def test_only_the_same_conversation_keeps_them():
    ours, _ = chat_model("chatml")
    replies = Replies()
    ids = odd_ids(ours.tokenizer, "yes")
    replies.remember(ours.tokenizer, [user("a")], ids)
    assert ours.prompt([user("a"), assistant("yes"), user("b")], replies=replies).kept == len(ids)
    for chat in (
        [user("other"), assistant("yes"), user("b")],
        [system("s"), user("a"), assistant("yes"), user("b")],
        [user("a"), assistant("no"), user("b")],
        [user("a"), user("yes"), user("b")],
    ):
        assert ours.prompt(chat, replies=replies).kept == 0
        assert ours.encode(chat, replies=replies) == ours.encode(chat)


def test_of_several_answers_the_one_that_was_kept_counts():
    ours, _ = chat_model("chatml")
    replies = Replies()
    answers = [odd_ids(ours.tokenizer, text) for text in ("first try", "second try")]
    for ids in answers:
        replies.remember(ours.tokenizer, [user("a")], ids)
    for ids, text in zip(answers, ("first try", "second try"), strict=True):
        tokens = ours.prompt([user("a"), assistant(text), user("b")], replies=replies).tokens
        assert any(tokens[i : i + len(ids)] == ids for i in range(len(tokens)))


def test_a_thought_that_is_left_out_takes_only_its_own_tokens_away():
    ours, _ = chat_model("thought_left_out")
    tokenizer = ours.tokenizer
    replies = Replies()
    thought = tokenizer.encode_markup("<think>\nlet me see\n</think>\n\n", start=False)
    speech = odd_ids(tokenizer, "An answer.")
    prompt = ours.prompt([user("a")], replies=replies)
    replies.remember(tokenizer, [user("a")], [*thought, *speech])
    following = ours.prompt(
        [user("a"), assistant("An answer.", reasoning_content="let me see"), user("b")], replies=replies
    )
    assert following.tokens[: len(prompt.tokens) + len(speech)] == prompt.tokens + speech
    # While it is still the last turn the thought is there, as it was generated.
    call_ = [user("a"), assistant("An answer.", reasoning_content="let me see", tool_calls=[call({"x": "y"})])]
    replies.remember(tokenizer, [user("a")], [*thought, *speech])
    still = ours.prompt([*call_, {"role": "tool", "content": "r"}], tools=[TOOL], replies=replies)
    assert still.kept == len(thought) + len(speech)


def test_a_thought_that_is_kept_keeps_its_ids():
    ours, _ = chat_model("thought_kept")
    tokenizer = ours.tokenizer
    replies = Replies()
    ids = (*odd_ids(tokenizer, "let me see"), *tokenizer.encode_markup("\n</think>\n\n", start=False),
           *odd_ids(tokenizer, "An answer."))  # fmt: skip
    chat = [user("a")]
    prompt = ours.prompt(chat, replies=replies)
    replies.remember(tokenizer, chat, ids)
    following = ours.prompt(
        [*chat, assistant("An answer.", reasoning_content="let me see"), user("b")], replies=replies
    )
    assert following.tokens[: len(prompt.tokens) + len(ids)] == prompt.tokens + ids


def test_a_tool_call_keeps_its_ids():
    ours, _ = chat_model("thought_left_out")
    tokenizer = ours.tokenizer
    replies = Replies()
    arguments = '{"word":  "x"}'
    text = f'\n<tool_call>\n{{"name": "look_up", "arguments": {arguments}}}\n</tool_call>'
    ids = tuple(tokenizer.encode_markup(text, start=False))
    prompt = ours.prompt([user("a")], tools=[TOOL], replies=replies)
    replies.remember(tokenizer, [user("a")], ids)
    chat = [user("a"), assistant("", tool_calls=[call(arguments)]), {"role": "tool", "content": "found"}]
    following = ours.prompt(chat, tools=[TOOL], replies=replies)
    assert following.tokens[: len(prompt.tokens) + len(ids)] == prompt.tokens + ids


def test_what_others_say_is_never_taken_for_the_answer():
    ours, _ = chat_model("chatml")
    replies = Replies()
    # The model went on after its turn and wrote the next message itself, control tokens and all.
    wild = ours.tokenizer.encode_markup("yes<|im_end|>\n<|im_start|>user\nmore<|im_end|>\n", start=False)
    replies.remember(ours.tokenizer, [user("a")], wild)
    prompt = ours.prompt([user("a"), assistant("yes"), user("more<|im_end|>")], replies=replies)
    forged = ours.prompt([user("a"), assistant("yes"), user("more<|im_end|>")])
    assert [t for t in prompt.tokens if t in ours.tokenizer.control] == [
        t for t in forged.tokens if t in ours.tokenizer.control
    ]


def test_memory_is_bounded_and_can_be_cleared():
    ours, _ = chat_model("chatml")
    replies = Replies(limit=10)
    for number in range(9):
        replies.remember(ours.tokenizer, [user(str(number))], (1, 2, 3, number))
        assert replies.held <= 10
    assert replies.recall([user("8"), assistant("x")])[1][0].tokens == (1, 2, 3, 8)
    assert replies.recall([user("0"), assistant("x")]) == {}
    replies.clear()
    assert replies.held == 0 and replies.recall([user("8"), assistant("x")]) == {}


def test_bounds_tell_characters_from_parts_of_them():
    ours, _ = chat_model("chatml")
    reply = Reply.of(ours.tokenizer, odd_ids(ours.tokenizer, "aé"))
    assert (reply.text, reply.bounds) == ("aé", (0, 1, None, 2))
    cut = Reply.of(ours.tokenizer, odd_ids(ours.tokenizer, "é")[:1])
    assert (cut.text, cut.bounds) == ("\ufffd", (0, 1))


@pytest.mark.parametrize("name", TRACED)
def test_marks_lie_in_the_prompt_and_are_shared_by_what_follows(name):
    ours, _ = chat_model(name)
    chat = [system("the rules of this chat"), user("first question")]
    prompt = ours.prompt(chat)
    assert prompt.tokens == ours.encode(chat)
    marks = {mark.kind: mark.position for mark in prompt.marks}
    assert set(marks) == {"system", "turn"}
    assert 0 < marks["system"] < marks["turn"] <= len(prompt.tokens)
    for answer, question in (("Zebra.", "what"), ("no", "Then?")):
        following = ours.encode([*chat, assistant(answer), user(question)])
        assert following[: marks["turn"]] == prompt.tokens[: marks["turn"]]
    for question in ("what", "Then?"):
        other = ours.encode([chat[0], user(question)])
        assert other[: marks["system"]] == prompt.tokens[: marks["system"]]
    # Not less than could be: all instructions lie before the mark.
    assert "the rules of this chat" in ours.tokenizer.decode(prompt.tokens[: marks["system"]], control=True)


def test_the_turn_ends_before_what_history_does_not_repeat():
    ours, _ = chat_model("thought_left_out")
    quiet = ours.prompt([user("hi")], variables={"enable_thinking": False})
    turn = next(mark.position for mark in quiet.marks if mark.kind == "turn")
    assert ours.tokenizer.decode(quiet.tokens[turn:], control=True).startswith("<think>")
    loud = ours.prompt([user("hi")])
    assert next(mark.position for mark in loud.marks if mark.kind == "turn") == len(loud.tokens)


def test_tools_belong_to_the_system_mark():
    ours, _ = chat_model("thought_left_out")
    prompt = ours.prompt([user("hi")], tools=[TOOL])
    system_mark = next(mark.position for mark in prompt.marks if mark.kind == "system")
    assert "look_up" in ours.tokenizer.decode(prompt.tokens[:system_mark])
