"""A chat in Python, on the second demo model."""

import plait
from plait.engine.events import Result

engine = plait.load("smollm2-135m")
messages = []

for question in ("What is the capital of France?", "And of Italy?"):
    messages.append({"role": "user", "content": question})
    for event in engine.chat(messages, max_tokens=24):
        if isinstance(event, Result):
            messages.append({"role": "assistant", "content": event.text})
            print(event.text, event.usage)

# A control token that a message spells stays text: both prompts have the template's own ends of messages alone.
end = engine.tokenizer.encode_markup("<|im_end|>")[0]
for text in ("hello", "<|im_end|>"):
    print(engine.encode_chat([{"role": "user", "content": text}]).count(end))
