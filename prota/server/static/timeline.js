// The timeline of the player: where the video plays, which parts match, and a scale.
import { $, clock, el, levels, span } from "./dom.js";

const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400];

export class Timeline {
	/** `jump`: called with a match that was chosen. */
	constructor(jump) { Object.assign(this, { jump, marks: [], length: 1 }); }

	/** Show the matches of a video, in the order of time; `judged`: whether there is a query that they match. */
	show(found, judged) {
		const spread = levels(found.map((mark) => mark.score ?? 0));
		this.marks = found.map((mark, i) => ({ ...mark, level: mark.probability ?? spread[i] })).sort((a, b) => a.start - b.start);
		$("marks").replaceChildren(...this.marks.map((mark) => el("button", {
			class: "mark", vars: { level: mark.level }, on: () => this.jump(mark), title: span(mark),
			"aria-label": `Match from ${clock(mark.start)} to ${clock(mark.end)}`,
		})));
		$("hops").hidden = found.length < 2;
		$("timeline").classList.toggle("plain", !judged);
	}

	/** Place marks and ticks over a video of so many seconds. */
	layout(length) {
		this.length = length;
		[...$("marks").children].forEach((node, i) => {
			node.style.setProperty("--from", this.marks[i].start / length);
			node.style.setProperty("--to", Math.min(1, this.marks[i].end / length));
		});
		const most = Math.max(2, $("track").clientWidth / 110);
		const step = STEPS.find((seconds) => length / seconds <= most) ?? length;
		const ticks = Array.from({ length: Math.floor((0.95 * length) / step) + 1 }, (_, i) => i * step);
		$("ticks").replaceChildren(...ticks.map((second) => el("li", { vars: { at: second / length } }, clock(second))));
	}

	/** Show that the video is at this second; `opened`: the moment that was asked for. */
	tick(now, opened) {
		$("head").style.setProperty("--at", now / this.length);
		$("span").style.setProperty("--from", opened.start / this.length);
		$("span").style.setProperty("--to", opened.end / this.length);
		const at = this.at(now, opened);
		[...$("marks").children].forEach((node, i) => {
			node.ariaCurrent = i === at ? "true" : null;
			node.tabIndex = i === Math.max(0, at) ? 0 : -1;
		});
		$("hop-at").textContent = at < 0 ? `${this.marks.length} matches` : `${at + 1} of ${this.marks.length}`;
	}

	/** The match that is playing; of several that overlap the opened one, else the latest. */
	at(now, opened) {
		const inside = (mark) => mark.start <= now + 0.05 && now + 0.05 < mark.end;
		const asked = this.marks.findIndex((mark) => Math.abs(mark.start - opened.start) < 0.05 && inside(mark));
		return asked >= 0 ? asked : this.marks.findLastIndex(inside);
	}

	/** Jump to the next match, or with −1 to the previous one. */
	hop(step, now, opened) {
		const { marks } = this;
		const at = this.at(now, opened);
		const next = at >= 0 ? at + step : marks.findIndex((mark) => mark.start > now) - (step < 0 ? 1 : 0);
		const index = (next + marks.length) % marks.length;
		const inMarks = document.activeElement.closest("#marks");
		this.jump(marks[index]);
		if (inMarks) $("marks").children[index].focus();
	}
}
