"""From one row of logits to one token.

The transforms run in this order, each on what the one before it left:

1. penalties, on tokens generated so far (never on the prompt): first repetition, which divides positive and
   multiplies negative logits (Keskar et al. 2019, arXiv:1909.05858, section 4.1, in the sign-aware form in general
   use), then frequency and presence, which subtract `count * frequency + [count > 0] * presence` (OpenAI API
   reference, `frequency_penalty` and `presence_penalty`);
2. temperature: logits are divided by it;
3. top-k: the k largest stay (Fan et al. 2018, arXiv:1805.04833); equal logits at the edge: the lower index stays;
4. top-p: the smallest set of most probable tokens whose share of what top-k left reaches p, never fewer than one
   (Holtzman et al. 2019, arXiv:1904.09751); equal logits: the lower index first;
5. min-p: tokens at least `min_p` times as probable as the most probable stay (Nguyen et al. 2024, arXiv:2407.01082).

The choice among those that stay is by inverse CDF in index order, in float64. Its random number is a pure function of
(seed, position), so a token depends on (seed, position, logits, counts, parameters) and on nothing else: not on what
was drawn before, on other requests, or on the number of threads. A draft token can therefore be accepted exactly when
it equals the token `Sampler.choose` gives at its position.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from plait.engine.penalties import check_counts, penalised
from plait.engine.shortlist import NativeRow
from plait.engine.whole import chosen_of_all
from plait.errors import PlaitError, UsageError, fault

__all__ = ["REPETITION", "Candidates", "Choice", "Sampler", "Sampling", "candidates", "leading", "uniform"]

REPETITION: Final = (1e-6, 1e6)
"""The least and the largest repetition penalty: no logit of 32 bits is infinite after it."""

_WORD: Final = 2**64
_FIRST_SORTED: Final = 1024  # top-p sorts this many tokens first, and eight times more as long as they do not reach p
_SORT_GROWTH: Final = 8


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a request asks of the sampler; the defaults are greedy decoding without penalties.

    temperature         finite, >= 0; 0 is greedy: the largest logit after penalties, lowest index first
    top_k               >= 1; None, 0 and -1 switch it off, and are stored as None
    top_p               in [0, 1]; 1 is off, 0 keeps the most probable token alone
    min_p               in [0, 1]; 0 is off
    repetition_penalty  in `REPETITION`; 1 is off, above 1 makes repetition less likely
    presence_penalty    in [-2, 2] (the range of the OpenAI API), in units of logits; 0 is off
    frequency_penalty   in [-2, 2], in units of logits per occurrence; 0 is off
    seed                in [0, 2**64); None: `Sampler` draws a fresh one

    Raises UsageError, naming the field, for every other value, NaN, infinity and bool among them.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None

    def __post_init__(self) -> None:
        def store(field: str, value: object) -> None:
            object.__setattr__(self, field, value)  # the way to normalise a field of a frozen dataclass

        store("temperature", _number("temperature", self.temperature, "a finite number >= 0", low=0.0))
        store("top_p", _number("top_p", self.top_p, "a number in [0, 1]", low=0.0, high=1.0))
        store("min_p", _number("min_p", self.min_p, "a number in [0, 1]", low=0.0, high=1.0))
        low, high = REPETITION
        rule = f"a number in [{low:g}, {high:g}]"
        store("repetition_penalty", _number("repetition_penalty", self.repetition_penalty, rule, low=low, high=high))
        for field, value in (
            ("presence_penalty", self.presence_penalty),
            ("frequency_penalty", self.frequency_penalty),
        ):
            store(field, _number(field, value, "a number in [-2, 2]", low=-2.0, high=2.0))
        if self.top_k is not None:
            count = _integer("top_k", self.top_k, "an integer >= 1, or 0 or -1 for off", low=-1)
            store("top_k", count if count >= 1 else None)
        if self.seed is not None:
            _seed(self.seed)

    @property
    def greedy(self) -> bool:
        """True if the largest logit after penalties is taken, whatever the random number."""
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        """True if the tokens generated so far change the logits."""
        return self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0


@dataclass(frozen=True, slots=True)
class Choice:
    """One chosen token.

    logprob  natural logarithm of its probability under the softmax of the raw logits, before penalties, temperature
             and filters (the meaning of `logprob` in the OpenAI API); never above 0
    """

    token: int
    logprob: float


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Tokens that may be chosen, and their weights.

    tokens   [n] int64, ascending, n >= 1
    weights  [n] float64, not normalised: probability relative to the most probable token, in [0, 1]
    """

    tokens: NDArray[np.int64]
    weights: NDArray[np.float64]


