// The page: what the address says is searched, shown and opened.
import * as api from "./api.js";
import { Box, past, remember } from "./box.js";
import { $, clock, count, el, percent, span, store, typing } from "./dom.js";
import * as grid from "./grid.js";
import { Library } from "./library.js";
import { Player } from "./player.js";
import { Route, link, same } from "./route.js";

const uploads = new Map(); // name in the address → file; they live as long as this tab
let answer = null; // what the grid shows
let asked = ""; // the search it is the answer to
let running = new AbortController();
let again = 0;

const actions = {
  link: (moment) => link({ ...route.state, open: moment, why: false }),
  play(moment) { remember(route.state.q); route.go({ open: moment, why: false }); },
  why(moment) { if (route.state.q) { remember(route.state.q); route.go({ open: moment, why: true }); } },
  like(moment) {
    const { video, start, end } = moment;
    route.go({ q: "", upload: "", like: { video, start, end }, filters: {}, all: false, open: null, why: false });
    $("main").focus();
    scrollTo(0, 0);
  },
  siblings: (moment) => {
    const shown = [...(answer?.moments || []), ...(answer?.weaker || [])].filter((other) => other.video === moment.video);
    return shown.some((other) => same(other, moment)) ? shown : [moment];
  },
  closed(moment) { if (!document.activeElement?.closest(".card")) grid.focusMoment(moment); },
  failed,
};

const question = ({ q, like, upload, filters, all }) =>
  JSON.stringify(like ? [like] : upload ? [upload] : q ? [q, filters, all] : []);
const known = (moment) =>
  [...(answer?.moments || []), ...(answer?.weaker || [])].find((other) => same(other, moment)) || { ...moment, title: "" };

function render(state) {
  const any = !!(state.q || state.like || state.upload);
  document.body.dataset.view = any ? "results" : "home";
  document.title = state.q ? `${state.q} · ProTA` : any ? "More like this · ProTA" : "ProTA";
  if (document.activeElement !== $("q") || !any) $("q").value = state.q;
  showFilters(state);
  if (question(state) !== asked) run(state);
  else if (answer) showAnswer(state);
  if (state.open) {
    if (!player.open || !same(player.moment, state.open)) player.show({ ...known(state.open) }, state);
    else player.showWhy(state.why);
  } else player.hide();
}

async function run(state) {
  clearTimeout(again);
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const mine = question(state);
  asked = mine;
  if (mine === "[]") { answer = null; clear(); start(); return; }
  $("start").replaceChildren();
  $("notice").hidden = true;
  const slow = setTimeout(() => { document.body.classList.add("busy"); $("status").textContent = "Searching …"; }, 150);
  try {
    const found = await ask(state, signal);
    const before = answer;
    answer = found;
    $("fresh").hidden = true;
    showAnswer(route.state);
    if (!before) scrollTo(0, 0);
    if (state.open && player.open && player.moment.segment == null) player.show({ ...known(state.open) }, route.state);
  } catch (error) {
    if (error.name === "AbortError") return;
    asked = "";
    failed(error);
  } finally {
    clearTimeout(slow);
    if (!signal.aborted) document.body.classList.remove("busy");
  }
}

function ask(state, signal) {
  if (state.like) return api.like(state.like, signal);
  if (!state.upload) return api.search(state.q, state.filters, state.all, signal);
  const file = uploads.get(state.upload);
  if (file) return api.upload(file, signal);
  throw new api.Problem(0, { title: "This search began with a file", detail: "A link does not carry it along: choose the picture or clip again." });
}

function clear() {
  for (const id of ["grid", "weak", "more", "notice", "likeness", "start"]) $(id).replaceChildren();
  $("likeness").hidden = $("notice").hidden = $("weak").hidden = true;
  $("status").textContent = "";
}

function failed(error) {
  if (error.status === 401) return;
  if (error instanceof api.Offline) { library.lost(); notice("The server does not answer", "The search is run again as soon as it does."); return; }
  if (error.status === 503) {
    const loading = library.facts?.state === "loading";
    notice(loading ? "One moment" : "The server is busy", loading ? "The search runs as soon as the model is loaded." : "The search is tried again by itself.");
    clearTimeout(again);
    again = setTimeout(() => run(route.state), Math.min(error.retryAfter, 10) * 1000);
    return;
  }
  notice(error.title || "That did not work", error.message,
    error.status ? el("button", { type: "button", on: { click: () => run(route.state) } }, "Try again") : null);
}

