// The page's data, as page.py wrote it, and the words of its language.
(function () {
  "use strict";
  const data = JSON.parse(document.getElementById("plait-data").textContent);
  const models = new Map(data.models.map((model) => [model.id, model]));
  const LANGUAGES = data.constants.languages;

  /** The text of `key`, its braces filled; a key the table lacks is an error. */
  function word(lang, key, values = {}) {
    const found = data.words[key];
    if (found === undefined) throw new Error(`no word for ${key}`);
    return found[LANGUAGES.indexOf(lang)].replace(/\{(\w+)\}/g, (_, name) => {
      if (!(name in values)) throw new Error(`no value for {${name}} in ${key}`);
      return values[name];
    });
  }

  globalThis.plait = { data, models, word };
})();
