"""Chats: templates as models ship them, rendered safely, turned into tokens, marked, and checked."""

from __future__ import annotations

from plait.engine.chat.format import ChatFormat, ChatPrompt
from plait.engine.chat.lint import Lint, lint
from plait.engine.chat.read import Templates, read_templates, templates_from_gguf
from plait.engine.chat.replies import Replies
from plait.engine.chat.template import ChatTemplate
from plait.engine.chat.thinking import ThinkMarkers, Thoughts

__all__ = [
    "ChatFormat",
    "ChatPrompt",
    "ChatTemplate",
    "Lint",
    "Replies",
    "Templates",
    "ThinkMarkers",
    "Thoughts",
    "lint",
    "read_templates",
    "templates_from_gguf",
]
