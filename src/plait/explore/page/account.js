// Evaluates the closed forms of forms.py. Integers are BigInt, so that bytes and FLOPs are exact at any context.
(function (plait) {
  "use strict";
  const { kv: KV, categories: CATEGORIES, kinds: KINDS, slab, slack } = plait.data.constants;
  const SLAB = BigInt(slab);
  const SLACK = BigInt(slack);

  const least = (a, b) => (a < b ? a : b);
  const within = (context, limit) => (limit === null ? context : least(context, BigInt(limit)));
  const place = (format) => {
    const found = KV.indexOf(format);
    if (found < 0) throw new RangeError(`no key/value format ${format}`);
    return found;
  };

  /** Rows that whole slabs hold for the rows a session at `context` keeps; window null: all of them. */
  function slabRows(context, window) {
    let start = 0n;
    if (window !== null) {
      const first = context - BigInt(window) + 1n - SLACK;
      if (first > 0n) start = first;
    }
    return ((context - 1n) / SLAB - start / SLAB + 1n) * SLAB;
  }

  function stateOf(model, layout) {
    if (model.state === null) return null;
    return layout === "kv" && model.state.kv !== null ? model.state.kv : model.state.runtime;
  }

  /** Bytes per category, {need, reserved}. */
  function categories(state, kv, context, batch) {
    const f = place(kv);
    const found = {};
    for (const name of CATEGORIES) found[name] = { need: 0n, reserved: 0n };
    for (const [name, sizes] of state.fixed) {
      const size = batch * BigInt(sizes[f]);
      found[name].need += size;
      found[name].reserved += size;
    }
    for (const [name, window, sizes] of state.growing) {
      const size = batch * BigInt(sizes[f]);
      found[name].need += within(context, window) * size;
      found[name].reserved += slabRows(context, window) * size;
    }
    return found;
  }

  function need(state, kv, context, batch) {
    const f = place(kv);
    let total = 0n;
    for (const [, sizes] of state.fixed) total += BigInt(sizes[f]);
    for (const [, window, sizes] of state.growing) total += within(context, window) * BigInt(sizes[f]);
    return batch * total;
  }

  /** As `plait memory`: state at a context, and the weights beside it. null: not known. */
  function memory(model, { context, batch, kv, layout, weights }) {
    const stored = model.weights[weights];
    const sizes = stored === undefined ? null : stored.map(BigInt);
    const state = stateOf(model, layout);
    if (state === null) {
      return { categories: null, total: null, reserved: null, perToken: null, weights: sizes && sizes[0], table: null };
    }
    const found = categories(state, kv, context, batch);
    let total = 0n;
    let reserved = 0n;
    for (const item of Object.values(found)) {
      total += item.need;
      reserved += item.reserved;
    }
    return {
      categories: found,
      total,
      reserved,
      perToken: need(state, kv, context + 1n, batch) - total,
      weights: sizes && sizes[0],
      table: sizes && sizes[1],
    };
  }

  /** As `plait memory --budget`: {context, limit}; null where the weights, the state or the limit are not known. */
  function largest(model, { batch, kv, layout, weights }, budget) {
    const stored = model.weights[weights];
    const state = stateOf(model, layout);
    if (stored === undefined || state === null || model.max_context === null) return null;
    const left = budget - BigInt(stored[0]);
    const longest = BigInt(model.max_context);
    if (left < 0n) return { context: null, limit: "weights" };
    if (need(state, kv, 1n, batch) > left) return { context: null, limit: "state" };
    if (need(state, kv, longest, batch) <= left) return { context: longest, limit: "max_context" };
    let fits = 1n;
    let tooLarge = longest;
    while (tooLarge - fits > 1n) {
      const middle = (fits + tooLarge) / 2n;
      if (need(state, kv, middle, batch) <= left) fits = middle;
      else tooLarge = middle;
    }
    return { context: fits, limit: "budget" };
  }

  /** Keys that all queries of a context meet. */
  function keysSeen(context, limit) {
    const full = within(context, limit);
    return (full * (full + 1n)) / 2n + (context - full) * full;
  }

  function phase(form, batch, context, last) {
    const tokens = last ? 1n : context;
    const found = {};
    let products = 0n;
    for (const [kind, n] of Object.entries(form.products)) {
      found[kind] = batch * BigInt(n) * (kind === "head" ? 1n : tokens);
      products += found[kind];
    }
    for (const [kind, limit, perKey, perToken] of form.mixing) {
      const seen = last ? within(context, limit) : keysSeen(context, limit);
      found[kind] = (found[kind] ?? 0n) + batch * (BigInt(perKey) * seen + BigInt(perToken) * tokens);
    }
    let total = 0n;
    const kinds = {};
    for (const kind of KINDS) {
      if (!found[kind]) continue;
      kinds[kind] = found[kind];
      total += found[kind];
    }
    const heads = total + batch * (tokens - 1n) * BigInt(form.products.head ?? 0);
    return { tokens: batch * tokens, total, totalAllLogits: heads, kinds, products, mixing: total - products };
  }

  /** As `plait flops`: {prefill, decode}; null where the graph is not known. */
  function flops(model, { context, batch }) {
    if (model.flops === null) return null;
    return { prefill: phase(model.flops, batch, context, false), decode: phase(model.flops, batch, context, true) };
  }

  /** n / d to the nearest whole number, halves to the even one. */
  function nearest(n, d) {
    const whole = n / d;
    const twice = 2n * (n % d);
    return twice > d || (twice === d && whole % 2n === 1n) ? whole + 1n : whole;
  }

  /** Bytes of the weights a step of `tokens` tokens reads; of experts those touched on average. */
  function weightsRead(form, tokens) {
    let total = BigInt(form.whole);
    for (const [size, rows] of form.tables) total += (BigInt(size) * least(tokens, BigInt(rows))) / BigInt(rows);
    for (const [size, every, active, times] of form.experts) {
      let touched;
      if (tokens === 1n) touched = nearest(BigInt(size) * BigInt(active), BigInt(every));
      else touched = BigInt(Math.round(Number(size) * (1 - (1 - active / every) ** Number(tokens))));
      total += BigInt(times) * touched;
    }
    return total;
  }

  /** Bytes that a step of each phase moves; null where the weights or what is read of the state is not known. */
  function traffic(model, { context, batch, kv, weights }) {
    const fetched = model.fetched[weights];
    if (!fetched || model.reads === null) return null;
    const f = place(kv);
    const snapshots = BigInt(model.reads.snapshots[f]);
    let rows = 0n;
    for (const [limit, sizes] of model.reads.rows) rows += within(context, limit) * BigInt(sizes[f]);
    const sum = (weightsBytes, read, written) => ({
      weights: weightsBytes,
      read,
      written,
      total: weightsBytes + read + written,
    });
    return {
      prefill: sum(weightsRead(fetched, batch * context), 0n, need(model.state.runtime, kv, context, batch)),
      decode: sum(weightsRead(fetched, batch), batch * (rows + snapshots), batch * snapshots),
    };
  }

  function bound(tokens, work, bytes, bandwidth, rate) {
    const byBandwidth = Number(tokens * bandwidth) / Number(bytes);
    const byFlops = Number(tokens * rate) / Number(work);
    const binds = byBandwidth <= byFlops ? "bandwidth" : "flops";
    return { tokensPerSecond: Math.min(byBandwidth, byFlops), binds, byBandwidth, byFlops };
  }

  /** As `plait flops --bandwidth --flops`: tokens per second at most, of both phases. */
  function bounds(model, settings) {
    const work = flops(model, settings);
    const moved = traffic(model, settings);
    if (work === null || moved === null) return null;
    const of = (name) =>
      bound(work[name].tokens, work[name].total, moved[name].total, settings.bandwidth, settings.flops);
    return { prefill: of("prefill"), decode: of("decode"), traffic: moved };
  }

  plait.account = { memory, largest, flops, traffic, bounds };
})(globalThis.plait);