class Sampler:
    """Chooses tokens for one sequence; keeps nothing between calls.

    The seed is `seed` if given, else `sampling.seed`, else a fresh one from the operating system; `seed` lets several
    answers to one request differ. Either way `Sampler.seed` holds what repeats the run.
    """

    __slots__ = ("sampling", "seed")

    def __init__(self, sampling: Sampling, seed: int | None = None) -> None:
        """Raises UsageError for a seed outside [0, 2**64)."""
        wanted = sampling.seed if seed is None else seed
        self.sampling = sampling
        self.seed = secrets.randbelow(_WORD) if wanted is None else _seed(wanted)

    def choose(self, logits: torch.Tensor, position: int, counts: Mapping[int, int]) -> Choice:
        """The token at `position`.

        logits    [vocabulary], floating point (float32 as the engine gives them), on any device; -inf: never chosen
        position  absolute, in tokens from the start of the sequence, in [0, 2**64)
        counts    how often each token id was generated so far, prompt not counted; read only if a penalty is on

        Raises PlaitError for logits of another shape or type, with a NaN, a +inf or nothing above -inf; for a position
        out of range; for counts that are negative or of a token outside the vocabulary.
        """
        row = NativeRow.of(logits)
        if row is not None and self.sampling.greedy and not self.sampling.penalised:
            _check_position(position)
            return Choice(row.index, row.logprob(row.index))
        fraction = uniform(self.seed, position)
        found = None if row is None else _among_few(row, self.sampling, counts)
        if row is not None and found is None:
            token = chosen_of_all(row, self.sampling, counts, fraction)
            if token is not None:
                return Choice(token, row.logprob(token))
        if found is None:
            raw = _row(logits)
            found = candidates(raw, self.sampling, counts)
        token = int(found.tokens[_pick(found.weights, fraction)])
        return Choice(token, _logprob(raw, token) if row is None else row.logprob(token))


def uniform(seed: int, position: int) -> float:
    """The random number of `position`: float64 in [0, 1), a multiple of 2**-53.

    The upper 53 bits of the first word of Philox4x64-10 with key = seed and counter = position + 1, which is the
    first output of numpy's `Philox(key=seed, counter=position)` (Salmon et al. 2011, "Parallel random numbers: as easy
    as 1, 2, 3"). A block cipher of the counter: no position depends on another. Raises UsageError for a seed and
    PlaitError for a position outside [0, 2**64).
    """
    _check_position(position)
    word = int(np.random.Philox(key=_seed(seed), counter=position).random_raw())
    return math.ldexp(word >> 11, -53)


def _check_position(position: int) -> None:
    if isinstance(position, bool) or not isinstance(position, int) or not 0 <= position < _WORD:
        raise PlaitError(fault("position to sample at", expected="an integer in [0, 2**64)", found=_shown(position)))


def candidates(logits: NDArray[np.float64], sampling: Sampling, counts: Mapping[int, int]) -> Candidates:
    """What is left of a row after all transforms, in the order the module states.

    logits  [vocabulary] float64; left as they are
    counts  as for `Sampler.choose`; temperature 0 leaves the one token that greedy decoding takes

    Raises PlaitError as `Sampler.choose` does.
    """
    scores, peak = logits, _peak(logits, "logits")
    if sampling.penalised:
        scores = penalised(logits, sampling, counts)
        peak = _peak(scores, "logits after penalties")
    if sampling.greedy:
        return Candidates(np.array([np.argmax(scores)], dtype=np.int64), np.ones(1))
    # Ranks are taken from the scores: dividing by a temperature keeps their order, but can round two to one value.
    tokens = np.flatnonzero(scores > -np.inf)
    if sampling.top_k is not None:
        tokens = tokens[_largest(scores[tokens], sampling.top_k)]
    with np.errstate(over="ignore", under="ignore"):  # a tiny temperature sends all but the largest to exp(-inf) = 0
        weights = np.exp((scores[tokens] - peak) / sampling.temperature)
    if sampling.top_p < 1.0:
        kept = _nucleus(scores[tokens], weights, sampling.top_p)
        tokens, weights = tokens[kept], weights[kept]
    if sampling.min_p > 0.0:
        likely = weights >= sampling.min_p  # the most probable token, never filtered so far, has weight 1
        tokens, weights = tokens[likely], weights[likely]
    return Candidates(tokens, weights)