function notice(title, text, ...more) {
  if (!answer) $("status").textContent = "";
  $("notice").replaceChildren(el("h2", {}, title), el("p", {}, text), ...more.filter(Boolean));
  $("notice").hidden = false;
}

function showAnswer(state) {
  clear();
  const { moments, weaker = [] } = answer;
  likeness(state);
  grid.fill($("grid"), moments, state, actions);
  const took = answer.took_ms == null ? "" : ` in ${Math.max(1, Math.round(answer.took_ms))} ms`;
  if (moments.length) $("status").textContent = `${count(moments.length, "moment")}${took}`;
  else if (!answer.no_good_match && !weaker.length) {
    $("status").textContent = "No moments";
    notice("Nothing here", Object.keys(state.filters).length ? "No video passes these filters." : "The library has nothing to compare with.");
    return;
  }
  if (answer.no_good_match || !moments.length) {
    $("status").textContent = "No good match";
    const cut = answer.cut != null && answer.cut > 0 && answer.cut < 1 ? ` Nothing reaches ${percent(answer.cut)}.` : "";
    notice("No good match", `This library does not seem to have what you describe.${cut}`);
  }
  if (weaker.length || (answer.no_good_match && !state.all)) weak(weaker, state, moments.length);
}

function weak(weaker, state, above) {
  const place = above ? $("more") : $("notice");
  if (state.all) {
    $("more").replaceChildren(el("h2", {}, "Weaker results"));
    grid.fill($("weak"), weaker, state, actions);
    $("weak").hidden = false;
    return;
  }
  place.append(el("button", {
    type: "button", on: { click() { route.go({ all: true }, { replace: true }); } },
  }, weaker.length ? `Show ${count(weaker.length, "weaker result")}` : "Show the nearest all the same"));
}

function likeness(state) {
  const place = $("likeness");
  const file = uploads.get(state.upload);
  place.hidden = !state.like && !state.upload;
  if (place.hidden) return;
  const nearest = state.like && [...answer.moments, ...(answer.weaker || [])].find((other) => other.video === state.like.video);
  let picture = null;
  if (file?.type.startsWith("image/")) {
    picture = el("img", { alt: "", src: URL.createObjectURL(file) });
    picture.addEventListener("load", () => URL.revokeObjectURL(picture.src));
    picture.addEventListener("error", () => picture.remove());
  } else if (nearest) picture = el("img", { alt: "", src: nearest.thumbnail });
  const name = state.like ? `${nearest?.title || "this moment"}, ${span(state.like)}` : state.upload;
  place.replaceChildren(...[picture, el("p", {}, "Moments that look like ", el("strong", {}, name)),
    el("a", { href: "./", class: "button", on: { click(event) { event.preventDefault(); home(); } } }, "Clear")].filter(Boolean));
}

function home() {
  route.go({ q: "", like: null, upload: "", filters: {}, all: false, open: null, why: false });
  $("q").focus();
}

function start() {
  const facts = library.facts;
  const place = $("start");
  if (!facts || route.state.q) return;
  if (!facts.videos) {
    $("summary").textContent = "The library is empty so far.";
    place.replaceChildren(el("div", { class: "empty" },
      el("h2", {}, "Add your first videos"),
      el("p", {}, "Choose a folder. Its videos are read where they are and can be searched after a few seconds; nothing leaves this computer."),
      el("button", { type: "button", class: "strong", on: { click: () => library.open() } }, "Add a folder")));
    return;
  }
  $("summary").textContent = `Describe it in your own words: ${count(facts.videos, "video")}, ${hoursOf(facts)}.`;
  const chips = past().slice(0, 6).map((q) => el("li", {}, el("a", {
    href: link({ ...route.state, q }), on: { click(event) { event.preventDefault(); box.enter(q); } } }, q)));
  place.replaceChildren(...(chips.length ? [el("h2", { class: "hidden" }, "Past searches"), el("ul", { class: "chips" }, ...chips)] : []));
}
const hoursOf = (facts) => (facts.hours >= 1 ? `${facts.hours.toFixed(1)} hours` : clock(facts.hours * 3600).replace(/^(\d+):(\d+)$/, "$1 min $2 s"));

