// The library itself: what is in it, whether the server is there and ready, and folders being indexed.
import * as api from "./api.js";
import { $, count, el, hours } from "./dom.js";

const RUNNING = ["queued", "waiting", "running"];

function leftOver(seconds) {
  if (seconds == null) return "";
  if (seconds < 60) return "less than a minute left";
  return seconds < 5400 ? `about ${count(Math.round(seconds / 60), "minute")} left` : `about ${Math.round(seconds / 3600)} hours left`;
}

export class Library {
  /** `changed(facts, before)` is told of every new state; `back()` when a server that was away is there again. */
  constructor({ changed, back }) {
    this.changed = changed;
    this.back = back;
    this.facts = null;
    this.away = 0;
    this.sources = new Map();
    this.jobs = new Map();
    $("open-library").addEventListener("click", () => this.open());
    $("library-close").addEventListener("click", () => $("library").close());
    $("library").addEventListener("click", (event) => { if (event.target === $("library")) $("library").close(); });
    $("add").addEventListener("submit", (event) => { event.preventDefault(); this.add(); });
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.look(); });
  }

  open() {
    if (!$("library").open) $("library").showModal();
    $("path").focus();
    this.listJobs();
  }

  async look() {
    clearTimeout(this.timer);
    let wait = 20000;
    try {
      const facts = await api.library();
      const before = this.facts;
      const was = this.away;
      this.facts = facts;
      this.away = 0;
      this.tell();
      if (facts.state === "loading") wait = 700;
      this.changed(facts, before);
      if (was || (before && before.state !== "ready" && facts.state === "ready")) this.back();
      if (was || !before) this.listJobs();
    } catch (error) {
      if (error instanceof api.Offline || error.status >= 500) {
        this.away += 1;
        wait = Math.min(10000, 500 * 2 ** Math.min(this.away, 5));
        this.tell();
      } else if (error.status !== 401) this.say("bad", error.message);
    }
    this.timer = setTimeout(() => this.look(), document.hidden ? wait * 3 : wait);
  }

  /** Something else found that the server is away: say so and keep trying. */
  lost() {
    if (!this.away) { this.away = 1; this.tell(); this.look(); }
  }

  say(kind, text, button) {
    $("banner").className = kind;
    const shown = $("banner").textContent;
    if (shown !== text) $("banner").replaceChildren(el("span", { class: kind === "bad" ? "" : "spin" }), text, button || "");
    $("banner").hidden = false;
  }

  tell() {
    const { facts } = this;
    if (this.away) this.say("away", "The server does not answer. It is tried again by itself.");
    else if (facts.state === "loading") this.say("wait", "The model is being loaded. You can type already.");
    else if (facts.state === "failed") this.say("bad", facts.detail || "The model could not be loaded. The server's log says why.");
    else $("banner").hidden = true;
    if (!facts) return;
    const size = `${count(facts.videos, "video")} · ${hours(facts.hours)}`;
    const job = [...this.jobs.values()].find((one) => RUNNING.includes(one.state));
    $("library-label").textContent = job?.files ? `Indexing ${Math.floor((100 * job.files_done) / job.files)} %` : size;
    $("library-facts").textContent = [size, count(facts.segments, "segment"), facts.model].filter(Boolean).join(" · ");
    const select = document.forms.filters.folder;
    const known = [...select.options].slice(1).map((option) => option.value);
    if (known.join("\n") !== (facts.folders || []).join("\n")) {
      const chosen = select.value;
      select.replaceChildren(select.options[0], ...facts.folders.map((folder) => el("option", { value: folder }, folder)));
      select.value = chosen;
    }
  }

  async add() {
    const note = $("add-note");
    note.className = "";
    note.textContent = "…";
    try {
      const job = await api.addFolder($("path").value.trim());
      note.textContent = "It can be searched while it grows.";
      $("path").value = "";
      this.follow(job);
    } catch (error) {
      note.className = "bad";
      note.textContent = error.message;
    }
  }

  async listJobs() {
    try {
      const answer = await api.jobs();
      for (const job of Array.isArray(answer) ? answer : answer.jobs) this.follow(job);
    } catch { /* the banner tells */ }
  }

  follow(job) {
    this.jobs.set(job.id, { ...this.jobs.get(job.id), ...job });
    this.draw(job.id);
    if (!RUNNING.includes(this.jobs.get(job.id).state) || this.sources.has(job.id)) return;
    const source = api.events(job.id);
    this.sources.set(job.id, source);
    const heard = (event) => {
      const now = { ...this.jobs.get(job.id), ...JSON.parse(event.data) };
      this.jobs.set(job.id, now);
      this.draw(job.id);
      this.tell();
      if (RUNNING.includes(now.state)) return;
      source.close();
      this.sources.delete(job.id);
      this.look();
    };
    for (const name of ["message", "progress", "done"]) source.addEventListener(name, heard);
    source.addEventListener("error", () => {
      if (source.readyState === EventSource.CLOSED) this.sources.delete(job.id); // else the browser tries again by itself
    });
  }

  draw(id) {
    const job = this.jobs.get(id);
    const going = RUNNING.includes(job.state);
    const words = { queued: "waiting", done: "done", cancelled: "stopped", failed: "failed" }[job.state] || "";
    const bad = job.bad || [];
    const parts = [words, job.files ? `${job.files_done} of ${count(job.files, "file")}` : going ? "looking for videos" : "",
      job.hours ? hours(job.hours) : "", going && job.rate ? `${Math.round(job.rate).toLocaleString("en")} × real time` : "",
      going ? leftOver(job.left_seconds) : ""];
    const bar = el("progress", { max: job.files || 1, "aria-label": `Indexing ${job.path}` });
    if (job.files || !going) bar.value = job.files ? job.files_done : 1;
    const item = el("li", { id: `job-${id}`, class: job.state },
      el("div", { class: "row" }, el("strong", {}, job.path || "Folder"),
        going ? el("button", { type: "button", on: { click: () => this.cancel(id) } }, "Stop") : null),
      bar, el("p", {}, [...parts].filter(Boolean).join(" · "), job.detail ? ` ${job.detail}` : ""),
      bad.length ? el("details", {}, el("summary", {}, `${count(bad.length, "file")} could not be read`),
        el("ul", {}, ...bad.map((one) => el("li", {}, typeof one === "string" ? one : `${one.path}: ${one.reason}`)))) : null);
    const before = $(`job-${id}`);
    if (before?.querySelector("details[open]") && bad.length) item.querySelector("details").open = true;
    const focused = before?.contains(document.activeElement) && document.activeElement.tagName === "BUTTON";
    if (before) before.replaceWith(item); else $("jobs").prepend(item);
    if (focused) (item.querySelector("button") || $("library-close")).focus();
  }

  async cancel(id) {
    try { const job = await api.cancel(id); if (job?.state) this.follow({ ...job, id }); } catch (error) { $("add-note").textContent = error.message; }
  }
}
