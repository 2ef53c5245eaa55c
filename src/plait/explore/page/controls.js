// What is asked: sizes with a slider and an exact field each, choices, and the machine.
(function (plait) {
  "use strict";
  const { html, useState, useEffect, useId } = plait.ui;
  const { units, data } = plait;

  /** Whole numbers between powers of two, four to each: 1 2 3 4 5 6 7 8 10 12 14 16 20 ... */
  function quarters(first, last) {
    const found = [];
    for (let power = first; power <= last; power *= 2n) {
      for (const quarter of [4n, 5n, 6n, 7n]) {
        const value = (power * quarter) / 4n;
        if (value <= last && value !== found[found.length - 1]) found.push(value);
      }
    }
    return found;
  }

  /** 1, 1.5, 2, 3, 5, 7 of every power of ten. */
  function decades(first, last) {
    const found = [];
    for (let power = first; power <= last; power *= 10n) {
      for (const tenth of [10n, 15n, 20n, 30n, 50n, 70n]) {
        if ((power * tenth) / 10n <= last) found.push((power * tenth) / 10n);
      }
    }
    return found;
  }

  // To the longest context of all, as far as a slider can tell its places apart.
  let end = 2n ** 20n;
  for (const { max_context: n } of data.models) while (n !== null && end < BigInt(n) && end < 2n ** 40n) end *= 2n;
  const CONTEXTS = quarters(256n, end);
  const BATCHES = quarters(1n, 1024n);
  const BANDWIDTHS = decades(10n ** 10n, 10n ** 14n);
  const RATES = decades(10n ** 11n, 10n ** 17n);

  /** The stop a value is at, or the last one below it. */
  function stop(stops, value) {
    let at = 0;
    while (at + 1 < stops.length && stops[at + 1] <= value) at += 1;
    return at;
  }

  /** A text field that holds a number: what cannot be read stays, is marked, and changes nothing. */
  function Exact({ id, value, parse, write, onChange, label, hint, fault, empty = false }) {
    const [draft, setDraft] = useState(null);
    useEffect(() => setDraft(null), [value]);
    const shown = draft ?? (value === null ? "" : write(value));
    const bad = draft !== null && !(empty && draft.trim() === "") && parse(draft) === null;
    const type = (event) => {
      const text = event.target.value;
      setDraft(text);
      const read = empty && text.trim() === "" ? null : parse(text);
      if (read !== null || (empty && text.trim() === "")) {
        if (read !== value) onChange(read);
      }
    };
    return html`<span class="exact">
      <input
        id=${id} type="text" class=${bad ? "bad" : ""} value=${shown} onInput=${type} aria-label=${label}
        onBlur=${() => !bad && setDraft(null)} aria-invalid=${bad} placeholder=${hint} autocomplete="off"
        spellcheck=${false} title=${bad ? fault : hint}
      />
      ${bad && html`<span class="fault" role="alert">${fault}</span>`}
    </span>`;
  }

  function Size({ name, label, value, stops, parse, write, show, onChange, hint, fault, note }) {
    const id = useId();
    const at = stop(stops, value);
    return html`<div class="size" data-control=${name}>
      <label for=${id}>${label}</label>
      <${Exact} value=${value} ...${{ parse, write, onChange, hint, fault }} label=${label} />
      <input
        id=${id} type="range" min="0" max=${stops.length - 1} step="1" value=${at} aria-valuetext=${show(value)}
        style=${`--at:${(100 * at) / (stops.length - 1)}%`} onInput=${(e) => onChange(stops[Number(e.target.value)])}
      />
      ${note && html`<small>${note}</small>`}
    </div>`;
  }

  function Choice({ name, label, value, options, onChange, note }) {
    const id = useId();
    return html`<div class="choice" data-control=${name}>
      <label for=${id}>${label}</label>
      <select id=${id} value=${value} onChange=${(e) => onChange(e.target.value)}>
        ${options.map(([key, text]) => html`<option value=${key} key=${key}>${text}</option>`)}
      </select>
      ${note && html`<small>${note}</small>`}
    </div>`;
  }

  function Controls({ state, set, t }) {
    const tokens = (n) => t("n tokens", { n: units.tokens(n) });
    const weights = ["stored", ...data.constants.weights];
    const memory = useId();
    return html`<div class="controls">
      <section aria-labelledby="work">
        <h2 id="work">${t("workload")}</h2>
        <${Size}
          name="context" label=${t("context")} value=${state.context} stops=${CONTEXTS} parse=${units.parseCount}
          write=${units.writeCount} show=${tokens} onChange=${(context) => set({ context })} hint="32k, 1m, 100000"
          fault=${t("not a count")}
        />
        <${Size}
          name="batch" label=${t("batch")} value=${state.batch} stops=${BATCHES} parse=${units.parseWhole}
          write=${(n) => n.toString()} show=${(n) => n.toString()} onChange=${(batch) => set({ batch })} hint="1, 8, 64"
          fault=${t("not a whole number")}
        />
        <${Choice}
          name="kv" label=${t("keys and values")} value=${state.kv} onChange=${(kv) => set({ kv })}
          options=${data.constants.kv.map((name) => [name, name])}
        />
        <${Choice}
          name="layout" label=${t("layout")} value=${state.layout} onChange=${(layout) => set({ layout })}
          options=${[["runtime", t("layout runtime")], ["kv", t("layout kv")]]}
        />
        <${Choice}
          name="weights" label=${t("weights")} value=${state.weights} onChange=${(chosen) => set({ weights: chosen })}
          options=${weights.map((name) => [name, name === "stored" ? t("as stored") : name])}
        />
      </section>
      <section aria-labelledby="machine">
        <h2 id="machine">${t("machine")}</h2>
        <${Size}
          name="bandwidth" label=${t("bandwidth")} value=${state.bandwidth} stops=${BANDWIDTHS}
          parse=${units.parseBandwidth} write=${units.writeBandwidth} show=${units.writeBandwidth}
          onChange=${(bandwidth) => set({ bandwidth })} hint="50GB/s, 1.5TB/s" fault=${t("not a bandwidth")}
        />
        <${Size}
          name="flops" label=${t("arithmetic")} value=${state.flops} stops=${RATES} parse=${units.parseFlops}
          write=${units.writeFlops} show=${units.writeFlops} onChange=${(flops) => set({ flops })}
          hint="400GFLOP/s, 100TFLOP/s" fault=${t("not a rate")}
        />
        <div class="size" data-control="budget">
          <label for=${memory}>${t("memory budget")}</label>
          <${Exact}
            id=${memory} value=${state.budget} parse=${units.parseBytes} write=${units.writeBytes} empty=${true}
            onChange=${(budget) => set({ budget, fits: budget !== null && state.fits })} hint="24GiB" label=${t("memory budget")}
            fault=${t("not bytes")}
          />
          <small>${t("budget note")}</small>
        </div>
      </section>
    </div>`;
  }

  plait.controls = { Controls, Exact, CONTEXTS };
})(globalThis.plait);
