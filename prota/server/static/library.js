// The state of the server and of its library, and the index jobs.
import * as api from "./api.js";
import { $, button, count, el, holds, hours, icon, on } from "./dom.js";

const GOING = ["waiting", "running"];
const SHOWN = 5; // jobs

export class Library {
	/** `changed`: called with each update of the library; `back`: called when the server can search again. */
	constructor({ changed, back }) {
		Object.assign(this, { changed, back, facts: null, away: 0, eager: 0, jobs: new Map(), followed: new Set() });
		on(document, "visibilitychange", () => { if (!document.hidden) this.look(); });
	}

	async look() {
		clearTimeout(this.timer);
		let wait = 20000;
		try {
			const facts = await api.library();
			const { facts: before, away } = this;
			Object.assign(this, { facts, away: 0 });
			if (facts.state === "loading") wait = 700;
			if (before && before.version !== facts.version) this.eager = 0;
			if (this.eager > 0) { this.eager -= 1; wait = 300; }
			this.tell();
			this.changed(facts);
			if (away || (before && before.state !== "ready" && facts.state === "ready")) this.back();
			if (away || !before) this.list();
		} catch (error) {
			if (error.status !== 401) {
				this.away += 1;
				wait = 500 * 2 ** Math.min(this.away, 4);
				this.tell();
			}
		}
		this.timer = setTimeout(() => this.look(), wait);
	}

	/** The library is about to change. */
	soon() { this.eager = 30; this.look(); }

	/** Another part of the page got no response. */
	lost() {
		this.away ||= 1;
		this.tell();
		this.look();
	}

	tell() {
		const { facts, away } = this;
		const text = away ? "The server does not respond. Retrying …"
			: facts.state === "loading" ? "Loading the model. You can already type."
				: facts.state === "failed" ? facts.detail : "";
		$("banner").className = away ? "away" : facts.state;
		$("banner").hidden = !text;
		if ($("banner").textContent !== text) $("banner").replaceChildren(el("span", { class: "spin" }), text);
		if (!facts) return;
		const job = [...this.jobs.values()].find((one) => GOING.includes(one.state));
		$("library-label").textContent = job ? `Indexing ${Math.floor(100 * job.share)} %` : "Library";
		$("library-facts").textContent = [holds(facts, " · ") || "No videos", count(facts.segments, "segment"), facts.model].join(" · ");
		$("open-add").hidden = !facts.allow.length;
		for (const { folder } of [document.forms.filters, document.forms.list].map((form) => form.elements)) {
			const { value } = folder;
			folder.replaceChildren(folder.options[0], ...facts.folders.map((name) => el("option", { value: name }, name)));
			if (facts.folders.includes(value)) folder.value = value;
		}
	}

	async list() {
		try { for (const job of (await api.jobs()).reverse()) this.follow(job); } catch {}
	}

	follow(job) {
		const { id } = job;
		this.heard(job);
		if (!GOING.includes(job.state) || this.followed.has(id)) return;
		const source = api.events(id);
		this.followed.add(id);
		const end = () => { source.close(); this.followed.delete(id); };
		on(source, "message", (event) => {
			const now = JSON.parse(event.data);
			this.heard({ ...now, id });
			if (!GOING.includes(now.state)) { end(); this.soon(); }
		});
		on(source, "error", () => { if (source.readyState === EventSource.CLOSED) end(); });
	}

	/** Show a new or changed job. */
	heard(news) {
		const now = Date.now() / 1000;
		const job = { from: { now, seconds: news.seconds, share: news.share }, ...this.jobs.get(news.id), ...news };
		const going = GOING.includes(job.state);
		const taken = now - job.from.now;
		const grown = job.share - job.from.share;
		this.jobs.set(job.id, job);
		const facts = [job.state === "running" ? "" : job.state, job.found ? `${job.done} of ${count(job.found, "file")}` : going && "starting",
			job.seconds > 0 && hours(job.seconds / 3600), job.pictures > 0 && count(job.pictures, "picture"),
			going && taken > 2 && job.seconds > 0 && `${((job.seconds - job.from.seconds) / taken).toFixed(1)} × real time`,
			going && taken > 2 && grown > 0 && `${hours((taken * (1 - job.share)) / grown / 3600)} left`, job.detail];
		const bar = el("progress", { max: 1, "aria-label": `Indexing ${job.path}` });
		if (job.share || !going) bar.value = job.share;
		const before = $(`job-${job.id}`);
		const bad = job.bad ? el("details", {}, el("summary", {}, `${count(job.bad, "file")} failed`), ...job.reasons.map(({ file, reason }) => el("p", {}, `${file}: ${reason}`))) : null;
		if (bad) bad.open = before?.querySelector("details")?.open;
		const act = going ? button(() => this.cancel(job), "Stop")
			: !/^\d+ files$/.test(job.path) ? button(() => this.again(job), icon("again"), "Index again") : null;
		const item = el("li", { id: `job-${job.id}`, class: job.state }, el("div", { class: "row" }, el("strong", {}, job.path), act),
			going ? bar : null, el("p", {}, facts.filter(Boolean).join(" · ")), bad);
		const held = before?.contains(document.activeElement);
		// A pressed button stays until it is released: a button that is replaced meanwhile gets no click.
		if (before?.matches(":active")) setTimeout(() => this.heard({ id: job.id }), 100);
		else if (before) before.replaceWith(item);
		else $("jobs").prepend(item);
		if (held && item.isConnected) item.querySelector("button, summary")?.focus();
		for (const old of [...$("jobs").children].slice(SHOWN)) old.remove();
		if (this.facts) this.tell();
	}

	cancel(job) { return this.ask(job, api.cancel(job.id)); }

	again({ id, path }) { return this.ask({ id }, api.index({ path, retry: true })); }

	async ask({ id }, answer) {
		try { this.follow(await answer); } catch (error) { this.heard({ id, detail: error.message }); }
	}
}
