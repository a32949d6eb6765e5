// Moments as a grid of cards, with previews on hover and focus and arrow keys.
import * as api from "./api.js";
import { button, clock, el, icon, leads, on, percent, span, still } from "./dom.js";
import { Film } from "./film.js";
import { same } from "./route.js";

let preview = null;

function endPreview() {
	if (!preview) return;
	clearTimeout(preview.timer);
	preview.film.unload();
	preview.video.remove();
	preview = null;
}

function startPreview(card, { video: id, start, end }) {
	if (preview?.card === card || still({ start, end })) return;
	endPreview();
	if (matchMedia("(prefers-reduced-motion: reduce)").matches || navigator.connection?.saveData) return;
	const video = el("video", { "aria-hidden": "true", tabindex: -1, playsinline: "" });
	const film = new Film(video);
	video.muted = true;
	on(video, "ended", () => { film.time = start; video.play().catch(() => {}); });
	on(video, "playing", () => video.classList.add("on"));
	on(video, "timeupdate", () => { if (film.time > Math.max(end, start + 1)) film.time = start; });
	// Not for a pointer that only passes over.
	const timer = setTimeout(() => { card.querySelector(".thumb").append(video); film.load(id, start, api.video(id)); }, 250);
	preview = { card, film, timer, video };
}

function card(moment, actions) {
	const { title, folder, start, end, probability, score } = moment;
	const length = moment.duration || end;
	const image = el("img", { src: moment.thumbnail, alt: "", loading: "lazy", decoding: "async" });
	on(image, "error", () => { image.hidden = true; });
	// The frame that matches best, as sharp as the screen; over the stored picture, which is there at once.
	const sharp = el("img", { src: api.frame(moment.video, moment.best ?? start, Math.min(innerWidth, 320) * devicePixelRatio), alt: "", class: "sharp", loading: "lazy", decoding: "async" });
	on(sharp, "error", () => sharp.remove());
	const likely = score == null ? "" : probability == null ? el("span", {}, `score ${score.toFixed(2)}`)
		: el("span", { class: "relevance", title: "Probability of being relevant" },
			el("span", { class: "meter", vars: { share: probability } }), percent(probability));
	const anchor = el("a", {
		class: "play", href: actions.link(moment), tabindex: -1,
		"aria-label": [title, still(moment) ? "picture" : `${clock(start)} to ${clock(end)}`, likely.textContent].filter(Boolean).join(", "),
		on: leads(() => actions.play(moment)),
	},
	el("span", { class: "thumb" }, image, sharp, el("span", { class: "time" }, span(moment)),
		end - start >= 0.98 * length ? null : el("span", { class: "where", vars: { from: start / length, to: Math.min(1, end / length) } })),
	el("span", { class: "title" }, title),
	el("span", { class: "facts" }, el("span", { class: "folder" }, folder), likely));
	const quick = (name, label, run) => {
		const node = button(() => run(moment), icon(name));
		node.title = label;
		node.ariaLabel = `${label}: ${title} ${span(moment)}`;
		node.tabIndex = -1;
		return node;
	};
	const item = el("li", { class: "card" }, anchor, el("div", { class: "quick" },
		actions.why && quick("why", "Why this? (w)", actions.why), quick("like", "More like this (l)", actions.like)));
	item.moment = moment;
	on(item, "pointerenter", (event) => { if (event.pointerType === "mouse") startPreview(item, moment); });
	on(item, "pointerleave", endPreview);
	on(item, "focusin", () => { enter(item); if (anchor.matches(":focus-visible")) startPreview(item, moment); });
	on(item, "focusout", endPreview);
	return item;
}

/** Only one card of a list is in the tab order, so that Tab leaves it after three steps. */
function enter(item) {
	for (const other of item.parentNode.querySelectorAll("[tabindex='0']")) other.tabIndex = -1;
	for (const part of item.querySelectorAll("a, button")) part.tabIndex = 0;
}

export function fill(list, moments, actions) {
	endPreview();
	list.replaceChildren(...moments.map((moment) => card(moment, actions)));
	if (list.firstChild) enter(list.firstChild);
}

const cards = () => [...document.querySelectorAll(".card")];

/** The moments that the page shows. */
export const shown = () => [...document.querySelectorAll(".card, .file")].map(({ moment }) => moment).filter(Boolean);

/** Focus the card of a moment, or of its video, or the first card; returns whether there is one. */
export function focus(moment) {
	const all = [...document.querySelectorAll(".card, .file")].filter((item) => item.moment);
	const found = moment ? all.find((item) => same(item.moment, moment)) || all.find((item) => item.moment.video === moment.video) : all[0];
	found?.querySelector("a").focus();
	return !!found;
}

/** Handle arrows, w and l on a card; returns whether the key was handled. */
export function key(event, actions, leave) {
	const item = event.target.closest(".card");
	const run = item && { w: actions.why, l: actions.like }[event.key];
	if (run) run(item.moment);
	if (run || !item) return !!run;
	const all = cards();
	const at = all.indexOf(item);
	const lower = all.slice(at).find((other) => other.offsetTop > item.offsetTop);
	const row = lower ? all.indexOf(lower) - all.findIndex((other) => other.offsetTop === item.offsetTop) : all.length;
	const above = all.slice(0, at).findLast((other) => other.offsetTop < item.offsetTop && other.offsetLeft <= item.offsetLeft);
	const next = {
		ArrowRight: () => all[at + 1], ArrowLeft: () => all[at - 1], Home: () => all[0], End: () => all.at(-1),
		ArrowDown: () => lower && (all[at + row] || all.at(-1)), ArrowUp: () => above || leave(),
	}[event.key];
	if (!next) return false;
	next()?.querySelector("a").focus();
	return true;
}
