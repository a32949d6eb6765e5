// Why a moment was found: a sentence, the heat of words over frames, and the numbers of the score.
// Colour is never the only sign: heights and sizes show the same.
import { stream } from "./api.js";
import { button, clock, el, levels, on, percent, still } from "./dom.js";

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

/** A table over the frames: their pictures and times, rows, and a foot. */
function table(kind, caption, frames, moment, { seek, head, columns = [], rows, foot }) {
	const fine = frames.length > 1 && frames[1].time - frames[0].time < 0.9;
	const heads = frames.map(({ time }, i) => el("th", { scope: "col" }, ...(still(moment) ? [head?.[i], "picture"]
		: [button(() => seek(time), head?.[i], fine ? `${time.toFixed(1)} s` : clock(time))].filter(Boolean))));
	return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, el("table", { class: kind },
		el("caption", { class: "hidden" }, caption),
		el("thead", {}, el("tr", {}, el("td"), ...heads, ...columns.map((text) => el("th", { scope: "col" }, text)))),
		el("tbody", {}, ...rows), foot ? el("tfoot", {}, ...foot) : null));
}

/** The frames, and under them how hot each chosen word is; without one, the whole query. */
function strip({ words, frames, start, end }, moment, seek, signal) {
	const canvases = frames.map(() => el("canvas", { width: 160, "aria-hidden": "true" }));
	const chosen = [...new Map(words.filter((word) => word.chosen).map((word) => [word.text, word.heat])).entries()];
	if (!chosen.length) chosen.push(["whole query", frames.map(({ heat }) => heat)]);
	const within = ({ time }) => start <= time && time <= end;
	const row = ([text, heat]) => el("tr", {}, el("th", { scope: "row" }, text), ...heat.map((share, i) => el("td", { class: within(frames[i]) ? "in" : null },
		el("span", { class: "glow", vars: { share } }), el("span", { class: "hidden" }, percent(share)))));
	pictures(moment, frames, canvases, signal);
	return table("strip", "Heat of words by frames", frames, moment, { seek, head: canvases, rows: chosen.map(row) });
}

/** What the score is made of: words × frames. */
function numbers({ words, frames, rest, similarities }, moment, seek) {
	const flat = levels(similarities.flat());
	const [heaviest, most] = [words, frames].map((side) => Math.max(...side.map((one) => one.weight), 1e-9));
	const ends = ({ weight, contribution }) => [el("td", {}, el("span", { class: "meter", vars: { share: Math.min(1, weight / heaviest) } }), weight.toFixed(2)), el("td", {}, signed(contribution))];
	const rows = words.map((word, n) => {
		const best = Math.max(...similarities[n]);
		return el("tr", {}, el("th", { scope: "row" }, word.text), ...similarities[n].map((value, i) => el("td", {
			class: value === best ? "best" : null, vars: { level: flat[n * frames.length + i] },
		}, el("i"), el("b", {}, short(value)))), ...ends(word));
	});
	rows.push(el("tr", {}, el("th", { scope: "row", class: "rest" }, "punctuation and ends"), ...frames.map(() => el("td")), ...ends(rest)));
	const foot = (label, draw) => el("tr", {}, el("th", { scope: "row" }, label), ...frames.map(draw), el("td"), el("td"));
	return table("heat", "Similarities of words and frames", frames, moment, {
		seek, rows, columns: ["weight", "adds"],
		foot: [foot("weight", ({ weight }) => el("td", {}, el("span", { class: "pillar", vars: { share: weight / most } }), el("b", {}, short(weight)))),
			foot("adds", ({ contribution }) => el("td", {}, el("b", {}, signed(contribution))))],
	});
}

export function draw(place, answer, moment, seek, signal) {
	const details = el("details", {}, el("summary", {}, "Details"));
	// Drawn when they are asked for.
	on(details, "toggle", () => {
		if (details.open && !details.querySelector("table")) details.append(numbers(answer, moment, seek), el("p", { class: "legend" },
			"Larger squares: word and frame are more similar; ", el("span", { class: "ring" }),
			` marks the best frame of a word. The contributions of words, and those of frames, add up to the score, ${answer.score.toFixed(3)}.`));
	});
	place.replaceChildren(
		el("p", { class: "sentence" }, `${answer.sentence}.`),
		strip(answer, moment, seek, signal),
		el("p", { class: "legend" }, "Taller: the frame fits the word better than frames of unrelated videos do."),
		details);
}
