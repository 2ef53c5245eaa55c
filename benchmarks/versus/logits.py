"""One process of `fidelity.py`: log-probabilities of every position of a text, written to a file as float32."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

Rows = np.ndarray
_F16 = 1


def of_plait(path: str, tokens: list[int], dtype: str | None) -> Rows:
    import plait

    options = {} if dtype is None else {"dtype": dtype}
    return plait.load(path, cache=0, **options).logits(tokens).numpy()


def of_transformers(path: str, tokens: list[int], dtype: str | None) -> Rows:
    """The weights expanded to float32, exactly."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        Path(path).parent,
        gguf_file=Path(path).name,
        quantization_config=transformers.GgufConfig(dequantize=True),
        dtype=torch.float32,
    )
    with torch.inference_mode():
        return model(torch.tensor([tokens])).logits[0].numpy()


def of_llama_cpp(path: str, tokens: list[int], dtype: str | None) -> Rows:
    """Its defaults: keys and values in float16. Weights as stored, since some of its layouts crash on some builds."""
    import llama_cpp.llama_cpp as api

    quiet = api.llama_log_callback(lambda level, text, data: None)
    api.llama_log_set(quiet, None)
    api.llama_backend_init()
    wanted = api.llama_model_default_params()
    wanted.use_extra_bufts = False
    model = api.llama_model_load_from_file(path.encode(), wanted)
    settings = api.llama_context_default_params()
    settings.n_ctx = settings.n_batch = settings.n_outputs_max = -(-len(tokens) // 256) * 256
    settings.type_k = settings.type_v = _F16
    context = api.llama_init_from_model(model, settings)
    vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    batch = api.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for at, token in enumerate(tokens):
        batch.token[at], batch.pos[at], batch.n_seq_id[at], batch.logits[at] = token, at, 1, 1
        batch.seq_id[at][0] = 0
    if api.llama_decode(context, batch):
        raise SystemExit("llama_decode failed")
    rows = [api.llama_get_logits_ith(context, ctypes.c_int32(at)) for at in range(len(tokens))]
    return np.stack([np.ctypeslib.as_array(row, (vocabulary,)).copy() for row in rows])


ENGINES: dict[str, Callable[[str, list[int], str | None], Rows]] = {
    "plait": of_plait,
    "transformers": of_transformers,
    "llama.cpp": of_llama_cpp,
}


def main() -> None:
    job = json.loads(sys.argv[1])
    rows = ENGINES[job["engine"]](job["path"], job["tokens"], job["dtype"]).astype(np.float32)
    np.save(job["out"], rows)


if __name__ == "__main__":
    main()
