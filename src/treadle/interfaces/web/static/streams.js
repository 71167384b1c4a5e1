// Continue the streams on the page of a run or a task with the entries that follow, until the work has ended.
(() => {
  const sources = new Map();

  function text(entry) {
    if (entry.kind === "abandoned") return `\n[attempt ${entry.value.generation} was abandoned; attempt ${entry.generation} begins]\n`;
    if (entry.kind === "truncated") return "\n[the stream is full: entries are missing here]\n";
    if (entry.kind === "unreadable") return "\n[entries cannot be read]\n";
    return typeof entry.value === "string" ? entry.value : `${JSON.stringify(entry.value)}\n`;
  }

  function add(pre, entry) {
    if (entry.kind === "abandoned") {
      for (const each of pre.querySelectorAll(`[data-writer="${CSS.escape(entry.writer)}"]`))
        if (Number(each.dataset.offset) >= entry.value.since) each.className = "abandoned";
    }
    const span = document.createElement("span");
    span.dataset.offset = entry.offset;
    span.dataset.writer = entry.writer;
    if (entry.kind !== "entry") span.className = "notice";
    span.textContent = text(entry);
    const atEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 30;
    pre.append(span);
    if (atEnd) pre.scrollTop = pre.scrollHeight;
  }

  function follow() {
    for (const [pre, source] of sources) if (!pre.isConnected) { source.close(); sources.delete(pre); }
    for (const pre of document.querySelectorAll("[data-stream]")) {
      if (sources.has(pre) || !pre.dataset.next) continue;
      pre.scrollTop = pre.scrollHeight;
      const source = new EventSource(`${document.documentElement.dataset.prefix ?? ""}${pre.dataset.stream}?offset=${pre.dataset.next}`);
      sources.set(pre, source);
      source.onmessage = (event) => add(pre, JSON.parse(event.data));
      source.addEventListener("end", () => { source.close(); window.treadle?.soon(); });
    }
  }

  document.addEventListener("treadle:fresh", follow);
  addEventListener("pageshow", follow);
  addEventListener("pagehide", () => { for (const source of sources.values()) source.close(); sources.clear(); });
})();
