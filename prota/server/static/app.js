// The page: searches, shows and opens what its address says.
import { Adding } from "./add.js";
import * as api from "./api.js";
import { $, button, count, el, leads, on, span } from "./dom.js";
import { Files } from "./files.js";
import * as grid from "./grid.js";
import { Home } from "./home.js";
import { Library } from "./library.js";
import { Player } from "./player.js";
import { NOTHING, Route, link, same } from "./route.js";

const MOST = 100; // moments that the server gives
const LOOKED_AT = 2000; // ms after which a query that was typed is one of the history
const uploads = new Map(); // name in the address → file; they live as long as this tab
const answers = new Map(); // question → answer, for Back
let answer = null; // what the grid shows
let asked = "[]"; // the question it answers; empty after a failure
let running = new AbortController();
let most = 24; // moments that are asked for
let timer = 0;

const actions = {
	link: (open) => link({ ...route.state, open, why: false }),
	play(open) { remember(); route.go({ open, why: false }); },
	why(open) { remember(); route.go({ open, why: true }); },
	like({ video, start, end }) {
		const { view, filters } = route.state;
		route.go({ ...NOTHING, filters: view ? {} : filters, like: { video, start, end } });
		$("main").focus({ preventScroll: true });
	},
	siblings: (moment) => {
		const found = shown().filter((other) => other.video === moment.video);
		return found.length ? found : [moment];
	},
	closed: (moment) => { if (!grid.focus(moment)) $("q").focus(); },
	failed,
};

const shown = () => (answer ? [...answer.moments, ...answer.weaker] : []);
const known = (moment) => ({ ...(grid.shown().find((other) => same(other, moment)) || moment) });
function question({ view, q, like, upload, filters }) {
	return JSON.stringify(view ? [view, filters] : like ? [like, filters] : upload ? [upload, filters] : q ? [q, filters] : []);
}

/** Past queries, the latest first, kept in this browser only. */
const past = {
	all() { try { return JSON.parse(localStorage.getItem("prota.past")) || []; } catch { return []; } },
	set(queries) {
		try { localStorage.setItem("prota.past", JSON.stringify(queries)); } catch {}
		suggest();
	},
	forget() { this.set([]); home.put("tries"); },
};
function remember(q = route.state.q) { if (q) past.set([q, ...past.all().filter((one) => one !== q)].slice(0, 50)); }
function suggest() { $("past").replaceChildren(...past.all().slice(0, 12).map((value) => el("option", { value }))); }

function render(state, back) {
	const view = state.view || (question(state) === "[]" ? "home" : "results");
	document.body.dataset.view = view;
	document.title = [state.q.slice(0, 80), view === "library" && "Library", "ProTA"].filter(Boolean).join(" · ");
	$("open-library").ariaCurrent = view === "library" ? "page" : null;
	$("library").hidden = view !== "library";
	if (document.activeElement !== $("q") || $("q").value.trim() !== state.q) $("q").value = state.q;
	clearTimeout(settle.timer);
	showFilters(state);
	if (question(state) !== asked) search(state, back);
	else route.restore();
	if (!state.open) player.hide();
	else if (!same(player.moment, state.open)) player.show(known(state.open), state);
	else player.explain(state.why);
}

/** What was typed has been looked at. */
function settle() {
	route.settle();
	remember();
}

async function search(state, back = false) {
	clearTimeout(timer);
	running.abort();
	running = new AbortController();
	const { signal } = running;
	if (asked !== question(state)) most = 24;
	asked = question(state);
	$("notice").hidden = true;
	if (asked === "[]" || state.view) {
		answer = null;
		document.body.classList.remove("busy");
		clear();
		if (state.view) files.show(state);
		else if (library.facts) home.show(library.facts, true);
		if (!state.view) route.restore();
		return;
	}
	$("start").replaceChildren();
	timer = setTimeout(() => { document.body.classList.add("busy"); $("status").textContent = "Searching …"; }, 150);
	try {
		const kept = back && answers.get(asked);
		answer = kept || await ask(state, signal);
		answers.delete(asked);
		answers.set(asked, answer);
		if (answers.size > 20) answers.delete(answers.keys().next().value);
		for (const moment of shown()) moment.version = answer.version; // rows of segments are valid in one version
		clearTimeout(timer);
		show(route.state);
		route.restore();
		if (route.draft && state.q) settle.timer = setTimeout(settle, LOOKED_AT);
	} catch (error) {
		if (error.name === "AbortError") return;
		clearTimeout(timer);
		asked = "";
		failed(error);
	}
	document.body.classList.remove("busy");
}

