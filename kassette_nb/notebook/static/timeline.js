// The timeline: one canvas, a lane per branch. The axis is working time with waits folded to a break, wall time, or steps.

const BREAK_W = 56, GUTTER = 64, AXIS_H = 17, TOP = 5, MIN_BAR = 1.5, MOST_LANES = 24;

/** Stretches of time in which something works, and the breaks between them. Pure; tested by hand through Timeline. */
function timePieces(rows, ends, fold) {
  const busy = [];
  let lo = Infinity, hi = -Infinity;
  rows.forEach((r, i) => {
    if (r.t0 === null || r.t0 === undefined) return;
    lo = Math.min(lo, r.t0); hi = Math.max(hi, ends[i]);
    if (!isWait(r)) busy.push([r.t0, ends[i]]);
  });
  if (lo === Infinity) return [];
  if (!fold || !busy.length) return [{ a: lo, b: Math.max(hi, lo + 1), brk: false }];
  busy.sort((x, y) => x[0] - y[0]);
  const merged = [busy[0].slice()];
  for (const [a, b] of busy) {
    const top = merged[merged.length - 1];
    if (a > top[1]) merged.push([a, b]);
    else if (b > top[1]) top[1] = b;
  }
  const work = merged.reduce((sum, [a, b]) => sum + b - a, 0);
  const least = Math.max(Math.min(2000, work / 2), work * 0.04, 250);
  const pieces = [];
  let at = lo;
  const push = (a, b, brk) => {
    const last = pieces[pieces.length - 1];
    if (last && !brk && !last.brk) last.b = b;
    else if (b > a || !brk) pieces.push({ a, b, brk });
  };
  for (const [a, b] of merged) {
    if (a > at) push(at, a, a - at >= least);
    push(a, b, false);
    at = b;
  }
  if (hi > at) push(at, hi, hi - at >= least);
  return pieces;
}

