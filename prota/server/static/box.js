// The search box: past queries as suggestions, a search a moment after the typing stops.
import { $, el, store } from "./dom.js";

const SHOWN = 6;
const KEPT = 50;
const AFTER = 300; // ms without a key

export const past = () => store.get("past", []).filter((text) => typeof text === "string");
export function remember(q) {
  if (q) store.set("past", [q, ...past().filter((text) => text !== q)].slice(0, KEPT));
}

export class Box {
  /** `typed(q)` while typing, `entered(q)` for good. */
  constructor({ typed, entered, down }) {
    this.input = $("q");
    this.list = $("past");
    this.chosen = -1;
    this.entered = entered;
    this.down = down;
    this.input.addEventListener("input", () => {
      clearTimeout(this.timer);
      this.suggest();
      const q = this.input.value.trim();
      if (!q || q.length > 2) this.timer = setTimeout(() => typed(q), AFTER);
    });
    this.input.addEventListener("focus", () => { if (!this.input.value) this.suggest(); });
    this.input.addEventListener("click", () => this.suggest());
    this.input.addEventListener("blur", () => this.hide());
    this.input.addEventListener("keydown", (event) => this.key(event));
    $("search").addEventListener("submit", (event) => { event.preventDefault(); this.enter(this.input.value.trim()); });
  }

  enter(q) {
    clearTimeout(this.timer);
    this.hide();
    this.input.value = q;
    remember(q);
    this.entered(q);
  }

  suggest() {
    const text = this.input.value.trim().toLowerCase();
    const found = past().filter((one) => one.toLowerCase().includes(text) && one.toLowerCase() !== text).slice(0, SHOWN);
    this.chosen = -1;
    this.input.removeAttribute("aria-activedescendant");
    this.list.replaceChildren(...found.map((one, i) => el("li", {
      id: `past-${i}`, role: "option", "aria-selected": "false",
      on: { pointerdown: (event) => { event.preventDefault(); this.enter(one); } },
    }, one)));
    this.list.hidden = !found.length;
    this.input.ariaExpanded = String(!!found.length);
  }

  hide() {
    this.list.hidden = true;
    this.input.ariaExpanded = "false";
    this.input.removeAttribute("aria-activedescendant");
    this.chosen = -1;
  }

  choose(step) {
    const items = [...this.list.children];
    this.chosen = (this.chosen + step + items.length + 1) % (items.length + 1);
    if (this.chosen === items.length) this.chosen = step > 0 ? 0 : items.length - 1;
    items.forEach((item, i) => { item.ariaSelected = String(i === this.chosen); });
    this.input.setAttribute("aria-activedescendant", items[this.chosen].id);
  }

  key(event) {
    const open = !this.list.hidden;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (open) this.choose(event.key === "ArrowDown" ? 1 : -1);
      else if (event.key === "ArrowDown" && !this.down()) this.suggest();
    } else if (event.key === "Enter" && open && this.chosen >= 0) {
      event.preventDefault();
      this.enter(this.list.children[this.chosen].textContent);
    } else if (event.key === "Escape") {
      event.preventDefault();
      if (open) this.hide(); else if (this.input.value) { this.input.value = ""; this.input.dispatchEvent(new Event("input")); } else this.input.blur();
    }
  }
}
