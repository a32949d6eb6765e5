// The player: the video from the moment on, all matches on a timeline, and the explanation.
import * as api from "./api.js";
import { $, button, bytes, clock, el, on, span, still } from "./dom.js";
import { Film } from "./film.js";
import { Timeline } from "./timeline.js";
import * as why from "./why.js";

const dialog = $("player");
const video = $("video");
const picture = $("picture");
const play = () => video.play().catch(() => {}); // browsers may refuse before the first click

export class Player {
	constructor(route, actions) {
		Object.assign(this, { route, actions, moment: null, film: new Film(video, (error) => this.broken(error)), stop: new AbortController() });
		this.timeline = new Timeline((mark) => this.jump(mark));
		on(dialog, "cancel", (event) => { event.preventDefault(); route.close(); });
		on(dialog, "keydown", (event) => this.key(event));
		on(dialog, "click", (event) => {
			const run = {
				player: () => route.close(), "player-close": () => route.close(), "player-like": () => actions.like(this.moment),
				"why-toggle": () => this.toggle(), "mark-prev": () => this.hop(-1), "mark-next": () => this.hop(1), copy: () => this.copy(), save: () => this.save(),
				track: () => this.seek((event.offsetX / event.target.clientWidth) * this.length),
			}[(event.target.closest("button") || event.target).id];
			run?.();
		});
		on(video, "timeupdate", () => this.tick());
		on(video, "durationchange", () => this.layout());
		on(picture, "error", () => this.broken());
	}

	get screen() { return still(this.moment) ? picture : video; }
	get length() { return video.duration || this.moment?.duration || this.moment?.end || 1; }

	show(moment, state) {
		const other = !dialog.open || this.moment.video !== moment.video;
		this.stop.abort();
		this.stop = new AbortController();
		if (other) this.codec = null;
		Object.assign(this, { moment, query: state.q, explained: null });
		this.title();
		$("about").textContent = "";
		$("why-toggle").hidden = !state.q;
		$("save").hidden = still(moment);
		$("save-note").textContent = "";
		this.timeline.show(this.actions.siblings(moment), !!state.q);
		if (!dialog.open) dialog.showModal();
		this.layout();
		if (!still(moment)) video.focus();
		if (other) this.load(moment.start);
		else this.seek(moment.start);
		this.detailed = this.details(moment, this.stop.signal);
		this.explain(state.why);
	}

	hide() {
		if (!dialog.open) return;
		this.stop.abort();
		const { moment } = this;
		this.moment = null;
		this.unload();
		dialog.close();
		this.actions.closed(moment);
	}

	unload() {
		picture.removeAttribute("src");
		this.film.unload();
	}

	load(at) {
		const { screen } = this;
		this.unload();
		$("video-error").hidden = true;
		for (const one of [video, picture]) one.hidden = one !== screen;
		$("timeline").hidden = screen === picture;
		const { video: id } = this.moment;
		this.about = api.video(id);
		if (screen === picture) picture.src = api.stream(id);
		else this.film.load(id, at, this.about);
	}

	title() {
		$("player-title").textContent = this.moment.title || "…";
		$("player-where").textContent = [this.moment.folder, span(this.moment)].filter(Boolean).join(" · ");
	}

	async details(moment, signal) {
		try {
			const [about, found] = await Promise.all([
				this.about, this.query ? api.segments(moment.video, this.query, signal) : null]);
			Object.assign(moment, { title: about.title || moment.title, folder: about.folder, duration: about.duration });
			this.codec = about.codec;
			if (found?.length && moment.segment == null) {
				const far = (mark) => Math.abs(mark.start - moment.start) + Math.abs(mark.end - moment.end);
				moment.segment = found.reduce((a, b) => (far(b) < far(a) ? b : a)).segment;
				this.explain(this.route.state.why);
			}
			this.title();
			picture.alt = about.title;
			$("about").textContent = [still(moment) ? `${about.width} × ${about.height}` : clock(about.duration), about.codec, bytes(about.size)].filter(Boolean).join(" · ");
			if (found) { this.timeline.show(found, true); this.layout(); }
		} catch (error) {
			if (error.name !== "AbortError") this.actions.failed(error);
		}
	}

	layout() { this.timeline.layout(this.length); this.tick(); }

