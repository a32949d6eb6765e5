// The library's files: a list with filters, and what can be done with those below an allowed folder.
import * as api from "./api.js";
import { $, button, bytes, clock, count, day, el, fill, leads, on, say } from "./dom.js";
import { link } from "./route.js";

const PAGE = 50;
const STATES = { "": "All", indexed: "Searchable", bad: "Failed", gone: "Missing" };
const form = document.forms.list;

export class Files {
	/** `started`: called with a job; `removed`: called when the library is about to change. */
	constructor(route, { play, started, removed, add }) {
		Object.assign(this, { route, play, started, removed, add, found: null, chosen: new Set(), gone: new Set(), running: new AbortController() });
		on(form, "submit", (event) => event.preventDefault());
		on(form, "input", ({ target }) => {
			clearTimeout(this.timer);
			// Typing replaces the entry of the history that it began.
			if (target.name === "find") this.timer = setTimeout(() => this.take({ replace: route.draft && !!route.state.view, draft: true }), 250);
		});
		on(form, "change", ({ target }) => { if (target.name !== "find") this.take(); });
		on($("page-prev"), "click", () => this.turn(-PAGE));
		on($("page-next"), "click", () => this.turn(PAGE));
		on($("choose-all"), "change", () => this.choose(...this.boxes().map((box) => [box, $("choose-all").checked])));
		on($("index-again"), "click", () => this.again());
		on($("remove"), "click", () => this.remove());
	}

	/** Show the files that the address asks for. */
	async show({ filters }) {
		for (const name of ["find", "kind", "folder", "order"]) {
			const field = form.elements[name], value = filters[name] || "";
			if (document.activeElement !== field || field.value.trim() !== value) field.value = value;
			if (field.options && field.selectedIndex < 0) field.append(el("option", { selected: "" }, value));
		}
		this.running.abort();
		this.running = new AbortController();
		const { signal } = this.running;
		try {
			this.found = await api.files({ ...filters, k: PAGE }, signal);
		} catch (error) {
			if (error.name === "AbortError") return;
			this.found = null;
			say("list-note", error.message, "bad");
			return;
		}
		this.draw();
		this.route.restore();
	}

	take(how) {
		const { find, ...rest } = Object.fromEntries(new FormData(form));
		const { state } = this.route.state.filters;
		this.route.go({ filters: { ...rest, find: find.trim(), state } }, how);
	}

	turn(by) {
		this.route.go({ filters: { ...this.route.state.filters, offset: Math.max(0, this.offset + by) || "" } });
		$("main").focus();
	}

	get offset() { return Number(this.route.state.filters.offset) || 0; }

	draw() {
		const { states, total, files } = this.found;
		const { filters } = this.route.state;
		const every = Object.values(states).reduce((a, b) => a + b, 0);
		const held = $("states").contains(document.activeElement);
		$("states").replaceChildren(...Object.entries(STATES).filter(([state]) => !state || states[state] || state === filters.state).map(([state, name]) => {
			const tab = button(() => this.route.go({ filters: { ...filters, state, offset: "" } }), name, el("small", {}, (state ? states[state] : every).toLocaleString("en")));
			tab.ariaPressed = String(state === (filters.state || ""));
			return tab;
		}));
		if (held) $("states").querySelector("[aria-pressed=true]")?.focus();
		const shown = files.filter(({ file }) => !this.gone.has(file));
		this.chosen = new Set(shown.filter(({ file }) => this.chosen.has(file)).map(({ file }) => file));
		const at = document.activeElement, row = at.closest(".file")?.dataset.file;
		fill($("files"), ...shown.map((file) => this.row(file)));
		if (row) $("files").querySelector(`[data-file="${row}"] ${at.localName}`)?.focus();
		const narrowed = ["find", "kind", "folder", "state"].some((name) => filters[name]);
		const outside = shown.some(({ state, managed }) => state !== "indexed" && !managed);
		say("list-note", !total ? (narrowed ? "No file passes these filters." : "The library is empty.")
			: outside ? "Files outside the folders of --allow can be removed with `prota library remove`." : "");
		$("pages").hidden = total <= PAGE;
		$("page-at").textContent = `${(this.offset + 1).toLocaleString("en")}–${Math.min(total, this.offset + PAGE).toLocaleString("en")} of ${total.toLocaleString("en")}`;
		$("page-prev").disabled = !this.offset;
		$("page-next").disabled = this.offset + PAGE >= total;
		this.tell();
	}

	row(file) {
		const { name, video, folder, duration, state } = file;
		const moment = video && state === "indexed" ? { video, start: 0, end: duration, duration, title: name, folder, thumbnail: file.thumbnail } : null;
		const picture = el("span", { class: "thumb" }, file.thumbnail && el("img", { src: file.thumbnail, alt: "", loading: "lazy" }));
		const box = file.managed ? el("input", { type: "checkbox", "aria-label": `Select ${name}` }) : null;
		if (box) {
			box.checked = this.chosen.has(file.file);
			on(box, "change", () => this.choose([box, box.checked]));
		}
		const facts = [folder, file.kind === "picture" ? "picture" : duration > 0 && clock(duration), bytes(file.size), day(file.modified)];
		const about = [el("span", { class: "title" }, name), el("span", { class: "facts" }, facts.filter(Boolean).join(" · "))];
		const item = el("li", { class: `file ${state}`, "data-file": file.file }, box || el("span"), moment ? el("a", {
			class: "play", href: link({ ...this.route.state, open: moment, why: false }), on: leads(() => this.play(moment)),
		}, picture, el("span", {}, ...about)) : el("div", { class: "play" }, picture, el("span", {}, ...about,
			el("span", { class: "reason" }, state === "bad" ? `Failed: ${file.reason}` : "Missing: the file no longer exists"))));
		item.moment = moment;
		return item;
	}

	boxes() { return [...$("files").querySelectorAll("input")]; }

	choose(...changes) {
		for (const [box, on] of changes) {
			box.checked = on;
			this.chosen[on ? "add" : "delete"](box.closest("li").dataset.file);
		}
		this.tell();
	}

	tell() {
		const { size } = this.chosen, all = this.boxes().length;
		$("chosen").hidden = !all;
		$("chosen").classList.toggle("some", size > 0);
		$("choose-all").checked = all > 0 && size === all;
		$("choose-all").indeterminate = size > 0 && size < all;
		$("chosen-label").textContent = size ? `${size} selected` : "Select all";
		$("index-again").hidden = $("remove").hidden = !size;
	}

	async again() {
		try {
			this.started(await api.index({ files: [...this.chosen], retry: true }));
			this.choose(...this.boxes().map((box) => [box, false]));
		} catch (error) { say("list-note", error.message, "bad"); }
	}

	async remove() {
		const files = [...this.chosen];
		$("confirm-title").textContent = `Remove ${count(files.length, "file")} from the library?`;
		$("confirm").returnValue = "";
		$("confirm").showModal();
		await new Promise((done) => { on($("confirm"), "close", done, { once: true }); });
		if (!$("confirm").returnValue) return;
		try {
			await api.remove(files);
			// Lists are of the old version until the server has read the new one.
			for (const file of files) this.gone.add(file);
			this.chosen.clear();
			this.draw();
			say("list-note", `${count(files.length, "file")} removed.`);
			$("main").focus();
			this.removed();
		} catch (error) { say("list-note", error.message, "bad"); }
	}
}
