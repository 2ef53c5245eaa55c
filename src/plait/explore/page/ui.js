// The libraries under the names the page uses, and the icons of its buttons.
(function (plait) {
  "use strict";
  const { h, render } = globalThis.preact;
  const html = globalThis.htm.bind(h);

  // Strokes in a square of 20.
  const ICONS = {
    close: "M5 5l10 10M15 5L5 15",
    link: "M8.5 11.5a3.5 3.5 0 0 0 5 0l2.5-2.5a3.5 3.5 0 0 0-5-5l-1 1M11.5 8.5a3.5 3.5 0 0 0-5 0L4 11a3.5 3.5 0 0 0 5 5l1-1",
    sun: "M10 6.8a3.2 3.2 0 1 0 0 6.4a3.2 3.2 0 0 0 0-6.4M10 2v1.6M10 16.4V18M2 10h1.6M16.4 10H18M4.3 4.3l1.2 1.2M14.5 14.5l1.2 1.2M4.3 15.7l1.2-1.2M14.5 5.5l1.2-1.2",
    moon: "M16.5 11.8A7 7 0 0 1 8.2 3.5a7 7 0 1 0 8.3 8.3z",
    keys: "M2.5 5.5h15v9h-15zM5.5 8.5h.01M8.5 8.5h.01M11.5 8.5h.01M14.5 8.5h.01M6.5 11.7h7",
    plus: "M10 4v12M4 10h12",
    minus: "M4 10h12",
    fit: "M3 7V3h4M17 7V3h-4M3 13v4h4M17 13v4h-4M7 7h6v6H7z",
    full: "M12 3h5v5M8 17H3v-5M17 3l-5.5 5.5M3 17l5.5-5.5",
    save: "M10 3v9M6 8.5l4 4 4-4M3.5 16.5h13",
  };

  function Icon({ name }) {
    return html`<svg class="glyph" viewBox="0 0 20 20" aria-hidden="true"><path d=${ICONS[name]} /></svg>`;
  }

  plait.ui = { ...globalThis.preactHooks, h, render, html, Icon };
})(globalThis.plait);
