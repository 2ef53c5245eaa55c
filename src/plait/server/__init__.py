"""The HTTP server: an engine behind the OpenAI API. Needs the extra `serve`."""