def leading(logits: torch.Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """The `count` most probable tokens of a row, all if there are no more: (token, logprob as in `Choice`).

    The most probable first; of equal ones the lower id. `logits` as for `Sampler.choose`; those at -inf are left out.
    """
    row = NativeRow.of(logits)
    if row is not None:
        few = row.largest(count)
        order = few[np.argsort(-row.values[few], kind="stable")]
        return tuple((int(token), row.logprob(int(token))) for token in order)
    raw = _row(logits)
    chosen = _largest(raw, count)
    order = chosen[np.argsort(-raw[chosen], kind="stable")]
    return tuple((int(token), _logprob(raw, int(token))) for token in order if raw[token] > -np.inf)


def _among_few(row: NativeRow, sampling: Sampling, counts: Mapping[int, int]) -> Candidates | None:
    """`candidates` of a row, looked for among few of its tokens; None: it takes the whole row, or that is refused."""
    if sampling.penalised:
        check_counts(counts, len(row.values))
    tokens = row.shortlist(sampling, counts)
    if tokens is None:
        return None
    seen = [token for token, count in counts.items() if count > 0] if sampling.penalised else []
    places = np.searchsorted(tokens, seen).tolist()
    try:
        found = candidates(
            row.values[tokens].astype(np.float64),
            sampling,
            {place: counts[token] for place, token in zip(places, seen, strict=True)},
        )
    except PlaitError:  # to be said of the whole row
        return None
    return Candidates(tokens[found.tokens], found.weights)


def _row(logits: torch.Tensor) -> NDArray[np.float64]:
    """[vocabulary] float64 in host memory; everything after it is numpy, whose sums do not depend on threads."""
    if logits.dim() != 1 or logits.numel() == 0 or not logits.is_floating_point():
        found = f"{list(logits.shape)} of {logits.dtype}"
        raise PlaitError(fault("logits to sample from", expected="[vocabulary] of a floating type", found=found))
    row: NDArray[np.float64] = logits.detach().to("cpu", torch.float64).numpy()
    return row


def _peak(row: NDArray[np.float64], what: str) -> float:
    """The largest value; PlaitError unless it is a finite number. (numpy's maximum of a row with a NaN is NaN.)"""
    peak = float(row.max())
    if math.isnan(peak):
        problem = f"a NaN for token {int(np.argmax(np.isnan(row)))}"
    elif peak == math.inf:
        problem = f"+inf for token {int(np.argmax(row))}"
    elif peak == -math.inf:
        problem = "-inf for every token"
    else:
        return peak
    raise PlaitError(fault(f"cannot choose a token: {what}", expected="finite numbers or some -inf", found=problem))


def _largest(scores: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Ascending indices of the `count` largest scores, all if there are no more; equal scores: lower index first."""
    size = len(scores)
    if count >= size:
        return np.arange(size)
    edge = np.partition(scores, size - count)[size - count]
    keep = scores > edge
    tied = np.flatnonzero(scores == edge)
    keep[tied[: count - int(np.count_nonzero(keep))]] = True
    return np.flatnonzero(keep)


def _nucleus(scores: NDArray[np.float64], weights: NDArray[np.float64], share: float) -> NDArray[np.int64]:
    """Ascending indices of the smallest set of largest scores whose weights reach `share` of the sum of weights."""
    goal = share * float(weights.sum())
    sorted_count = _FIRST_SORTED
    while True:
        leading = _largest(scores, sorted_count)
        order = leading[np.argsort(-scores[leading], kind="stable")]
        reached = np.cumsum(weights[order])
        if reached[-1] >= goal or len(order) == len(scores):
            break
        sorted_count *= _SORT_GROWTH
    # The first entry that reaches the goal still belongs to the set; rounding may leave the last one just below it.
    return np.sort(order[: int(np.searchsorted(reached, goal, side="left")) + 1])


def _pick(weights: NDArray[np.float64], fraction: float) -> int:
    """Index of the first weight whose running sum exceeds `fraction` of the whole; a weight of 0 is never it."""
    reached = np.cumsum(weights)
    return int(np.searchsorted(reached, fraction * reached[-1], side="right"))


def _logprob(row: NDArray[np.float64], token: int) -> float:
    """Log softmax of the row at `token`. The exponentials are float32, their sum float64: good to about 1e-6."""
    peak = float(row.max())
    weights = np.exp((row - peak).astype(np.float32))
    return float(row[token]) - peak - math.log(float(weights.sum(dtype=np.float64)))


def _number(field: str, value: object, rule: str, *, low: float, high: float = math.inf) -> float:
    """`value` as a float, if it is a finite int or float in [low, high]."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:  # an int beyond the range of float64
            number = math.inf
        if math.isfinite(number) and low <= number <= high:
            return number
    raise UsageError(fault(field, expected=rule, found=_shown(value)))


def _integer(field: str, value: object, rule: str, *, low: int, high: float = math.inf) -> int:
    """`value`, if it is an int in [low, high)."""
    if isinstance(value, int) and not isinstance(value, bool) and low <= value < high:
        return value
    raise UsageError(fault(field, expected=rule, found=_shown(value)))


def _seed(value: object) -> int:
    return _integer("seed", value, "an integer in [0, 2**64)", low=0, high=_WORD)


def _shown(value: object) -> str:
    """A value in one short line; never raises, whatever a request holds."""
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 128 else f"an integer of {value.bit_length()} bits"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, str):
        return f"the string {value[:40]!r}"
    return f"a {type(value).__name__}"
