// The picked models side by side: what they take, charts against the context, every figure exactly.
(function (plait) {
  "use strict";
  const { html, useState, Icon } = plait.ui;
  const { units, account, data } = plait;
  const { figures, Strip } = plait.table;
  const { Charts } = plait.charts;

  const percent = (part, whole) => (whole === 0n ? 0 : Number((part * 100000n) / whole) / 1000);

  function Card({ row, at, state, t, drop }) {
    const { model, memory, bounds, total } = row;
    const beyond = model.max_context !== null && state.context > BigInt(model.max_context);
    const fact = (label, value, title) => html`<div><dt>${label}</dt><dd title=${title}>${value ?? "–"}</dd></div>`;
    const short = (n) => (n === null ? null : units.shortBytes(n));
    return html`<article class=${`card series-${at}`} data-card=${model.id}>
      <header>
        <h3>${model.title}</h3>
        <button type="button" class="icon" aria-label=${t("drop model", { name: model.title })} onClick=${() => drop(model)}><${Icon} name="close" /></button>
      </header>
      <p class="big" data-exact=${total === null ? undefined : total.toString()}>${total === null ? "–" : units.shortBytes(total)}</p>
      <p class="small">${t("state and weights", { state: short(memory.total) ?? "–", weights: short(memory.weights) ?? "–" })}</p>
      <${Strip} model=${model} t=${t} />
      <dl>
        ${fact(t("per token"), short(memory.perToken), memory.perToken === null ? undefined : `${units.grouped(memory.perToken)} B`)}
        ${fact(t("context limit"), model.max_context === null ? null : units.tokens(model.max_context))}
        ${fact(t("prefill column"), bounds && units.speed(bounds.prefill.tokensPerSecond), bounds ? t(`set by ${bounds.prefill.binds}`) : undefined)}
        ${fact(t("decode column"), bounds && units.speed(bounds.decode.tokensPerSecond), bounds ? t(`set by ${bounds.decode.binds}`) : undefined)}
      </dl>
      ${beyond && html`<p class="warn">${t("beyond limit long", { n: units.tokens(model.max_context) })}</p>`}
      ${row.fits !== null && html`<p class=${row.fits ? "fits" : "over"}>${t(row.fits ? "fits budget" : "over budget")}</p>`}
      ${model.notes.length > 0 && html`<details><summary>${t("notes", { n: model.notes.length })}</summary><ul>${model.notes.map((note) => html`<li key=${note}>${note}</li>`)}</ul></details>`}
    </article>`;
  }

  /** Memory by category, all models on one linear scale. */
  function Bars({ rows, t }) {
    const [whole, setWhole] = useState(false);
    const kinds = [...data.constants.categories];
    const parts = rows.map(({ memory }) => {
      const found = memory.categories === null ? [] : kinds.map((kind) => [kind, memory.categories[kind].need]);
      return whole && memory.weights !== null ? [["weights", memory.weights], ...found] : found;
    });
    const sum = (list) => list.reduce((total, [, n]) => total + n, 0n);
    const most = parts.map(sum).reduce((a, b) => (a > b ? a : b), 1n);
    const shown = [...(whole ? ["weights"] : []), ...kinds].filter((kind) => parts.some((list) => list.some(([k, n]) => k === kind && n > 0n)));
    return html`<section class="panel bars" aria-label=${t("by category")}>
      <header><h3>${t("by category")}</h3>
        <label class="check"><input type="checkbox" checked=${whole} onChange=${(e) => setWhole(e.target.checked)} />${t("with weights")}</label>
      </header>
      <ul class="key">${shown.map((kind) => html`<li key=${kind}><i class=${`dot cat-${kind}`} aria-hidden="true"></i>${t(`category ${kind}`)}</li>`)}</ul>
      ${rows.map(({ model }, i) => html`<div class="barline" key=${model.id}>
        <span class="label">${model.title}</span>
        <span class="track" aria-hidden="true">${parts[i].filter(([, n]) => n > 0n).map(([kind, n]) => html`<i
          key=${kind} class=${`cat-${kind}`} style=${`width:${percent(n, most)}%`} title=${`${t(`category ${kind}`)}: ${units.bytes(n)}`}
        ></i>`)}</span>
        <span class="value">${parts[i].length ? units.shortBytes(sum(parts[i])) : "–"}</span>
      </div>`)}
    </section>`;
  }

  function Exactly({ rows, state, t }) {
    const { categories, kinds } = data.constants;
    const work = rows.map(({ model }) => account.flops(model, state));
    const speed = (n) => units.speed(n);
    const line = (id, label, values, say = units.grouped, short = null) => html`<tr key=${id} data-line=${id}>
      <th scope="row">${label}</th>
      ${values.map((n, i) => html`<td key=${i} data-exact=${n === null || n === undefined ? undefined : n.toString()}>${n === null || n === undefined
        ? html`<span class="unknown">–</span>`
        : html`${say(n)}${short && n !== 0n && html`<small>${short(n)}</small>`}`}</td>`)}
    </tr>`;
    const group = (label, lines) => {
      const shown = lines.filter(Boolean);
      return shown.length > 0 && html`<tbody><tr class="group"><th scope="rowgroup" colspan=${rows.length + 1}>${label}</th></tr>${shown}</tbody>`;
    };
    const bytes = (id, label, values) => line(id, label, values, units.grouped, units.bytes);
    const of = (kind, field) => rows.map(({ memory }) => memory.categories && memory.categories[kind][field]);
    const flop = (n) => units.amount(n, "FLOP");
    const there = (values) => values.some((n) => n !== null && n !== undefined && n !== 0n);
    const phase = (name) =>
      group(t(`phase ${name}`), [
        line(`${name}.total`, t("total"), work.map((found) => found && found[name].total), units.grouped, flop),
        ...kinds.map((kind) => {
          const values = work.map((found) => (found ? (found[name].kinds[kind] ?? null) : null));
          return there(values) && line(`${name}.${kind}`, t(`flops ${kind}`), values, units.grouped, flop);
        }),
      ]);
    const bound = (name, field) => rows.map(({ bounds }) => bounds && bounds[name][field]);
    const moved = (name, field) => rows.map(({ bounds }) => bounds && bounds.traffic[name][field]);
    return html`<section class="panel" aria-label=${t("exactly")}>
      <header><h3>${t("exactly")}</h3><small>${t("exactly note")}</small></header>
      <div class="wide" tabindex="0" role="region" aria-label=${t("exactly")}><table class="exactly">
        <thead><tr><td></td>${rows.map(({ model }, i) => html`<th scope="col" class=${`series-${i}`} key=${model.id}>${model.title}</th>`)}</tr></thead>
        ${group(t("phase memory"), [
          bytes("total_bytes", t("all state"), rows.map(({ memory }) => memory.total)),
          ...categories.map((kind) => there(of(kind, "need")) && bytes(`need.${kind}`, t(`category ${kind}`), of(kind, "need"))),
          bytes("reserved_bytes", t("reserved"), rows.map(({ memory }) => memory.reserved)),
          bytes("per_token_bytes", t("per token"), rows.map(({ memory }) => memory.perToken)),
          bytes("weights_bytes", t("weights"), rows.map(({ memory }) => memory.weights)),
          there(rows.map(({ memory }) => memory.table)) && bytes("table_bytes", t("per-layer table"), rows.map(({ memory }) => memory.table)),
          bytes("all", t("state and weights together"), rows.map(({ total }) => total)),
          state.budget !== null && line("fit", t("fit long"), rows.map(({ fit }) => fit && fit.context)),
        ])}
        ${phase("prefill")}
        ${phase("decode")}
        ${group(t("phase bound"), ["prefill", "decode"].flatMap((name) => [
          line(`${name}.tokens_per_second`, `${t(name)}, ${t("tokens a second")}`, bound(name, "tokensPerSecond"), speed),
          line(`${name}.by_bandwidth`, t("by bandwidth"), bound(name, "byBandwidth"), speed),
          line(`${name}.by_flops`, t("by arithmetic"), bound(name, "byFlops"), speed),
          bytes(`${name}.bytes`, t("bytes a step"), moved(name, "total")),
        ]))}
      </table></div>
    </section>`;
  }

  /** A word of a shell's command line. */
  const quoted = (word) => (/^[\w.\/:@=+-]+$/.test(word) ? word : `'${word.replace(/'/g, `'\\''`)}'`);

  function Commands({ rows, state, t }) {
    const kv = state.kv === "bf16" ? "" : ` --kv-dtype ${state.kv}`;
    const batch = state.batch === 1n ? "" : ` --batch ${state.batch}`;
    const layout = state.layout === "runtime" ? "" : " --layout kv";
    const budget = state.budget === null ? "" : ` --budget ${units.writeBytes(state.budget)}`;
    const weights = state.weights === "stored" ? "" : ` --weights-dtype ${state.weights}`;
    const asked = `--context ${units.writeCount(state.context)}${batch}${kv}`;
    const machine = `--bandwidth ${units.writeBandwidth(state.bandwidth)} --flops ${units.writeFlops(state.flops)}`;
    const lines = rows.filter(({ model }) => model.state !== null).flatMap(({ model }) => [
      `plait memory ${quoted(model.named)} ${asked}${layout}${budget}`,
      ...(model.flops === null ? [] : [`plait flops ${quoted(model.named)} ${asked} ${machine}${weights}`]),
    ]);
    return html`<section class="panel" aria-label=${t("command line")}>
      <header><h3>${t("command line")}</h3></header>
      <div class="wide" tabindex="0" role="region" aria-label=${t("command line")}><pre class="commands">${lines.join("\n")}</pre></div>
    </section>`;
  }

  function Compare({ state, set, t, picked, drop, theme, lang }) {
    if (!picked.length) {
      return html`<div class="empty"><p>${t("nothing picked")}</p>
        <button type="button" class="primary" onClick=${() => set({ view: "table" })}>${t("go to catalogue")}</button></div>`;
    }
    const rows = picked.map((model) => figures(model, state));
    return html`<div class="compare">
      <div class="cards">${rows.map((row, at) => html`<${Card} key=${row.model.id} ...${{ row, at, state, t, drop }} />`)}</div>
      <${Bars} ...${{ rows, t }} />
      <${Charts} ...${{ state, picked, t, theme, lang, set }} />
      <${Exactly} ...${{ rows, state, t }} />
      <${Commands} ...${{ rows, state, t }} />
    </div>`;
  }

  plait.compare = { Compare };
})(globalThis.plait);