	tick() { if (this.moment) this.timeline.tick(this.film.time, this.moment); }

	seek(seconds) { this.film.time = Math.min(seconds, this.length); this.tick(); }

	jump({ start, end, segment }) {
		this.moment = { ...this.moment, start, end, segment, version: null };
		this.seek(start);
		play();
		this.route.go({ open: this.moment }, { replace: true });
		this.title();
		this.explain(this.route.state.why);
	}

	hop(step) { if (this.timeline.marks.length > 1) this.timeline.hop(step, this.film.time, this.moment); }

	toggle() { if (this.query) this.route.go({ why: $("why").hidden }, { replace: true }); }

	async explain(open) {
		open = open && !!this.query;
		$("why").hidden = !open;
		dialog.classList.toggle("explaining", open);
		$("why-toggle").ariaExpanded = String(open);
		const { moment, stop: { signal } } = this;
		if (!open || moment.segment == null || this.explained === moment.segment) return;
		this.explained = moment.segment;
		if (!$("why").firstChild) $("why").textContent = "Explaining the score …";
		try {
			const answer = await api.explain(this.query, moment, signal);
			if (this.explained === moment.segment) why.draw($("why"), answer, moment, (time) => this.seek(time));
		} catch (error) {
			if (error.name === "AbortError") return;
			this.explained = null;
			$("why").replaceChildren(`${error.message} `, button(() => this.explain(true), "Try again"));
		}
	}

	async broken(error) {
		if (!this.moment || !(error || this.screen.getAttribute("src"))) return;
		const { moment: { video: broken }, detailed } = this;
		const href = api.stream(broken);
		// What the server cannot decode either has the status 422.
		const said = error ? error.status !== 422 && error.status != null && { detail: error.message } : await fetch(href, { headers: { Range: "bytes=0-0" } }).then((r) => !r.ok && r.json()).catch(() => ({}));
		await detailed;
		if (this.moment?.video !== broken) return;
		$("video-error").replaceChildren(...(said
			? [said.detail || "The server does not respond."]
			: [`This browser cannot ${still(this.moment) ? "show" : "play"} the file (${this.codec || "unknown codec"}). `, el("a", { href, download: this.moment.title || "" }, "Save the original")]));
		$("video-error").hidden = false;
		this.screen.hidden = true;
	}

	/** Reload at the same place after the server was away. */
	again() { if (this.moment && (video.error || this.screen.hidden)) this.load(this.film.time || this.moment.start); }

	/** Cut the moment out and save it; another press meanwhile does nothing. */
	async save() {
		const { moment, stop: { signal } } = this;
		if (this.saving) return;
		this.saving = true;
		$("save-label").textContent = "Cutting …";
		$("save-note").textContent = "";
		try {
			const href = URL.createObjectURL(await api.clip(moment, signal));
			el("a", { href, download: `${moment.title} ${clock(moment.start)}–${clock(moment.end)}.mp4`.replaceAll(":", ".") }).click();
			setTimeout(() => URL.revokeObjectURL(href), 60000);
		} catch (error) {
			if (error.name !== "AbortError") $("save-note").textContent = `The clip was not saved: ${error.message}`;
		}
		this.saving = false;
		$("save-label").textContent = "Save clip";
	}

	async copy() {
		$("copy-label").textContent = await navigator.clipboard.writeText(location.href).then(() => "Copied", () => "Copy failed");
		setTimeout(() => { $("copy-label").textContent = "Copy link"; }, 1500);
	}

	key(event) {
		const { target, key } = event;
		const onMark = target.closest(".mark");
		const run = {
			ArrowLeft: () => (onMark ? this.hop(-1) : this.seek(this.film.time - 5)),
			ArrowRight: () => (onMark ? this.hop(1) : this.seek(this.film.time + 5)),
			n: () => this.hop(1), p: () => this.hop(-1), w: () => this.toggle(), l: () => this.actions.like(this.moment),
			m: () => { video.muted = !video.muted; }, f: () => this.screen.requestFullscreen(),
			" ": target.closest("button, a, video") ? null : () => (video.paused ? play() : video.pause()),
		}[key];
		if (!run || event.ctrlKey || event.metaKey || event.altKey || (target.closest(".scroll") && key.startsWith("Arrow"))) return;
		event.preventDefault();
		run();
	}
}
