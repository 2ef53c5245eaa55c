"""Answers of the API as types, which the OpenAPI description is made from."""

from __future__ import annotations

from typing import Literal, NotRequired

from typing_extensions import TypedDict  # pydantic reads the one of `typing` from Python 3.12 on

__all__ = [
    "Cached",
    "ChatAnswer",
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatDelta",
    "ChatLogprobs",
    "ChatMessage",
    "ChatToken",
    "CompletionAnswer",
    "CompletionChoice",
    "CompletionLogprobs",
    "Finish",
    "Health",
    "ModelObject",
    "Models",
    "Report",
    "TopToken",
    "Usage",
]

Finish = Literal["stop", "length"]


class Report(TypedDict):
    """Beyond the OpenAI API: what is said of one choice.

    common, resume, lost, reason   what of the prompt was known, where the prefill began, what was known and computed
                                   again all the same, and why; tokens
    seed                           repeats the choice
    stop                           the stop string that ended it
    """

    common: int
    resume: int
    lost: int
    reason: str
    seed: int
    stop: str | None
    queued_seconds: float
    prompt_seconds: float
    decode_seconds: float


class Cached(TypedDict):
    """Tokens of the prompts that were not computed again."""

    cached_tokens: int


class Usage(TypedDict):
    """Tokens; a prompt counts once, however many answers it gets."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: Cached


class CompletionLogprobs(TypedDict):
    """One entry for each token. `text_offset`: characters of the text that were final before it."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class CompletionChoice(TypedDict):
    """One answer, or a piece of it in a stream."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None
    plait: NotRequired[Report]


class CompletionAnswer(TypedDict):
    """Answer of /v1/completions, and each chunk of its stream."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[CompletionChoice]
    usage: NotRequired[Usage | None]


class TopToken(TypedDict):
    """A token and its log probability; `bytes` are what it writes, null for one that writes nothing by itself."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatToken(TopToken):
    """A generated token and the most probable ones at its place."""

    top_logprobs: list[TopToken]


class ChatLogprobs(TypedDict):
    """One entry for each token."""

    content: list[ChatToken]
    refusal: None


class ChatMessage(TypedDict):
    """What the model wrote, as text: thoughts and calls of tools are not parted from it."""

    role: Literal["assistant"]
    content: str


class ChatChoice(TypedDict):
    """One answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    plait: Report


class ChatAnswer(TypedDict):
    """Answer of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: Usage


class ChatDelta(TypedDict):
    """A piece of an answer; the first one has the role."""

    role: NotRequired[Literal["assistant"]]
    content: NotRequired[str]


class ChatChunkChoice(TypedDict):
    """A piece of one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: Finish | None
    plait: NotRequired[Report]


class ChatChunk(TypedDict):
    """A chunk of a stream of /v1/chat/completions."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: NotRequired[Usage | None]


class ModelObject(TypedDict):
    """The served model; `max_model_len` is its context."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: Literal["plait"]
    max_model_len: int


class Models(TypedDict):
    """What /v1/models lists: the one model."""

    object: Literal["list"]
    data: list[ModelObject]


class Health(TypedDict):
    """`steps` grows while the engine works; `idle_seconds` since the last one."""

    status: Literal["ok", "draining", "stalled"]
    queued: int
    running: int
    steps: int
    idle_seconds: float