async function ask(state, signal) {
	const wanted = { ...state.filters, k: most };
	if (state.like) return api.like(state.like, wanted, signal);
	if (!state.upload) return api.search(state.q, wanted, signal);
	const file = uploads.get(state.upload);
	if (file) return api.upload(file, wanted, signal);
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
	$("likeness").hidden = $("notice").hidden = $("weak").hidden = $("fresh").hidden = $("hint").hidden = true;
	$("status").textContent = "";
}

function notice(title, text, ...more) {
	$("notice").replaceChildren(el("h2", {}, title), el("p", {}, text), ...more);
	$("notice").hidden = false;
}

function show(state) {
	if (!answer) return;
	const { moments, weaker, hint } = answer;
	const able = { ...actions, why: state.q ? actions.why : null };
	clear();
	likeness(state);
	grid.fill($("grid"), moments, able);
	const took = ` in ${Math.max(1, Math.round(answer.took_ms))} ms`;
	const cut = (answer.cut ? " · query truncated" : "") + (answer.partial ? " · some shards did not answer" : "")
		+ (answer.damaged ? ` · ${count(answer.damaged, "corrupt segment")} left out: prota library repair` : "");
	$("status").textContent = (moments.length ? count(moments.length, "moment") + took : weaker.length ? "No good match" : "No moments") + cut;
	const why = hint && `${hint[0].toUpperCase()}${hint.slice(1)}.`;
	$("hint").textContent = why;
	$("hint").hidden = !why || !moments.length;
	if (!moments.length) nothing(state, weaker.length > 0, why);
	if (library.facts) $("fresh").hidden = answer.version === library.facts.version;
	if (moments.length >= most && most < MOST) $("more").append(button(() => { most = MOST; search(route.state); }, "Show more"));
	if (!weaker.length) return;
	$("more").append(el("h2", {}, "Weaker matches"));
	grid.fill($("weak"), weaker, able);
	$("weak").hidden = false;
}

/** Say what is true when there is no good match: with filters only of what passes them. */
function nothing({ q, filters }, weaker, why) {
	const narrowed = Object.keys(filters).length > 0;
	const all = narrowed && button(() => route.go({ filters: {} }), "Search without filters");
	if (weaker && why) notice("No good match", `${why} The nearest moments:`);
	else if (weaker && narrowed) notice("No good match with these filters", "Other videos of the library were not searched. The nearest moments:", all);
	else if (weaker) notice("No good match", q ? "The library does not seem to contain what you describe. The nearest moments:" : "Nothing in the library looks much like it. The nearest moments:");
	else if (narrowed) notice("No results", "No moment matches these filters.", all);
	else notice("No results", q ? "The library is empty." : "No similar moments.");
}

async function likeness({ like, upload }) {
	const place = $("likeness");
	place.hidden = !like && !upload;
	if (place.hidden) return;
	const file = uploads.get(upload);
	const near = like && shown().find((other) => other.video === like.video);
	const src = near?.thumbnail ?? (file?.type.startsWith("image/") ? URL.createObjectURL(file) : null);
	const draw = (title, picture) => {
		const image = picture && el("img", { alt: "", src: picture });
		place.replaceChildren(...[image].filter(Boolean), el("p", {}, "Similar to ", el("strong", {}, like ? [title, span(like)].filter(Boolean).join(", ") : upload)),
			button(start, "Clear"));
	};
	draw(near?.title, src);
	if (!like || near) return;
	const about = await api.video(like.video).catch(() => null);
	if (about && same(route.state.like, like)) draw(about.title, api.frame(like.video, (like.start + like.end) / 2, 160));
}

function start() {
	route.go({ ...NOTHING });
	$("q").focus();
}

function showFilters({ view, filters }) {
	if (view) return;
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
	openFilters(used > 0 || !$("filters").hidden);
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
	answers.clear();
	route.go({ ...NOTHING, filters: route.state.view ? {} : route.state.filters, upload: file.name });
}

/** The filters of a search that follows the present page: those of results, not those of the list of files. */
const filters = () => (route.state.view ? {} : route.state.filters);

