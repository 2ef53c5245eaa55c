"""Readers of what describes a model in files: configurations and the headers of weight containers."""
