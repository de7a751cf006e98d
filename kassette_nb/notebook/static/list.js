// The step list: virtual, every row the same height; the one keyboard path through the steps.

const ROW_H = 22;

class StepList {
  constructor({ onSelect, onSearch, onEnter }) {
    Object.assign(this, { onSelect, onSearch, onEnter, rows: [], items: [], itemOf: [], selected: -1, text: "", found: null, pool: [], info: { sessions: [], copied: 0 } });
    this.id = uid("k-list");
    this.filter = el("input.k-in.k-filter", { type: "text", placeholder: "filter steps  ( / )", "aria-label": "filter steps", spellcheck: "false" });
    this.deep = el("input", { type: "checkbox", id: uid("k-deep") });
    this.count = el("span.k-dim.k-count", { role: "status", "aria-live": "polite" });
    this.bar = el("div.k-listbar", null, this.filter, el("label.k-check", { title: "search the recorded values and arguments too (asks the kernel)" }, this.deep, "in values too"), this.count);
    this.sizer = el("div.k-sizer");
    this.box = el("div.k-list", { role: "listbox", tabindex: "0", "aria-label": "steps" }, this.sizer);
    this.node = el("div.k-listside", null, this.bar, this.box);
    this.box.addEventListener("scroll", () => this.draw());
    this.box.addEventListener("click", (e) => {
      const row = e.target.closest("[data-row]");
      if (row && !String(getSelection())) this.choose(+row.dataset.row);
    });
    this.box.addEventListener("keydown", (e) => this.key(e));
    const again = debounce(() => this.search(), 250);
    this.filter.addEventListener("input", () => { this.text = this.filter.value; this.found = null; this.build(); this.draw(); if (this.deep.checked) again(); });
    this.deep.addEventListener("change", () => { this.found = null; this.search(); this.build(); this.draw(); });
    this.filter.addEventListener("keydown", (e) => {
      if (e.isComposing) return;
      if (e.key === "Escape") { e.stopPropagation(); this.box.focus(); } // back to the list; the next one gives the keyboard back
      if (e.key === "ArrowDown" || e.key === "Enter") { e.preventDefault(); this.box.focus(); if (!this.inFilter(this.selected)) this.step(0, 1); }
    });
    this.observer = new ResizeObserver(() => { // the room changed: a selected row that was in view stays in view
      const item = this.itemOf[this.selected], was = this.room || 0;
      const inView = item >= 0 && item * ROW_H >= this.box.scrollTop - ROW_H && item * ROW_H < this.box.scrollTop + was;
      this.room = this.box.clientHeight;
      if (inView || this.wanted === this.selected) this.scrollTo(this.selected);
      this.wanted = null;
      this.draw();
    });
    this.observer.observe(this.box);
  }

  destroy() { this.observer.disconnect(); }

  setData(rows, info) {
    Object.assign(this, { rows, info });
    const longest = rows.reduce((n, r) => Math.max(n, r.id.length), 0);
    this.node.style.setProperty("--k-idw", `${Math.min(Math.max(longest, 6), 18)}ch`);
    this.node.style.setProperty("--k-tw", rows.some((r) => known(r.d) || known(r.t0)) ? "54px" : "0px");
    this.decimals = centsFor(rows.map((r) => r.c).filter(known));
    this.drawn = Date.now();
    this.build();
    this.draw();
  }

  search() {
    if (this.deep.checked && this.text.trim()) this.onSearch(this.text.trim());
  }

  setFound(msg) {
    if (msg.text !== this.text.trim()) return;
    this.found = new Set(msg.offsets);
    this.build();
    this.draw();
  }

  matches(row) {
    const words = this.needle;
    if (!words) return true;
    if (this.found && this.found.has(row.o)) return true;
    const hay = (row.id + " " + row.kind + " " + (row.p || "")).toLowerCase();
    return words.every((w) => hay.includes(w));
  }

  /** Items: row numbers, and dividers as texts. */
  build() {
    const { sessions, copied, copiedText } = this.info;
    this.needle = this.text.trim() ? this.text.trim().toLowerCase().split(/\s+/) : null;
    const marks = sessions.filter((s) => s.offset >= copied && (sessions.length > 1 || copied));
    this.items = [];
    this.itemOf = new Array(this.rows.length).fill(-1);
    let next = 0, inCopied = false, shown = 0;
    this.rows.forEach((row, i) => {
      const dividers = [];
      if (copied && row.o < copied && !inCopied) { inCopied = true; dividers.push(copiedText || "copied"); }
      while (next < marks.length && marks[next].offset <= row.o) { dividers.push(marks[next].text || `session ${marks[next].n}`); next += 1; }
      this.waiting = dividers.length ? (this.waiting || []).concat(dividers) : this.waiting;
      if (!this.matches(row)) return;
      for (const text of (this.waiting || []).slice(-1)) this.items.push(text);
      this.waiting = null;
      this.itemOf[i] = this.items.length;
      this.items.push(i);
      shown += 1;
    });
    this.waiting = null;
    this.sizer.style.height = this.items.length * ROW_H + "px";
    const searching = this.needle && this.deep.checked && !this.found;
    put(this.count, this.needle ? `${thousands(shown)} of ${thousands(this.rows.length)}${searching ? " …" : ""}` : `${plural(this.rows.length, "row")}`);
  }

  inFilter(i) { return i >= 0 && this.itemOf[i] >= 0; }

