// The browser of runs: what waits for a person first; everything searchable, the first hundred drawn.

const GROUPS = [["waits", "waits for you"], ["running", "running"], ["trouble", "failed or in doubt"], ["stopped", "stopped, can go on"], ["rest", "the rest"]];
const PAGE = 100;

class Browser {
  constructor(ctx, summary) {
    Object.assign(this, { ctx, rows: [], ticked: new Set(), states: new Set(), open: new Set(), limit: PAGE, text: "", active: null, nodes: new Map(), heads: new Map() });
    this.title = el("div.k-headrow");
    this.damaged = el("details.k-damaged", { hidden: true });
    this.filter = el("input.k-in.k-filter", { type: "text", placeholder: "filter runs  ( / )", "aria-label": "filter runs", spellcheck: "false" });
    this.filter.addEventListener("input", () => { this.text = this.filter.value; this.limit = PAGE; this.draw(); });
    this.filter.addEventListener("keydown", (e) => {
      if (!e.isComposing && (e.key === "ArrowDown" || e.key === "Enter")) { e.preventDefault(); this.box.focus(); if (!this.order.includes(this.active)) this.move(0); }
    });
    this.chips = el("span.k-chips", { role: "group", "aria-label": "states" });
    this.count = el("span.k-dim.k-count", { role: "status", "aria-live": "polite" });
    this.compare = button("Compare", () => ctx.send({ type: "compare", run_ids: this.tickedInOrder() }), { disabled: true, title: "tick two or more runs" });
    this.bar = el("div.k-runbar", null, this.filter, this.chips, this.count, this.compare);
    this.box = el("div.k-runs", { role: "listbox", tabindex: "0", "aria-label": "runs", "aria-multiselectable": "true" });
    this.box.addEventListener("keydown", (e) => this.key(e));
    this.legend = el("div.k-run.k-runhead", { role: "presentation" }, el("span"), el("span"), el("span", null, "run"), el("span.k-r-flow", null, "workflow"), el("span", null, "question, step or error"), el("span.k-r-steps", null, "steps"), el("span.k-r-cost", null, "cost"), el("span.k-r-age", null, "age"));
    this.more = button("", () => { this.limit += PAGE; this.draw(); }, { kind: "k-link.k-morerows" });
    this.none = el("div.k-none");
    this.empty = el("div.k-empty", { hidden: true });
    this.code = el("code.k-code");
    this.asOf = el("span.k-dim.k-asof");
    this.foot = el("div.k-foot", null, this.code, copyButton(() => this.code.textContent, () => this.code), this.asOf);
    this.node = el("div.k-browser", { role: "group", "aria-label": "runs" }, el("div.k-head", null, this.title, this.damaged), this.bar, this.empty, this.box, this.foot);
    this.timer = setInterval(() => this.ages(), 15000);
    this.update(summary);
  }

  static identity() { return "browser"; }

  update(s) {
    this.summary = s;
    const bad = s.damaged || [];
    refill(this.title, JSON.stringify([s.place, s.total]), () => [el("span.k-name", null, known(s.total) ? plural(s.total, "run") : "runs"), el("span.k-mono.k-place", { title: s.place }, s.place)]);
    show(this.damaged, bad.length > 0);
    refill(this.damaged, JSON.stringify(bad), () => [el("summary.k-warn", null, `⚠ ${plural(bad.length, "damaged file")}`),
      ...bad.map((d) => el("div.k-damage", null, el("span.k-mono", null, d.run_id), " ", d.reason))]);
    show(this.empty, !!s.empty);
    show(this.bar, !s.empty);
    show(this.box, !s.empty);
    if (s.empty) {
      refill(this.empty, JSON.stringify(s.empty), () => {
        const pre = el("pre.k-code", { tabindex: "0" }, s.empty.lines.join("\n"));
        return [el("p", null, "No runs yet in ", el("span.k-mono", null, s.empty.place)), el("p.k-dim", null, "These lines start a first one:"),
          el("div.k-firstlines", null, pre, copyButton(() => s.empty.lines.join("\n"), () => pre))];
      });
    }
    put(this.code, s.code_line || "");
    this.said();
    this.later();
  }

