// The library: what is in it, whether the server is there and ready, and folders being indexed.
import * as api from "./api.js";
import { $, button, count, el, hours } from "./dom.js";

const GOING = ["queued", "waiting", "running"];

function left(seconds) {
	if (!(seconds >= 0)) return "";
	return seconds < 60 ? "less than a minute left" : `about ${seconds < 5400 ? count(Math.round(seconds / 60), "minute") : hours(seconds / 3600)} left`;
}

export class Library {
	/** `changed` is told of every look at the library; `back` when a server that was away, or not ready, can search. */
	constructor({ changed, back }) {
		Object.assign(this, { changed, back, facts: null, away: 0, jobs: new Map(), followed: new Set() });
		$("open-library").addEventListener("click", () => this.open());
		$("library").addEventListener("click", (event) => {
			if (event.target.closest("#library-close") || event.target === $("library")) $("library").close();
		});
		$("add").addEventListener("submit", (event) => { event.preventDefault(); this.add(); });
		document.addEventListener("visibilitychange", () => { if (!document.hidden) this.look(); });
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
				wait = Math.min(10000, 500 * 2 ** Math.min(this.away, 5));
				this.tell();
			}
		}
		this.timer = setTimeout(() => this.look(), wait);
	}

	/** Somebody else found nobody there. */
	lost() {
		this.away ||= 1;
		this.tell();
		this.look();
	}

	tell() {
		const { facts, away } = this;
		const text = away ? "The server does not answer. It is tried again by itself."
			: facts.state === "loading" ? "The model is being loaded. You can type already."
				: facts.state === "failed" ? facts.detail || "The model could not be loaded: the server's log says why." : "";
		$("banner").className = away ? "away" : facts.state;
		$("banner").hidden = !text;
		if ($("banner").textContent !== text) $("banner").replaceChildren(el("span", { class: "spin" }), text);
		if (!facts) return;
		const size = `${count(facts.videos, "video")} · ${hours(facts.hours)}`;
		const job = [...this.jobs.values()].find((one) => GOING.includes(one.state));
		$("library-label").textContent = job ? `Indexing ${Math.floor(100 * (job.share || 0))} %` : size;
		$("library-facts").textContent = [size, count(facts.segments, "segment"), facts.model].join(" · ");
		const roots = facts.allow || [];
		if (roots[0]) $("path").placeholder = roots[0];
		if (!$("add-note").dataset.said && roots.length) $("add-note").textContent = `Videos stay where they are. Allowed: ${roots.join(", ")}`;
		const { folder } = document.forms.filters;
		const chosen = folder.value;
		folder.replaceChildren(folder.options[0], ...facts.folders.map((name) => el("option", { value: name }, name)));
		if (chosen && !facts.folders.includes(chosen)) folder.append(el("option", { value: chosen }, chosen));
		folder.value = chosen;
	}

	say(text, bad) {
		$("add-note").className = bad ? "bad" : "";
		$("add-note").textContent = text;
		$("add-note").dataset.said = "1";
	}

	async add() {
		try {
			this.follow(await api.addFolder($("path").value.trim()));
			$("path").value = "";
			this.say("It can be searched while it grows.");
		} catch (error) { this.say(error.message, true); }
	}

	async list() {
		try { for (const job of (await api.jobs()).reverse()) this.follow(job); } catch { /* the banner tells */ }
	}

	follow(job) {
		const { id } = job;
		this.heard(job);
		if (!GOING.includes(job.state) || this.followed.has(id)) return;
		const source = api.events(id);
		this.followed.add(id);
		const end = () => { source.close(); this.followed.delete(id); };
		source.addEventListener("message", (event) => {
			const now = JSON.parse(event.data);
			this.heard({ ...now, id });
			if (!GOING.includes(now.state)) { end(); this.look(); }
		});
		source.addEventListener("error", () => { if (source.readyState === EventSource.CLOSED) end(); }); // else it tries again
	}

	/** A job, new or changed. */
	heard(news) {
		const job = { since: Date.now(), ...this.jobs.get(news.id), ...news };
		job.files ??= 0;
		if (news.found != null) Object.assign(job, { files: news.found, files_done: news.done, hours: news.seconds / 3600 });
		job.share = news.share ?? (job.files ? job.files_done / job.files : 0);
		const taken = (Date.now() - job.since) / 1000;
		if (news.left_seconds === undefined) job.left_seconds = job.share > 0.02 && taken > 3 ? taken / job.share - taken : null;
		this.jobs.set(job.id, job);
		this.draw(job);
		if (this.facts) this.tell();
	}

	draw(job) {
		const going = GOING.includes(job.state);
		const bad = Array.isArray(job.bad) ? job.bad : [];
		const failures = bad.length || job.bad;
		const facts = [going && job.state !== "queued" ? "" : job.state, job.files ? `${job.files_done} of ${count(job.files, "file")}` : going && "looking for videos",
			job.hours > 0 && hours(job.hours), going && job.rate && `${Math.round(job.rate)} × real time`, going && job.left_seconds != null && left(job.left_seconds),
			failures > 0 && !bad.length && `${count(failures, "file")} could not be read`, job.detail].filter(Boolean).join(" · ");
		const bar = el("progress", { max: 1, "aria-label": `Indexing ${job.path}` });
		if (job.share || !going) bar.value = job.state === "done" ? 1 : job.share;
		const item = el("li", { id: `job-${job.id}` },
			el("div", { class: "row" }, el("strong", {}, job.path), going ? button(() => this.cancel(job), "Stop") : null),
			bar, el("p", {}, facts),
			bad.length ? el("details", {}, el("summary", {}, `${count(bad.length, "file")} could not be read`), el("ul", {}, ...bad.map((one) => el("li", {}, one)))) : null);
		const before = $(item.id);
		if (before?.querySelector("details[open]") && bad.length) item.querySelector("details").open = true;
		const held = before?.querySelector("button") === document.activeElement && before;
		if (before) before.replaceWith(item); else $("jobs").prepend(item);
		if (held) (item.querySelector("button") || $("library-close")).focus();
	}

	async cancel(job) {
		try { this.heard(await api.cancel(job.id)); } catch (error) { this.say(error.message, true); }
	}
}
