// Building elements and words. Everything that becomes text passes visible(): what a person reads is what is recorded.

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f\u205f-\u206f\u3164\ufe00-\ufe0d\ufeff\uffa0\ufff0-\ufffb]|[\udb40-\udb43][\udc00-\udfff]|[\ud800-\udbff](?![\udc00-\udfff])|(?<![\ud800-\udbff])[\udc00-\udfff]/g;

function hiddenMark(c) {
  const code = c.codePointAt(0);
  if (code === 13) return "\\r";
  if (code < 0x100) return "\\x" + code.toString(16).padStart(2, "0");
  if (code > 0xffff) return "\\U" + code.toString(16).padStart(8, "0");
  return "\\u" + code.toString(16).padStart(4, "0");
}

/** Control, bidi, zero-width and stray surrogate characters written out: \x1b or \u202e, in letters that every font has. */
function visible(text) {
  const s = String(text);
  HIDDEN.lastIndex = 0;
  return HIDDEN.test(s) ? s.replace(HIDDEN, hiddenMark) : s;
}

/** Words with `names` in backticks set in the code face. */
function ticked(text) {
  return String(text).split("`").map((part, i) => (i % 2 ? el("span.k-mono", null, part) : visible(part)));
}

/** One line: line breaks and tabs shown as marks too. */
function oneLine(text) {
  return visible(String(text).replace(/\r?\n/g, " ⏎ ").replace(/\t/g, " "));
}

/** A fragment in which the characters made visible are set apart from the same letters written by an author. */
function marked(text) {
  const out = document.createDocumentFragment();
  let last = 0;
  for (const m of text.matchAll(HIDDEN)) {
    if (m.index > last) out.append(text.slice(last, m.index));
    const mark = document.createElement("span");
    mark.className = "k-esc";
    mark.textContent = hiddenMark(m[0]);
    out.append(mark);
    last = m.index + m[0].length;
  }
  if (last < text.length) out.append(last ? text.slice(last) : text);
  return out;
}

/** el("button.k-btn", {onclick, title, "aria-label": …}, "text", node, …): text only, never markup. */
function el(spec, props, ...kids) {
  const [tag, ...classes] = spec.split(".");
  const node = document.createElement(tag || "div");
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(props || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key === "text") node.textContent = visible(value);
    else if (key === "value") node.value = value;
    else node.setAttribute(key, value === true ? "" : visible(value));
  }
  for (const kid of kids.flat()) {
    if (kid === null || kid === undefined || kid === false) continue;
    node.append(kid instanceof Node ? kid : visible(kid));
  }
  return node;
}

function button(text, onclick, props) {
  return el("button." + ((props && props.kind) || "k-btn"), { type: "button", onclick, ...props, kind: null }, text);
}

/** Change only what differs, so that a selection in the text survives an update. */
function put(node, text) {
  const shown = visible(text === null || text === undefined ? "" : text);
  if (node.textContent !== shown) node.textContent = shown;
  return node;
}

function tip(node, text) {
  const shown = text ? visible(text) : "";
  if ((node.getAttribute("title") || "") === shown) return;
  if (shown) node.setAttribute("title", shown);
  else node.removeAttribute("title");
}

function show(node, on) {
  if (node.hidden === !!on) node.hidden = !on;
  return node;
}

/** Replace the children unless nothing changed (`key` describes them) or one of them has the focus. */
function refill(node, key, make) {
  if (node.shownKey === key) return false;
  if (node.contains(document.activeElement) && node !== document.activeElement) return false;
  node.shownKey = key;
  node.replaceChildren(...[make()].flat().filter((x) => x !== null && x !== undefined && x !== false).map((x) => (x instanceof Node ? x : visible(x))));
  return true;
}

// ---- words and figures

const thousands = (n) => Math.round(n).toString().replace(/\B(?=(\d{3})+$)/g, ",");
const known = (x) => x !== null && x !== undefined;
const plural = (n, word) => `${thousands(n)} ${word}${n === 1 ? "" : "s"}`;

/** The same in whole seconds, for what goes on. */
function seconds(ms) {
  const whole = Math.max(0, Math.floor(ms / 1000));
  return whole < 10 ? `${whole} s` : duration(whole * 1000);
}

function duration(ms) {
  if (!known(ms)) return "";
  if (ms < 0) return "−" + duration(-ms);
  if (ms < 1) return "0 ms";
  if (ms < 100) return `${Math.round(ms)} ms`;
  if (ms < 9950) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.round(ms / 1000);
  if (s < 60) return `${s} s`;
  if (s < 3600) return s % 60 ? `${Math.floor(s / 60)} m ${String(s % 60).padStart(2, "0")} s` : `${s / 60} m`;
  const m = Math.round(s / 60);
  if (m < 1440) return m % 60 ? `${Math.floor(m / 60)} h ${m % 60} m` : `${m / 60} h`;
  const h = Math.round(m / 60);
  return h % 24 ? `${Math.floor(h / 24)} d ${h % 24} h` : `${h / 24} d`;
}