  said() {
    const s = this.summary, words = this.ctx.offline();
    this.asOf.classList.toggle("k-warn", !!words);
    refill(this.asOf, JSON.stringify([words, s.as_of]), () => (s.as_of ? ["as of ", timeNode(s.as_of), words ? ` · ${words}` : ""] : [words]));
  }

  hear(msg) {
    if (msg.type !== "rows") return;
    if (msg.from > this.rows.length) { this.ctx.send({ type: "hello" }); return; }
    this.rows = this.rows.slice(0, msg.from).concat(msg.rows);
    const ids = new Set(this.rows.map((r) => r.id));
    for (const id of this.ticked) if (!ids.has(id)) this.ticked.delete(id);
    this.later();
  }

  later() { if (!this.frame) this.frame = soon(() => { this.frame = 0; this.draw(); }); }

  tickedInOrder() {
    const at = new Map(this.rows.map((r, i) => [r.id, i]));
    return [...this.ticked].sort((a, b) => (Date.parse(this.rows[at.get(a)].updated) || 0) - (Date.parse(this.rows[at.get(b)].updated) || 0));
  }

  /** Rows to draw with their depth. A fork folds under its source, in whatever group that stands; one that waits for a person or runs stays in sight. */
  plan() {
    const needle = this.text.trim().toLowerCase().split(/\s+/).filter(Boolean);
    const hit = (r) => (!this.states.size || this.states.has(r.state)) && needle.every((w) => `${r.id} ${r.label || ""} ${r.state} ${r.workflow || ""} ${r.text || ""}`.toLowerCase().includes(w));
    const flat = needle.length > 0 || this.states.size > 0;
    const byId = new Map(this.rows.map((r) => [r.id, r])), kids = new Map();
    const folds = (r) => !flat && r.parent && byId.has(r.parent) && ["rest", "trouble", "stopped"].includes(r.group);
    const rootOf = (r) => { let top = r, n = 0; while (folds(top) && n++ < 1000) top = byId.get(top.parent); return top; };
    const matched = this.rows.filter(hit);
    for (const r of matched) {
      if (!folds(r)) continue;
      const root = rootOf(r);
      if (!kids.has(root.id)) kids.set(root.id, []);
      if (root !== r) kids.get(root.id).push(r);
    }
    const out = [];
    for (const [group, words] of GROUPS) {
      // a fork that folds is drawn, and counted, under its source
      const all = matched.filter((r) => r.group === group && !folds(r));
      if (!all.length) continue;
      const head = { head: group, words, n: all.length };
      out.push(head);
      for (const r of all) {
        const forks = kids.get(r.id) || [];
        out.push({ row: r, forks });
        if (this.open.has(r.id)) for (const f of forks) { out.push({ row: f, child: true }); head.n++; }
      }
    }
    return { out, n: matched.length };
  }

