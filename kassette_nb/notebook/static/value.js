// A recorded value: text, JSON (coloured by reading its text, never parsed), unified diffs, images; sizes always said.

const IMAGE_TYPES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const COLOUR_LIMIT = 300000; // characters; beyond this the text is shown plain
const JSON_TOKEN = /("[^"\\]*(?:\\[^][^"\\]*)*"?)(\s*:)?|(-?\d[\d.eE+-]*)|(true|false|null)|[^"\dtfn-]+|[^]/g;

/** One line (or piece) of JSON text into spans. */
function jsonPieces(text, out) {
  let plain = "";
  const flush = () => { if (plain) { out.append(plain); plain = ""; } };
  for (const m of text.matchAll(JSON_TOKEN)) {
    if (m[1] !== undefined) {
      flush();
      const piece = el(m[2] !== undefined ? "span.k-jk" : "span.k-js");
      piece.append(marked(m[1]));
      out.append(piece);
      if (m[2]) plain += m[2];
    } else if (m[3] !== undefined || m[4] !== undefined) {
      flush();
      const piece = el(m[3] !== undefined ? "span.k-jn" : "span.k-jl");
      piece.textContent = m[0];
      out.append(piece);
    } else plain += visible(m[0]);
  }
  flush();
}

/** Pretty-printed JSON: a block opens on a line that ends in { or [ and closes on the line that starts with } or ]. */
function jsonBody(text) {
  const root = el("div.k-json");
  const lines = text.split("\n");
  const foldable = lines.length > 3 && lines.length <= 6000;
  const stack = [root];
  for (const line of lines) {
    const start = line.trimStart()[0];
    if (foldable && (start === "}" || start === "]") && stack.length > 1) stack.pop();
    const row = el("div.k-line");
    const last = line[line.length - 1];
    if (foldable && (last === "{" || last === "[") && stack.length < 200) {
      const inner = el("div.k-fold");
      const toggle = el("span.k-toggle", { role: "button", tabindex: "0", "aria-label": "fold", "aria-expanded": "true" }, "▾");
      toggle.addEventListener("keydown", (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); flip(); } });
      const flip = () => {
        const open = inner.hidden;
        show(inner, open);
        toggle.textContent = open ? "▾" : "▸";
        toggle.setAttribute("aria-expanded", String(open));
        row.classList.toggle("k-folded", !open);
      };
      toggle.addEventListener("click", flip);
      row.append(toggle);
      jsonPieces(line, row);
      stack[stack.length - 1].append(row, inner);
      stack.push(inner);
    } else {
      jsonPieces(line, row);
      stack[stack.length - 1].append(row);
    }
  }
  return root;
}

function diffBody(text) {
  const root = el("div.k-diff");
  let inHunk = false;
  for (const line of text.split("\n")) {
    const c = line[0];
    let kind = "";
    if (/^@@/.test(line)) { kind = ".k-hunk"; inHunk = true; }
    else if (!inHunk && /^(\+\+\+|---) /.test(line)) kind = ".k-file";
    else if (/^(diff |index |old mode |new mode )/.test(line)) { kind = ".k-file"; inHunk = false; }
    else if (c === "+") kind = ".k-add";
    else if (c === "-") kind = ".k-del";
    const row = el("div.k-line" + kind);
    if (line) row.append(marked(line));
    root.append(row);
  }
  return root;
}

function textBody(text) {
  const root = el("div.k-text");
  if (text.length > COLOUR_LIMIT) { root.append(visible(text)); return root; }
  for (const line of text.split("\n")) {
    const row = el("div.k-line");
    if (line) row.append(marked(line));
    root.append(row);
  }
  return root;
}

function imageBody(value, urls) {
  if (!IMAGE_TYPES.has(value.mime) || !value.base64) return textBody(value.text || `<${value.mime || "image"}, ${byteCount(value.bytes)}>`);
  try {
    const raw = atob(value.base64);
    const bytes = Uint8Array.from(raw, (c) => c.charCodeAt(0));
    const url = URL.createObjectURL(new Blob([bytes], { type: value.mime }));
    urls.push(url);
    return el("img.k-img", { src: url, alt: `${value.mime}, ${byteCount(value.bytes)}` });
  } catch {
    return textBody("this image does not decode");
  }
}

function valueBody(value, urls = []) {
  const text = (value.text || "").replace(/\n$/, ""); // an ending line break is no line of its own
  if (value.format === "none") return el("div.k-none", null, value.note || "not recorded");
  if (value.format === "files") return filesBody(value);
  if (value.format === "image") return imageBody(value, urls);
  if (!value.text) return el("div.k-none", null, "empty text");
  if (value.format === "conversation") return conversationBody(value);
  if (value.format === "error") return errorBody(value);
  if (value.format === "code" && text.length <= COLOUR_LIMIT) return codeBody(text);
  if (value.format === "json" && text.length <= COLOUR_LIMIT) return jsonBody(text);
  if (value.format === "diff" && text.length <= COLOUR_LIMIT) return diffBody(text);
  return textBody(text);
}

/** Shows one value at a time, with its size, copy and "show all N kB". */
class ValueView {
  constructor({ onMore, label }) {
    this.urls = [];
    this.value = null;
    this.body = el("div.k-value", { tabindex: "0", role: "region", "aria-label": label || "value" });
    this.size = el("span.k-dim");
    this.all = button("", () => { put(this.all, "loading …"); onMore(); }, { kind: "k-link", hidden: true });
    this.copy = copyButton(() => (this.value ? this.value.text || "" : ""), () => this.body);
    show(this.copy, false);
    this.bar = el("span.k-valuebar", null, this.size, this.all, this.copy);
  }

  /** The same value again leaves the page (scroll, selection, folds) as it is. */
  show(value) {
    const same = this.value && value && this.value.text === value.text && this.value.format === value.format && this.value.note === value.note && this.value.base64 === value.base64 && this.value.files === value.files;
    const longer = this.value && value && value.text && this.value.text && value.text.startsWith(this.value.text);
    this.value = value;
    const sized = value && value.format !== "none";
    put(this.size, !sized ? "" : value.said ? value.said : value.truncated ? `${byteCount(value.shown)} of ${byteCount(value.bytes)}` : byteCount(value.bytes));
    put(this.all, sized ? `show all ${byteCount(value.bytes)}` : "");
    show(this.all, sized && value.truncated);
    show(this.copy, sized && value.format !== "image");
    if (same) return;
    const top = longer ? this.body.scrollTop : 0;
    this.free();
    const kids = value ? [valueBody(value, this.urls)] : [];
    if (value && value.truncated) kids.push(el("div.k-cut", null, `… cut here: ${byteCount(value.shown)} of ${byteCount(value.bytes)} are shown`));
    if (value && value.note && value.format !== "none") kids.unshift(el("div.k-valuenote", null, value.note));
    this.body.replaceChildren(...kids);
    this.body.scrollTop = top;
  }

  /** Words in place of a value (loading, no kernel). */
  say(text) {
    this.free();
    this.value = null;
    put(this.size, "");
    show(this.all, false);
    show(this.copy, false);
    this.body.replaceChildren(el("div.k-none", null, text));
  }

  free() {
    for (const url of this.urls) URL.revokeObjectURL(url);
    this.urls = [];
  }
}
