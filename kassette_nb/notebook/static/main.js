// The view: one root, a component for each of the traits `main` and `detail`, and the messages between them and the kernel.
// The order in which the files are joined stands in view.py.

const COMPONENTS = { panel: Panel, browser: Browser, compare: Compare };

class Slot {
  constructor(view, ch) {
    Object.assign(this, { view, ch, node: el("div.k-slot"), component: null, identity: null });
    this.acts = new Map();
  }

  context() {
    const { view, ch } = this;
    return {
      ch, acts: this.acts, root: view.root,
      send: (msg) => {
        if (msg.type === "open" || msg.type === "compare") view.opening = true;
        return view.send({ ch, ...msg });
      },
      kernelState: () => view.kernelState(),
      offline: () => view.offline,
    };
  }

  /** The trait of this slot changed: the same thing is updated in place, another one replaces it. */
  update() {
    const summary = this.view.model.get(this.ch);
    const make = summary && COMPONENTS[summary.kind];
    const identity = make ? make.identity(summary) : null;
    const opening = this.ch === "detail" && this.view.opening;
    if (this.ch === "detail") this.view.opening = false;
    if (identity && identity === this.identity) {
      this.component.update(summary);
      if (opening) this.hello(); // opened again: another handler is behind it now
      return;
    }
    this.drop();
    if (!make) {
      if (this.ch === "main") this.node.replaceChildren(el("div.k-none", null, "this view is empty: run the cell again"));
      return;
    }
    this.identity = identity;
    this.component = new make(this.context(), summary, { closable: this.ch === "detail" });
    this.node.replaceChildren(this.component.node);
    this.hello();
    if (opening) this.node.scrollIntoView({ block: "nearest" });
  }

  hello() {
    this.view.send({ ch: this.ch, type: "hello" });
    clearTimeout(this.unheard);
    this.unheard = setTimeout(() => this.view.silent(), 3000);
  }

  hear(msg) {
    clearTimeout(this.unheard);
    this.view.heard();
    if (msg.type === "failed") { this.failed(msg); return; }
    if (!this.component) return;
    if (msg.of !== undefined && msg.of !== null && this.component.summary.run_id !== undefined && msg.of !== this.component.summary.run_id) return;
    if (msg.type === "acted") {
      const act = this.acts.get(msg.n);
      if (act) act.hear(msg);
    } else this.component.hear(msg);
  }

  /** An exception of the kernel's side, which Jupyter would show nowhere. */
  failed(msg) {
    for (const act of this.acts.values()) if (act.waiting) act.hear({ ...msg, phase: "failed" });
    const box = el("div.k-failure", { role: "alert" }, el("span.k-say", null, "✕ ", msg.text || "an exception in the kernel"),
      button("dismiss", () => box.remove(), { kind: "k-link" }), msg.traceback ? el("details.k-trace", null, el("summary", null, "traceback"), el("pre", { tabindex: "0" }, msg.traceback)) : null);
    if (this.failure) this.failure.remove();
    this.failure = box;
    this.node.prepend(box);
  }

  drop() {
    clearTimeout(this.unheard);
    if (this.component) this.component.destroy();
    this.component = null;
    this.identity = null;
    this.acts.clear();
    this.node.replaceChildren();
  }
}

class View {
  constructor(model, host) {
    Object.assign(this, { model, offline: "", hiddenSince: 0, id: uid("view") });
    this.root = el("div.kas", { lang: "en" });
    this.slots = { main: new Slot(this, "main"), detail: new Slot(this, "detail") };
    this.root.append(this.slots.main.node, this.slots.detail.node);
    host.append(this.root);
    this.root.addEventListener("keydown", (e) => this.contain(e));
    this.stopTheme = followTheme(this.root, () => { for (const slot of this.all()) if (slot.component) slot.component.redraw(); });
    this.sizes = new ResizeObserver(() => this.stopTheme.check());
    this.sizes.observe(this.root);
    this.root.dataset.theme = this.root.dataset.theme || themeOf(host);
    this.listeners = [
      ["msg:custom", (msg) => { const slot = msg && this.slots[msg.ch]; if (slot) slot.hear(msg); }],
      ["change:main", () => this.slots.main.update()],
      ["change:detail", () => this.slots.detail.update()],
      ["change:alive", () => { for (const slot of this.all()) if (slot.component) slot.hello(); }],
    ];
    for (const [name, fn] of this.listeners) model.on(name, fn);
    this.beat = setInterval(() => this.here(), 20000);
    this.onVisible = () => this.visibility();
    document.addEventListener("visibilitychange", this.onVisible);
    this.stopKernel = this.followKernel();
    for (const slot of this.all()) slot.update();
    setTimeout(() => this.stopTheme.check(), 0); // the host may be attached only after render
  }

