"""The gated delta rule over the tokens of one sequence (https://arxiv.org/abs/2412.06464, equation 10).

For every token of a value head, with a state S [key_dim, value_dim] and key and query of the head it is served by:

    S = exp(log_decay) S;   delta = beta (v - S^T k);   S = S + k delta^T;   o = S^T q

    delta_rule_reference   the four lines, token by token             oracle
    delta_rule             token by token, the state read once        keeps the contract
    delta_rule_chunked     chunks of 64 tokens as matrix products     oracle; does not keep the contract

All take and return the same, for any number of tokens and in any float type:

    queries, keys      [n, key_heads, key_dim], normalised, queries scaled
    values             [n, value_heads, value_dim]
    log_decay, beta    [n, value_heads]; value head i is served by key head i // (value_heads / key_heads)
    state              [value_heads, key_dim, value_dim] before the tokens, None at the start of a sequence
    next_state         the same after them, written; not the memory of `state`
    returns            o [n, value_heads, value_dim]
"""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor

from plait.runtime.ops.exact import pointwise

__all__ = ["CHUNK", "delta_rule", "delta_rule_chunked", "delta_rule_reference", "l2_normalise", "log_decays"]

CHUNK: Final = 64
# Elements of 4 bytes in a line of the cache.
_LINE: Final = 16


def l2_normalise(x: Tensor, eps: float) -> Tensor:
    """x / sqrt(sum x^2 + eps) over the last axis. Keeps the contract: each row is reduced by itself."""
    return x * x.square().sum(-1, keepdim=True).add_(eps).rsqrt_()


def log_decays(x: Tensor, bias: Tensor, rate: Tensor) -> Tensor:
    """-rate * softplus(x + bias) of x [n, heads]: the logarithm of what a state keeps. Keeps the contract."""
    return pointwise(torch.nn.functional.softplus, x + bias) * -rate


def delta_rule_reference(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor | None,
    next_state: Tensor,
) -> Tensor:
    """See the module."""
    repeats = values.shape[1] // keys.shape[1]
    q, k = queries.repeat_interleave(repeats, 1), keys.repeat_interleave(repeats, 1)
    s = torch.zeros_like(next_state) if state is None else state
    out = torch.empty_like(values)
    for t in range(values.shape[0]):
        s = s * log_decay[t].exp()[:, None, None]
        delta = beta[t, :, None] * (values[t] - torch.einsum("hkv,hk->hv", s, k[t]))
        s = s + torch.einsum("hk,hv->hkv", k[t], delta)
        out[t] = torch.einsum("hkv,hk->hv", s, q[t])
    next_state.copy_(s)
    return out


def delta_rule(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor | None,
    next_state: Tensor,
) -> Tensor:
    """See the module.

    Key and query read the state before it changes: with d = exp(log_decay), S_old^T k gives delta = beta (v - d S_old^T
    k), and o = d S_old^T q + (q . k) delta. Nothing in the loop has a shape that depends on n.
    """
    n, heads, value_dim = values.shape
    pairs = _pairs(keys, queries, heads // keys.shape[1])
    decay = pointwise(torch.exp, log_decay)[..., None, None]
    reads = values.new_empty(n, heads, 2, value_dim)
    deltas = torch.empty_like(values, memory_format=torch.contiguous_format)
    read = values.new_empty(heads, 2, value_dim)
    if state is None:
        state = next_state.zero_()
    columns = pairs[:, :, 0, :, None]
    rows = zip(*(x.unbind() for x in (pairs, columns, values, decay, beta[..., None], reads, deltas)), strict=True)
    for pair, column, value, kept, rate, decayed, delta in rows:
        torch.bmm(pair, state, out=read)
        torch.mul(read, kept, out=decayed)
        torch.sub(value, decayed[:, 0], out=delta).mul_(rate)
        torch.mul(state, kept, out=next_state).addcmul_(column, delta[:, None])
        state = next_state
    matches = (queries * keys).sum(-1).repeat_interleave(heads // keys.shape[1], 1)
    return deltas.mul_(matches[..., None]).add_(reads[:, :, 1])


def _pairs(keys: Tensor, queries: Tensor, repeats: int) -> Tensor:
    """Key and query of each value head side by side, [n, value_heads, 2, key_dim].

    Every token's begin where a line of the cache does: a library may sum in another order where memory is not aligned.
    """
    n, heads, dim = keys.shape
    size = heads * repeats * 2 * dim
    memory = keys.new_empty(n, -(-size // _LINE) * _LINE)
    pairs = memory[:, :size].view(n, heads, repeats, 2, dim)
    pairs[:, :, :, 0] = keys[:, :, None]
    pairs[:, :, :, 1] = queries[:, :, None]
    return pairs.view(n, heads * repeats, 2, dim)


def delta_rule_chunked(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    log_decay: Tensor,
    beta: Tensor,
    state: Tensor | None,
    next_state: Tensor,
) -> Tensor:
    """See the module.

    In a chunk that starts from S, with c[t] the sum of log_decay up to t, the deltas solve a triangular system:
    delta[t] = beta[t] (v[t] - exp(c[t]) S^T k[t] - sum over s < t of exp(c[t] - c[s]) (k[t] . k[s]) delta[s]).
    """
    repeats = values.shape[1] // keys.shape[1]
    q, k = (x.repeat_interleave(repeats, 1).transpose(0, 1) for x in (queries, keys))
    v = values.transpose(0, 1)
    s = torch.zeros_like(next_state) if state is None else state
    outs = []
    for start in range(0, v.shape[1], CHUNK):
        at = slice(start, start + CHUNK)
        total = log_decay.T[:, at].cumsum(1)
        since = total[:, :, None] - total[:, None]
        # What lies ahead is hidden before the exponential, where it could be infinite.
        since = since.masked_fill(torch.ones_like(since[0], dtype=torch.bool).triu(1), -torch.inf).exp()
        rate, kept, left = beta.T[:, at, None], total.exp()[..., None], (total[:, -1:] - total).exp()[..., None]
        system = rate * since * (k[:, at] @ k[:, at].mT)
        known = rate * (v[:, at] - kept * (k[:, at] @ s))
        delta = torch.linalg.solve_triangular(system, known, upper=False, unitriangular=True)
        outs.append(kept * (q[:, at] @ s) + since * (q[:, at] @ k[:, at].mT) @ delta)
        s = kept[:, -1:] * s + (left * k[:, at]).mT @ delta
    next_state.copy_(s)
    return torch.cat(outs, 1).transpose(0, 1)