/** The largest unit alone: for ages and narrow places. */
function roughly(ms) {
  const s = Math.max(0, ms) / 1000;
  if (s < 60) return `${Math.floor(s)} s`;
  if (s < 3600) return `${Math.floor(s / 60)} m`;
  if (s < 86400) return `${Math.floor(s / 3600)} h`;
  return `${Math.floor(s / 86400)} d`;
}

function money(x) {
  if (!known(x)) return "";
  const a = Math.abs(x), sign = x < 0 ? "−" : "";
  if (a === 0) return "$0";
  if (a < 0.00005) return sign + "<$0.0001";
  if (a < 0.01) return `${sign}$${a.toFixed(4).replace(/0+$/, "")}`;
  const [whole, part] = a.toFixed(2).split(".");
  return `${sign}$${thousands(+whole)}.${part}`;
}

/** How many decimals a column of amounts needs so that each says what it is: 2 to 4, for all the same. */
function centsFor(amounts) {
  let most = 2;
  for (const x of amounts) while (most < 4 && Math.abs(x * 10 ** most - Math.round(x * 10 ** most)) > 1e-6 * 10 ** most) most += 1;
  return most;
}

const moneyIn = (x, decimals) => (known(x) ? (x && Math.abs(x) < 0.5 * 10 ** -decimals ? "<" : "") + `$${Math.max(x, x ? 10 ** -decimals : 0).toFixed(decimals)}` : "");

function tokenCount(n) {
  if (!known(n)) return "";
  const a = Math.abs(n), sign = n < 0 ? "−" : "";
  if (a < 1000) return sign + Math.round(a);
  if (a < 999950) return `${sign}${(a / 1000).toFixed(1)}k`;
  return `${sign}${(a / 1e6).toFixed(1)}M`;
}

function byteCount(n) {
  if (!known(n)) return "";
  if (n < 1000) return `${n} B`;
  if (n < 9950) return `${(n / 1000).toFixed(1)} kB`;
  if (n < 999500) return `${Math.round(n / 1000)} kB`;
  return `${(n / 1e6).toFixed(1)} MB`;
}

function clock(ms, seconds = true) {
  const d = new Date(ms);
  if (isNaN(d)) return "?";
  const two = (x) => String(x).padStart(2, "0");
  return `${two(d.getHours())}:${two(d.getMinutes())}${seconds ? ":" + two(d.getSeconds()) : ""}`;
}

/** Local time, with the date when it is not today. */
function localTime(iso, seconds = true) {
  const d = new Date(iso);
  if (!iso || isNaN(d)) return "?";
  return d.toDateString() === new Date().toDateString() ? clock(d, seconds) : `${shortDate(d)} ${clock(d, seconds)}`;
}

function shortDate(at) {
  const d = new Date(at);
  const month = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"][d.getMonth()];
  return `${d.getDate()} ${month}${d.getFullYear() === new Date().getFullYear() ? "" : ` ${d.getFullYear()}`}`;
}

const utcTime = (iso) => {
  const d = new Date(iso);
  return isNaN(d) ? "" : d.toISOString().replace("T", " ").replace(/\.000Z$|Z$/, " UTC");
};

/** <time> with the UTC instant in its tooltip. */
function timeNode(iso, seconds) {
  return el("time", { datetime: iso, title: utcTime(iso) }, localTime(iso, seconds));
}

/** A UUID by its last 6 characters; any other id in full (the place may cut it, the tooltip has it). */
function shortId(id) {
  return /^[0-9a-f]{8}-?([0-9a-f]{4}-?){3}[0-9a-f]{12}$/i.test(id) ? "…" + id.slice(-6) : id;
}

const debounce = (fn, ms) => {
  let timer = 0;
  const run = (...args) => { clearTimeout(timer); timer = setTimeout(() => fn(...args), ms); };
  run.stop = () => clearTimeout(timer);
  return run;
};

let uidCount = 0;
const uid = (prefix) => `${prefix}-${++uidCount}-${Math.random().toString(36).slice(2, 8)}`;

/** Copy, or select and say so where the browser refuses. `source` is the element whose text is selected then. */
function copyButton(getText, source, label = "copy") {
  const node = button(label, async () => {
    let done = false;
    try {
      await navigator.clipboard.writeText(getText());
      done = true;
    } catch { /* no clipboard on this page */ }
    const target = source();
    if (!done && target) {
      const range = document.createRange();
      range.selectNodeContents(target);
      const sel = getSelection();
      sel.removeAllRanges();
      sel.addRange(range);
    }
    put(node, done ? "copied" : /Mac/.test(navigator.platform) ? "selected: press ⌘C" : "selected: press Ctrl+C");
    clearTimeout(node.back);
    node.back = setTimeout(() => put(node, label), 2500);
  }, { kind: "k-link", "aria-live": "polite" });
  return node;
}
