// What the page shows, and the same as an address: everything that can be set stands behind the #.
(function (plait) {
  "use strict";
  const { units, models, data } = plait;
  const { kv, weights, mixers, feeds, families, languages, most } = data.constants;

  const number = (parse, write) => ({ read: parse, write });
  const optional = (parse, write) => ({ read: parse, write: (n) => (n === null ? "" : write(n)) });
  const choice = (values) => ({ read: (text) => (values.includes(text) ? text : null), write: (text) => text });
  const several = (values, limit = Infinity, same = (item) => item) => ({
    read: (text) => {
      const found = text === "" ? [] : text.split(",").map(same);
      const good = found.every((item) => values.includes(item)) && new Set(found).size === found.length;
      return good && found.length <= limit ? found : null;
    },
    write: (list) => list.join(","),
  });
  // Whatever passes an address on may encode more of a name than this page does, or less.
  const encoded = (item) => encodeURIComponent(decodeURIComponent(item));
  const flag = { read: (text) => (text === "1" ? true : null), write: (on) => (on ? "1" : "") };
  const text = { read: (given) => given, write: (given) => given };
  const COLUMNS = ["title", "parameters", "context", "token", "state", "weights", "total", "prefill", "decode", "fit"];
  const sort = {
    read: (given) => (COLUMNS.includes(given.replace(/^-/, "")) ? given : null),
    write: (given) => given,
  };

  // Name in the address -> [field, how it is read and written].
  const FIELDS = {
    c: ["context", number(units.parseCount, units.writeCount)],
    b: ["batch", number(units.parseWhole, (n) => n.toString())],
    kv: ["kv", choice(kv)],
    layout: ["layout", choice(["runtime", "kv"])],
    w: ["weights", choice(["stored", ...weights])],
    bw: ["bandwidth", number(units.parseBandwidth, units.writeBandwidth)],
    fl: ["flops", number(units.parseFlops, units.writeFlops)],
    mem: ["budget", optional(units.parseBytes, units.writeBytes)],
    view: ["view", choice(["table", "compare", "pictures"])],
    pick: ["pick", several([...models.keys()].map(encodeURIComponent), most, encoded)],
    q: ["search", text],
    family: ["family", choice(["", ...families])],
    mixer: ["mixers", several(mixers)],
    feed: ["feeds", several(feeds)],
    max: ["maxParameters", optional(units.parseParameters, units.writeParameters)],
    min: ["minContext", optional(units.parseCount, units.writeCount)],
    runs: ["runs", flag],
    fits: ["fits", flag],
    sort: ["sort", sort],
    picture: ["picture", choice(["model", "layers"])],
    theme: ["theme", choice(["light", "dark"])],
    lang: ["lang", choice(languages)],
  };

  const DEFAULTS = Object.freeze({
    context: 32768n,
    batch: 1n,
    kv: "bf16",
    layout: "runtime",
    weights: "stored",
    bandwidth: 10n ** 12n,
    flops: 10n ** 14n,
    budget: null,
    view: "table",
    pick: data.pick.map(encodeURIComponent),
    search: "",
    family: "",
    mixers: [],
    feeds: [],
    maxParameters: null,
    minContext: null,
    runs: false,
    fits: false,
    sort: "title",
    picture: "model",
    theme: null,
    lang: null,
  });

  /** The state an address describes, and the parts of it that say nothing this page understands. */
  function read(hash) {
    const state = { ...DEFAULTS };
    const faults = [];
    for (const part of hash.replace(/^#/, "").split("&")) {
      if (part === "") continue;
      const at = part.indexOf("=");
      const found = at > 0 ? FIELDS[part.slice(0, at)] : undefined;
      let given = null;
      try {
        const raw = part.slice(at + 1);
        // Names of models stay encoded, since a comma separates them.
        given = found === undefined ? null : found[1].read(found[0] === "pick" ? raw : decodeURIComponent(raw));
      } catch {
        given = null;
      }
      if (given === null) faults.push(part.slice(0, 60));
      else state[found[0]] = given;
    }
    return { state, faults };
  }

  /** The address of a state: only what differs from the defaults. */
  function write(state) {
    const parts = [];
    for (const [name, [field, { write: say }]] of Object.entries(FIELDS)) {
      const value = state[field];
      if (value === null) continue;
      const said = say(value);
      const usual = DEFAULTS[field] === null ? "" : say(DEFAULTS[field]);
      if (said === usual) continue;
      parts.push(`${name}=${field === "pick" ? said : encodeURIComponent(said).replace(/%2C/g, ",").replace(/%2F/g, "/")}`);
    }
    return parts.length ? `#${parts.join("&")}` : "#";
  }

  const picked = (state) => state.pick.map((id) => models.get(decodeURIComponent(id)));

  plait.state = { DEFAULTS, COLUMNS, read, write, picked, key: (model) => encodeURIComponent(model.id) };
})(globalThis.plait);
