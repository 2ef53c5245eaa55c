"""Requests of the API: every field is honoured or refused, and its path is named."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag

__all__ = [
    "ChatRequest",
    "CompletionRequest",
    "Message",
    "StreamOptions",
    "Strict",
    "TextPart",
    "Tool",
    "ToolCall",
    "ToolFunction",
]

_STOPS: Final = 16
_ALTERNATIVES: Final = 20

# Not something this server can do: the field may be there, with null, as clients that write all fields send it.
Refused = Annotated[None, Field(description="Not supported: null, or left out.")]


class Strict(BaseModel):
    """No field beside those named, no number in quotes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _integral(value: object) -> object:
    """JSON has numbers alone: 5.0 is the integer 5."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _stop_kind(value: object) -> str:
    return "<texts>" if isinstance(value, list) else "<text>"


def _prompt_kind(value: object) -> str:
    if not isinstance(value, list):
        return "<text>"
    first = value[0] if value else ""
    if isinstance(first, list):
        return "<token lists>"
    return "<texts>" if isinstance(first, str) else "<tokens>"


Integer = Annotated[int, BeforeValidator(_integral)]
Some = Annotated[str, Field(min_length=1)]
# Names of the ways are in brackets: they are no part of a field's path.
Texts = Annotated[
    Annotated[Some, Tag("<text>")] | Annotated[list[Some], Field(max_length=_STOPS), Tag("<texts>")],
    Discriminator(_stop_kind),
]
Tokens = Annotated[list[Annotated[Integer, Field(ge=0)]], Field(min_length=1)]
Prompt = Annotated[
    Annotated[Some, Tag("<text>")]
    | Annotated[list[Some], Field(min_length=1), Tag("<texts>")]
    | Annotated[Tokens, Tag("<tokens>")]
    | Annotated[list[Tokens], Field(min_length=1), Tag("<token lists>")],
    Discriminator(_prompt_kind),
]
Probability = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]


class StreamOptions(Strict):
    """What a stream has beside the answer."""

    include_usage: bool | None = Field(None, description="A last chunk without choices says the usage.")
    include_obfuscation: Literal[False] | None = None


class _Request(Strict):
    """What both kinds of request share."""

    model: str | None = Field(None, description="The served model; left out: that one.")
    stream: bool | None = None
    stream_options: StreamOptions | None = Field(None, description="With `stream` alone.")
    n: Annotated[Integer, Field(ge=1)] | None = Field(None, description="Answers to each prompt.")
    max_tokens: Annotated[Integer, Field(ge=1)] | None = None
    stop: Texts | None = Field(None, description=f"Up to {_STOPS} strings that end an answer; they are no part of it.")
    temperature: Annotated[float, Field(ge=0, le=2, allow_inf_nan=False)] | None = Field(
        None, description="0: always the most probable token. Default 1."
    )
    top_p: Probability | None = None
    presence_penalty: Penalty | None = Field(None, description="On generated tokens, never on those of the prompt.")
    frequency_penalty: Penalty | None = Field(None, description="On generated tokens, never on those of the prompt.")
    seed: Annotated[Integer, Field(ge=-(2**63), lt=2**64)] | None = Field(
        None,
        description="The same seed and request give the same answer, whatever else runs. Negative ones are taken "
        "modulo 2**64; answer j of n uses seed + j.",
    )
    top_k: Annotated[Integer, Field(ge=-1)] | None = Field(None, description="Beyond the OpenAI API. 0 and -1: off.")
    min_p: Probability | None = Field(None, description="Beyond the OpenAI API.")
    repetition_penalty: Annotated[float, Field(ge=1e-6, le=1e6)] | None = Field(
        None, description="Beyond the OpenAI API. On generated tokens, never on those of the prompt."
    )
    ignore_eos: bool | None = Field(None, description="Beyond the OpenAI API. End-of-text tokens do not end an answer.")
    logit_bias: Annotated[dict[str, float], Field(max_length=0)] | None = Field(
        None, description="Not supported: an empty object, null, or left out."
    )
    user: Refused = None


class CompletionRequest(_Request):
    """POST /v1/completions"""

    prompt: Prompt = Field(description="Text, token ids, or several of either. Control tokens in a text are read.")
    logprobs: Annotated[Integer, Field(ge=0, le=_ALTERNATIVES)] | None = Field(
        None, description="That many of the most probable tokens at each place, and the chosen one."
    )
    echo: bool | None = Field(None, description="The answer's text begins with the prompt; not with `logprobs`.")
    best_of: Annotated[Integer, Field(ge=1)] | None = Field(None, description="No other than `n`.")
    suffix: Refused = None


class TextPart(Strict):
    """A piece of a message; other kinds than text are not supported."""

    type: Literal["text"]
    text: str


class CalledFunction(Strict):
    """The function of a call, with the JSON text of its arguments, or the object itself."""

    name: str
    arguments: str | dict[str, Any]


class ToolCall(Strict):
    """A call an assistant made earlier."""

    id: str | None = None
    type: Literal["function"] | None = None
    function: CalledFunction


def _content_kind(value: object) -> str:
    return "<parts>" if isinstance(value, list) else "<text>"


Content = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[TextPart], Tag("<parts>")], Discriminator(_content_kind)
]


class Message(Strict):
    """A message. What of it is written, and how, is said by the model's chat template."""

    role: str = Field(description="system, developer, user, assistant, tool, or one that the chat template names.")
    content: Content | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: Refused = None
    audio: Refused = None
    function_call: Refused = None
    annotations: Annotated[list[Any], Field(max_length=0)] | None = None


class ToolFunction(Strict):
    """A function the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = Field(None, description="JSON schema; it goes to the template as it is.")
    strict: Literal[False] | None = None


class Tool(Strict):
    """A tool; functions alone."""

    type: Literal["function"]
    function: ToolFunction


class TextFormat(Strict):
    """Answers are text; JSON is not enforced by this version."""

    type: Literal["text"]


class ChatRequest(_Request):
    """POST /v1/chat/completions"""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[Integer, Field(ge=1)] | None = Field(None, description="As `max_tokens`.")
    logprobs: bool | None = None
    top_logprobs: Annotated[Integer, Field(ge=0, le=_ALTERNATIVES)] | None = Field(
        None, description="With `logprobs` alone."
    )
    tools: list[Tool] | None = Field(
        None,
        description="They go to the chat template. What the model writes is returned as text; calls are not parsed.",
    )
    tool_choice: Literal["auto", "none"] | None = Field(None, description="none: the template gets no tools.")
    parallel_tool_calls: Literal[True] | None = None
    response_format: TextFormat | None = None
    modalities: Annotated[list[Literal["text"]], Field(min_length=1, max_length=1)] | None = None
    reasoning_effort: str | None = Field(None, description="A variable of the chat template; refused if it reads none.")
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Beyond the OpenAI API. Variables of the chat template, such as enable_thinking."
    )
    documents: list[dict[str, Any]] | None = Field(
        None, description="Beyond the OpenAI API. For chat templates that write documents."
    )
    store: Literal[False] | None = None
    service_tier: Literal["auto", "default"] | None = None
    metadata: Annotated[dict[str, str], Field(max_length=0)] | None = None
    audio: Refused = None
    function_call: Refused = None
    functions: Refused = None
    moderation: Refused = None
    prediction: Refused = None
    prompt_cache_key: Refused = None
    prompt_cache_options: Refused = None
    prompt_cache_retention: Refused = None
    safety_identifier: Refused = None
    verbosity: Refused = None
    web_search_options: Refused = None
