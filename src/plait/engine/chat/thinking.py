"""Where an answer thinks and where it speaks: the state at the end of a prompt, and splitting what follows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from plait.engine.chat.format import Rendering
from plait.engine.chat.marks import common
from plait.engine.chat.template import ChatTemplate
from plait.engine.tokenizer import Tokenizer

__all__ = ["PAIRS", "ThinkMarkers", "Thoughts", "generation_prompt", "markers_of", "spoken", "state_of"]

State = Literal["none", "open", "closed"]

# How models write the two ends of a thought; a pair counts where the template writes or looks for both.
PAIRS: Final = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|channel>thought", "<channel|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
)


@dataclass(frozen=True, slots=True)
class ThinkMarkers:
    """How a model begins and ends a thought."""

    opening: str
    closing: str


def markers_of(template: ChatTemplate) -> ThinkMarkers | None:
    """The pair of markers that the template writes or looks for."""
    for opening, closing in PAIRS:
        if opening in template.text and closing in template.text:
            return ThinkMarkers(opening, closing)
    return None


def generation_prompt(request: Rendering) -> str:
    """What the template adds at the end of a prompt so that an answer follows."""
    with_it, without = request.text(answer=True), request.text(answer=False)
    shared = common([ord(c) for c in str.replace(with_it, "", "")], [ord(c) for c in str.replace(without, "", "")])
    return str.replace(with_it[shared:], "", "")


def state_of(prompt: str, markers: ThinkMarkers | None) -> State:
    """What a generation prompt leaves behind: `open` if the answer begins inside a thought."""
    if markers is None:
        return "none"
    begins, ends = prompt.rfind(markers.opening), prompt.rfind(markers.closing)
    if begins < 0 and ends < 0:
        return "none"
    return "open" if begins > ends else "closed"


class Thoughts:
    """Splits the text of an answer, token by token, into thought and speech."""

    __slots__ = ("_markers", "_seen", "_tokenizer", "inside")

    def __init__(self, tokenizer: Tokenizer, markers: ThinkMarkers | None, state: State) -> None:
        self._tokenizer = tokenizer
        self._markers = markers
        self._seen = ""
        self.inside = state == "open"

    def push(self, token: int) -> None:
        """Take note of a token, after its text was shown or kept; `inside` then holds for the next text."""
        if self._markers is None:
            return
        longest = max(len(self._markers.opening), len(self._markers.closing))
        self._seen += self._tokenizer.token_text(token)
        begins, ends = self._seen.rfind(self._markers.opening), self._seen.rfind(self._markers.closing)
        if max(begins, ends) >= 0:
            self.inside = begins > ends
            self._seen = ""
        else:
            self._seen = self._seen[-longest:]


def spoken(tokens: Iterable[int], tokenizer: Tokenizer, markers: ThinkMarkers | None, state: State) -> tuple[str, str]:
    """(thought, speech) of an answer; markers belong to neither."""
    text = tokenizer.decode(tokens, control=True, start=False)
    if markers is None:
        return "", tokenizer.decode(tokens, start=False)
    thought = ""
    if state == "open" or text.lstrip().startswith(markers.opening):
        inner, found, rest = text.lstrip().removeprefix(markers.opening).partition(markers.closing)
        thought, text = inner, rest if found else ""
    return thought.strip("\n"), text.lstrip("\n")
