// The page: searches, shows and opens what its address says.
import * as api from "./api.js";
import { $, button, count, el, holds, on, span } from "./dom.js";
import * as grid from "./grid.js";
import { Library } from "./library.js";
import { Player } from "./player.js";
import { NOTHING, Route, link, same } from "./route.js";

const uploads = new Map(); // name in the address → file; they live as long as this tab
let answer = null; // what the grid shows
let asked = "[]"; // the question it answers; empty after a failure
let running = new AbortController();
let timer = 0;

const actions = {
	link: (open) => link({ ...route.state, open, why: false }),
	play(open) { remember(); route.go({ open, why: false }); },
	why(open) { remember(); route.go({ open, why: true }); },
	like({ video, start, end }) {
		route.go({ ...NOTHING, filters: {}, like: { video, start, end } });
		$("main").focus();
		scrollTo(0, 0);
	},
	siblings: (moment) => {
		const found = shown().filter((other) => other.video === moment.video);
		return found.length ? found : [moment];
	},
	closed: (moment) => { if (!grid.focus(moment)) $("q").focus(); },
	failed,
};

const shown = () => (answer ? [...answer.moments, ...answer.weaker] : []);
const known = (moment) => ({ ...(shown().find((other) => same(other, moment)) || moment) });
const question = ({ q, like, upload, filters }) => JSON.stringify(like ? [like] : upload ? [upload] : q ? [q, filters] : []);

/** Past queries, the latest first, kept in this browser only. */
function past() {
	try { return JSON.parse(localStorage.getItem("prota.past")) || []; } catch { return []; }
}
function remember(q = route.state.q) {
	if (!q) return;
	try { localStorage.setItem("prota.past", JSON.stringify([q, ...past().filter((one) => one !== q)].slice(0, 50))); } catch {}
	suggest();
}
function suggest() { $("past").replaceChildren(...past().slice(0, 12).map((value) => el("option", { value }))); }

function render(state) {
	const any = question(state) !== "[]";
	document.body.dataset.view = any ? "results" : "home";
	document.title = state.q ? `${state.q} · ProTA` : "ProTA";
	if (document.activeElement !== $("q") || $("q").value.trim() !== state.q) $("q").value = state.q;
	showFilters(state);
	if (question(state) !== asked) search(state);
	if (!state.open) player.hide();
	else if (!same(player.moment, state.open)) player.show(known(state.open), state);
	else player.explain(state.why);
}

async function search(state) {
	clearTimeout(timer);
	running.abort();
	running = new AbortController();
	const { signal } = running;
	asked = question(state);
	$("notice").hidden = true;
	if (asked === "[]") {
		answer = null;
		document.body.classList.remove("busy");
		clear();
		start();
		return;
	}
	$("start").replaceChildren();
	timer = setTimeout(() => { document.body.classList.add("busy"); $("status").textContent = "Searching …"; }, 150);
	try {
		answer = await ask(state, signal);
		for (const moment of shown()) moment.version = answer.version; // rows of segments are valid in one version
		clearTimeout(timer);
		show(route.state);
	} catch (error) {
		if (error.name === "AbortError") return;
		clearTimeout(timer);
		asked = "";
		failed(error);
	}
	document.body.classList.remove("busy");
}

async function ask(state, signal) {
	if (state.like) return api.like(state.like, signal);
	if (!state.upload) return api.search(state.q, state.filters, signal);
	const file = uploads.get(state.upload);
	if (file) return api.upload(file, signal);
	throw new api.Problem(404, { title: "File not available", detail: "Choose the picture or clip again." });
}

function failed(error) {
	if (error.status === 401) return;
	if (!error.status) {
		$("status").textContent = "Waiting for the server …";
		library.lost();
		return;
	}
	clear();
	answer = null;
	if (error.status !== 503) { notice(error.title, error.message, button(() => search(route.state), "Try again")); return; }
	notice("Please wait", error.message);
	timer = setTimeout(() => search(route.state), Math.min(error.wait, 10) * 1000);
}

function clear() {
	for (const id of ["grid", "weak", "more", "likeness", "start"]) $(id).replaceChildren();
	$("likeness").hidden = $("notice").hidden = $("weak").hidden = $("fresh").hidden = true;
	$("status").textContent = "";
}

function notice(title, text, ...more) {
	$("notice").replaceChildren(el("h2", {}, title), el("p", {}, text), ...more);
	$("notice").hidden = false;
}

function show(state) {
	if (!answer) return;
	const { moments, weaker } = answer;
	const able = { ...actions, why: state.q ? actions.why : null };
	clear();
	likeness(state);
	grid.fill($("grid"), moments, able);
	const took = ` in ${Math.max(1, Math.round(answer.took_ms))} ms`;
	const cut = (answer.cut ? " · query truncated" : "") + (answer.partial ? " · some shards did not answer" : "");
	$("status").textContent = (moments.length ? count(moments.length, "moment") + took : weaker.length ? "No good match" : "No moments") + cut;
	if (!moments.length && weaker.length) notice("No good match", "The library does not seem to contain what you describe. The nearest moments:");
	else if (!moments.length) notice("No results", !state.q ? "No similar moments." : Object.keys(state.filters).length ? "No moment matches these filters." : "The library is empty.");
	if (!weaker.length) return;
	$("more").append(el("h2", {}, "Weaker matches"));
	grid.fill($("weak"), weaker.map((moment) => ({ ...moment, weaker: true })), able);
	$("weak").hidden = false;
}

