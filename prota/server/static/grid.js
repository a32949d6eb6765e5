// Moments as a grid: a card each, previews on hover and focus, arrows to move.
import { stream } from "./api.js";
import { clock, el, icon, percent, span, still } from "./dom.js";

const PREVIEW_AFTER = 250; // ms: a pointer that only passes starts nothing

let preview = null;

function endPreview() {
  if (!preview) return;
  clearTimeout(preview.timer);
  if (preview.video) {
    preview.video.removeAttribute("src");
    preview.video.load(); // lets go of the connection
    preview.video.remove();
  }
  preview = null;
}

function startPreview(card, moment) {
  if (preview?.card === card) return;
  endPreview();
  if (still() || navigator.connection?.saveData) return;
  const mine = { card, timer: 0, video: null };
  preview = mine;
  mine.timer = setTimeout(() => {
    const video = el("video", { "aria-hidden": "true", tabindex: "-1", playsinline: true, preload: "auto" });
    video.muted = true;
    video.src = stream(moment.video);
    video.addEventListener("loadedmetadata", () => { video.currentTime = moment.start; });
    video.addEventListener("playing", () => video.classList.add("on"));
    video.addEventListener("timeupdate", () => {
      if (video.currentTime > Math.max(moment.end, moment.start + 1)) video.currentTime = moment.start;
    });
    video.addEventListener("ended", () => { video.currentTime = moment.start; video.play().catch(() => {}); });
    mine.video = video;
    card.querySelector(".thumb").append(video);
    video.play().catch(() => {});
  }, PREVIEW_AFTER);
}

function relevance(moment) {
  if (moment.relevance == null) return el("span", { class: "score" }, `score ${moment.score.toFixed(2)}`);
  return el("span", { class: "relevance", title: "How likely this is what you mean" },
    el("span", { class: "meter", vars: { share: moment.relevance } }), percent(moment.relevance));
}

function card(moment, state, actions) {
  const length = moment.duration || moment.end;
  const image = el("img", { src: moment.thumbnail, alt: "", loading: "lazy", decoding: "async", width: 320, height: 180 });
  image.addEventListener("error", () => image.classList.add("gone"));
  const likely = moment.relevance == null ? "" : `, relevance ${percent(moment.relevance)}`;
  const anchor = el("a", {
    class: "play", href: actions.link(moment), tabindex: "-1",
    "aria-label": `${moment.title}, ${clock(moment.start)} to ${clock(moment.end)}${likely}`,
    on: {
      click(event) {
        if (event.metaKey || event.ctrlKey || event.shiftKey || event.button) return; // a new tab, as any link
        event.preventDefault();
        actions.play(moment);
      },
    },
  },
  el("span", { class: "thumb" }, image,
    el("span", { class: "time" }, span(moment)),
    el("span", { class: "where", vars: { from: moment.start / length, to: Math.min(1, moment.end / length) } })),
  el("span", { class: "title" }, moment.title),
  el("span", { class: "facts" }, el("span", { class: "folder" }, moment.folder || "\u00a0"), relevance(moment)));
  const button = (name, label, run) => el("button", {
    type: "button", tabindex: "-1", title: label, "aria-label": `${label}: ${moment.title} ${span(moment)}`, on: { click: run },
  }, icon(name));
  const item = el("li", { class: "card" }, anchor, el("div", { class: "quick" },
    state.q ? button("why", "Why this? (w)", () => actions.why(moment)) : null,
    button("like", "More like this (l)", () => actions.like(moment))));
  item.moment = moment;
  item.addEventListener("pointerenter", (event) => event.pointerType === "mouse" && startPreview(item, moment));
  item.addEventListener("pointerleave", endPreview);
  item.addEventListener("focusin", () => { current(item); if (anchor.matches(":focus-visible")) startPreview(item, moment); });
  item.addEventListener("focusout", endPreview);
  return item;
}

/** One card at a time is in the tab order, with its buttons: Tab passes the grid in three steps, not in a hundred. */
function current(item) {
  for (const other of document.querySelectorAll(".card [tabindex='0']")) other.tabIndex = -1;
  for (const part of item.querySelectorAll("a, button")) part.tabIndex = 0;
}

export function fill(list, moments, state, actions) {
  endPreview();
  list.replaceChildren(...moments.map((moment) => card(moment, state, actions)));
  if (!document.querySelector(".card [tabindex='0']") && list.firstChild) current(list.firstChild);
}

const cards = () => [...document.querySelectorAll("#grid > .card, #weak:not([hidden]) > .card")];

export function focusFirst() {
  const first = cards()[0];
  first?.querySelector("a").focus();
  return !!first;
}

export function focusMoment(moment) {
  const found = cards().find((item) => item.moment.segment === moment.segment && item.moment.video === moment.video);
  found?.querySelector("a").focus();
}

function columns(all) {
  const top = all[0].offsetTop;
  const found = all.findIndex((item) => item.offsetTop > top);
  return found < 0 ? all.length : found;
}

/** Arrows, w and l on a card; whether the key was used. */
export function key(event, actions, leave) {
  const item = event.target.closest?.(".card");
  if (!item) return false;
  if (event.key === "w") return actions.why(item.moment), true;
  if (event.key === "l") return actions.like(item.moment), true;
  const all = cards();
  const at = all.indexOf(item);
  const rows = columns(all);
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: rows, ArrowUp: -rows, Home: -at, End: all.length - 1 - at }[event.key];
  if (step == null) return false;
  const next = all[at + step] || (step === rows && at + step < all.length - 1 + rows ? all.at(-1) : null);
  if (next) {
    next.querySelector("a").focus();
    next.scrollIntoView({ block: "nearest" });
  } else if (event.key === "ArrowUp") leave();
  return true;
}