function enter(q) {
	clearTimeout(typed.timer);
	remember(q);
	if (q && q === route.state.q && asked) { route.settle(); grid.focus(); }
	else route.go({ ...NOTHING, filters: q ? filters() : {}, q }, { replace: route.draft && !route.state.view });
}

/** Search after a pause in typing. */
function typed() {
	const q = $("q").value.trim();
	if (q !== route.state.q || route.state.view) route.go({ ...NOTHING, filters: filters(), q }, { replace: route.draft && !route.state.view, draft: true });
}

const route = new Route(render);
const player = new Player(route, actions);
const library = new Library({
	changed(facts) {
		showFilters(route.state);
		const { view } = document.body.dataset;
		if (view === "home") home.show(facts);
		if (view === "library" && files.found?.version !== facts.version) files.show(route.state);
		$("fresh").hidden = !answer || answer.version === facts.version;
	},
	back() { if (!asked) search(route.state); player.again(); },
});
const follow = (job) => { library.follow(job); if (route.state.view !== "library") route.go({ ...NOTHING, view: "library" }); };
const adding = new Adding(follow);
const files = new Files(route, { play: actions.play, started: follow, removed: () => library.soon() });
const home = new Home({ actions, past, ask: enter, go: (state) => route.go(state), add: () => adding.open() });

on($("search"), "submit", (event) => { event.preventDefault(); enter($("q").value.trim()); });
on($("q"), "input", () => {
	const q = $("q").value.trim();
	clearTimeout(typed.timer);
	clearTimeout(settle.timer);
	if (!q || q.length > 2) typed.timer = setTimeout(typed, 300);
});
on($("q"), "keydown", (event) => {
	if (event.key === "ArrowDown" && $("grid").firstChild && grid.focus()) event.preventDefault();
});
on($("filter"), "click", () => openFilters($("filters").hidden));
on($("filters"), "change", takeFilters);
on($("filters"), "submit", (event) => event.preventDefault());
on($("filters"), "reset", (event) => { event.preventDefault(); route.go({ filters: {} }); });
on($("fresh"), "click", () => search(route.state));
on($("brand"), "click", leads(start));
on($("open-library"), "click", leads(() => route.go({ ...NOTHING, view: "library" })));
on($("open-add"), "click", () => adding.open());
on($("open-keys"), "click", () => $("keys").showModal());
for (const dialog of [$("add"), $("keys")]) {
	on(dialog, "click", ({ target }) => { if (target === dialog || target.closest("[data-close]")) dialog.close(); });
}
on($("pick"), "click", () => $("file").click());
on($("file"), "change", () => { take($("file").files[0]); $("file").value = ""; });
const system = matchMedia("(prefers-color-scheme: dark)");
const dark = () => ({ dark: true, light: false })[document.documentElement.dataset.theme] ?? system.matches;

/** The button shows the theme that it switches to. */
function theme() {
	const other = dark() ? "light" : "dark";
	$("theme").querySelector("use").setAttribute("href", other === "light" ? "#i-sun" : "#i-moon");
	$("theme").ariaLabel = $("theme").title = `Switch to the ${other} theme`;
	return other;
}
on($("theme"), "click", () => {
	document.documentElement.dataset.theme = theme();
	try { localStorage.setItem("prota.theme", document.documentElement.dataset.theme); } catch {}
	theme();
});
on(system, "change", theme);
on($("token-form"), "submit", () => location.assign(`./?token=${encodeURIComponent($("token-value").value.trim())}`));
on(document, "prota:token", () => { if (!$("token").open) $("token").showModal(); });
on(window, "dragover", (event) => event.preventDefault());
on(window, "drop", (event) => { event.preventDefault(); take(event.dataTransfer.files[0]); });
on(window, "paste", (event) => take(event.clipboardData.files[0]));
on(document, "keydown", (event) => {
	if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select")) return;
	if (event.key === "?" && !$("keys").open) $("keys").showModal();
	if (document.querySelector("dialog[open]")) return;
	if (event.key === "/") $("q").select();
	if (event.key === "/" || grid.key(event, { ...actions, why: route.state.q ? actions.why : null }, () => { $("q").focus(); })) event.preventDefault();
});

theme();
suggest();
render(route.state);
library.look();
if (document.body.dataset.view === "home" && matchMedia("(pointer: fine)").matches) $("q").focus();