  all() { return Object.values(this.slots); }

  /** Sends, and says whether it went out: after a restart of the kernel send throws "Cannot send". */
  send(msg) {
    try {
      this.model.send({ ...msg, view: this.id });
      if (this.gone) { this.gone = false; this.setOffline(""); }
      return true;
    } catch (error) {
      this.gone = true;
      this.setOffline("no kernel: run this cell again");
      return false;
    }
  }

  kernelState() {
    try {
      const kernel = this.model.widget_manager && this.model.widget_manager.kernel;
      return kernel ? kernel.status : null;
    } catch { return null; }
  }

  /** A kernel that restarts or dies takes the view's other half along; the host says so before the next beat would. */
  followKernel() {
    try {
      const signal = this.model.widget_manager.kernel.statusChanged;
      const listen = (_, status) => { if (status !== "idle" && status !== "busy") setTimeout(() => this.here(), 300); };
      signal.connect(listen);
      return () => signal.disconnect(listen);
    } catch { return () => {}; } // a host without such a signal
  }

  heard() { if (this.offline && !this.gone) this.setOffline(""); }

  /** Nothing answered a hello for 3 s. */
  silent() {
    if (this.gone) return;
    const idle = this.kernelState() === "idle";
    this.setOffline(idle ? "this kernel does not answer: run this cell again" : "waiting for the kernel");
  }

  setOffline(words) {
    if (this.offline === words) return;
    this.offline = words;
    for (const slot of this.all()) if (slot.component && slot.component.summary) slot.component.said();
  }

  here() {
    if (document.visibilityState !== "visible" || !this.root.isConnected) return;
    for (const slot of this.all()) if (slot.component) this.send({ ch: slot.ch, type: "here" });
  }

  /** Without a view for 60 s the kernel stops following; a later hello starts it again. */
  visibility() {
    if (document.visibilityState !== "visible") { this.hiddenSince = Date.now(); return; }
    const away = this.hiddenSince ? Date.now() - this.hiddenSince : 0;
    this.hiddenSince = 0;
    if (away > 45000 && this.root.isConnected) for (const slot of this.all()) if (slot.component) slot.hello();
    else this.here();
  }

  /** Keys stay in here (in a notebook a bare `d d` deletes the cell), but for Ctrl and ⌘ combinations; Escape gives the keyboard back. */
  contain(e) {
    if (e.key === "Escape") {
      setTimeout(() => {
        if (!this.root.contains(document.activeElement)) return;
        const cell = this.root.closest(".jp-Cell[tabindex],.jp-Notebook[tabindex]");
        if (cell) cell.focus({ preventScroll: true });
        if (this.root.contains(document.activeElement)) document.activeElement.blur();
      }, 0);
      return;
    }
    if ((e.ctrlKey || e.metaKey) && e.key !== "Enter") return;
    e.stopPropagation();
  }

  destroy() {
    clearInterval(this.beat);
    this.stopKernel();
    document.removeEventListener("visibilitychange", this.onVisible);
    for (const [name, fn] of this.listeners) this.model.off(name, fn);
    this.stopTheme();
    this.sizes.disconnect();
    for (const slot of this.all()) if (slot.component) this.send({ ch: slot.ch, type: "gone" });
    for (const slot of this.all()) slot.drop();
    this.root.remove();
  }
}

export default {
  render({ model, el: host }) {
    const view = new View(model, host);
    return () => view.destroy();
  },
};
