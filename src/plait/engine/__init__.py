"""Running a model: tokenizer, chat, sampling, generation."""
