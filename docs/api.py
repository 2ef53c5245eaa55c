"""A tour of the Python surface, on the demo model."""

import torch

import plait
from plait.engine.events import Result, Token
from plait.engine.sampling import Sampling

blueprint = plait.blueprint("gemma-3-270m")  # no torch needed: what the model is
print(len(blueprint.layers), blueprint.hidden, blueprint.evidence["full.rope.theta"].key)

engine = plait.load("gemma-3-270m")  # weights stay as the file holds them; dtype="float32" expands them
tokens = engine.tokenizer.encode_markup("The capital of France is")

# The same bits, whole or in pieces.
whole = engine.logits(tokens)
pieces = engine.logits(tokens, split=[1, 2, len(tokens) - 3])
print(tuple(whole.shape), torch.equal(whole, pieces))

# Typed events, ending in a result. The seed fixes the text.
for event in engine.generate(tokens, sampling=Sampling(temperature=0.8, top_k=40, seed=3), max_tokens=8):
    if isinstance(event, Token):
        print(event.position, repr(event.text))
    elif isinstance(event, Result):
        print(event.finish_reason, event.usage)

# A sequence that is kept: its state, its last logits, what it holds.
session = engine.session(tokens)
session.append([int(session.logits.argmax())])
print(session.position, session.held())

# A fork shares what the sequence holds; tokens are taken back as if they had never been.
fork = session.fork()
fork.append([1, 2, 3])
fork.rollback(session.position)
print(fork.position, torch.equal(fork.logits, session.logits))
fork.close()
session.close()

# What is known of earlier prompts is not computed again; the bits are those of a prompt that is computed whole.
story = "Once upon a time there was a fox that could count. " * 20
for ending in ("One day it", "Every night it"):
    result = list(engine.generate(story + ending, max_tokens=2))[-1]
    print(result.usage.prompt, result.usage.reused, result.cache.common, result.cache.reason)
print(engine.stats()["cache"].bytes)
engine.clear_cache()

# Requests run together; each has the tokens it would have alone.
tickets = [engine.submit(f"The capital of {country} is", max_tokens=6) for country in ("France", "Italy")]
for ticket in tickets:
    print(repr(ticket.result().text))
