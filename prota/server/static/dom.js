// Elements and formats. Strings from the server are inserted as text, never as markup.

export const $ = (id) => document.getElementById(id);
export const on = (target, event, run, options) => target.addEventListener(event, run, options);

/** An element; `vars` are CSS variables, `on` a listener for clicks; strings among the children become text. */
export function el(tag, { vars = {}, on, ...attributes } = {}, ...children) {
	const node = document.createElement(tag);
	for (const [name, value] of Object.entries(attributes)) if (value != null) node.setAttribute(name, value);
	for (const name in vars) node.style.setProperty(`--${name}`, vars[name]);
	if (on) node.addEventListener("click", on);
	node.append(...children.filter((child) => child != null));
	return node;
}

/** For the clicks on a link that changes this page; with a key held, the browser opens the link. */
export const leads = (run) => (event) => {
	if (event.metaKey || event.ctrlKey || event.shiftKey) return;
	event.preventDefault();
	run();
};

/** Say something in a line of the page; `kind`: "bad" for an error. */
export const say = (id, text, kind = "") => Object.assign($(id), { className: kind, textContent: text });

export const button = (on, ...children) => el("button", { type: "button", on }, ...children);

/** Replace the children of an element, without those that are null. */
export function fill(node, ...children) {
	node.replaceChildren(...children.filter((child) => child != null));
	node.hidden = !node.firstChild;
}

export function icon(name) {
	const [svg, use] = ["svg", "use"].map((tag) => document.createElementNS("http://www.w3.org/2000/svg", tag));
	use.setAttribute("href", `#i-${name}`);
	svg.setAttribute("class", "icon");
	svg.append(use);
	return svg;
}

export function clock(seconds) {
	const whole = Math.max(0, Math.round(seconds));
	const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
	const two = (n) => String(n).padStart(2, "0");
	return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

/** Whether a moment is a picture; moments of videos have a length. */
export const still = ({ start, end }) => start === end;
export const span = (moment) => (still(moment) ? "picture" : `${clock(moment.start)} – ${clock(moment.end)}`);
export const count = (n, one) => `${n.toLocaleString("en")} ${one}${n === 1 ? "" : "s"}`;
export const percent = (share) => (share > 0 && share < 0.01 ? "under 1 %" : `${Math.round(share * 100)} %`);

export function hours(n) {
	if (n >= 1) return `${n.toLocaleString("en", { maximumFractionDigits: n < 10 ? 1 : 0 })} hours`;
	return n * 60 >= 1 ? count(Math.round(n * 60), "minute") : count(Math.round(n * 3600), "second");
}

const UNITS = ["B", "kB", "MB", "GB", "TB"];
export function bytes(n) {
	const unit = Math.min(UNITS.length - 1, Math.floor(Math.log10(Math.max(n, 1)) / 3));
	return `${(n / 1000 ** unit).toLocaleString("en", { maximumSignificantDigits: 3 })} ${UNITS[unit]}`;
}
export const day = (iso) => new Date(iso).toLocaleDateString("en", { year: "numeric", month: "short", day: "numeric" });

/** The contents of a library. */
export const holds = ({ videos, hours: n, pictures }, between) => [videos && count(videos, "video"), videos && hours(n),
	pictures && count(pictures, "picture")].filter(Boolean).join(between);

/** Values scaled to 0..1; equal values become 0.5. */
export function levels(values) {
	const low = Math.min(...values);
	const high = Math.max(...values);
	return values.map((value) => (high > low ? (value - low) / (high - low) : 0.5));
}
