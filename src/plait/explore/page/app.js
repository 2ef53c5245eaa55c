// The page as a whole: state and address, keys, language and theme.
(function (plait) {
  "use strict";
  const { html, render, useState, useEffect, useLayoutEffect, useRef, useCallback, Icon } = plait.ui;
  const { data, word, units } = plait;
  const { read, write, picked: pickedOf, key, DEFAULTS } = plait.state;
  const { Controls } = plait.controls;
  const { most } = data.constants;
  const VIEWS = ["table", "compare", "pictures"];
  const DARK = globalThis.matchMedia("(prefers-color-scheme: dark)");
  const WIDE = globalThis.matchMedia("(min-width: 1080px)");

  /** Whether a media query holds, as it changes. */
  function useMedia(query) {
    const [holds, setHolds] = useState(query.matches);
    useEffect(() => {
      const changed = () => setHolds(query.matches);
      query.addEventListener("change", changed);
      return () => query.removeEventListener("change", changed);
    }, []);
    return holds;
  }

  function Mark() {
    return html`<svg class="mark" viewBox="0 0 32 32" aria-hidden="true">
      <path d="M4 6c12 0 12 20 24 20" /><path d="M4 16c8 0 8-10 12-10s4 10 12 10" /><path d="M4 26c12 0 12-20 24-20" />
    </svg>`;
  }

  function Dialog({ open, onClose, title, t, children }) {
    const place = useRef(null);
    useEffect(() => {
      if (open && !place.current.open) place.current.showModal();
      if (!open && place.current.open) place.current.close();
    }, [open]);
    return html`<dialog ref=${place} onClose=${onClose} aria-label=${title} onClick=${(e) => e.target === place.current && place.current.close()}>
      <header><h2>${title}</h2><button type="button" class="icon" aria-label=${t("close")} onClick=${() => place.current.close()}><${Icon} name="close" /></button></header>
      <div>${open && children}</div>
    </dialog>`;
  }

  function Keys({ t }) {
    const rows = [
      ["/", "key search"], ["1 2 3", "key views"], ["↑ ↓", "key rows"], ["Space", "key pick"], ["Enter", "key show"],
      ["[ ]", "key context"], ["+ − 0", "key zoom"], ["t", "key theme"], ["l", "key language"], ["?", "key help"], ["Esc", "key escape"],
    ];
    return html`<table class="keys"><tbody>${rows.map(([keys, text]) => html`<tr key=${text}>
      <td>${keys.split(" ").map((one) => html`<kbd key=${one}>${one}</kbd>`)}</td><td>${t(text)}</td></tr>`)}</tbody></table>`;
  }

  function About({ t, lang }) {
    const at = data.constants.languages.indexOf(lang);
    const list = (texts) => html`<ul>${texts.map((text) => html`<li key=${text[0]}>${text[at]}</li>`)}</ul>`;
    return html`<p>${t("about", { version: data.constants.version })}</p>
      <h3>${t("counted")}</h3>${list(data.sentences.counted)}
      <h3>${t("granted")}</h3>${list(data.sentences.granted)}
      <h3>${t("libraries")}</h3>${data.licences.map(([name, text]) => html`<details key=${name}><summary>${name}</summary><pre>${text}</pre></details>`)}`;
  }

  function App() {
    const first = useRef(null);
    if (first.current === null) first.current = read(location.hash);
    const [state, setState] = useState(first.current.state);
    const [notices, setNotices] = useState(first.current.faults);
    const [toast, setToast] = useState(null);
    const [dialog, setDialog] = useState(null);
    const dark = useMedia(DARK);
    const wide = useMedia(WIDE);
    const searchField = useRef(null);
    const preferred = navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
    const lang = state.lang ?? preferred;
    const theme = state.theme ?? (dark ? "dark" : "light");
    const t = useCallback((name, values) => word(lang, name, values), [lang]);
    const set = useCallback((patch) => setState((old) => ({ ...old, ...patch })), []);
    const latest = useRef(null);
    latest.current = { state, set, lang, theme };

    // The address the page has written or read. Any other was set from outside, and is read before one is written.
    const known = useRef(location.hash);
    const moved = useCallback(() => {
      if (location.hash === known.current) return;
      known.current = location.hash;
      const found = read(location.hash);
      setState(found.state);
      setNotices(found.faults);
    }, []);
    useEffect(() => {
      addEventListener("hashchange", moved);
      moved();
      return () => removeEventListener("hashchange", moved);
    }, []);
    const seen = useRef(state.view);
    // With the drawing itself: later, another address may have been read.
    useLayoutEffect(() => {
      if (location.hash !== known.current) {
        moved();
        return;
      }
      const address = write(state);
      const turned = seen.current !== state.view;
      seen.current = state.view;
      // The way back leads through the views, not through every place of a slider.
      if (address !== (location.hash || "#")) history[turned ? "pushState" : "replaceState"](null, "", address);
      known.current = location.hash;
      if (turned) scrollTo(0, 0);
    }, [state]);
    // Before the effects of the charts, which read the colours.
    useLayoutEffect(() => {
      document.documentElement.dataset.theme = theme;
      document.documentElement.lang = lang === "zh" ? "zh-Hans" : "en";
      document.title = t("page title");
    }, [theme, lang]);
    useEffect(() => {
      if (toast === null) return undefined;
      const timer = setTimeout(() => setToast(null), 3500);
      return () => clearTimeout(timer);
    }, [toast]);

    const picks = state.pick;
    const toggle = (model) => {
      const { state: now } = latest.current;
      const id = key(model);
      if (now.pick.includes(id)) set({ pick: now.pick.filter((one) => one !== id) });
      else if (now.pick.length >= most) setToast(t("at most picked", { n: most }));
      else set({ pick: [...now.pick, id] });
    };
    const show = (model) => {
      const id = key(model);
      const { pick } = latest.current.state;
      set({ view: "pictures", pick: [id, ...pick.filter((one) => one !== id)].slice(0, most) });
    };
    const share = () => {
      const done = () => setToast(t("copied"));
      const failed = () => setToast(t("not copied"));
      if (navigator.clipboard) navigator.clipboard.writeText(location.href).then(done, failed);
      else failed();
    };

    useEffect(() => {
      const press = (event) => {
        if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
        const { state: now, lang: language, theme: shade } = latest.current;
        // From the search field, or from no place in particular, the arrow leads to the rows.
        if (event.key === "ArrowDown" && !event.isComposing && event.target.matches("body, #main, input[type=search]")) {
          const row = document.querySelector(".catalogue tbody tr[tabindex='0']");
          if (row !== null) {
            row.focus();
            event.preventDefault();
            return;
          }
        }
        const typing = event.target.matches("input:not([type=checkbox]):not([type=range]), select, textarea");
        if (typing) {
          if (event.key === "Escape") event.target.blur();
          return;
        }
        if (document.querySelector("dialog[open]")) return;
        if (event.key === "/") {
          set({ view: "table" });
          requestAnimationFrame(() => searchField.current && searchField.current.focus());
        } else if (["1", "2", "3"].includes(event.key)) set({ view: VIEWS[Number(event.key) - 1] });
        else if (event.key === "[") set({ context: now.context > 1n ? now.context / 2n : 1n });
        else if (event.key === "]") set({ context: now.context < 2n ** 59n ? now.context * 2n : now.context });
        else if (event.key === "t") set({ theme: shade === "dark" ? "light" : "dark" });
        else if (event.key === "l") set({ lang: language === "zh" ? "en" : "zh" });
        else if (event.key === "?") setDialog("keys");
        else if (event.key === "Escape" && now.view !== "table") set({ view: "table" });
        else return;
        event.preventDefault();
      };
      addEventListener("keydown", press);
      return () => removeEventListener("keydown", press);
    }, []);

    const picked = pickedOf(state);
    const common = { state, set, t, picked, theme, lang };
    const counts = { table: data.models.length, compare: picked.length, pictures: picked.length };
    const summary = `${units.tokens(state.context)} · ${t("batch")} ${state.batch} · ${state.kv}`;
    return html`
      <a class="skip" href="#main" onClick=${(e) => { e.preventDefault(); document.getElementById("main").focus(); }}>${t("skip")}</a>
      <header class="top">
        <h1><${Mark} /><span>plait</span></h1>
        <nav aria-label=${t("views")}>${VIEWS.map((view) => html`<button
          type="button" key=${view} aria-current=${state.view === view ? "page" : undefined} onClick=${() => set({ view })} data-view=${view}
        >${t(`view ${view}`)}<small>${counts[view]}</small></button>`)}</nav>
        <div class="tools">
          <button type="button" class="icon" onClick=${share} aria-label=${t("copy link")} title=${t("copy link")}><${Icon} name="link" /></button>
          <button type="button" class="icon" onClick=${() => set({ lang: lang === "zh" ? "en" : "zh" })} aria-label=${t("switch language")} title=${t("switch language")}>${lang === "zh" ? "EN" : "中"}</button>
          <button type="button" class="icon" onClick=${() => set({ theme: theme === "dark" ? "light" : "dark" })} aria-label=${t("switch theme")} title=${t("switch theme")}><${Icon} name=${theme === "dark" ? "sun" : "moon"} /></button>
          <button type="button" class="icon" onClick=${() => setDialog("keys")} aria-label=${t("keys")} title=${t("keys")}><${Icon} name="keys" /></button>
        </div>
      </header>
      ${notices.length > 0 && html`<p class="notice" role="alert">${t("address fault", { parts: notices.join(", ") })}
        <button type="button" class="icon" aria-label=${t("close")} onClick=${() => setNotices([])}><${Icon} name="close" /></button></p>`}
      <div class="body">
        <aside aria-label=${t("settings")}>
          <details open=${wide}><summary>${t("settings")}<small>${summary}</small></summary><${Controls} ...${{ state, set, t }} />
            <div class="reset">
              <button type="button" class="plain" onClick=${() => set({ ...DEFAULTS, view: state.view, pick: state.pick, theme: state.theme, lang: state.lang })}>${t("reset")}</button>
              <button type="button" class="plain" onClick=${() => setDialog("about")}>${t("about this")}</button>
            </div>
          </details>
        </aside>
        <main id="main" tabindex="-1">
          ${state.view === "table" && html`<${plait.table.Table} ...${{ ...common, picks, toggle, show, searchField }} />`}
          ${state.view === "compare" && html`<${plait.compare.Compare} ...${common} drop=${toggle} />`}
          ${state.view === "pictures" && html`<${plait.pictures.Pictures} ...${common} />`}
        </main>
      </div>
      ${state.view === "table" && picked.length > 0 && html`<div class="tray" role="region" aria-label=${t("picked")}>
        <ul>${picked.map((model, i) => html`<li key=${model.id} class=${`series-${i}`}><i class="dot" aria-hidden="true"></i>${model.title}
          <button type="button" class="icon" aria-label=${t("drop model", { name: model.title })} onClick=${() => toggle(model)}><${Icon} name="close" /></button></li>`)}</ul>
        <button type="button" class="plain" onClick=${() => set({ pick: [] })}>${t("drop all")}</button>
        <button type="button" class="primary" onClick=${() => set({ view: "compare" })}>${t("compare n", { n: picked.length })}</button>
      </div>`}
      <div class="toast" role="status" aria-live="polite">${toast}</div>
      <${Dialog} open=${dialog === "keys"} onClose=${() => setDialog(null)} title=${t("keys")} t=${t}><${Keys} t=${t} /><//>
      <${Dialog} open=${dialog === "about"} onClose=${() => setDialog(null)} title=${t("about this")} t=${t}><${About} ...${{ t, lang }} /><//>
    `;
  }

  render(html`<${App} />`, document.getElementById("app"));
})(globalThis.plait);