function likeness({ like, upload }) {
	const place = $("likeness");
	place.hidden = !like && !upload;
	if (place.hidden) return;
	const file = uploads.get(upload);
	const near = like && shown().find((other) => other.video === like.video);
	const picture = el("img", { alt: "", src: near?.thumbnail ?? (file?.type.startsWith("image/") ? URL.createObjectURL(file) : null) });
	picture.hidden = !picture.src;
	place.replaceChildren(picture, el("p", {}, "Moments similar to ", el("strong", {}, like ? `${near?.title || "a moment"}, ${span(like)}` : upload)), button(home, "Clear"));
}

function home() {
	route.go({ ...NOTHING, filters: {} });
	$("q").focus();
}

function start() {
	const { facts } = library;
	if (!facts) return;
	const size = holds(facts, ", ");
	const empty = facts.state !== "loading" && !size;
	$("summary").textContent = `Describe a moment in English.${size && ` ${size}.`}`;
	const chips = past().slice(0, 6).map((q) => el("li", {}, el("a", {
		href: link({ ...NOTHING, filters: {}, q }), on(event) { event.preventDefault(); enter(q); } }, q)));
	$("start").replaceChildren(empty ? el("div", { class: "empty" }, el("h2", {}, "Add your first videos"),
		el("p", {}, "Choose a folder. The files are not moved and do not leave this computer."),
		el("button", { class: "strong", on: () => library.open() }, "Add a folder")) : el("ul", { class: "chips", "aria-label": "Past searches" }, ...chips));
}

function showFilters({ filters, like, upload }) {
	const { min_duration: low = "", max_duration: high = "" } = filters;
	const wanted = { kind: "", folder: "", after: "", before: "", ...filters, duration: low || high ? `${low}-${high}` : "" };
	const names = ["kind", "duration", "folder", "after", "before"];
	for (const name of names) {
		const field = $("filters").elements[name];
		field.value = wanted[name];
		if (field.options && field.selectedIndex < 0) field.append(el("option", { selected: "" }, wanted[name]));
	}
	const used = names.filter((name) => wanted[name]).length;
	$("filter-label").textContent = used ? `Filters (${used})` : "Filters";
	$("filter").hidden = !!(like || upload); // only text queries have filters
	openFilters(!$("filter").hidden && (used > 0 || !$("filters").hidden));
}

function openFilters(open) { $("filters").hidden = !open; $("filter").ariaExpanded = String(open); }

function takeFilters() {
	const { duration, ...rest } = Object.fromEntries(new FormData($("filters")));
	const [min_duration, max_duration] = duration.split("-");
	route.go({ filters: Object.fromEntries(Object.entries({ ...rest, min_duration, max_duration }).filter(([, value]) => value)) });
}

function take(file) {
	if (!file) return;
	uploads.set(file.name, file);
	asked = "";
	route.go({ ...NOTHING, filters: {}, upload: file.name });
}

function enter(q) {
	clearTimeout(enter.timer);
	remember(q);
	if (q && q === route.state.q && asked) grid.focus();
	else route.go({ ...NOTHING, q });
}

const route = new Route(render);
const player = new Player(route, actions);
const library = new Library({
	changed(facts) {
		showFilters(route.state);
		if (question(route.state) === "[]") start();
		$("fresh").hidden = !answer || answer.version === facts.version;
	},
	back() { if (!asked) search(route.state); player.again(); },
});

on($("search"), "submit", (event) => { event.preventDefault(); enter($("q").value.trim()); });
on($("q"), "input", () => { // search after a pause in typing
	const q = $("q").value.trim();
	clearTimeout(enter.timer);
	if (!q || q.length > 2) enter.timer = setTimeout(() => route.go({ ...NOTHING, q }, !!(q && route.state.q)), 300);
});
on($("q"), "keydown", (event) => {
	if (event.key === "ArrowDown" && $("grid").firstChild && grid.focus()) event.preventDefault();
});
on($("filter"), "click", () => openFilters($("filters").hidden));
on($("filters"), "change", takeFilters);
on($("filters"), "submit", (event) => event.preventDefault());
on($("filters"), "reset", (event) => { event.preventDefault(); route.go({ filters: {} }); });
on($("fresh"), "click", () => search(route.state));
on($("brand"), "click", (event) => { if (!event.ctrlKey && !event.metaKey) { event.preventDefault(); home(); } });
on($("pick"), "click", () => $("file").click());
on($("file"), "change", () => { take($("file").files[0]); $("file").value = ""; });
on($("theme"), "click", () => {
	const { dataset } = document.documentElement;
	const dark = dataset.theme ? dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
	dataset.theme = dark ? "light" : "dark";
	try { localStorage.setItem("prota.theme", dataset.theme); } catch {}
});
on($("token-form"), "submit", () => location.assign(`./?token=${encodeURIComponent($("token-value").value.trim())}`));
on(document, "prota:token", () => { if (!$("token").open) $("token").showModal(); });
on(window, "dragover", (event) => event.preventDefault());
on(window, "drop", (event) => { event.preventDefault(); take(event.dataTransfer.files[0]); });
on(window, "paste", (event) => take(event.clipboardData.files[0]));
on(document, "keydown", (event) => {
	if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
	if (event.target.closest("input, select")) return;
	if (event.key === "/") $("q").select();
	if (event.key === "/" || grid.key(event, { ...actions, why: route.state.q ? actions.why : null }, () => { $("q").focus(); })) event.preventDefault();
});

suggest();
render(route.state);
library.look();
if (document.body.dataset.view === "home" && matchMedia("(pointer: fine)").matches) $("q").focus();
