// Painting the timeline. Colours come from the root's custom properties; fills are fixed.

function hatch(ctx, color) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const t = tile.getContext("2d");
  t.strokeStyle = color;
  t.lineWidth = 1.6;
  t.beginPath();
  for (const d of [-6, 0, 6]) { t.moveTo(d - 1, 7); t.lineTo(d + 7, -1); }
  t.stroke();
  return ctx.createPattern(tile, "repeat");
}

function pauseSign(ctx, x, y, h) {
  ctx.fillRect(x, y, 2, h);
  ctx.fillRect(x + 4, y, 2, h);
}

/** Round steps for the axis: at most one label every `room` pixels. */
function tickStep(perPixel, room) {
  const least = perPixel * room;
  for (const s of [10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5]) if (s >= least) return s;
  return 864e5 * Math.ceil(least / 864e5);
}

function drawTimeline(tl) {
  const root = tl.rootOf();
  tl.measure();
  const css = getComputedStyle(root);
  const color = (name) => css.getPropertyValue(name).trim() || "#888";
  const ink = color("--k-ink"), dim = color("--k-ink3"), line = color("--k-line"), back = color("--k-bg"), accent = color("--k-accent");
  const width = tl.holder.clientWidth || 600, height = tl.height, dpr = Math.min(3, window.devicePixelRatio || 1);
  const canvas = tl.canvas;
  if (canvas.width !== Math.round(width * dpr) || canvas.height !== Math.round(height * dpr)) {
    canvas.width = Math.round(width * dpr);
    canvas.height = Math.round(height * dpr);
    canvas.style.width = width + "px";
  }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
  ctx.clearRect(0, 0, width, height);
  ctx.font = `11px ${css.fontFamily}`;
  ctx.textBaseline = "middle";
  const bottom = TOP + tl.lanes * tl.laneH, axisY = bottom + AXIS_H / 2 + 1;
  const barH = tl.laneH >= 24 ? 16 : tl.laneH >= 15 ? 11 : Math.max(2, tl.laneH - 2);
  const X = (x) => tl.gutter + x - tl.left;
  const laneY = (lane) => TOP + lane * tl.laneH + (tl.laneH - barH) / 2;
  const taken = [];
  const label = (text, x, fill) => {
    const w = ctx.measureText(text).width, from = Math.max(tl.gutter, Math.min(x, width - w - 2));
    if (Math.abs(from - x) > w || taken.some(([a, b]) => from < b + 8 && from + w > a - 8)) return false;
    taken.push([from, from + w]);
    ctx.fillStyle = fill;
    ctx.fillText(text, from, axisY);
    return true;
  };

  if (tl.gutter > 10 && tl.laneH >= 12) {
    ctx.fillStyle = dim;
    tl.laneNames.forEach((name, i) => {
      let text = visible(name);
      while (text.length > 1 && ctx.measureText(text).width > GUTTER - 8) text = text.slice(0, -2) + "…";
      ctx.fillText(text, 0, laneY(i) + barH / 2);
    });
  }
  ctx.save();
  ctx.beginPath();
  ctx.rect(tl.gutter - 6, 0, width - tl.gutter + 6, height);
  ctx.clip();

  // breaks: a pale column, its length said in the middle unless a waiting bar says it
  for (const p of tl.pieces) {
    if (!p.brk) continue;
    const x = X(tl.at(p.a)), w = tl.breakW;
    if (x > width || x + w < 0) continue;
    ctx.fillStyle = line;
    ctx.globalAlpha = 0.35;
    ctx.fillRect(x + 1, TOP - 2, Math.max(1, w - 2), bottom - TOP + 4);
    ctx.globalAlpha = 1;
    if (w >= 34 && !p.said) {
      const text = roughly(p.b - p.a), tw = ctx.measureText(text).width + 9;
      ctx.fillStyle = ink;
      const y = TOP + (bottom - TOP) / 2;
      pauseSign(ctx, x + (w - tw) / 2, y - 4, 8);
      ctx.fillText(text, x + (w - tw) / 2 + 9, y);
    }
  }

  // session boundaries
  {
    for (const s of tl.info.sessions) {
      const row = tl.mode === "steps" ? tl.rows.findIndex((r) => r.o > s.offset) : 0;
      if (row < 0) continue;
      const x = Math.round(X(tl.at(tl.mode === "steps" ? row - 0.05 : s.ms))) + 0.5;
      if (x < tl.gutter - 2 || x > width) continue;
      ctx.strokeStyle = dim;
      ctx.setLineDash([3, 3]);
      ctx.beginPath();
      ctx.moveTo(x, 0);
      ctx.lineTo(x, bottom + 3);
      ctx.stroke();
      ctx.setLineDash([]);
      label(visible(s.text), x + 1, dim);
    }
  }

  // axis
  if (tl.mode === "steps") {
    const least = 56 / tl.scale, ten = 10 ** Math.floor(Math.log10(Math.max(1, least)));
    const step = Math.max(1, [1, 2, 5, 10].map((k) => k * ten).find((k) => k >= least) || 1);
    for (let n = step === 1 ? 0 : step - 1; n < tl.rows.length; n += step) {
      const x = X(tl.at(n));
      if (x < tl.gutter - 1) continue;
      if (x > width) break;
      label(thousands(n + 1), x, dim);
    }
  } else {
    const step = tickStep(1 / tl.scale, 130), day = (at) => new Date(at).toDateString();
    let lastDay = "";
    for (const p of tl.pieces) {
      if (p.brk) continue;
      const first = p.a + Math.max(0, (tl.gutter - X(tl.at(p.a))) / tl.scale);
      const last = Math.min(p.b, first + (width * 1.1) / tl.scale);
      const base = tl.info.started ? (tl.info.started - new Date(tl.info.started).getTimezoneOffset() * 60000) % 864e5 : 0;
      const hour = (at) => clock(at, step < 60000);
      for (let t = Math.ceil((first + base) / step) * step - base; t <= last; t += step) {
        const x = X(tl.at(t));
        if (x > width) break;
        const at = tl.info.started + t;
        if (label(step < 1000 ? clock(at) + "." + String(Math.floor(((at % 1000) + 1000) % 1000)).padStart(3, "0").slice(0, step < 100 ? 3 : 1) : day(at) !== lastDay && lastDay !== "" ? `${shortDate(at)} ${hour(at)}` : hour(at), x, dim)) {
          lastDay = day(at);
          ctx.fillStyle = line;
          ctx.fillRect(Math.round(x), bottom + 1, 1, 3);
        }
      }
    }
  }

  // bars; what falls into a pixel already painted in that lane is skipped, errors are not
  const patterns = {};
  const lastX = new Float64Array(tl.lanes).fill(-1e9), late = [];
  const paint = (i, x, w) => {
    const r = tl.rows[i], y = laneY(tl.lane(i)), fill = FILL[kindFill(r)];
    ctx.beginPath();
    const round = w >= 5 ? 2 : 0;
    if (round) ctx.roundRect(x, y, w, barH, round); else ctx.rect(x, y, w, barH);
    if (r.o < tl.info.copied) {
      ctx.fillStyle = back;
      ctx.fill();
      ctx.fillStyle = patterns[fill] || (patterns[fill] = hatch(ctx, fill));
      ctx.fill();
      ctx.strokeStyle = fill;
      ctx.lineWidth = 1;
      if (w > 3) ctx.stroke();
    } else {
      ctx.fillStyle = fill;
      ctx.fill();
    }
    const bad = hasFlag(r, "e") || r.kind === "error";
    if (bad) {
      ctx.strokeStyle = FILL.error;
      ctx.lineWidth = 2;
      if (w >= 6) ctx.stroke();
      else { // too narrow for an edge: red above and below, so that the fill stays
        ctx.fillStyle = FILL.error;
        ctx.fillRect(x - 0.75, y - 2, w + 1.5, Math.min(5, barH / 2));
        ctx.fillRect(x - 0.75, y + barH + 2 - Math.min(5, barH / 2), w + 1.5, Math.min(5, barH / 2));
      }
    }
    let sign = bad ? "✕" : hasFlag(r, "?") || (hasFlag(r, "w") && tl.mode === "steps") ? "?" : hasFlag(r, "v") ? "✎" : r.kind === "complete" ? "✓" : "";
    if (sign && barH >= 11 && w >= 15) {
      if (r.o < tl.info.copied) { ctx.fillStyle = back; ctx.fillRect(x + 2, y + 1.5, 14, barH - 3); }
      ctx.fillStyle = r.o < tl.info.copied ? ink : kindFill(r) === "wait" ? "#111" : "#fff";
      ctx.font = `bold 11px ${css.fontFamily}`;
      ctx.fillText(sign, x + 4, y + barH / 2 + 0.5);
      ctx.font = `11px ${css.fontFamily}`;
    }
    if (isWait(r) && !sign && barH >= 11 && tl.mode !== "steps") {
      const text = roughly(tl.ends[i] - r.t0), tw = ctx.measureText(text).width;
      if (w >= tw + 16) {
        ctx.fillStyle = "#111";
        pauseSign(ctx, x + (w - tw - 9) / 2, y + barH / 2 - 4, 8);
        ctx.fillText(text, x + (w - tw - 9) / 2 + 9, y + barH / 2 + 0.5);
      }
    }
  };
  for (let i = 0; i < tl.rows.length; i++) {
    const at = tl.place(i);
    if (!at) continue;
    const x = X(at[0]), full = at[1] - at[0];
    if (x > width || x + full < -4) continue;
    const lane = tl.lane(i), w = Math.max(tl.least(i), full > 4 ? full - 1 : full);
    if (hasFlag(tl.rows[i], "e") || tl.rows[i].kind === "error") { late.push([i, x, w]); continue; }
    if (x + w <= lastX[lane] + 0.5) continue;
    lastX[lane] = x + w;
    paint(i, x, w);
  }
  for (const [i, x, w] of late) paint(i, x, w);

  const at = tl.selected >= 0 && tl.rows[tl.selected] ? tl.place(tl.selected) : null;
  if (at) {
    const x = X(at[0]), w = Math.max(tl.least(tl.selected), at[1] - at[0] - 1), y = laneY(tl.lane(tl.selected));
    ctx.strokeStyle = back;
    ctx.lineWidth = 2;
    ctx.beginPath();
    ctx.roundRect(x - 1.5, y - 1.5, w + 3, barH + 3, 3);
    ctx.stroke();
    ctx.strokeStyle = ink;
    ctx.beginPath();
    ctx.roundRect(x - 3.5, y - 3.5, w + 7, barH + 7, 4);
    ctx.stroke();
  }
  if (tl.range) {
    ctx.fillStyle = accent;
    ctx.globalAlpha = 0.18;
    ctx.fillRect(tl.range[0], 0, tl.range[1] - tl.range[0], bottom);
    ctx.globalAlpha = 1;
  }
  ctx.restore();
}
