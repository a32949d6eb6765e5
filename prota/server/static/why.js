// The explanation of a score: words × frames. Colour is never the only sign: sizes and numbers show the same.
import { stream } from "./api.js";
import { button, clock, el, on, levels, still } from "./dom.js";

const short = (value) => value.toFixed(2).replace("-", "−").replace("0.", ".");
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;

/** Draw small pictures of the frames, taken from the video; none if it cannot be played. */
async function pictures(moment, frames, canvases, signal) {
	const source = el(still(moment) ? "img" : "video");
	const arrived = (event) => new Promise((done, fail) => {
		on(source, event, done, { once: true });
		on(source, "error", fail);
		on(signal, "abort", fail);
	});
	try {
		source.muted = true;
		source.preload = "auto";
		source.src = stream(moment.video);
		await arrived(still(moment) ? "load" : "loadeddata");
		for (const [i, canvas] of canvases.entries()) {
			if (!still(moment)) {
				const there = arrived("seeked");
				source.currentTime = Math.min(frames[i].time, source.duration - 0.05);
				await there;
			}
			canvas.height = (canvas.width * (source.videoHeight ?? source.naturalHeight)) / (source.videoWidth ?? source.naturalWidth);
			canvas.getContext("2d").drawImage(source, 0, 0, canvas.width, canvas.height);
			canvas.classList.add("on");
		}
	} catch { /* the times are enough */ }
	source.removeAttribute("src");
	source.load?.();
}

function table({ words, frames, similarities }, moment, seek, signal) {
	const flat = levels(similarities.flat());
	const [heaviest, most] = [words, frames].map((side) => Math.max(...side.map((one) => one.weight), 1e-9));
	const canvases = frames.map(() => el("canvas", { width: 128, "aria-hidden": "true" }));
	const fine = frames.length > 1 && frames[1].time - frames[0].time < 0.9;
	const heads = frames.map(({ time }, i) => el("th", { scope: "col" }, ...(still(moment) ? [canvases[i], "picture"]
		: [button(() => seek(time), canvases[i], fine ? `${time.toFixed(1)} s` : clock(time))])));
	const rows = words.map((word, n) => {
		const best = Math.max(...similarities[n]);
		const cells = similarities[n].map((value, i) => el("td", {
			class: value === best ? "best" : "", vars: { level: flat[n * frames.length + i] },
		}, el("i"), el("b", {}, short(value))));
		return el("tr", {}, el("th", { scope: "row", class: word.rest ? "rest" : null }, word.text), ...cells,
			el("td", {}, el("span", { class: "meter", vars: { share: word.weight / heaviest } }), word.weight.toFixed(2)),
			el("td", {}, signed(word.contribution)));
	});
	const foot = (label, draw) => el("tr", {}, el("th", { scope: "row" }, label), ...frames.map(draw), el("td"), el("td"));
	pictures(moment, frames, canvases, signal);
	return el("table", { class: "heat" },
		el("caption", { class: "hidden" }, "Similarities of words and frames"),
		el("thead", {}, el("tr", {}, el("td"), ...heads, ...["weight", "adds"].map((text) => el("th", { scope: "col" }, text)))),
		el("tbody", {}, ...rows),
		el("tfoot", {}, foot("weight", ({ weight }) => el("td", {},
			el("span", { class: "pillar", vars: { share: weight / most } }), el("b", {}, short(weight)))),
		foot("adds", ({ contribution }) => el("td", {}, el("b", {}, signed(contribution))))));
}

/** The query with words as bold as their contributions; words without one are grey. */
function sentence(words, query) {
	const strong = levels(words.map((word) => word.contribution));
	let read = 0;
	const parts = words.flatMap(({ text }, i) => {
		const at = query.indexOf(text, read);
		const before = at < 0 ? " " : query.slice(read, at);
		if (at >= 0) read = at + text.length;
		return [before, el("span", { class: "word", vars: { level: strong[i] } }, text)];
	});
	return el("p", { class: "sentence" }, ...parts, query.slice(read));
}

export function draw(place, answer, moment, query, seek, signal) {
	place.replaceChildren(
		sentence(answer.words.filter((word) => !word.rest), query),
		el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Words by frames" }, table(answer, moment, seek, signal)),
		el("p", { class: "legend" }, "Larger squares: word and frame are more similar; ", el("span", { class: "ring" }),
			` marks the best frame of a word. The contributions of words, and those of frames, add up to the score, ${answer.score.toFixed(3)}.`));
}
