// The start page: example and past queries, folders, and some moments.
import * as api from "./api.js";
import { $, button, count, el, fill, holds, icon, leads } from "./dom.js";
import * as grid from "./grid.js";
import { NOTHING, link } from "./route.js";

const FEW = 8;
const any = () => Math.floor(Math.random() * 1e9);

export class Home {
	/** `go`: opens a state of the page; `ask`: searches for a text; `past`: queries and how to forget them. */
	constructor({ actions, go, ask, past, add }) {
		Object.assign(this, { actions, go, ask, past, add, version: null, seed: any(), parts: {} });
	}

	/** Draw what is known, and get what is new; a page that is being looked at stays as it is. */
	show(facts, entered = false) {
		const size = holds(facts, ", ");
		$("summary").textContent = `Describe a moment in English.${size && ` ${size}.`}`;
		if (!size) {
			this.version = null;
			if (!$("start").querySelector(".empty")) fill($("start"), facts.state === "loading" ? null : this.empty(facts));
			return;
		}
		const drawn = $("start").querySelector("[data-part]");
		if (!drawn) this.draw();
		const ready = facts.state === "ready" && !this.parts.examples;
		if (ready) this.get("tries", "examples", api.examples());
		if (this.version === facts.version || (drawn && !entered)) return;
		this.version = facts.version;
		this.get("newest", "newest", api.moments("newest", FEW));
		this.get("folders", "folders", api.folders(12));
		this.get("others", "others", api.moments("random", FEW, this.seed));
	}

	async get(place, name, answer) {
		this.parts[name] = await answer.catch(() => this.parts[name]);
		this.put(place);
	}

	draw() {
		fill($("start"), ...["tries", "newest", "folders", "others"].map((name) => el("section", { "data-part": name })));
		for (const { dataset } of $("start").children) this.put(dataset.part);
	}

	/** Draw one part. */
	put(name) {
		const place = $("start").querySelector(`[data-part=${name}]`);
		if (!place) return;
		const { newest = [], folders = [], others = [], examples = [] } = this.parts;
		const past = this.past.all().slice(0, 6);
		const held = place.contains(document.activeElement);
		fill(place, ...{
			tries: () => [this.chips("Try", "search", examples), this.chips("Past searches", "past", past, button(() => this.past.forget(), "Clear"))],
			newest: () => this.cards("Latest", newest),
			folders: () => (folders.length > 1 ? [el("h2", {}, "Folders"), el("ul", { class: "tiles" }, ...folders.map((one) => this.folder(one)))] : []),
			others: () => this.cards("At random", others, button(() => this.shuffle(), icon("again"), "Others")),
		}[name]());
		if (held) place.querySelector("button, a")?.focus();
	}

	chips(title, sign, queries, more) {
		if (!queries.length) return null;
		const chip = (q) => el("li", {}, this.to({ q }, { title: q, run: () => this.ask(q) }, icon(sign), el("span", {}, q)));
		if (more) more.className = "quiet";
		return el("div", { class: "try" }, el("h2", {}, title), el("ul", { class: "chips", "aria-label": title }, ...queries.map(chip)), more);
	}

	cards(title, moments, more) {
		if (!moments.length) return [];
		const list = el("ul", { class: "grid", "aria-label": title });
		grid.fill(list, moments, { ...this.actions, why: null });
		if (more) more.className = "quiet";
		return [el("div", { class: "title-row" }, el("h2", {}, title), more ?? null), list];
	}

	folder({ name, files, thumbnail }) {
		return el("li", {}, this.to({ view: "library", filters: { folder: name } }, {}, el("img", { src: thumbnail, alt: "", loading: "lazy" }),
			el("span", {}, el("strong", {}, name), el("small", {}, count(files, "file")))));
	}

	/** A link to another state of the page. */
	to(state, { title, run = () => this.go({ ...NOTHING, ...state }) }, ...children) {
		return el("a", { href: link({ ...NOTHING, ...state }), title, on: leads(run) }, ...children);
	}

	shuffle() {
		this.seed = any();
		return this.get("others", "others", api.moments("random", FEW, this.seed));
	}

	empty({ allow }) {
		const text = allow.length ? "Choose a folder. The files are not moved and do not leave this computer."
			: "Index a folder in a terminal. To add folders here, start the server with --allow FOLDER.";
		return el("div", { class: "empty" }, icon("library"), el("h2", {}, "Add your first videos"), el("p", {}, text),
			allow.length ? el("button", { class: "strong", on: () => this.add() }, "Add a folder") : el("pre", {}, "prota index FOLDER"));
	}
}
