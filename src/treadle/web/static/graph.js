// Draw step graphs with dagre as SVG, with the states of a run; redraw when the page was reloaded with changes.
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const TONES = [["failed", "bad"], ["running", "busy"], ["paused", "hold"], ["pending", "wait"], ["completed", "good"], ["canceled", "gone"]];
  const make = (name, attributes, ...children) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    node.append(...children);
    return node;
  };
  const toneOf = (states) => (TONES.find(([state]) => states[state]) || ["", ""])[1];
  const sum = (states) => Object.values(states).reduce((all, each) => all + each, 0);
  const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

  function noteOf(states) {
    const all = sum(states);
    if (all === 0) return "";
    if (all === 1) return Object.keys(states).find((state) => states[state]);
    return `${states.completed || 0} of ${all}${states.failed ? `, ${states.failed} failed` : ""}`;
  }

  function draw(box) {
    const text = box.querySelector("script[type='application/json']").textContent;
    const place = box.querySelector(".drawing");
    if (box.drawn === text || !window.dagre) return;
    box.drawn = text;
    const data = JSON.parse(text);
    const graph = new dagre.graphlib.Graph({ compound: true, multigraph: true });
    graph.setGraph({ rankdir: data.nodes.length > 12 ? "TB" : "LR", nodesep: 22, ranksep: 46, marginx: 12, marginy: 12 });
    graph.setDefaultEdgeLabel(() => ({}));
    const known = new Set(data.groups.map((group) => group.id));
    for (const group of data.groups) {
      graph.setNode(group.id, { label: group.label, group });
      if (group.parent && known.has(group.parent)) graph.setParent(group.id, group.parent);
    }
    for (const node of data.nodes) {
      const label = cut(node.label, 34);
      graph.setNode(node.id, { node, label, width: Math.max(label.length * 7.4 + 28, 90), height: noteOf(node.states) ? 46 : 34 });
      if (node.group && known.has(node.group)) graph.setParent(node.id, node.group);
    }
    for (const edge of data.edges) if (graph.hasNode(edge.source) && graph.hasNode(edge.target)) graph.setEdge(edge.source, edge.target, { kind: edge.kind }, edge.kind);
    dagre.layout(graph);
    place.replaceChildren(render(graph, box.dataset.base));
  }

  function render(graph, base) {
    const { width, height } = graph.graph();
    const svg = make("svg", { viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`, width: Math.ceil(width), height: Math.ceil(height), role: "img", "aria-label": "Graph of the steps", class: graph.nodeCount() > 24 ? "" : "fit" });
    svg.append(make("defs", {}, make("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto-start-reverse" }, make("path", { d: "M0 0L8 4L0 8z", class: "head" }))));
    const nodes = graph.nodes().map((id) => ({ id, ...graph.node(id) }));
    for (const { group, x, y, width: w, height: h } of nodes.filter((each) => each.group)) {
      svg.append(make("g", { class: "block" }, make("rect", { x: x - w / 2, y: y - h / 2, width: w, height: h, rx: 8 }), Object.assign(make("text", { x: x - w / 2 + 8, y: y - h / 2 + 14 }), { textContent: cut(group.label, Math.max(w / 7, 6)) })));
    }
    for (const id of graph.edges()) {
      const { points, kind } = graph.edge(id);
      svg.append(make("path", { class: `edge ${kind}`, d: `M${points.map(({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}`, "marker-end": "url(#arrow)" }));
    }
    for (const { node, label, x, y, width: w, height: h } of nodes.filter((each) => each.node)) {
      const note = noteOf(node.states);
      const parts = [make("rect", { x: x - w / 2, y: y - h / 2, width: w, height: h, rx: 7 }), Object.assign(make("text", { x, y: note ? y - 4 : y + 4, "text-anchor": "middle" }), { textContent: label })];
      if (note) parts.push(Object.assign(make("text", { x, y: y + 13, "text-anchor": "middle", class: "small" }), { textContent: note }));
      parts.push(Object.assign(make("title", {}), { textContent: `${node.label}${node.about ? `(${node.about})` : ""}${note ? `: ${note}` : ""}` }));
      svg.append(make("g", { class: `node ${node.kind} ${toneOf(node.states)}` }, ...parts));
    }
    return svg;
  }

  const all = () => document.querySelectorAll("[data-graph]").forEach(draw);
  document.addEventListener("DOMContentLoaded", all);
  document.addEventListener("treadle:fresh", all);
  if (document.readyState !== "loading") all();
})();
