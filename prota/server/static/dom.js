// Elements and words. Everything from the server goes in as text, never as markup.

export const $ = (id) => document.getElementById(id);

/** An element; `vars` are CSS variables, `on` listeners; strings among the children become text. */
export function el(tag, { vars = {}, on = {}, ...attributes } = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  for (const [name, value] of Object.entries(vars)) node.style.setProperty(`--${name}`, value);
  for (const [name, listener] of Object.entries(on)) node.addEventListener(name, listener);
  node.append(...children.filter((child) => child != null));
  return node;
}

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

export function clock(seconds) {
  const whole = Math.max(0, Math.floor(seconds));
  const two = (n) => String(n).padStart(2, "0");
  const [h, m, s] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  return h ? `${h}:${two(m)}:${two(s)}` : `${m}:${two(s)}`;
}

export const span = (moment) => `${clock(moment.start)} – ${clock(moment.end)}`;

/** "1 video", "12,000 videos" */
export const count = (n, one, many = `${one}s`) => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;

export function hours(n) {
  if (n >= 10) return `${Math.round(n).toLocaleString("en")} hours`;
  if (n >= 1) return `${n.toFixed(1)} hours`;
  return n * 60 >= 1 ? count(Math.round(n * 60), "minute") : count(Math.round(n * 3600), "second");
}

export const percent = (share) => (share > 0 && share < 0.01 ? "under 1 %" : `${Math.round(share * 100)} %`);

/** Values spread over 0..1, for sizes; all alike: all in the middle. */
export function levels(values) {
  const low = Math.min(...values);
  const high = Math.max(...values);
  return values.map((value) => (high > low ? (value - low) / (high - low) : 0.5));
}

export const typing = (target) =>
  target instanceof HTMLElement && !!target.closest("input:not([type=checkbox]), select, textarea");

export const still = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

/** What is stored in this browser; nothing where storage is switched off. */
export const store = {
  get(name, otherwise) {
    try { return JSON.parse(localStorage.getItem(`prota.${name}`)) ?? otherwise; } catch { return otherwise; }
  },
  set(name, value) {
    try { localStorage.setItem(`prota.${name}`, JSON.stringify(value)); } catch { /* not kept */ }
  },
};