  draw() {
    if (this.summary.empty) return;
    const { out, n } = this.plan();
    let drawn = 0, cut = out.length;
    for (let i = 0; i < out.length; i++) if (out[i].row && ++drawn > this.limit) { cut = i; break; }
    const shown = out.slice(0, cut), used = new Set();
    this.order = shown.filter((x) => x.row).map((x) => x.row.id);
    if (this.active && !this.order.includes(this.active)) this.active = null;
    const nodes = [this.legend].concat(shown.map((x) => {
      const key = x.row ? `r/${x.row.id}` : `h/${x.head}`;
      used.add(key);
      let node = this.nodes.get(key);
      if (!node) this.nodes.set(key, (node = x.row ? this.makeRow(x.row.id) : { box: el("div.k-group", { role: "presentation" }) }));
      if (x.row) this.fillRow(node, x);
      else put(node.box, `${x.words} · ${thousands(x.n)}`);
      return node.box;
    }));
    const hidden = out.slice(cut).filter((x) => x.row).length;
    show(this.more, hidden > 0);
    put(this.more, `show ${Math.min(PAGE, hidden)} more of ${thousands(hidden)}`);
    show(this.none, !shown.length);
    put(this.none, this.rows.length ? "no run matches" : "no readable runs");
    nodes.push(this.more, this.none);
    // move as little as possible: an element that is moved loses the focus
    nodes.forEach((node, i) => { if (this.box.children[i] !== node) this.box.insertBefore(node, this.box.children[i] || null); });
    while (this.box.children.length > nodes.length) this.box.lastChild.remove();
    for (const key of this.nodes.keys()) if (!used.has(key)) this.nodes.delete(key);
    put(this.count, n === this.rows.length ? "" : `${thousands(n)} of ${thousands(this.rows.length)}`);
    this.drawChips();
    this.drawTicks();
    if (this.active) this.box.setAttribute("aria-activedescendant", this.nodes.get(`r/${this.active}`).box.id);
    if (!this.sized && this.rows.length) { this.sized = true; /* room for runs to come: it does not grow by itself */ this.box.style.height = `${Math.min(440, Math.max(250, this.box.scrollHeight + 2))}px`; }
  }

  drawChips() {
    const counts = new Map();
    for (const r of this.rows) counts.set(r.state, (counts.get(r.state) || 0) + 1);
    const order = Object.keys(STATE).filter((s) => counts.has(s));
    for (const s of counts.keys()) if (!order.includes(s)) order.push(s);
    refill(this.chips, JSON.stringify(order), () => order.map((s) => {
      const chip = button("", () => { if (this.states.has(s)) this.states.delete(s); else this.states.add(s); this.limit = PAGE; this.draw(); }, { kind: `k-chip.k-filterchip.k-tone-${stateTone(s)}` });
      chip.dataset.state = s;
      return chip;
    }));
    for (const chip of this.chips.children) {
      const s = chip.dataset.state;
      put(chip, `${stateSign(s)} ${s} ${counts.get(s) || 0}`);
      chip.setAttribute("aria-pressed", String(this.states.has(s)));
    }
  }

  drawTicks() {
    const n = this.ticked.size;
    this.compare.disabled = n < 2;
    put(this.compare, n > 1 ? `Compare ${n}` : "Compare");
    tip(this.compare, n > 1 ? "" : "tick two or more runs");
  }

  makeRow(id) {
    const tick = el("input.k-tick", { type: "checkbox", tabindex: "-1" });
    tick.addEventListener("change", () => { if (tick.checked) this.ticked.add(id); else this.ticked.delete(id); this.drawTicks(); });
    const node = { tick, fold: button("", () => { if (this.open.has(id)) this.open.delete(id); else this.open.add(id); this.draw(); }, { kind: "k-link.k-foldforks", tabindex: "-1" }) };
    for (const part of ["state", "name", "flow", "text", "steps", "cost", "age"]) node[part] = el(`span.k-r-${part}`);
    node.label = el("span.k-r-label");
    node.short = el("span.k-mono.k-dim.k-r-short");
    node.from = el("span.k-dim.k-r-from");
    node.name.append(node.from, node.label, node.short, node.fold);
    node.box = el("div.k-run", { role: "option", id: uid("k-run") }, tick, node.state, node.name, node.flow, node.text, node.steps, node.cost, node.age);
    node.box.addEventListener("click", (e) => {
      if (e.target.closest("button,input") || String(getSelection())) return;
      this.activate(id);
      this.openRun(id);
    });
    return node;
  }

