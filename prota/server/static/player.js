// A moment, playing: the original from there on, every match on a timeline, and why.
import * as api from "./api.js";
import { $, clock, count, el, levels, span } from "./dom.js";
import * as why from "./why.js";

const dialog = $("player");
const video = $("video");

export class Player {
  constructor(route, actions) {
    this.route = route;
    this.actions = actions;
    this.moment = null;
    this.marks = [];
    this.stop = new AbortController();
    dialog.addEventListener("cancel", (event) => { event.preventDefault(); route.close(); });
    dialog.addEventListener("click", (event) => { if (event.target === dialog) route.close(); });
    dialog.addEventListener("keydown", (event) => this.key(event));
    $("player-close").addEventListener("click", () => route.close());
    $("why-toggle").addEventListener("click", () => this.toggleWhy());
    $("player-like").addEventListener("click", () => actions.like(this.moment));
    $("mark-prev").addEventListener("click", () => this.hop(-1));
    $("mark-next").addEventListener("click", () => this.hop(1));
    $("copy").addEventListener("click", () => this.copy());
    $("track").addEventListener("click", (event) => {
      const box = $("track").getBoundingClientRect();
      this.seek(((event.clientX - box.left) / box.width) * this.length());
    });
    video.addEventListener("timeupdate", () => this.tick());
    video.addEventListener("durationchange", () => this.layout());
    video.addEventListener("error", () => this.broken());
  }

  get open() { return dialog.open; }

  length() { return Number.isFinite(video.duration) && video.duration ? video.duration : this.moment?.duration || this.moment?.end || 1; }

  show(moment, state) {
    const fresh = this.moment?.video !== moment.video || !dialog.open;
    this.stop.abort();
    this.stop = new AbortController();
    this.moment = moment;
    this.query = state.q;
    $("player-title").textContent = moment.title || "…";
    $("player-where").textContent = [moment.folder, span(moment)].filter(Boolean).join(" · ");
    $("about").textContent = "";
    $("why-toggle").hidden = !state.q;
    $("video-error").hidden = true;
    video.hidden = false;
    this.explained = null;
    this.setMarks(this.actions.siblings(moment));
    if (!dialog.open) dialog.showModal();
    if (fresh) {
      video.src = api.stream(moment.video);
      video.addEventListener("loadedmetadata", () => this.seek(this.moment.start), { once: true, signal: this.stop.signal });
    } else this.seek(moment.start);
    video.focus();
    video.play().catch(() => {}); // not allowed without a click: it waits at the moment
    this.details(moment, this.stop.signal);
    this.showWhy(state.why);
  }

  hide() {
    if (!dialog.open) return;
    this.stop.abort();
    video.pause();
    video.removeAttribute("src");
    video.load();
    dialog.close();
    $("why").replaceChildren();
    this.actions.closed(this.moment);
    this.moment = null;
  }

  async details(moment, signal) {
    try {
      const [about, found] = await Promise.all([
        api.video(moment.video, signal), this.query ? api.segments(moment.video, this.query, signal) : null]);
      const path = about.path || moment.title || "";
      const name = moment.title || path.split(/[\\/]/).pop();
      Object.assign(moment, { title: name, duration: about.duration || moment.duration, path });
      $("player-title").textContent = name;
      const size = about.size ? `${(about.size / 1e6).toFixed(about.size < 1e7 ? 1 : 0)} MB` : "";
      $("about").textContent = [clock(about.duration || 0), about.codec, size].filter(Boolean).join(" · ");
      $("about").title = path;
      this.codec = about.codec;
      if (found) this.setMarks(found);
      if (moment.segment == null && found?.length) {
        const near = (other) => Math.abs(other.start - moment.start) + Math.abs(other.end - moment.end);
        moment.segment = found.reduce((a, b) => (near(b) < near(a) ? b : a)).segment;
        this.showWhy(!$("why").hidden);
      }
    } catch (error) {
      if (error.name !== "AbortError") this.actions.failed(error);
    }
  }

  setMarks(found) {
    const strength = levels(found.map((mark) => mark.relevance ?? mark.score));
    this.marks = found.map((mark, i) => ({ ...mark, level: strength[i] })).sort((a, b) => a.start - b.start);
    const nodes = this.marks.map((mark) => el("button", {
      type: "button", tabindex: "-1", class: "mark", title: span(mark), vars: { level: mark.level },
      "aria-label": `Match from ${clock(mark.start)} to ${clock(mark.end)}`,
      on: { click: () => this.goto(mark) },
    }));
    $("marks").replaceChildren(...nodes);
    $("marks").ariaLabel = count(found.length, "matching segment");
    $("mark-prev").hidden = $("mark-next").hidden = found.length < 2;
    this.layout();
  }

  layout() {
    const length = this.length();
    [...$("marks").children].forEach((node, i) => {
      const mark = this.marks[i];
      node.style.setProperty("--from", mark.start / length);
      node.style.setProperty("--to", Math.min(1, mark.end / length));
    });
    this.tick();
  }

