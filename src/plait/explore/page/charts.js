// Charts against the context, drawn by uPlot; both axes are logarithmic.
(function (plait) {
  "use strict";
  const { html, useState, useEffect, useRef } = plait.ui;
  const { units, account } = plait;
  const { CONTEXTS } = plait.controls;

  const POINTS = 6;
  const HEIGHT = 240;
  // Seconds that clocks have names for.
  const TIMES = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1, 10, 60, 600, 3600, 36000, 360000, 3600000];

  /** At most `POINTS` powers of `base` between two values. */
  function powers(base, low, high) {
    const first = Math.ceil(Math.log(low) / Math.log(base) - 1e-9);
    const last = Math.floor(Math.log(high) / Math.log(base) + 1e-9);
    const step = Math.max(1, Math.ceil((last - first + 1) / POINTS));
    const found = [];
    for (let power = first; power <= last; power += step) found.push(base ** power);
    if (found.length > 2 || base === 2) return found;
    // Within few powers of ten their halves and fifths are marked as well.
    const finer = [];
    for (let power = first - 1; power <= last; power += 1) finer.push(...[1, 2, 5].map((digit) => digit * base ** power));
    return finer.filter((n) => n >= low && n <= high);
  }

  // What is drawn: a value of a model at a context, or null where the model does not tell or its limit is passed.
  const CHARTS = {
    memory: { base: 2, value: (model, asked) => account.memory(model, asked).total, say: units.shortBytes },
    decode: { base: 10, value: (model, asked) => account.bounds(model, asked)?.decode.tokensPerSecond ?? null, say: units.speed },
    prefill: {
      base: 10,
      value: (model, asked) => {
        const found = account.bounds(model, asked);
        return found && Number(asked.context * asked.batch) / found.prefill.tokensPerSecond;
      },
      say: units.seconds,
      marks: TIMES,
    },
    flops: {
      base: 10,
      value: (model, asked) => {
        const found = account.flops(model, asked);
        return found && Number(found.decode.total) / Number(found.decode.tokens);
      },
      say: (n) => units.amount(n, "FLOP"),
    },
  };

  function style(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function Chart({ name, state, picked, t, theme, lang, onPick }) {
    const place = useRef(null);
    const { base, value, say, marks } = CHARTS[name];
    const [over, setOver] = useState(null);
    const title = t(`chart ${name}`);
    const ends = picked.map((model) => Number(model.max_context ?? 1048576));
    const longest = [...ends, Number(state.context)].reduce((a, b) => Math.max(a, b), 1024);
    const inner = CONTEXTS.filter((n) => n <= BigInt(longest));
    const xs = [...new Set([...inner, ...ends.map((n) => BigInt(n)), state.context])].sort((a, b) => (a < b ? -1 : 1));
    const lines = picked.map((model, i) =>
      xs.map((context) => {
        if (Number(context) > ends[i]) return null;
        const found = value(model, { ...state, context });
        // There is no zero on a logarithmic axis.
        return found === null || Number(found) === 0 ? null : Number(found);
      }),
    );
    const key = JSON.stringify([name, theme, lang, picked.map((model) => model.id)]);
    const latest = useRef(null);
    latest.current = { xs, lines, context: Number(state.context), onPick };
    const chart = useRef(null);

    useEffect(() => {
      const text = style("--muted");
      const grid = { stroke: style("--grid"), width: 1 };
      const range = (u, low, high) => {
        const found = latest.current.lines.flat().filter((n) => n !== null && n > 0);
        if (!found.length) return [1, 10];
        const least = Math.min(...found);
        const most = Math.max(...found);
        return [least / 1.3, most * 1.3];
      };
      const axis = { stroke: text, grid, ticks: grid, font: `12px ${style("--font")}` };
      const marker = (u) => {
        const at = latest.current.context;
        const x = u.valToPos(at, "x", true);
        const { ctx } = u;
        ctx.save();
        ctx.strokeStyle = style("--ink");
        ctx.setLineDash([4 * devicePixelRatio, 4 * devicePixelRatio]);
        ctx.beginPath();
        ctx.moveTo(x, u.bbox.top);
        ctx.lineTo(x, u.bbox.top + u.bbox.height);
        ctx.stroke();
        ctx.setLineDash([]);
        const place = latest.current.xs.findIndex((n) => Number(n) === at);
        latest.current.lines.forEach((line, i) => {
          if (line[place] === null) return;
          ctx.fillStyle = style(`--series-${i}`);
          ctx.beginPath();
          ctx.arc(x, u.valToPos(line[place], "y", true), 4 * devicePixelRatio, 0, 2 * Math.PI);
          ctx.fill();
        });
        ctx.restore();
      };
      const options = {
        width: place.current.clientWidth,
        height: HEIGHT,
        padding: [8, 14, 0, 0],
        cursor: { drag: { x: false, y: false }, y: false, points: { size: 7 } },
        legend: { show: false },
        scales: {
          x: { time: false, distr: 3, log: 2, range: (u, low, high) => [low, high] },
          y: { distr: 3, log: base, range },
        },
        axes: [
          { ...axis, size: 34, splits: (u, i, low, high) => powers(2, low, high), values: (u, at) => at.map((n) => units.tokens(Math.round(n))), filter: (u, at) => at },
          { ...axis, size: 76, splits: (u, i, low, high) => (marks ? marks.filter((n) => n >= low && n <= high) : powers(base, low, high)), values: (u, at) => at.map((n) => say(n)), filter: (u, at) => at },
        ],
        series: [
          {},
          ...picked.map((model, i) => ({
            label: model.title,
            stroke: style(`--series-${i}`),
            width: 2,
            points: { show: false },
          })),
        ],
        hooks: { draw: [marker], setCursor: [(u) => setOver(u.cursor.idx ?? null)] },
      };
      const made = new globalThis.uPlot(options, [latest.current.xs.map(Number), ...latest.current.lines], place.current);
      chart.current = made;
      const press = () => {
        if (made.cursor.idx !== null && made.cursor.idx !== undefined) latest.current.onPick(latest.current.xs[made.cursor.idx]);
      };
      made.over.addEventListener("click", press);
      const watch = new ResizeObserver(() => {
        if (place.current) made.setSize({ width: place.current.clientWidth, height: HEIGHT });
      });
      watch.observe(place.current);
      return () => {
        watch.disconnect();
        made.destroy();
        chart.current = null;
      };
    }, [key]);

    useEffect(() => {
      if (chart.current) chart.current.setData([xs.map(Number), ...lines]);
    });

    const here = xs.indexOf(state.context);
    const at = over !== null && over < xs.length ? over : here;
    const said = picked.map((model, i) => `${model.title}: ${lines[i][here] === null ? "–" : say(lines[i][here])}`).join("; ");
    return html`<figure class="chart" data-chart=${name}>
      <figcaption><b>${title}</b><small>${t(`chart ${name} note`)}</small></figcaption>
      <div ref=${place} role="img" aria-label=${`${title}. ${units.tokens(state.context)}: ${said}`}></div>
      <ul class="legend"><li>${t("at n tokens", { n: units.tokens(xs[at]) })}</li>${picked.map((model, i) => html`<li key=${model.id} class=${`series-${i}`}>
        <i class="dot" aria-hidden="true"></i>${model.title} <b>${lines[i][at] === null ? "–" : say(lines[i][at])}</b></li>`)}</ul>
    </figure>`;
  }

  function Charts({ state, picked, t, theme, lang, set }) {
    return html`<div class="charts">
      ${Object.keys(CHARTS).map((name) => html`<${Chart}
        key=${name} ...${{ name, state, picked, t, theme, lang }} onPick=${(context) => set({ context })}
      />`)}
    </div>`;
  }

  plait.charts = { Charts };
})(globalThis.plait);