function showFilters({ filters, like, upload }) {
  const { duration, folder, after, before } = document.forms.filters;
  const wanted = filters.min_duration || filters.max_duration ? `${filters.min_duration || ""}-${filters.max_duration || ""}` : "";
  duration.value = wanted;
  if (duration.selectedIndex < 0) { duration.append(el("option", { value: wanted }, `${wanted} seconds`)); duration.value = wanted; }
  if (filters.folder && ![...folder.options].some((option) => option.value === filters.folder)) folder.append(el("option", { value: filters.folder }, filters.folder));
  folder.value = filters.folder || "";
  after.value = filters.after || "";
  before.value = filters.before || "";
  const used = (wanted ? 1 : 0) + ["folder", "after", "before"].filter((name) => filters[name]).length;
  $("filter").querySelector("span").textContent = used ? `Filters (${used})` : "Filters";
  $("filter").hidden = !!(like || upload); // the server filters texts only
  if (like || upload) openFilters(false); else if (used) openFilters(true);
}

function openFilters(open) { $("filters").hidden = !open; $("filter").ariaExpanded = String(open); }

function takeFilters() {
  const { duration, folder, after, before } = document.forms.filters;
  const [low, high] = duration.value.split("-");
  const filters = { folder: folder.value, min_duration: low, max_duration: high, after: after.value, before: before.value };
  for (const name of Object.keys(filters)) if (!filters[name]) delete filters[name];
  route.go({ filters });
}

function take(file) {
  if (!file) return;
  const name = file.name || "picture";
  uploads.set(name, file);
  asked = "";
  route.go({ q: "", like: null, upload: name, filters: {}, all: false, open: null, why: false });
}

const text = (q) => ({ q, like: null, upload: "", all: false, open: null, why: false });
const route = new Route(render);
const player = new Player(route, actions);
const box = new Box({
  typed: (q) => route.go(text(q), { replace: !!route.state.q && !!q }),
  entered: (q) => { if (q === route.state.q && !route.state.like && !route.state.upload) grid.focusFirst(); else route.go(text(q)); },
  down: () => grid.focusFirst(),
});
const library = new Library({
  changed(facts, before) {
    if (!route.state.q && !route.state.like && !route.state.upload) start();
    $("fresh").hidden = !answer || answer.version == null || String(answer.version) === String(facts.version);
  },
  back() { if (!asked) run(route.state); player.again(); },
});

$("filter").addEventListener("click", () => openFilters($("filters").hidden));
$("filters").addEventListener("change", takeFilters);
$("filters").addEventListener("reset", (event) => { event.preventDefault(); route.go({ filters: {} }); });
$("filters").addEventListener("submit", (event) => event.preventDefault());
$("fresh").addEventListener("click", () => run(route.state));
$("pick").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => { take($("file").files[0]); $("file").value = ""; });
document.querySelector(".brand").addEventListener("click", (event) => { if (!event.ctrlKey && !event.metaKey) { event.preventDefault(); home(); } });
$("theme").addEventListener("click", () => {
  const dark = getComputedStyle(document.documentElement).colorScheme.includes("dark") && (document.documentElement.dataset.theme === "dark" || matchMedia("(prefers-color-scheme: dark)").matches && document.documentElement.dataset.theme !== "light");
  const theme = dark ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("prota.theme", theme); } catch { /* for this page only */ }
});
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => { event.preventDefault(); take(event.dataTransfer.files[0]); });
addEventListener("paste", (event) => { if (event.clipboardData.files.length) take(event.clipboardData.files[0]); });
document.addEventListener("prota:token", () => { if (!$("token").open) $("token").showModal(); });
$("token").querySelector("form").addEventListener("submit", () => {
  location.assign(`./?token=${encodeURIComponent($("token-value").value.trim())}`);
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (event.key === "/" && !typing(event.target)) { event.preventDefault(); $("q").focus(); $("q").select(); } else if (!typing(event.target)) {
    if (grid.key(event, actions, () => $("q").focus())) event.preventDefault();
  }
});

render(route.state);
library.look();
if (document.body.dataset.view === "home" && matchMedia("(pointer: fine)").matches) $("q").focus({ preventScroll: true });