  tick() {
    if (!this.moment) return;
    $("head").style.setProperty("--at", Math.min(1, video.currentTime / this.length()));
    const nodes = [...$("marks").children];
    const at = this.at();
    nodes.forEach((node, i) => {
      const on = i === at;
      if (on !== (node.ariaCurrent === "true")) node.ariaCurrent = on ? "true" : null;
      if (!nodes.includes(document.activeElement)) node.tabIndex = i === Math.max(0, at) ? 0 : -1;
    });
  }

  /** The match that is playing: the one asked for where several overlap, else the last that began. */
  at() {
    const now = video.currentTime + 0.05;
    const inside = (mark) => mark.start <= now && now < mark.end;
    const asked = this.marks.findIndex((mark) => Math.abs(mark.start - this.moment.start) < 0.05 && inside(mark));
    return asked >= 0 ? asked : this.marks.findLastIndex(inside);
  }

  seek(seconds) { video.currentTime = Math.max(0, Math.min(seconds, this.length())); this.tick(); }

  goto(mark) {
    Object.assign(this.moment, { start: mark.start, end: mark.end, segment: mark.segment });
    this.moment = { ...this.moment };
    $("player-where").textContent = [this.moment.folder, span(mark)].filter(Boolean).join(" · ");
    this.seek(mark.start);
    video.play().catch(() => {});
    this.explained = null;
    if (!$("why").hidden) this.showWhy(true);
  }

  hop(step) {
    if (!this.marks.length) return;
    const now = video.currentTime;
    const at = this.at();
    const next = at >= 0 ? at + step
      : step > 0 ? this.marks.findIndex((mark) => mark.start > now) : this.marks.findLastIndex((mark) => mark.start < now);
    const mark = this.marks[(next + this.marks.length) % this.marks.length];
    this.goto(mark);
    const nodes = [...$("marks").children];
    if (nodes.includes(document.activeElement)) nodes[this.marks.indexOf(mark)].focus();
  }

  toggleWhy() { this.route.go({ why: $("why").hidden }, { replace: true }); }

  async showWhy(open) {
    open = open && !!this.query;
    $("why").hidden = !open;
    dialog.classList.toggle("explaining", open);
    $("why-toggle").ariaExpanded = String(open);
    const { moment } = this;
    if (!open || moment.segment == null || this.explained === moment.segment) return;
    this.explained = moment.segment;
    const { signal } = this.stop;
    $("why").replaceChildren(el("p", { class: "wait" }, "Taking the score apart …"));
    try {
      const answer = await api.explain(this.query, moment.segment, signal);
      if (this.explained === moment.segment) why.draw($("why"), answer, moment.video, (time) => this.seek(time), signal);
    } catch (error) {
      if (error.name === "AbortError") return;
      this.explained = null;
      $("why").replaceChildren(el("p", { class: "wait" }, error.message, " ",
        el("button", { type: "button", on: { click: () => this.showWhy(true) } }, "Try again")));
    }
  }

  async broken() {
    if (!this.moment || !video.getAttribute("src")) return;
    const gone = await api.library().then(() => false, () => true);
    const kind = this.codec ? ` (${this.codec})` : "";
    $("video-error").replaceChildren(gone ? "The server does not answer just now. " : `This browser cannot play the file${kind}. `,
      gone ? el("button", { type: "button", on: { click: () => this.again() } }, "Try again")
        : el("a", { href: api.stream(this.moment.video), download: this.moment.title || "video" }, "Save the original"));
    $("video-error").hidden = false;
    video.hidden = true;
  }

  /** After the server was away: the same moment once more. */
  again() {
    if (!this.moment || (!video.error && $("video-error").hidden)) return;
    const at = video.currentTime || this.moment.start;
    $("video-error").hidden = true;
    video.hidden = false;
    video.addEventListener("loadedmetadata", () => this.seek(at), { once: true });
    video.src = api.stream(this.moment.video);
    video.play().catch(() => {});
  }

  async copy() {
    const label = $("copy").querySelector("span");
    try { await navigator.clipboard.writeText(location.href); label.textContent = "Copied"; } catch { label.textContent = "Copy the address bar"; }
    setTimeout(() => { label.textContent = "Copy link"; }, 1500);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const onButton = event.target.closest("button, a");
    const onMark = event.target.closest(".mark");
    const run = {
      ArrowLeft: () => (onMark ? this.hop(-1) : this.seek(video.currentTime - 5)),
      ArrowRight: () => (onMark ? this.hop(1) : this.seek(video.currentTime + 5)),
      n: () => this.hop(1), p: () => this.hop(-1),
      w: () => this.query && this.toggleWhy(), l: () => this.actions.like(this.moment),
      m: () => { video.muted = !video.muted; },
      f: () => (document.fullscreenElement ? document.exitFullscreen() : video.requestFullscreen?.()),
      " ": onButton ? null : () => (video.paused ? video.play().catch(() => {}) : video.pause()),
    }[event.key];
    if (!run || (event.target.closest(".scroll") && event.key.startsWith("Arrow"))) return;
    event.preventDefault();
    event.stopPropagation();
    run();
  }
}
