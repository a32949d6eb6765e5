// The state of the page is its address: query, filters, open moment.

const FILTERS = ["kind", "folder", "min_duration", "max_duration", "after", "before"];
export const NOTHING = { q: "", like: null, upload: "", open: null, why: false };

const written = (moment) => `${moment.video}@${+moment.start.toFixed(3)}-${+moment.end.toFixed(3)}`;
export const same = (a, b) => !!a && !!b && written(a) === written(b);

function read(text) {
	const found = /^(.+)@([\d.]+)-([\d.]+)$/.exec(text || "");
	return found && { video: found[1], start: Number(found[2]) || 0, end: Number(found[3]) || 0 };
}

function parse() {
	const given = new URLSearchParams(location.search);
	return {
		q: given.get("q") || "",
		like: read(given.get("like")),
		upload: given.get("upload") || "",
		filters: Object.fromEntries(FILTERS.filter((name) => given.get(name)).map((name) => [name, given.get(name)])),
		open: read(given.get("open")),
		why: given.has("why"),
	};
}

export function link({ q, like, upload, filters, open, why }) {
	const query = new URLSearchParams();
	if (like) query.set("like", written(like));
	else if (upload) query.set("upload", upload);
	else if (q) query.set("q", q);
	for (const name of FILTERS) if (filters[name]) query.set(name, filters[name]);
	if (open) query.set("open", written(open));
	if (open && why) query.set("why", 1);
	return query.size ? `?${query}` : "./";
}

export class Route {
	constructor(render) {
		this.render = render;
		this.state = parse();
		addEventListener("popstate", () => { this.state = parse(); render(this.state); });
		if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", link(this.state)); // not into bookmarks
	}

	go(changes, replace = false) {
		this.state = { ...this.state, ...changes };
		if (replace) history.replaceState(history.state, "", link(this.state));
		else history.pushState({ inside: true }, "", link(this.state));
		this.render(this.state);
	}

	/** Go back to the state before the moment was opened, if this page opened it. */
	close() {
		if (history.state?.inside) history.back();
		else this.go({ open: null, why: false }, true);
	}
}
