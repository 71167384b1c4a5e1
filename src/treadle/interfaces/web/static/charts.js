// Draw the charts of a page from the numbers in it; redraw when the numbers or the colours change.
(() => {
  const HEIGHT = 170;
  const SPANS = [0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800];
  const drawn = new Map();
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const numbers = () => JSON.parse(document.getElementById("pace")?.textContent || "null");
  const span = (s) => (s == null ? "–" : s < 1 ? `${Math.round(s * 1000)} ms` : s < 60 ? `${+s.toFixed(1)} s` : s < 3600 ? `${+(s / 60).toFixed(1)} min` : `${+(s / 3600).toFixed(1)} h`);

  // The series of each chart, from the bottom up, with labels and colours.
  const CHARTS = {
    throughput: { bars: true, parts: [["failed", "failed", "--bad"], ["completed", "completed", "--accent"]] },
    failures: { bars: true, parts: [["failed", "failed", "--bad"], ["retried", "tried again", "--hold"], ["taken_over", "taken over", "--wait"]] },
    durations: { parts: [["median", "median", "--accent"], ["p95", "p95", "--hold"], ["p99", "p99", "--bad"]], say: span, least: 0.01 },
    waits: { parts: [["wait_median", "median", "--accent"], ["wait_p95", "p95", "--hold"]], say: span, least: 0.01 },
    depth: { parts: [["depth", "ready", "--wait"]] },
    age: { parts: [["waited", "of tasks that ended", "--accent"], ["oldest", "still ready now", "--hold"]], say: span },
  };

  // A time as the axis needs it: the day where steps are an hour or longer.
  const clock = (at) => {
    const time = new Date(at * 1000), [first, second] = numbers()?.at ?? [];
    const day = `${time.getMonth() + 1}/${time.getDate()}`;
    return second - first >= 86400 ? day : (second - first >= 3600 ? `${day} ` : "") + time.toTimeString().slice(0, 5);
  };

  // Vertical lines where releases began.
  function marks({ ctx, bbox, valToPos }) {
    for (const [at, release] of numbers()?.marks ?? []) {
      const x = Math.round(valToPos(at, "x", true));
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = colour("--dim");
      ctx.setLineDash([4, 3]);
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
      ctx.fillText(release, x + 4, bbox.top + 10);
      ctx.restore();
    }
  }

  // A range that is dragged narrows the page to it.
  function narrow(chart) {
    const { left, width } = chart.select;
    if (width < 5) return;
    const query = new URLSearchParams(location.search), at = (x) => new Date(chart.posToVal(x, "x") * 1000).toISOString();
    query.delete("last");
    query.set("since", at(left));
    query.set("until", at(left + width));
    location.search = query;
  }

  // Stacked bars: draw each from the bottom to the running total, the tallest first.
  function columns(kind, raw) {
    const { bars, parts } = CHARTS[kind];
    if (!bars) return [raw.at, ...parts.map(([key]) => raw[key])];
    const sums = [];
    parts.forEach(([key], i) => sums.push(raw[key].map((value, at) => (value == null ? null : value + (i ? sums[i - 1][at] : 0)))));
    return [raw.at, ...sums.reverse()];
  }

  function options(kind, box) {
    const { bars, parts, say, least } = CHARTS[kind];
    const shown = bars ? [...parts].reverse() : parts;
    const grid = { stroke: colour("--line"), width: 1 }, font = "11px system-ui, sans-serif";
    return {
      width: box.clientWidth || 300, height: HEIGHT, padding: [8, 18, 0, 0],
      cursor: { y: false, points: { show: !bars }, drag: { x: "select" in box.dataset, y: false, setScale: false } },
      hooks: { draw: [marks], setSelect: "select" in box.dataset ? [narrow] : [] },
      legend: { live: true },
      scales: { x: { time: true }, y: { range: (_, low, high) => [0, Math.max(high || 0, least ?? (bars ? 5 : 1)) * 1.1] } },
      axes: [
        { stroke: colour("--dim"), grid: { show: false }, ticks: { show: false }, font, size: 28, values: (_, at) => at.map(clock) },
        { stroke: colour("--dim"), grid, ticks: { show: false }, font, size: say ? 56 : 40, space: 32, ...(say ? { incrs: SPANS } : {}), values: (_, all) => all.map((each) => (say ? span(each) : each % 1 ? "" : each.toLocaleString("en").replaceAll(",", "\u2009"))) },
      ],
      series: [
        { label: "at", value: (_, at) => (at == null ? "now" : clock(at)) },
        ...shown.map(([key, label, tone]) => ({
          label, stroke: colour(tone), fill: colour(tone) + (bars ? "" : "22"), width: bars ? 0 : 1.75, points: { show: false }, spanGaps: false,
          ...(bars ? { paths: uPlot.paths.bars({ size: [0.75, 24], align: 1 }) } : {}),
          value: (_, __, ___, at) => { const found = numbers()?.[key].at(at ?? -1); return found == null ? "–" : say ? say(found) : String(found); }, // without a pointer: the minute that runs
        })),
      ],
    };
  }

  function draw() {
    const raw = numbers();
    if (!raw || !window.uPlot) return;
    for (const box of document.querySelectorAll("[data-chart]")) {
      const known = drawn.get(box);
      if (known) known.setData(columns(box.dataset.chart, raw));
      else {
        const chart = new uPlot(options(box.dataset.chart, box), columns(box.dataset.chart, raw), box);
        drawn.set(box, chart);
        box.setAttribute("aria-hidden", "true"); // the numbers are in the table below
        new ResizeObserver(() => { const now = drawn.get(box); if (now && Math.abs(now.width - box.clientWidth) > 1) now.setSize({ width: box.clientWidth, height: HEIGHT }); }).observe(box);
      }
    }
  }

  function anew() {
    for (const chart of drawn.values()) chart.destroy();
    drawn.clear();
    draw();
  }

  document.addEventListener("treadle:fresh", draw);
  new MutationObserver(anew).observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", anew);
  draw();
})();
