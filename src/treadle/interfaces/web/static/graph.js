// Draw step graphs with dagre as SVG, with the states of a run: blocks fold, the picture zooms, and a reload with changes redraws it.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const TONES = [["failed", "bad"], ["running", "busy"], ["paused", "hold"], ["pending", "wait"], ["completed", "good"], ["canceled", "gone"]];
  const MANY = 60, CLOSER = 1.25, WIDTH = 7.4;
  const make = (name, attributes, ...children) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const toneOf = (states) => (TONES.find(([state]) => states[state]) || ["", ""])[1];
  const sum = (states) => Object.values(states).reduce((all, each) => all + each, 0);
  const cut = (text, most) => (text.length > most ? `${text.slice(0, Math.max(most - 1, 1))}…` : text);
  const text = (content, attributes) => Object.assign(make("text", attributes), { textContent: content });

  function noteOf(states, total = sum(states)) {
    if (!total) return "";
    if (total === 1 && sum(states) === 1) return Object.keys(states).find((state) => states[state]);
    const rest = ["failed", "running"].filter((state) => states[state]).map((state) => `, ${states[state]} ${state}`);
    return `${states.completed || 0} of ${total}${rest.join("")}`;
  }

  function read(box) {
    const json = box.querySelector("script[type='application/json']").textContent;
    if (box.drawn === json) return false;
    box.drawn = json;
    box.data = JSON.parse(json);
    const { groups, nodes } = box.data;
    box.view ||= { closed: new Set(nodes.length > MANY ? groups.filter((group) => !group.parent).map((group) => group.id) : []), scale: null };
    return true;
  }

  function layout({ data, view }) {
    const groups = new Map(data.groups.map((group) => [group.id, group]));
    const above = (id) => (groups.get(id)?.parent && groups.has(groups.get(id).parent) ? groups.get(id).parent : null);
    // The outermost closed block around a block or a node of it; null if it is visible itself.
    const hidden = (group) => {
      let found = null;
      for (let at = group; at; at = above(at)) if (view.closed.has(at)) found = at;
      return found;
    };
    const graph = new dagre.graphlib.Graph({ compound: true, multigraph: true });
    const shown = new Map();
    const put = (id, value, parent) => {
      graph.setNode(id, value);
      if (parent && groups.has(parent)) graph.setParent(id, parent);
      shown.set(id, id);
    };
    graph.setDefaultEdgeLabel(() => ({}));
    for (const group of groups.values()) {
      const by = hidden(group.id);
      if (by && by !== group.id) shown.set(group.id, by);
      else if (by) {
        const note = noteOf(group.items, group.total) || noteOf(group.states);
        const label = cut(group.label, 34);
        put(group.id, { group, label, note, width: Math.max(label.length + 3, note.length) * WIDTH + 28, height: 46 }, above(group.id));
      } else put(group.id, { group, label: group.label, note: noteOf(group.items, group.total), open: true }, above(group.id));
    }
    for (const node of data.nodes) {
      const by = node.group && hidden(node.group);
      if (by) { shown.set(node.id, by); continue; }
      const label = cut(node.label, 34), note = noteOf(node.states);
      put(node.id, { node, label, note, width: Math.max(label.length * WIDTH + 28, note.length * 6 + 20, 90), height: note ? 46 : 34 }, node.group);
    }
    for (const { source, target, kind } of data.edges) {
      const [from, to] = [shown.get(source), shown.get(target)];
      if (from && to && from !== to && !graph.node(from).open && !graph.node(to).open) graph.setEdge(from, to, { kind }, kind);
    }
    graph.setGraph({ rankdir: graph.nodeCount() > 12 ? "TB" : "LR", nodesep: 22, ranksep: 46, marginx: 12, marginy: 12 });
    dagre.layout(graph);
    return graph;
  }

  function render(graph, base) {
    const { width, height } = graph.graph();
    const svg = make("svg", { viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`, role: "group", "aria-label": "Graph of the steps" });
    svg.append(make("defs", {}, make("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, make("path", { d: "M0 0L8 4L0 8z", class: "head" }))));
    const all = graph.nodes().map((id) => ({ id, ...graph.node(id) }));
    const deep = (id) => (graph.parent(id) ? 1 + deep(graph.parent(id)) : 0);
    for (const each of all.filter((one) => one.open).sort((a, b) => deep(a.id) - deep(b.id))) svg.append(block(each, base));
    for (const id of graph.edges()) {
      const { points, kind } = graph.edge(id);
      svg.append(make("path", { class: `edge ${kind}`, d: `M${points.map(({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`, "marker-end": "url(#arrow)" }));
    }
    for (const each of all.filter((one) => !one.open)) svg.append(each.group ? folded(each) : step(each, base));
    return svg;
  }

  const frame = ({ x, y, width: w, height: h }, rx) => make("rect", { x: x - w / 2, y: y - h / 2, width: w, height: h, rx });
  const handle = (group, open, ...parts) => make("g", { class: "toggle", role: "button", tabindex: 0, "data-toggle": group.id, "aria-expanded": open }, ...parts);

  function block(each, base) {
    const { group, note, x, y, width: w, height: h } = each;
    const head = cut(`▾ ${group.label}`, Math.max(w / 7 - (note ? note.length : 0), 8));
    const left = x - w / 2 + 8, top = y - h / 2 + 14;
    const parts = [frame(each, 8), handle(group, true, text(head, { x: left, y: top }))];
    if (note) {
      const said = text(note, { x: left + head.length * 6.2 + 10, y: top, class: "count" });
      const to = base && group.step_id && `${base}?view=steps&below=${group.step_id}`;
      parts.push(to ? make("a", { href: to, "aria-label": `Items of ${group.label}: ${note}` }, said) : said);
    }
    return make("g", { class: `block ${toneOf(group.items)}` }, ...parts);
  }

  function folded(each) {
    const { group, label, note, x, y } = each;
    const parts = [frame(each, 8), text(`▸ ${label}`, { x, y: note ? y - 4 : y + 4, "text-anchor": "middle" })];
    if (note) parts.push(text(note, { x, y: y + 13, "text-anchor": "middle", class: "small" }));
    return make("g", { class: `node folded ${toneOf(sum(group.items) ? group.items : group.states)}` }, handle(group, false, ...parts));
  }

  function step(each, base) {
    const { node, label, note, x, y } = each;
    const full = `${node.label}${node.about ? `(${node.about})` : ""}${note ? `: ${note}` : ""}`;
    const parts = [frame(each, 7), text(label, { x, y: note ? y - 4 : y + 4, "text-anchor": "middle" })];
    if (note) parts.push(text(note, { x, y: y + 13, "text-anchor": "middle", class: "small" }));
    parts.push(Object.assign(make("title", {}), { textContent: full }));
    const drawn = make("g", { class: `node ${node.kind} ${toneOf(node.states)}` }, ...parts);
    return base && node.step_id ? make("a", { href: `${base}/steps/${node.step_id}` }, drawn) : drawn;
  }

  function place(box) {
    const { svg, canvas, view } = box;
    const [, , width, height] = svg.getAttribute("viewBox").split(" ").map(Number);
    const fit = Math.min(1, Math.max(canvas.clientWidth - 2, 40) / width);
    const scale = view.scale ?? (fit < 0.5 && !view.fitted ? 1 : fit);
    svg.setAttribute("width", Math.round(width * scale));
    svg.setAttribute("height", Math.round(height * scale));
    box.scale = scale;
  }

  function draw(box) {
    const focused = document.activeElement?.closest?.("[data-toggle]")?.dataset.toggle;
    box.svg = render(layout(box), box.dataset.base);
    box.canvas.replaceChildren(box.svg);
    place(box);
    if (focused) box.svg.querySelector(`[data-toggle="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  function zoom(box, by) {
    box.view.scale = by === null ? null : Math.min(Math.max(box.scale * by, 0.1), 4);
    box.view.fitted = by === null;
    place(box);
  }

  function fold(box, ids, closed) {
    for (const id of ids) box.view.closed[closed ? "add" : "delete"](id);
    draw(box);
  }

  function tools(box) {
    const bar = Object.assign(document.createElement("div"), { className: "acts graph-tools" });
    const add = (label, act) => {
      const button = Object.assign(document.createElement("button"), { type: "button", className: "small", textContent: label });
      button.addEventListener("click", act);
      bar.append(button);
    };
    add("Zoom in", () => zoom(box, CLOSER));
    add("Zoom out", () => zoom(box, 1 / CLOSER));
    add("Fit", () => zoom(box, null));
    if (box.data.groups.length) {
      add("Expand all", () => fold(box, box.data.groups.map((group) => group.id), false));
      add("Collapse all", () => fold(box, box.data.groups.map((group) => group.id), true));
    }
    return bar;
  }

  function begin(box) {
    box.canvas = Object.assign(document.createElement("div"), { className: "canvas", tabIndex: 0 });
    box.canvas.setAttribute("role", "group");
    box.canvas.setAttribute("aria-label", "Graph: + and - zoom, 0 fits");
    box.querySelector(".drawing").replaceChildren(tools(box), box.canvas);
    const toggle = (event) => {
      const id = event.target.closest("[data-toggle]")?.dataset.toggle;
      if (id) fold(box, [id], !box.view.closed.has(id));
      return Boolean(id);
    };
    box.canvas.addEventListener("click", toggle);
    box.canvas.addEventListener("keydown", (event) => {
      const by = { "+": CLOSER, "=": CLOSER, "-": 1 / CLOSER, 0: null }[event.key];
      if (by !== undefined && !event.ctrlKey && !event.metaKey) zoom(box, by);
      else if (!["Enter", " "].includes(event.key) || !toggle(event)) return;
      event.preventDefault();
    });
  }

  const all = () => {
    for (const box of window.dagre ? document.querySelectorAll("[data-graph]") : []) {
      if (!read(box)) continue;
      if (!box.canvas?.isConnected) begin(box);
      draw(box);
    }
  };
  document.addEventListener("DOMContentLoaded", all);
  document.addEventListener("treadle:fresh", all);
  addEventListener("resize", () => document.querySelectorAll("[data-graph]").forEach((box) => box.svg && place(box)));
  if (document.readyState !== "loading") all();
})();