  draw() {
    const height = this.box.clientHeight || 200, top = this.box.scrollTop;
    const from = Math.max(0, Math.floor(top / ROW_H) - 4), to = Math.min(this.items.length, Math.ceil((top + height) / ROW_H) + 4);
    while (this.pool.length < to - from) { const node = this.makeRow(); this.pool.push(node); this.sizer.append(node.box); }
    this.pool.forEach((node, k) => {
      const item = from + k;
      if (item >= to) { node.box.hidden = true; return; }
      node.box.hidden = false;
      node.box.style.transform = `translateY(${item * ROW_H}px)`;
      this.fill(node, this.items[item], item);
    });
    const active = this.inFilter(this.selected) ? `${this.id}-${this.selected}` : null;
    if (active) this.box.setAttribute("aria-activedescendant", active);
    else this.box.removeAttribute("aria-activedescendant");
    const empty = this.items.length === 0;
    if (empty && !this.empty) this.box.append(this.empty = el("div.k-none"));
    if (this.empty) { show(this.empty, empty); put(this.empty, this.rows.length ? "no step matches the filter" : this.info.none); }
  }

  makeRow() {
    const node = { box: el("div"), sign: el("i", { "aria-hidden": "true" }), id: el("span.k-id"), text: el("span.k-p"), cost: el("span.k-c"), time: el("span.k-t") };
    node.box.append(node.sign, node.id, node.text, node.cost, node.time);
    return node;
  }

  fill(node, item, at) {
    if (typeof item === "string") {
      node.box.className = "k-divider";
      node.box.setAttribute("role", "presentation");
      for (const name of ["id", "data-row", "aria-selected", "aria-label", "title"]) node.box.removeAttribute(name);
      for (const part of [node.sign, node.id, node.cost, node.time]) { part.textContent = ""; if (part === node.sign) part.className = "k-sign"; }
      put(node.text, item);
      tip(node.box, item);
      return;
    }
    const r = this.rows[item], bad = hasFlag(r, "e") || r.kind === "error";
    const name = `k-row${item === this.selected ? " k-sel" : ""}${bad ? " k-rowbad" : ""}`;
    if (node.box.className !== name) node.box.className = name;
    node.box.dataset.row = item;
    node.box.id = `${this.id}-${item}`;
    node.box.setAttribute("role", "option");
    node.box.setAttribute("aria-selected", String(item === this.selected));
    fillSign(node.sign, r, r.o < this.info.copied);
    const preview = flagText(r) + oneLine(r.p || "");
    put(node.id, r.id);
    tip(node.id, r.id.length > 12 ? r.id : "");
    put(node.text, preview);
    tip(node.text, preview.length > 24 ? preview : "");
    put(node.cost, moneyIn(r.c, this.decimals));
    put(node.time, this.timeOf(r));
    node.box.setAttribute("aria-label", visible(`${r.id}, ${r.kind}, ${preview}${known(r.d) ? ", " + duration(r.d) : ""}`));
  }

  /** How long it took, or takes: what waits or runs now ticks. */
  timeOf(r) {
    if (known(r.d)) return duration(r.d);
    if (!known(r.t0) || known(r.t1)) return "";
    const now = this.info.now + Date.now() - this.drawn;
    if (hasFlag(r, "w")) return roughly(now - r.t0);
    return this.info.live && actsNow(r) ? `▶ ${roughly(now - r.t0)}` : "";
  }

  tick() {
    for (const node of this.pool) {
      const r = node.box.hidden ? null : this.rows[node.box.dataset.row];
      if (r && !known(r.d) && known(r.t0)) put(node.time, this.timeOf(r));
    }
  }

  /** Scroll to row i, as soon as there is room to scroll in. */
  bring(i) { if (this.box.clientHeight) this.scrollTo(i); else this.wanted = i; }

  /** Select row i. user: chosen by a person. */
  choose(i, user = true, scroll = true) {
    if (i < 0 || i >= this.rows.length) return;
    this.selected = i;
    if (scroll) this.scrollTo(i);
    this.draw();
    this.onSelect(i, user);
  }

  scrollTo(i) {
    const item = this.itemOf[i];
    if (item === undefined || item < 0) return;
    const y = item * ROW_H, height = this.box.clientHeight;
    const above = typeof this.items[item - 1] === "string" ? ROW_H : 0;
    if (y - above < this.box.scrollTop) this.box.scrollTop = y - above;
    else if (y + ROW_H > this.box.scrollTop + height) this.box.scrollTop = y + ROW_H - height;
  }

  /** Move by whole rows from the selected one, in the filtered order; `test` picks which rows count. */
  step(from, by, test) {
    for (let k = from; k >= 0 && k < this.items.length; k += by) {
      const item = this.items[k];
      if (typeof item !== "number" || (test && !test(this.rows[item]))) continue;
      this.choose(item);
      return true;
    }
    return false;
  }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target !== this.box) return;
    const here = this.inFilter(this.selected) ? this.itemOf[this.selected] : -1;
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW_H) - 1);
    const bad = (r) => hasFlag(r, "e") || r.kind === "error";
    const last = this.items.length - 1;
    const keys = {
      ArrowDown: () => this.step(here + 1, 1), ArrowUp: () => this.step(here < 0 ? last : here - 1, -1), j: () => this.step(here + 1, 1), k: () => this.step(here - 1, -1),
      Home: () => this.step(0, 1), End: () => this.step(last, -1),
      PageDown: () => this.step(Math.min(last, here + page), 1) || this.step(last, -1), PageUp: () => this.step(Math.max(0, here - page), -1) || this.step(0, 1),
      n: () => this.step(here + 1, 1, bad), p: () => this.step(here < 0 ? last : here - 1, -1, bad),
      "/": () => { this.filter.focus(); this.filter.select(); }, Enter: () => this.onEnter && this.onEnter(),
    };
    const act = keys[e.key];
    if (!act) return;
    e.preventDefault();
    act();
  }
}