class Timeline {
  constructor({ onSelect, rootOf }) {
    Object.assign(this, { onSelect, rootOf, rows: [], info: {}, mode: "work", zoom: 1, left: 0, selected: -1, pieces: [], bars: [], blanks: 0 });
    this.canvas = el("canvas.k-canvas", { "aria-hidden": "true" });
    this.holder = el("div.k-tlholder", null, this.canvas);
    this.legend = el("span.k-legend");
    this.axis = el("select.k-select", { "aria-label": "timeline axis", onchange: () => { this.auto = false; this.setMode(this.axis.value); } },
      el("option", { value: "work" }, "working time"), el("option", { value: "wall" }, "wall clock"), el("option", { value: "steps" }, "steps"));
    const small = (text, label, fn) => button(text, fn, { kind: "k-tool", "aria-label": label, title: label });
    this.tools = el("span.k-tools", null, this.axis, small("fit", "show the whole run", () => this.fit()),
      small("−", "zoom out", () => this.zoomAt(0.5, 1 / 1.6)), small("+", "zoom in (Ctrl or ⌘ and the wheel, or drag)", () => this.zoomAt(0.5, 1.6)));
    this.node = el("div.k-tl", null, el("div.k-tltop", null, el("b", null, "Timeline"), this.legend, this.tools), this.holder);
    this.auto = true;
    this.canvas.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.metaKey) return;
      e.preventDefault();
      this.zoomAt(this.share(e), Math.exp(-e.deltaY * 0.004));
    }, { passive: false });
    this.canvas.addEventListener("pointerdown", (e) => this.press(e));
    this.canvas.addEventListener("pointermove", (e) => this.hover(e));
    this.canvas.addEventListener("dblclick", () => this.fit());
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.holder);
  }

  destroy() { this.observer.disconnect(); }

  /** info: {lanes, sessions:[{ms, text}], copied, now, started} with times in ms since the start of the run. */
  setData(rows, info) {
    Object.assign(this, { rows, info });
    this.passed = 0;
    this.setEnds(info.now);
    const calls = rows.filter((r) => !isWait(r) && !["error", "complete", "cancel", "note", "start", "other"].includes(r.kind));
    const timed = calls.filter((r) => known(r.t0)).length;
    const can = timed > 0 && timed >= calls.length / 2;
    for (const option of this.axis.options) option.disabled = option.value !== "steps" && !can;
    if (!can) this.mode = "steps";
    else if (this.auto) this.mode = "work";
    this.axis.value = this.mode;
    this.axis.title = can ? "" : "no start times are recorded: steps in order";
    this.doubt = rows.some((r) => hasFlag(r, "?"));
    this.setLanes();
    this.laneH = this.lanes <= 3 ? 24 : this.lanes <= 5 ? 17 : Math.max(4, Math.floor(84 / this.lanes));
    this.height = TOP + this.lanes * this.laneH + AXIS_H;
    this.canvas.style.height = this.height + "px";
    this.layout();
    this.drawLegend();
    this.draw();
  }

  /** What is open and does not run has an unknown end. */
  setEnds(now) { this.ends = this.rows.map((r) => (known(r.t1) ? Math.max(r.t1, r.t0) : known(r.t0) ? (isWait(r) || this.info.live ? Math.max(r.t0, now) : r.t0) : 0)); }

  /** So many ms since the data came: open bars grow, as often as their length reads otherwise. */
  tick(passed) {
    const open = this.rows && this.mode !== "steps" ? this.rows.filter((r) => known(r.t0) && !known(r.t1) && (isWait(r) || this.info.live)) : [];
    if (!open.length) return;
    const longest = this.info.now + passed - Math.min(...open.map((r) => r.t0));
    if (passed - this.passed < (longest < 100000 ? 950 : 30000)) return;
    this.passed = passed;
    this.setEnds(this.info.now + passed);
    this.layout();
    this.draw();
  }

  /** A lane for each branch that recorded anything; very many share the last ones. */
  setLanes() {
    const used = [...new Set(this.rows.map((r) => r.lane || 0))].sort((a, b) => a - b);
    this.laneOf = new Map(used.map((lane, i) => [lane, used.length > MOST_LANES ? Math.floor(i * MOST_LANES / used.length) : i]));
    this.laneNames = used.length > MOST_LANES ? [] : used.map((lane) => (this.info.lanes || [])[lane] || "");
    this.lanes = Math.max(1, Math.min(used.length, MOST_LANES));
  }

  lane(i) { return this.laneOf.get(this.rows[i].lane || 0) || 0; }

  layout() {
    if (this.mode === "steps") this.pieces = [{ a: 0, b: Math.max(1, this.rows.length) - 0.1, brk: false }];
    else this.pieces = timePieces(this.rows, this.ends, this.mode === "work");
    let work = 0, breaks = 0;
    for (const p of this.pieces) {
      p.w = work; p.n = breaks;
      if (p.brk) breaks += 1; else work += p.b - p.a;
    }
    for (const p of this.pieces) p.said = p.brk && this.rows.some((r, i) => isWait(r) && known(r.t0) && r.t0 < p.b && this.ends[i] > p.a);
    this.work = Math.max(work, 1);
    this.breaks = breaks;
  }

  setMode(mode) { this.mode = mode; this.layout(); this.fit(); }
  fit() { this.zoom = 1; this.left = 0; this.draw(); }
  select(i, reveal) { this.selected = i; if (reveal) this.reveal(); this.draw(); }
  share(e) { const box = this.canvas.getBoundingClientRect(); return (e.clientX - box.left - this.gutter) / Math.max(1, this.plotW); }

  measure() {
    this.gutter = this.lanes > 1 || (this.laneNames[0] && this.laneNames[0] !== "main") ? GUTTER : 6;
    this.plotW = Math.max(40, (this.holder.clientWidth || 600) - this.gutter - (this.doubt ? 20 : 7));
    this.breakW = this.breaks ? Math.min(BREAK_W, (this.plotW * 0.45) / this.breaks) : 0;
    this.scale = ((this.plotW - this.breaks * this.breakW) / this.work) * this.zoom;
    if (this.mode === "steps") this.scale = Math.min(this.scale, 90 * this.zoom);
    this.total = this.work * this.scale + this.breaks * this.breakW;
    this.left = Math.min(Math.max(0, this.left), Math.max(0, this.total - this.plotW));
  }

  /** Pixels from the left of the plot (before scrolling) for a time, or a step number. */
  at(t) {
    const ps = this.pieces;
    let lo = 0, hi = ps.length - 1;
    while (lo < hi) { const mid = (lo + hi + 1) >> 1; if (ps[mid].a <= t) lo = mid; else hi = mid - 1; }
    const p = ps[lo];
    if (!p) return 0;
    const f = Math.min(Math.max(t, p.a), p.b) - p.a;
    return p.brk ? p.w * this.scale + (p.n + f / (p.b - p.a)) * this.breakW : (p.w + f) * this.scale + p.n * this.breakW;
  }

  /** The narrowest a bar gets: one in doubt has room for its sign. */
  least(i) { return hasFlag(this.rows[i], "?") ? 15 : MIN_BAR; }

  place(i) {
    const r = this.rows[i];
    if (this.mode === "steps") return [this.at(i), this.at(i + 0.9)];
    if (!known(r.t0)) return null;
    return [this.at(r.t0), this.at(this.ends[i])];
  }

  zoomAt(share, factor) {
    this.measure();
    const f = Math.min(1, Math.max(0, share)), x = this.left + f * this.plotW, before = this.total;
    this.zoom = Math.min(5000, Math.max(1, this.zoom * factor));
    this.measure();
    this.left = x * (this.total / before) - f * this.plotW;
    this.draw();
  }

  reveal() {
    this.measure();
    const at = this.selected >= 0 && this.rows[this.selected] ? this.place(this.selected) : null;
    if (at && this.zoom > 1 && (at[0] < this.left || at[0] > this.left + this.plotW - 20)) this.left = at[0] - this.plotW * 0.3;
  }

  press(e) {
    if (e.button !== 0) return;
    const box = this.canvas.getBoundingClientRect(), from = e.clientX, pan = e.shiftKey, left = this.left;
    let dragged = false;
    const move = (ev) => {
      if (Math.abs(ev.clientX - from) > 4) dragged = true;
      if (!dragged) return;
      if (pan) { this.left = left + from - ev.clientX; this.range = null; }
      else this.range = [Math.min(from, ev.clientX) - box.left, Math.max(from, ev.clientX) - box.left];
      this.draw();
    };
    const up = (ev) => {
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", up);
      removeEventListener("pointercancel", up);
      const range = this.range;
      this.range = null;
      if (!dragged) { const i = this.hit(ev); if (i >= 0) this.onSelect(i); }
      else if (range) {
        const a = this.left + range[0] - this.gutter, w = Math.max(4, range[1] - range[0]), before = this.total;
        this.zoom = Math.min(5000, this.zoom * (this.plotW / w));
        this.measure();
        this.left = a * (this.total / before);
      }
      this.draw();
    };
    addEventListener("pointermove", move);
    addEventListener("pointerup", up);
    addEventListener("pointercancel", up);
  }

  hit(e) {
    const box = this.canvas.getBoundingClientRect();
    const x = e.clientX - box.left - this.gutter + this.left, lane = Math.floor((e.clientY - box.top - TOP) / this.laneH);
    let best = -1, near = 5;
    for (let i = 0; i < this.rows.length; i++) {
      if (this.lane(i) !== lane) continue;
      const at = this.place(i);
      if (!at) continue;
      const gap = x < at[0] ? at[0] - x : x > at[1] ? x - at[1] : 0;
      if (gap < near || (gap === 0 && near === 0)) { near = gap; best = i; }
    }
    return best;
  }

  hover(e) {
    const i = this.hit(e);
    if (i === this.hovered) return;
    this.hovered = i;
    const r = this.rows[i];
    tip(this.canvas, r ? `${r.id} · ${r.kind}${known(r.d) ? " · " + duration(r.d) : ""}${r.p ? "\n" + flagText(r) + r.p.slice(0, 200) : ""}` : "");
    this.canvas.style.cursor = r ? "pointer" : "crosshair";
  }

  drawLegend() {
    const seen = { llm: 0, tool: 0, step: 0, wait: 0 };
    let error = false, edited = false;
    for (const r of this.rows) {
      const fill = kindFill(r);
      if (fill in seen && !["note", "cancel", "other"].includes(r.kind)) seen[fill] = 1;
      if (hasFlag(r, "e")) error = true;
      if (hasFlag(r, "v")) edited = true;
    }
    const waits = this.rows.some(isWait);
    const plain = this.rows.some((r) => kindFill(r) === "step" && r.kind === "step"), words = { llm: "llm", tool: "tool", step: plain ? "step" : "value", wait: this.doubt ? (waits ? "waiting, ? in doubt" : "? in doubt") : "waiting" };
    const keys = Object.keys(seen).filter((k) => seen[k]).map((k) => [`k-key k-fill-${k}`, words[k]]);
    if (this.info.copied) keys.push(["k-key k-hatch", "copied"]);
    if (error) keys.push(["k-key k-bad k-fill-tool", "✕ error"]);
    if (this.rows.some((r) => r.kind === "complete")) keys.push(["k-key k-fill-good", "✓ result"]);
    refill(this.legend, JSON.stringify([keys, edited]), () => keys.map(([cls, word]) => el("span.k-keyed", null, el("i", { class: cls }), word)).concat(edited ? [el("span.k-keyed", null, "✎ edited")] : []));
  }

  draw() {
    if (!this.frame) this.frame = soon(() => {
      this.frame = 0;
      if (!this.canvas.isConnected || !this.rows) return;
      // Without width for the moment (a host that swaps its stylesheets, say) nobody tells when it is back.
      if (!this.holder.clientWidth && this.blanks < 20) { this.blanks += 1; setTimeout(() => this.draw(), 100); return; }
      if (this.holder.clientWidth) this.blanks = 0;
      drawTimeline(this);
    });
  }
}

/** The next frame, or at once in a hidden tab, where there are no frames. */
function soon(fn) {
  return document.visibilityState === "visible" ? requestAnimationFrame(fn) : setTimeout(fn, 16);
}
