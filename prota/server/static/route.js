// The state of the page is its address: view, query, filters, open moment.
// Each search that was submitted or looked at is an entry of the history; typing replaces its own entry, a draft.

const FILTERS = ["kind", "folder", "min_duration", "max_duration", "after", "before"];
const LIST = ["find", "state", "order", "offset"]; // of the library's files, which have kind and folder, too
export const NOTHING = { view: "", q: "", like: null, upload: "", filters: {}, open: null, why: false };

const written = (moment) => `${moment.video}@${+moment.start.toFixed(3)}-${+moment.end.toFixed(3)}`;
export const same = (a, b) => !!a && !!b && written(a) === written(b);

function read(text) {
	const found = /^(.+)@([\d.]+)-([\d.]+)$/.exec(text || "");
	return found && { video: found[1], start: Number(found[2]) || 0, end: Number(found[3]) || 0 };
}

function parse() {
	const given = new URLSearchParams(location.search);
	const view = given.get("view") === "library" ? "library" : "";
	return {
		view,
		q: given.get("q") || "",
		like: read(given.get("like")),
		upload: given.get("upload") || "",
		filters: Object.fromEntries([...FILTERS, ...(view ? LIST : [])].filter((name) => given.get(name)).map((name) => [name, given.get(name)])),
		open: read(given.get("open")),
		why: given.has("why"),
	};
}

export function link({ view, q, like, upload, filters, open, why }) {
	const query = new URLSearchParams();
	if (view) query.set("view", view);
	else if (like) query.set("like", written(like));
	else if (upload) query.set("upload", upload);
	else if (q) query.set("q", q);
	for (const name of [...FILTERS, ...(view ? LIST : [])]) if (filters[name]) query.set(name, filters[name]);
	if (open) query.set("open", written(open));
	if (open && why) query.set("why", 1);
	return query.size ? `?${query}` : "./";
}

export class Route {
	constructor(render) {
		this.render = render;
		this.state = parse();
		this.top = history.state?.top; // where the entry was scrolled to, until that is restored
		history.scrollRestoration = "manual";
		addEventListener("popstate", () => { this.state = parse(); this.top = history.state?.top; render(this.state, true); });
		addEventListener("pagehide", () => this.keep());
		if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", link(this.state)); // not into bookmarks
	}

	get draft() { return !!history.state?.draft; }

	keep(changes) { history.replaceState({ ...history.state, top: scrollY, ...changes }, ""); }

	go(changes, { replace = false, draft = false } = {}) {
		const before = this.state;
		this.state = { ...before, ...changes };
		if (replace) history.replaceState({ ...history.state, draft }, "", link(this.state));
		else {
			this.keep({ draft: false });
			history.pushState({ inside: true, draft }, "", link(this.state));
		}
		// A moment opens over the page; another question is a new page.
		this.top = "q" in changes || "filters" in changes ? 0 : undefined;
		this.render(this.state);
	}

	/** What was typed has become an entry: the next query gets its own. */
	settle() { if (this.draft) this.keep({ draft: false }); }

	/** Scroll to where the entry was, once its content is there. */
	restore() {
		if (this.top !== undefined) scrollTo(0, this.top);
		this.top = undefined;
	}

	/** Go back to the state before the moment was opened, if this page opened it. */
	close() {
		if (history.state?.inside) history.back();
		else this.go({ open: null, why: false }, { replace: true });
	}
}
