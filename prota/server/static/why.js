// Why a moment was found: words × frames. Size and number say what colour says, too.
import { stream } from "./api.js";
import { clock, el, levels } from "./dom.js";

const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(3)}`;

/** Small pictures of the frames, taken from the video itself, one after the other; none where it cannot be played. */
async function pictures(video, frames, canvases, signal) {
  const source = el("video", { preload: "auto", playsinline: true });
  source.muted = true;
  const arrived = (name) => new Promise((done, fail) => {
    source.addEventListener(name, done, { once: true });
    source.addEventListener("error", fail, { once: true });
    signal.addEventListener("abort", fail, { once: true });
  });
  try {
    source.src = stream(video);
    await arrived("loadeddata");
    for (const [i, frame] of frames.entries()) {
      const there = arrived("seeked");
      source.currentTime = Math.min(frame.time, Math.max(0, source.duration - 0.05));
      await there;
      const canvas = canvases[i];
      canvas.height = Math.round((canvas.width * source.videoHeight) / source.videoWidth) || 40;
      canvas.getContext("2d").drawImage(source, 0, 0, canvas.width, canvas.height);
      canvas.classList.add("on");
    }
  } catch { /* the times alone will do */ } finally {
    source.removeAttribute("src");
    source.load();
  }
}

function sentence(words) {
  const strengths = levels(words.map((word) => word.contribution));
  return el("p", { class: "sentence" }, ...words.flatMap((word, i) => [
    el("span", { class: word.unsure ? "word unsure" : "word", vars: { level: strengths[i] } }, word.text), " "]));
}

function row(word, values, strengths, best, frames, share) {
  const name = el("th", { scope: "row" },
    el("span", { class: word.unsure ? "unsure" : "" }, word.text), word.unsure ? el("small", {}, " unsure") : null);
  const cells = values.map((value, i) => el("td", {
    class: i === best ? "best" : "", vars: { level: strengths[i] }, title: `“${word.text}” at ${clock(frames[i].time)}: ${value.toFixed(3)}`,
  }, el("i", {}), el("b", {}, value.toFixed(2).replace("-", "−").replace(/^(−?)0\./, "$1."))));
  return el("tr", {}, name, ...cells,
    el("td", { class: "weight" }, el("span", { class: "meter", vars: { share } }), `${Math.round(word.weight * 100)} %`),
    el("td", { class: "adds" }, signed(word.contribution)));
}

function table(answer, video, seek, signal) {
  const { words, frames, similarities } = answer;
  const flat = levels(similarities.flat());
  const wide = frames.length;
  const heaviest = Math.max(...words.map((word) => word.weight), 1e-9);
  const canvases = frames.map(() => el("canvas", { width: 112, height: 63, "aria-hidden": "true" }));
  const heads = frames.map((frame, i) => el("th", { scope: "col" }, el("button", {
    type: "button", title: `Play from ${clock(frame.time)}`, on: { click: () => seek(frame.time) },
  }, canvases[i], clock(frame.time))));
  const rows = words.map((word, n) => {
    const best = similarities[n].indexOf(Math.max(...similarities[n]));
    return row(word, similarities[n], flat.slice(n * wide, (n + 1) * wide), best, frames, word.weight / heaviest);
  });
  const most = Math.max(...frames.map((frame) => frame.weight), 1e-9);
  const foot = el("tr", {}, el("th", { scope: "row" }, "weight"), ...frames.map((frame) => el("td", {},
    el("span", { class: "pillar", vars: { share: frame.weight / most } }), el("b", {}, `${Math.round(frame.weight * 100)} %`))),
  el("td", {}), el("td", { class: "adds" }));
  pictures(video, frames, canvases, signal);
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Words by frames" },
    el("table", { class: "heat" },
      el("caption", { class: "hidden" }, "How alike each word and each frame are"),
      el("thead", {}, el("tr", {}, el("td", {}), ...heads, el("th", { scope: "col" }, "weight"), el("th", { scope: "col" }, "adds"))),
      el("tbody", {}, ...rows), el("tfoot", {}, foot)));
}

export function draw(place, answer, video, seek, signal) {
  const unsure = answer.words.some((word) => word.unsure);
  place.replaceChildren(
    el("h3", {}, "Why this moment"),
    sentence(answer.words),
    table(answer, video, seek, signal),
    el("p", { class: "legend" },
      "A larger square: word and frame are more alike. ", el("span", { class: "ring" }), " the frame a word fits best. ",
      unsure ? el("span", {}, el("span", { class: "unsure" }, "Underlined"), " words are those the model is unsure of. ") : "",
      `The score, ${answer.score.toFixed(3)}, is half of what the words add and half of what the frames add.`));
}
