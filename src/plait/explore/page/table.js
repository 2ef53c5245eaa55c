// The catalogue: filters, and a table that is sorted, walked through with the arrow keys and picked from.
(function (plait) {
  "use strict";
  const { html, useState, useEffect, useId, useRef } = plait.ui;
  const { units, data, account } = plait;
  const { Exact } = plait.controls;
  const { key } = plait.state;

  /** All figures of a row under these settings; null where the model does not tell. */
  function figures(model, state) {
    const memory = account.memory(model, state);
    const bounds = account.bounds(model, state);
    const known = memory.total !== null && memory.weights !== null;
    const total = known ? memory.total + memory.weights : null;
    const fit = state.budget === null ? null : account.largest(model, state, state.budget);
    return { model, memory, bounds, total, fits: total === null || state.budget === null ? null : total <= state.budget, fit };
  }

  /** Whether each word of a search begins a word of a model's names; from three letters on it may stand inside one. */
  function matches(model, search) {
    const names = `${model.title} ${model.name} ${model.hub ?? ""} ${model.family}`.toLowerCase();
    const parts = names.split(/[\s/_-]+/);
    return search.toLowerCase().split(/\s+/).every((word) =>
      word.length > 2 ? names.includes(word) : parts.some((part) => part.startsWith(word)),
    );
  }

  function passes({ model, fits }, state) {
    const used = model.parameters && BigInt(model.parameters.used);
    return (
      matches(model, state.search) &&
      (state.family === "" || model.family === state.family) &&
      state.mixers.every((kind) => model.mixers.includes(kind)) &&
      state.feeds.every((kind) => model.feeds.includes(kind)) &&
      (state.maxParameters === null || (used !== null && used <= state.maxParameters)) &&
      (state.minContext === null || (model.max_context !== null && BigInt(model.max_context) >= state.minContext)) &&
      (!state.runs || model.runs) &&
      (!state.fits || state.budget === null || fits === true)
    );
  }

  const VALUES = {
    title: (row) => row.model.title.toLowerCase(),
    parameters: (row) => row.model.parameters && BigInt(row.model.parameters.used),
    context: (row) => (row.model.max_context === null ? null : BigInt(row.model.max_context)),
    token: (row) => row.memory.perToken,
    state: (row) => row.memory.total,
    weights: (row) => row.memory.weights,
    total: (row) => row.total,
    prefill: (row) => row.bounds && row.bounds.prefill.tokensPerSecond,
    decode: (row) => row.bounds && row.bounds.decode.tokensPerSecond,
    fit: (row) => row.fit && (row.fit.context ?? 0n),
  };

  /** Rows in order; what is not known comes last either way, and equals stand by name. */
  function sorted(rows, sort) {
    const down = sort.startsWith("-");
    const value = VALUES[sort.replace(/^-/, "")];
    const names = new Intl.Collator("en", { numeric: true });
    const order = (a, b) => (typeof a === "string" ? names.compare(a, b) : a < b ? -1 : a > b ? 1 : 0);
    return [...rows].sort((one, other) => {
      const a = value(one);
      const b = value(other);
      if ((a === null) !== (b === null)) return a === null ? 1 : -1;
      const by = a === null ? 0 : order(a, b);
      return (down ? -by : by) || names.compare(one.model.title, other.model.title);
    });
  }

  /** Layers from the first to the last, a stripe each, coloured by mixer. */
  function Strip({ model, t }) {
    if (!model.layers.length) return null;
    const total = model.layers.reduce((sum, [, , n]) => sum + n, 0);
    const counts = new Map();
    for (const [mixer, , n] of model.layers) counts.set(mixer, (counts.get(mixer) ?? 0) + n);
    const said = [...counts].map(([mixer, n]) => `${n} ${t(`short ${mixer}`)}`).join(" + ");
    let at = 0;
    return html`<div class="layers">
      <svg class="strip" viewBox=${`0 0 ${total} 10`} preserveAspectRatio="none" aria-hidden="true">
        ${model.layers.map(([mixer, , n]) => {
          const x = at;
          at += n;
          return html`<rect x=${x} y="0" width=${n} height="10" class=${`mix-${mixer}`} key=${x} />`;
        })}
      </svg>
      <small>${said}</small>
    </div>`;
  }

  function Filters({ state, set, t, shown, searchField }) {
    const family = useId();
    const toggle = (field, kind) => () =>
      set({ [field]: state[field].includes(kind) ? state[field].filter((k) => k !== kind) : [...state[field], kind] });
    const chip = (field, kind) => html`<button
      type="button" class=${`chip mix-${kind}`} aria-pressed=${state[field].includes(kind)} key=${kind}
      onClick=${toggle(field, kind)} data-filter=${kind}
    ><i class="dot" aria-hidden="true"></i>${t(`kind ${kind}`)}</button>`;
    const more = [state.family, state.maxParameters, state.minContext, state.runs, state.fits].filter(Boolean).length;
    const [open, setOpen] = useState(more > 0);
    const any = more + state.mixers.length + state.feeds.length + (state.search ? 1 : 0);
    const clear = () =>
      set({ search: "", family: "", mixers: [], feeds: [], maxParameters: null, minContext: null, runs: false, fits: false });
    return html`<div class="filters" role="search" aria-label=${t("filter")}>
      <div class="line">
        <span class="search">
          <input
            type="search" ref=${searchField} value=${state.search} placeholder=${t("search")} aria-label=${t("search")}
            onInput=${(e) => set({ search: e.target.value })}
          />
          <kbd aria-hidden="true">/</kbd>
        </span>
        <button type="button" class="plain" aria-expanded=${open} onClick=${() => setOpen(!open)}>
          ${t("more filters")}${more ? ` (${more})` : ""}
        </button>
        <output class="shown">${t("shown", { n: shown, of: data.models.length })}</output>
        ${any > 0 && html`<button type="button" class="plain" onClick=${clear}>${t("clear filters")}</button>`}
      </div>
      <div class="line chips">
        ${data.constants.mixers.map((kind) => chip("mixers", kind))}
        <span class="bar" aria-hidden="true"></span>
        ${data.constants.feeds.map((kind) => chip("feeds", kind))}
      </div>
      ${open && html`<div class="line more">
        <label for=${family}>${t("family")}
          <select id=${family} value=${state.family} onChange=${(e) => set({ family: e.target.value })}>
            <option value="">${t("all families")}</option>
            ${data.constants.families.map((name) => html`<option value=${name} key=${name}>${name}</option>`)}
          </select>
        </label>
        <label>${t("at most parameters")}
          <${Exact}
            value=${state.maxParameters} parse=${units.parseParameters} write=${units.writeParameters} empty=${true} hint="9B"
            onChange=${(maxParameters) => set({ maxParameters })} fault=${t("not parameters")} label=${t("at most parameters")}
          />
        </label>
        <label>${t("at least context")}
          <${Exact}
            value=${state.minContext} parse=${units.parseCount} write=${units.writeCount} empty=${true} hint="128k"
            onChange=${(minContext) => set({ minContext })} fault=${t("not a count")} label=${t("at least context")}
          />
        </label>
        <label class="check">
          <input type="checkbox" checked=${state.runs} onChange=${(e) => set({ runs: e.target.checked })} />
          ${t("only runs")}
        </label>
        <label class="check">
          <input
            type="checkbox" checked=${state.fits} disabled=${state.budget === null}
            onChange=${(e) => set({ fits: e.target.checked })}
          />
          ${t("only fits")}
        </label>
      </div>`}
    </div>`;
  }

  const exact = (n) => (n === null ? undefined : n.toString());
  const unknown = html`<span class="unknown">–</span>`;

  function Share({ weights, total }) {
    const part = total === 0n ? 0 : Number((weights * 1000n) / total) / 10;
    return html`<span class="share" aria-hidden="true"><i style=${`width:${part}%`}></i></span>`;
  }

  function Row({ row, state, t, picks, toggle, current, onFocus, show }) {
    const { model, memory, bounds, total } = row;
    const at = picks.indexOf(key(model));
    const cell = (name, label, content, value) => html`<td
      class=${`n ${name}`} data-label=${label} data-field=${name} data-exact=${value}
    >${content === null ? unknown : content}</td>`;
    const used = model.parameters && BigInt(model.parameters.used);
    const active = model.parameters && BigInt(model.parameters.active);
    const beyond = model.max_context !== null && state.context > BigInt(model.max_context);
    const named = (n) => html`<span title=${`${units.grouped(n)} B`}>${units.shortBytes(n)}</span>`;
    const pick = (event) => {
      event.stopPropagation();
      toggle(model);
    };
    return html`<tr
      data-model=${model.id} aria-selected=${at >= 0} class=${at >= 0 ? `picked series-${at}` : ""} tabindex=${current ? 0 : -1}
      onFocus=${onFocus} onClick=${() => String(getSelection()) === "" && toggle(model)}
    >
      <td class="pick"><input
        type="checkbox" tabindex="-1" checked=${at >= 0} onClick=${pick} aria-label=${t("pick model", { name: model.title })}
      /></td>
      <th scope="row" class="name">
        <button type="button" class="link" tabindex="-1" onClick=${(e) => { e.stopPropagation(); show(model); }}>${model.title}</button>
        <small>${model.family}${model.given ? html` · <em>${t("given")}</em>` : ""}${model.known ? "" : html` · <em>${t("unknown family")}</em>`}</small>
      </th>
      <td class="strips" data-label=${t("layers")}><${Strip} model=${model} t=${t} /></td>
      ${cell("parameters", t("parameters"), used === null ? null : html`<span title=${units.grouped(used)}>${units.count(used)}</span>${active < used && html`<small title=${units.grouped(active)}>${t("n active", { n: units.count(active) })}</small>`}`, exact(used))}
      ${cell("context", t("context limit"), model.max_context === null ? null : html`<span title=${units.grouped(BigInt(model.max_context))}>${units.tokens(model.max_context)}</span>`, model.max_context)}
      ${cell("token", t("per token"), memory.perToken === null ? null : named(memory.perToken), exact(memory.perToken))}
      ${cell("state", t("state"), memory.total === null ? null : html`${named(memory.total)}${beyond && html`<small class="warn">${t("beyond limit")}</small>`}`, exact(memory.total))}
      ${cell("weights", t("weights"), memory.weights === null ? null : named(memory.weights), exact(memory.weights))}
      ${cell("total", t("memory"), total === null ? null : html`<b class=${row.fits === false ? "over" : row.fits ? "fits" : ""}>${named(total)}</b><${Share} weights=${memory.weights} total=${total} />`, exact(total))}
      ${cell("prefill", t("prefill column"), bounds && html`<span title=${t(`set by ${bounds.prefill.binds}`)}>${units.speed(bounds.prefill.tokensPerSecond)}</span>`, bounds && bounds.prefill.tokensPerSecond)}
      ${cell("decode", t("decode column"), bounds && html`<span title=${t(`set by ${bounds.decode.binds}`)}>${units.speed(bounds.decode.tokensPerSecond)}</span>`, bounds && bounds.decode.tokensPerSecond)}
      ${state.budget !== null && cell("fit", t("fit"), row.fit && html`${row.fit.context === null ? t("nothing fits") : units.tokens(row.fit.context)}`, row.fit && exact(row.fit.context))}
    </tr>`;
  }

  function Table({ state, set, t, picks, toggle, show, searchField }) {
    const all = data.models.map((model) => figures(model, state));
    const rows = sorted(all.filter((row) => passes(row, state)), state.sort);
    const body = useRef(null);
    const [current, setCurrent] = useState(null);
    const there = rows.some((row) => row.model.id === current) ? current : rows.length ? rows[0].model.id : null;
    const by = state.sort.replace(/^-/, "");
    const down = state.sort.startsWith("-");
    const columns = [
      ["title", t("model"), t("sort hint")],
      [null, t("layers"), ""],
      ["parameters", t("parameters"), t("parameters hint")],
      ["context", t("context limit"), t("context hint")],
      ["token", t("per token"), t("token hint")],
      ["state", t("state"), t("state hint")],
      ["weights", t("weights"), t("weights hint")],
      ["total", t("memory"), t("memory hint")],
      ["prefill", t("prefill column"), t("prefill hint")],
      ["decode", t("decode column"), t("decode hint")],
      ...(state.budget === null ? [] : [["fit", t("fit"), t("fit hint")]]),
    ];
    const step = (event) => {
      const moves = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1, PageDown: 10, PageUp: -10, Home: -1e6, End: 1e6 };
      if (event.ctrlKey || event.metaKey || event.altKey || event.target.tagName !== "TR") return;
      const at = rows.findIndex((row) => row.model.id === there);
      if (event.key in moves) {
        const next = Math.max(0, Math.min(rows.length - 1, at + moves[event.key]));
        setCurrent(rows[next].model.id);
        body.current.rows[next].focus();
      } else if (event.key === " " || event.key === "x") toggle(rows[at].model);
      else if (event.key === "Enter") show(rows[at].model);
      else return;
      event.preventDefault();
      event.stopPropagation();
    };
    const head = ([name, label, hint], i) => {
      if (name === null) return html`<th scope="col" key=${i} class="strips" data-column="layers">${label}</th>`;
      const sortedBy = by === name ? (down ? "descending" : "ascending") : "none";
      const turn = () => set({ sort: by === name ? (down ? name : `-${name}`) : name === "title" ? name : `-${name}` });
      return html`<th scope="col" key=${name} aria-sort=${sortedBy} class=${name === "title" ? "" : `n ${name}`} data-column=${name}>
        <button type="button" onClick=${turn} title=${hint} data-sort=${name}>${label}<i aria-hidden="true"></i></button>
      </th>`;
    };
    return html`<div class="catalogue">
      <${Filters} ...${{ state, set, t, shown: rows.length, searchField }} />
      <div class="sort-phone">
        <label>${t("sort by")} <select value=${by} onChange=${(e) => set({ sort: e.target.value === "title" ? "title" : `-${e.target.value}` })}>
          ${columns.filter(([name]) => name).map(([name, label]) => html`<option value=${name} key=${name}>${label}</option>`)}
        </select></label>
        <button type="button" class="plain" onClick=${() => set({ sort: down ? by : `-${by}` })}>${down ? t("descending") : t("ascending")}</button>
      </div>
      ${rows.length === 0
        ? html`<p class="nothing">${t("nothing passes")}</p>`
        : html`<table role="grid" aria-multiselectable="true" aria-label=${t("catalogue")}>
          <thead><tr><th class="pick"><span class="hidden">${t("pick")}</span></th>${columns.map(head)}</tr></thead>
          <tbody ref=${body} onKeyDown=${step}>
            ${rows.map((row) => html`<${Row}
              key=${row.model.id} ...${{ row, state, t, picks, toggle, show }} current=${row.model.id === there}
              onFocus=${() => setCurrent(row.model.id)}
            />`)}
          </tbody>
        </table>`}
    </div>`;
  }

  plait.table = { Table, Strip, figures, passes, sorted };
})(globalThis.plait);
