// Why a moment was found: a sentence, the heat of words over frames, and the numbers of the score.
// Colour is never the only sign: heights show the same.
import { frame } from "./api.js";
import { button, clock, el, on, percent, still } from "./dom.js";

const short = (value) => value.toFixed(2).replace("-", "−").replace("0.", ".");
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;

/** Small pictures of the frames; where one cannot be read, its time is enough. */
function pictures({ video }, frames) {
	return frames.map(({ time }) => {
		const image = el("img", { src: frame(video, Math.max(0, time), 160), alt: "" });
		on(image, "error", () => image.remove());
		return image;
	});
}

/** A table over the frames: what stands over their times, and rows. */
function table(kind, caption, { frames }, moment, { seek, head = [], columns = [], rows }) {
	const fine = frames.length > 1 && frames[1].time - frames[0].time < 0.9;
	const heads = frames.map(({ time }, i) => el("th", { scope: "col" }, ...(still(moment) ? [head[i], "picture"]
		: [button(() => seek(time), ...[head[i], fine ? `${time.toFixed(1)} s` : clock(time)].filter(Boolean))])));
	return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, el("table", { class: kind },
		el("caption", { class: "hidden" }, caption),
		el("thead", {}, el("tr", {}, el("td"), ...heads, ...columns.map((text) => el("th", { scope: "col" }, text)))),
		el("tbody", {}, ...rows.map(([name, ...cells]) => el("tr", {}, el("th", { scope: "row" }, name), ...cells)))));
}

/** The frames, and under them how hot each chosen word is; without one, the whole query. */
function strip(answer, moment, seek) {
	const { words, frames, start, end } = answer;
	const chosen = new Map(words.filter((word) => word.chosen).map((word) => [word.text, word.heat]));
	if (!chosen.size) chosen.set("whole query", frames.map(({ heat }) => heat));
	const cell = (share, i) => el("td", { class: start <= frames[i].time && frames[i].time <= end ? "in" : null },
		el("span", { class: "glow", vars: { share } }), el("span", { class: "hidden" }, percent(share)));
	const rows = [...chosen].map(([text, heat]) => [text, ...heat.map(cell)]);
	return table("strip", "Heat of words by frames", answer, moment, { seek, head: pictures(moment, frames), rows });
}

/** What the score is made of: words × frames. */
function numbers(answer, moment, seek) {
	const { words, frames, rest, similarities } = answer;
	const cells = (values, best) => values.map((value) => el("td", { class: value === best ? "best" : null }, value ?? ""));
	const row = (name, values, { weight, contribution } = {}, best = "") => [name, ...cells(values, best),
		...(weight == null ? [el("td"), el("td")] : cells([weight.toFixed(2), signed(contribution)]))];
	return table("numbers", "Similarities of words and frames", answer, moment, { seek, columns: ["weight", "adds"], rows: [
		...words.map((word, n) => row(word.text, similarities[n].map(short), word, short(Math.max(...similarities[n])))),
		row("punctuation, ends", frames.map(() => null), rest),
		row("weight", frames.map(({ weight }) => short(weight))),
		row("adds", frames.map(({ contribution }) => signed(contribution))),
	] });
}

export function draw(place, answer, moment, seek) {
	const details = el("details", {}, el("summary", {}, "Details"));
	// Drawn when they are asked for.
	on(details, "toggle", () => {
		if (details.open && !details.querySelector("table")) details.append(numbers(answer, moment, seek), el("p", { class: "legend" },
			`Similarities of words and frames; the best of a word is bold. What words add, and what frames add, is the score, ${answer.score.toFixed(3)}.`));
	});
	place.replaceChildren(
		el("p", { class: "sentence" }, `${answer.sentence}.`),
		strip(answer, moment, seek),
		el("p", { class: "legend" }, "Taller: the frame fits the word better than frames of unrelated videos do."),
		details);
}
