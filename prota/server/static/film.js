// A video that plays from any second: the original where browsers can, else parts that the server makes of it, which
// Media Source Extensions join. Times are seconds from the first frame, as in the API.
import * as api from "./api.js";
import { on } from "./dom.js";

const AHEAD = 20; // seconds that are loaded before they are played
const Source = globalThis.ManagedMediaSource || globalThis.MediaSource;
const event = (target, names, signal) => new Promise((done) => { for (const name of names) on(target, name, done, { once: true, signal }); });

export class Film {
	/** `failed` is called with the error if nothing can be played. */
	constructor(video, failed = () => {}) {
		Object.assign(this, { video, failed, offset: 0, stop: new AbortController() });
		on(video, "error", () => { if (video.getAttribute("src")) this.broken(); });
	}

	get time() { return this.video.currentTime - this.offset; }
	set time(seconds) { this.video.currentTime = Math.max(0, seconds + this.offset); }

	unload() {
		this.stop.abort();
		for (const name of ["src", "poster"]) this.video.removeAttribute(name);
		this.video.load(); // closes the connection
	}

	/** Play from a second on; `details`: a promise of what the server knows of the video. */
	async load(id, start, details) {
		this.unload();
		const { signal } = this.stop = new AbortController();
		const about = { id, start, ...await details.catch(() => {}) }; // without details the original may tell why
		if (signal.aborted) return;
		Object.assign(this, { about, offset: 0 });
		on(this.video, "loadedmetadata", () => { this.time = start; }, { once: true, signal });
		if (Source && ["remuxed", "transcoded"].includes(about.plays)) { this.join(); return; }
		this.offset = about.offset || 0;
		this.video.src = api.stream(id);
		this.video.play().catch(() => {}); // browsers may refuse before the first click
	}

	/** Try parts of an original that this browser does not play after all. */
	broken() {
		const { video, about } = this;
		if (!Source || video.readyState || about.plays !== "original") { this.failed(null); return; }
		about.plays = "transcoded";
		this.offset = 0;
		this.join();
	}

	async join() {
		const { video, about: { id, start, duration }, stop: { signal } } = this;
		const source = new Source();
		video.disableRemotePlayback = true; // Safari demands it
		video.poster = api.frame(id, Math.min(start, duration), 640);
		video.src = URL.createObjectURL(source);
		video.play().catch(() => {});
		try {
			await event(source, ["sourceopen"], signal);
			URL.revokeObjectURL(video.src);
			source.duration = duration;
			await this.feed(source, signal);
		} catch (error) {
			if (!signal.aborted) this.failed(error);
		}
	}

	/** Append the parts around the second that is played, as it moves. */
	async feed(source, signal) {
		const { video, about: { id, start, part, shift, duration } } = this;
		const last = Math.max(0, Math.ceil(duration / part) - 1);
		const loaded = new Set();
		const ready = (time) => [...Array(video.buffered.length).keys()].some((i) => video.buffered.start(i) <= time + 0.1 && time < video.buffered.end(i));
		let buffer = null;
		on(video, "seeking", () => { if (!ready(video.currentTime)) loaded.clear(); }, { signal });
		while (!signal.aborted) {
			const at = video.readyState ? video.currentTime : start;
			let n = Math.min(last, Math.floor(at / part));
			while (loaded.has(n) && n < last) n += 1;
			if (loaded.has(n) || n * part > at + AHEAD) {
				if (loaded.has(last) && source.readyState === "open") source.endOfStream();
				await event(video, ["timeupdate", "seeking"], signal);
				continue;
			}
			const found = await this.part(id, n * part, (time) => time >= n * part + part || n * part > time + AHEAD, signal);
			if (!found || signal.aborted) continue;
			loaded.add(n);
			if (!found.data.byteLength) continue; // its frames are in another part
			if (buffer) buffer.changeType(found.type);
			else buffer = source.addSourceBuffer(found.type);
			buffer.timestampOffset = -shift;
			try {
				buffer.appendBuffer(found.data);
			} catch (error) {
				if (error.name !== "QuotaExceededError") throw error;
				buffer.remove(0, Infinity); // the memory of the browser is full
				loaded.clear();
			}
			await event(buffer, ["updateend"], signal);
		}
	}

	/** A part; null if it is not wanted any more, or not yet there. */
	async part(id, start, unwanted, signal) {
		const stop = new AbortController();
		on(signal, "abort", () => stop.abort(), { signal: stop.signal });
		on(this.video, "seeking", () => { if (unwanted(this.video.currentTime)) stop.abort(); }, { signal: stop.signal });
		try {
			return await api.part(id, start, stop.signal);
		} catch (error) {
			if (error.name === "AbortError") return null;
			if (error.status !== 503) throw error;
			return new Promise((done) => { setTimeout(done, 1000 * error.wait); });
		} finally {
			stop.abort();
		}
	}
}
