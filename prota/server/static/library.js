// The library dialog: contents, state of the server, index jobs.
import * as api from "./api.js";
import { $, button, count, el, holds, hours, on } from "./dom.js";

const GOING = ["waiting", "running"];

export class Library {
	/** `changed`: called with each update of the library; `back`: called when the server can search again. */
	constructor({ changed, back }) {
		Object.assign(this, { changed, back, facts: null, away: 0, jobs: new Map(), followed: new Set() });
		on($("open-library"), "click", () => this.open());
		on($("library"), "click", (event) => {
			if (event.target.closest("#library-close") || event.target === $("library")) $("library").close();
		});
		on($("add"), "submit", (event) => { event.preventDefault(); this.add(); });
		on(document, "visibilitychange", () => { if (!document.hidden) this.look(); });
	}

	open() {
		$("library").showModal();
		$("path").focus();
		this.list();
	}

	async look() {
		clearTimeout(this.timer);
		let wait = 20000;
		try {
			const facts = await api.library();
			const { facts: before, away } = this;
			Object.assign(this, { facts, away: 0 });
			if (facts.state === "loading") wait = 700;
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
		const size = holds(facts, " · ") || "No videos";
		const job = [...this.jobs.values()].find((one) => GOING.includes(one.state));
		$("library-label").textContent = job ? `Indexing ${Math.floor(100 * job.share)} %` : size;
		$("library-facts").textContent = [size, count(facts.segments, "segment"), facts.model].join(" · ");
		const roots = facts.allow;
		if (roots[0]) $("path").placeholder = roots[0];
		if (!this.said && roots.length) $("add-note").textContent = `Files are not moved. Allowed folders: ${roots.join(", ")}`;
		const { folder } = document.forms.filters, { value } = folder;
		folder.replaceChildren(folder.options[0], ...facts.folders.map((name) => el("option", { value: name }, name)));
		if (facts.folders.includes(value)) folder.value = value;
	}

	say(text, kind = "") {
		$("add-note").className = kind;
		$("add-note").textContent = text;
		this.said = true;
	}

	async add() {
		try {
			this.follow(await api.addFolder($("path").value.trim(), $("pictures").checked));
			$("path").value = "";
			this.say("Videos can be searched as soon as they are indexed.");
		} catch (error) { this.say(error.message, "bad"); }
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
			if (!GOING.includes(now.state)) { end(); this.look(); }
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
		const item = el("li", { id: `job-${job.id}` }, el("div", { class: "row" }, el("strong", {}, job.path), going ? button(() => this.cancel(job), "Stop") : null),
			bar, el("p", {}, facts.filter(Boolean).join(" · ")), bad);
		const held = before?.contains(document.activeElement);
		// A pressed button stays until it is released: a button that is replaced meanwhile gets no click.
		if (before?.matches(":active")) setTimeout(() => this.heard({ id: job.id }), 100);
		else if (before) before.replaceWith(item);
		else $("jobs").prepend(item);
		if (held && item.isConnected) (item.querySelector("button, summary") || $("library-close")).focus();
		if (this.facts) this.tell();
	}

	async cancel(job) {
		try { this.heard(await api.cancel(job.id)); } catch (error) { this.say(error.message, "bad"); }
	}
}
