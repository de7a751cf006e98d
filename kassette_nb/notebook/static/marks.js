// Signs and colours: every state and kind has a colour AND a sign.

/** Fixed fills, at least 3:1 on white and on near-black alike. */
const FILL = { llm: "#7a68de", tool: "#5b7a99", step: "#8a94a0", error: "#d1453f", wait: "#b07d00", good: "#2a8a48" };

const KIND_FILL = {
  llm: "llm", tool: "tool", step: "step", value: "step", sleep: "wait", suspend: "wait", resume: "wait", intent: "tool",
  note: "step", error: "error", complete: "good", cancel: "step", start: "step", other: "step",
};

/** state → [sign, tone]; every glyph is in DejaVu Sans and none has an emoji form. */
const STATE = {
  suspended: ["◐", "wait"], running: ["▶", "run"], interrupted: ["↯", "wait"], ready: ["○", "run"], completed: ["✓", "good"],
  failed: ["✕", "err"], cancelled: ["⊘", "calm"], damaged: ["⚠", "err"], missing: ["∅", "err"],
};

const KIND_SIGN = { suspend: "?", resume: "↩", sleep: "z", complete: "✓", error: "✕", cancel: "⊘", note: "·", start: "·", other: "·" };

const stateSign = (state) => (STATE[state] || ["·"])[0];
const stateTone = (state) => (STATE[state] || ["", "calm"])[1];

function stateChip(state) {
  return el(`span.k-chip.k-tone-${stateTone(state)}`, null, el("span", { "aria-hidden": "true" }, stateSign(state) + "\u00a0"), state);
}

const isWait = (row) => row.kind === "suspend" || row.kind === "sleep" || row.kind === "resume";
const hasFlag = (row, flag) => !!row.x && row.x.includes(flag);
const kindFill = (row) => (hasFlag(row, "?") ? "wait" : KIND_FILL[row.kind] || "step");

/** A tool that was started and has not returned, in a run that runs. */
const actsNow = (row) => row.kind === "intent" && !row.x;

/** The small sign in front of a row: a shape for calls (llm round, tool square, step diamond), a glyph for the rest. */
function fillSign(node, row, copied) {
  const answered = row.kind === "suspend" && hasFlag(row, "a");
  const glyph = hasFlag(row, "?") ? "?" : KIND_SIGN[answered ? "resume" : row.kind] || "";
  const bad = hasFlag(row, "e") || row.kind === "error";
  const shape = glyph ? "glyph" : row.kind === "llm" ? "round" : row.kind === "tool" || row.kind === "intent" ? "square" : "diamond";
  const name = `k-sign k-${shape} k-fill-${kindFill(row)}${bad ? " k-bad" : ""}${copied ? " k-copied" : ""}`;
  if (node.className !== name) node.className = name;
  if (node.textContent !== glyph) node.textContent = glyph;
}

/** What the flags say, in front of a preview. */
function flagText(row) {
  let out = "";
  if (hasFlag(row, "?")) out += "? in doubt ";
  if (hasFlag(row, "e") && row.kind !== "error") out += "✕ ";
  if (hasFlag(row, "v")) out += "✎ ";
  if (hasFlag(row, "w")) out += "? ";
  return out;
}

// ---- theme: which of our own colours to use under a notebook's theme

function luminance(color) {
  const m = /^\s*#([0-9a-f]{3,8})\s*$/i.exec(color);
  let rgb = null;
  if (m) {
    const h = m[1].length < 6 ? m[1].replace(/./g, "$&$&") : m[1];
    rgb = [0, 2, 4].map((i) => parseInt(h.slice(i, i + 2), 16));
  } else {
    const n = /rgba?\(([^)]*)\)/.exec(color);
    if (n) rgb = n[1].split(/[\s,/]+/).slice(0, 3).map(Number);
    else if (/^\s*white\s*$/i.test(color)) rgb = [255, 255, 255];
    else if (/^\s*black\s*$/i.test(color)) rgb = [0, 0, 0];
  }
  return rgb && !rgb.some(isNaN) ? (0.299 * rgb[0] + 0.587 * rgb[1] + 0.114 * rgb[2]) / 255 : null;
}

/** "light" or "dark": the host's background variable, else its own flag, else the page's color-scheme. */
function themeOf(node) {
  const css = getComputedStyle(node);
  for (const name of ["--jp-layout-color0", "--vscode-editor-background"]) {
    const value = css.getPropertyValue(name);
    const light = value ? luminance(value) : null;
    if (light !== null) return light < 0.5 ? "dark" : "light";
  }
  const body = document.body;
  if (body.dataset.jpThemeLight) return body.dataset.jpThemeLight === "false" ? "dark" : "light";
  if (body.classList.contains("vscode-dark")) return "dark";
  if (body.classList.contains("vscode-light")) return "light";
  const scheme = getComputedStyle(document.documentElement).colorScheme;
  if (/^(only )?dark/.test(scheme)) return "dark";
  if (/^(only )?light$/.test(scheme)) return "light";
  return scheme.includes("dark") && matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Keeps root.dataset.theme right; tells `onChange` when the theme became another. Returns a stop function. */
function followTheme(root, onChange) {
  const check = () => {
    if (!root.isConnected) return;
    const theme = themeOf(root.parentElement || root);
    if (root.dataset.theme === theme) return;
    root.dataset.theme = theme;
    onChange(theme);
  };
  const later = debounce(check, 60);
  const watch = new MutationObserver(later);
  for (const node of [document.documentElement, document.body]) {
    watch.observe(node, { attributes: true, attributeFilter: ["class", "style", "data-jp-theme-name", "data-jp-theme-light", "data-theme", "data-vscode-theme-kind"] });
  }
  const links = new MutationObserver(later);
  links.observe(document.head, { childList: true });
  const media = matchMedia("(prefers-color-scheme: dark)");
  media.addEventListener("change", later);
  document.addEventListener("load", later, true);
  check();
  return Object.assign(() => {
    watch.disconnect(); links.disconnect(); later.stop();
    media.removeEventListener("change", later);
    document.removeEventListener("load", later, true);
  }, { check });
}