  fillRow(node, { row: r, forks, child }) {
    const cls = `k-run${child ? " k-child" : ""}${r.id === this.active ? " k-sel" : ""}`;
    if (node.box.className !== cls) node.box.className = cls;
    node.box.setAttribute("aria-selected", String(r.id === this.active));
    node.tick.checked = this.ticked.has(r.id);
    node.tick.setAttribute("aria-label", visible(`tick ${r.label || r.id} for comparing`));
    put(node.state, stateSign(r.state));
    node.state.className = `k-r-state k-tone-${stateTone(r.state)}`;
    tip(node.state, r.state);
    node.state.setAttribute("aria-label", r.state);
    put(node.label, r.label || r.short || shortId(r.id));
    node.label.classList.toggle("k-mono", !r.label);
    put(node.short, r.label ? r.short || shortId(r.id) : "");
    tip(node.name, r.label ? `${r.label}\n${r.id}` : r.id);
    const folded = forks && forks.length ? forks : null;
    show(node.fold, !!folded);
    put(node.fold, folded ? `${this.open.has(r.id) ? "▾" : "▸"} ${plural(folded.length, "fork")} ${[...new Set(folded.map((f) => stateSign(f.state)))].join("")}` : "");
    tip(node.fold, folded ? Object.entries(folded.reduce((n, f) => ({ ...n, [f.state]: (n[f.state] || 0) + 1 }), {})).map(([s, n]) => `${n} ${s}`).join(", ") : "");
    put(node.from, r.parent && !child ? "↳" : "");
    tip(node.from, r.parent && !child ? `a fork of ${r.parent}` : "");
    node.fold.setAttribute("aria-expanded", String(this.open.has(r.id)));
    put(node.flow, r.workflow || "");
    tip(node.flow, r.workflow || "");
    put(node.text, oneLine(r.text || ""));
    tip(node.text, r.text || "");
    put(node.steps, known(r.steps) ? thousands(r.steps) : "");
    tip(node.steps, known(r.steps) ? plural(r.steps, "step") : "");
    put(node.cost, known(r.cost) ? money(r.cost) + (r.unpriced ? "+" : "") : r.unpriced ? "?" : "");
    tip(node.cost, r.unpriced ? `${plural(r.unpriced, "call")} without a price` : "");
    node.updated = r.updated;
    this.age(node);
  }

  age(node) {
    if (!node.updated) return;
    put(node.age, roughly(Date.now() - Date.parse(node.updated)));
    tip(node.age, `${localTime(node.updated)}\n${utcTime(node.updated)}`);
  }

  ages() { for (const node of this.nodes.values()) if (node.age) this.age(node); }

  activate(id) {
    const old = this.active && this.nodes.get(`r/${this.active}`), next = this.nodes.get(`r/${id}`);
    this.active = id;
    if (old) { old.box.classList.remove("k-sel"); old.box.setAttribute("aria-selected", "false"); }
    if (!next) return;
    next.box.classList.add("k-sel");
    next.box.setAttribute("aria-selected", "true");
    this.box.setAttribute("aria-activedescendant", next.box.id);
    const top = next.box.offsetTop;
    if (top < this.box.scrollTop + 44) this.box.scrollTop = top - 44;
    else if (top + 28 > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + 28 - this.box.clientHeight;
  }

  openRun(id) { this.ctx.send({ type: "open", run_id: id }); }

  move(i) { if (this.order.length) this.activate(this.order[Math.min(this.order.length - 1, Math.max(0, i))]); }

  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey || e.target.tagName === "BUTTON") return;
    const here = this.order.indexOf(this.active), page = Math.max(1, Math.floor(this.box.clientHeight / 26) - 1);
    const keys = {
      ArrowDown: () => this.move(here + 1), ArrowUp: () => this.move(here < 0 ? 0 : here - 1), Home: () => this.move(0), End: () => this.move(this.order.length - 1),
      PageDown: () => this.move(here + page), PageUp: () => this.move(here - page),
      Enter: () => this.active && this.openRun(this.active), "/": () => { this.filter.focus(); this.filter.select(); },
      " ": () => { if (this.active) this.nodes.get(`r/${this.active}`).tick.click(); },
      ArrowRight: () => { if (this.active) { this.open.add(this.active); this.draw(); } }, ArrowLeft: () => { if (this.active) { this.open.delete(this.active); this.draw(); } },
    };
    if (!keys[e.key] || (e.target.tagName === "INPUT" && e.key === " ")) return;
    e.preventDefault();
    keys[e.key]();
  }

  redraw() {}
  destroy() { clearInterval(this.timer); }
}
