// Pictures of the picked models, unpacked when they are looked at, to be zoomed and moved.
(function (plait) {
  "use strict";
  const { html, useState, useEffect, useRef, Icon } = plait.ui;
  const STEP = 60;

  /** {model: {"light.en": SVG, ...}, layers: {...}} of one model. */
  async function unpack(model) {
    const packed = Uint8Array.from(atob(model.pictures), (c) => c.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    return JSON.parse(await new Response(stream).text());
  }

  function Picture({ model, shown, theme, lang, t }) {
    const frame = useRef(null);
    const paper = useRef(null);
    const pan = useRef(null);
    const [all, setAll] = useState(null);
    const [fault, setFault] = useState(null);

    useEffect(() => {
      let wanted = true;
      setAll(null);
      setFault(null);
      if (model.pictures === null) return undefined;
      unpack(model).then(
        (found) => wanted && setAll(found),
        (error) => wanted && setFault(String(error)),
      );
      return () => {
        wanted = false;
      };
    }, [model.id]);

    const svg = all && all[shown][`${theme}.${lang}`];
    useEffect(() => {
      if (!svg) return undefined;
      const made = globalThis.Panzoom(paper.current, { maxScale: 16, minScale: 0.1, step: 0.25, cursor: "grab" });
      pan.current = made;
      const wheel = (event) => {
        // A pinch on a touchpad comes as a wheel with the control key; without it the page scrolls.
        if (event.ctrlKey || event.metaKey) made.zoomWithWheel(event);
        else if (document.fullscreenElement === null) return;
        else made.pan(-event.deltaX / made.getScale(), -event.deltaY / made.getScale(), { relative: true });
        event.preventDefault();
      };
      const place = frame.current;
      // As long as all of the picture's width is there a finger scrolls the page, from then on it moves the picture.
      const fingers = () => {
        const touch = made.getScale() > 1.01 ? "none" : "pan-y";
        place.style.touchAction = touch;
        paper.current.style.touchAction = touch;
      };
      fingers();
      paper.current.addEventListener("panzoomchange", fingers);
      place.addEventListener("wheel", wheel, { passive: false });
      return () => {
        place.removeEventListener("wheel", wheel);
        made.destroy();
        pan.current = null;
      };
    }, [svg]);

    const act = {
      in: () => pan.current.zoomIn(),
      out: () => pan.current.zoomOut(),
      fit: () => pan.current.reset(),
      left: () => pan.current.pan(STEP, 0, { relative: true }),
      right: () => pan.current.pan(-STEP, 0, { relative: true }),
      up: () => pan.current.pan(0, STEP, { relative: true }),
      down: () => pan.current.pan(0, -STEP, { relative: true }),
      full: () => (document.fullscreenElement ? document.exitFullscreen() : frame.current.parentNode.requestFullscreen()),
    };
    const KEYS = {
      "+": "in", "=": "in", "-": "out", 0: "fit", f: "full",
      ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down",
    };
    const press = (event) => {
      if (!pan.current || !(event.key in KEYS) || event.ctrlKey || event.metaKey || event.altKey) return;
      act[KEYS[event.key]]();
      event.preventDefault();
      event.stopPropagation();
    };
    const save = () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([svg], { type: "image/svg+xml" }));
      link.download = `${model.name.replace(/[^\w.-]+/g, "-")}-${shown}.svg`;
      link.click();
      setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    };
    const button = (name, sign) => html`<button type="button" class="icon" onClick=${act[name]} aria-label=${t(`picture ${name}`)} title=${t(`picture ${name}`)}><${Icon} name=${sign} /></button>`;
    return html`<figure class="picture" data-picture=${model.id}>
      <figcaption><h3>${model.title}</h3>
        ${svg && html`<span class="tools">${button("in", "plus")}${button("out", "minus")}${button("fit", "fit")}${button("full", "full")}
          <button type="button" class="icon" onClick=${save} aria-label=${t("picture save")} title=${t("picture save")}><${Icon} name="save" /></button></span>`}
      </figcaption>
      <div class="frame" ref=${frame} tabindex=${svg ? 0 : -1} onKeyDown=${press} role="group" aria-label=${t("picture of", { name: model.title })}>
        ${model.pictures === null
          ? html`<p class="nothing">${t("no picture")}</p>`
          : fault !== null
            ? html`<p class="nothing" role="alert">${t("picture fault")} ${fault}</p>`
            : html`<div class="paper" ref=${paper} key=${shown} dangerouslySetInnerHTML=${{ __html: svg ?? "" }}></div>`}
      </div>
    </figure>`;
  }

  function Pictures({ state, set, t, picked, theme, lang }) {
    if (!picked.length) {
      return html`<div class="empty"><p>${t("nothing picked")}</p>
        <button type="button" class="primary" onClick=${() => set({ view: "table" })}>${t("go to catalogue")}</button></div>`;
    }
    const choice = (name) => html`<button
      type="button" aria-pressed=${state.picture === name} onClick=${() => set({ picture: name })} data-shown=${name}
    >${t(`picture ${name}`)}</button>`;
    return html`<div class="pictures">
      <div class="segments" role="group" aria-label=${t("pictures")}>${choice("model")}${choice("layers")}<small>${t("picture hint")}</small></div>
      <div class=${`gallery of-${Math.min(picked.length, 3)}`}>
        ${picked.map((model) => html`<${Picture} key=${model.id} ...${{ model, theme, lang, t }} shown=${state.picture} />`)}
      </div>
    </div>`;
  }

  plait.pictures = { Pictures };
})(globalThis.plait);
