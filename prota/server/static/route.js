// What the page shows is what its address says: query, filters, open moment. Back goes back.

export const FILTERS = ["folder", "min_duration", "max_duration", "after", "before"];

const written = (moment) => `${moment.video}@${+moment.start.toFixed(3)}-${+moment.end.toFixed(3)}`;

function read(text) {
  const found = /^(.+)@(\d+(?:\.\d+)?)-(\d+(?:\.\d+)?)$/.exec(text || "");
  return found && { video: found[1], start: Number(found[2]), end: Number(found[3]) };
}

export function parse(query = location.search) {
  const given = new URLSearchParams(query);
  const filters = {};
  for (const name of FILTERS) if (given.get(name)) filters[name] = given.get(name);
  return {
    q: given.get("q") || "",
    like: read(given.get("like")),
    upload: given.get("upload") || "",
    filters,
    all: given.get("all") === "1",
    open: read(given.get("open")),
    why: given.get("why") === "1",
  };
}

export function link(state) {
  const query = new URLSearchParams();
  if (state.like) query.set("like", written(state.like));
  else if (state.upload) query.set("upload", state.upload);
  else if (state.q) query.set("q", state.q);
  for (const name of FILTERS) if (state.filters[name]) query.set(name, state.filters[name]);
  if (state.all) query.set("all", "1");
  if (state.open) query.set("open", written(state.open));
  if (state.open && state.why) query.set("why", "1");
  const text = query.toString();
  return text ? `?${text}` : "./";
}

export const same = (a, b) => !!a && !!b && written(a) === written(b);

export class Route {
  constructor(render) {
    this.render = render;
    this.state = parse();
    addEventListener("popstate", () => { this.state = parse(); render(this.state); });
    const given = new URLSearchParams(location.search);
    if (given.has("token")) history.replaceState(history.state, "", link(this.state)); // not into bookmarks
  }

  go(changes, { replace = false } = {}) {
    this.state = { ...this.state, ...changes };
    const url = link(this.state);
    if (replace) history.replaceState(history.state, "", url);
    else history.pushState({ depth: (history.state?.depth || 0) + 1 }, "", url);
    this.render(this.state);
  }

  /** Back to what was before the open moment; on a page that began with it there is nothing before. */
  close() {
    if (history.state?.depth) history.back();
    else this.go({ open: null, why: false }, { replace: true });
  }
}
