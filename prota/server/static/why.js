// Why a moment was found: words × frames. Size and number say what colour says, too.
import { stream } from "./api.js";
import { button, clock, el, on, levels } from "./dom.js";

const short = (value) => value.toFixed(2).replace("-", "−").replace("0.", ".");
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;
const special = (word) => /^(\[.+\]|<.+>)$/.test(word.text); // marks the model puts around a text
const name = (word, cut = "…") => el("span", { class: special(word) ? "piece" : word.unsure ? "unsure" : "" }, word.text.replace("##", cut));

/** Small pictures of the frames, taken from the video one by one; none where it cannot be played. */
async function pictures(video, frames, canvases, signal) {
	const source = el("video", { preload: "auto" });
	const arrived = (event) => new Promise((done, fail) => {
		on(source, event, done, { once: true });
		on(source, "error", fail);
		on(signal, "abort", fail);
	});
	try {
		source.muted = true;
		source.src = stream(video);
		await arrived("loadeddata");
		for (const [i, canvas] of canvases.entries()) {
			const there = arrived("seeked");
			source.currentTime = Math.min(frames[i].time, source.duration - 0.05);
			await there;
			canvas.height = (canvas.width * source.videoHeight) / source.videoWidth;
			canvas.getContext("2d").drawImage(source, 0, 0, canvas.width, canvas.height);
			canvas.classList.add("on");
		}
	} catch { /* the times alone will do */ }
	source.removeAttribute("src");
	source.load();
}

function table({ words, frames, similarities }, video, seek, signal) {
	const flat = levels(similarities.flat());
	const [heaviest, most] = [words, frames].map((side) => Math.max(...side.map((one) => one.weight), 1e-9));
	const canvases = frames.map(() => el("canvas", { width: 128, "aria-hidden": "true" }));
	const fine = frames.length > 1 && frames[1].time - frames[0].time < 0.9;
	const heads = frames.map(({ time }, i) => el("th", { scope: "col" },
		button(() => seek(time), canvases[i], fine ? `${time.toFixed(1)} s` : clock(time))));
	const rows = words.map((word, n) => {
		const best = Math.max(...similarities[n]);
		const cells = similarities[n].map((value, i) => el("td", {
			class: value === best ? "best" : "", vars: { level: flat[n * frames.length + i] },
		}, el("i"), el("b", {}, short(value))));
		return el("tr", {}, el("th", { scope: "row" }, name(word), word.unsure && !special(word) ? el("small", {}, " unsure") : null), ...cells,
			el("td", {}, el("span", { class: "meter", vars: { share: word.weight / heaviest } }), word.weight.toFixed(2)),
			el("td", {}, signed(word.contribution)));
	});
	const foot = (label, draw) => el("tr", {}, el("th", { scope: "row" }, label), ...frames.map(draw), el("td"), el("td"));
	pictures(video, frames, canvases, signal);
	return el("table", { class: "heat" },
		el("caption", { class: "hidden" }, "How alike each word and each frame are"),
		el("thead", {}, el("tr", {}, el("td"), ...heads, ...["weight", "adds"].map((text) => el("th", { scope: "col" }, text)))),
		el("tbody", {}, ...rows),
		el("tfoot", {}, foot("weight", ({ weight }) => el("td", {},
			el("span", { class: "pillar", vars: { share: weight / most } }), el("b", {}, short(weight)))),
		foot("adds", ({ contribution }) => el("td", {}, el("b", {}, signed(contribution))))));
}

export function draw(place, answer, video, seek, signal) {
	const words = answer.words.filter((word) => !special(word));
	const strong = levels(words.map((word) => word.contribution));
	const sentence = words.flatMap((word, i) => [/^##/.test(word.text) ? "" : " ", el("span", { class: "word", vars: { level: strong[i] } }, name(word, ""))]);
	place.replaceChildren(
		el("p", { class: "sentence" }, ...sentence),
		el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Words by frames" }, table(answer, video, seek, signal)),
		el("p", { class: "legend" }, "Larger squares: word and frame are more alike; ", el("span", { class: "ring" }),
			" is where a word fits best. ", el("span", { class: "unsure" }, "Underlined"),
			` words: the model is unsure. All that words and frames add makes the score, ${answer.score.toFixed(3)}.`));
}
