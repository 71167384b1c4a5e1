// Continue the streams on the page of a run or a task with the entries that follow, until the work has ended.
(() => {
  const POLL_EVERY = 2000;
  const followed = new Map();  // the elements of streams, by the path with the offset from which they are followed

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

  function show(pre, entry) {
    if (entry.offset < Number(pre.dataset.next)) return;
    add(pre, entry);
    pre.dataset.next = entry.offset + 1;
  }

  function end(pre, path) {
    followed.delete(path);
    delete pre.dataset.next;
    window.treadle.soon();
  }

  // The streams on this page that go on; `live.js` announces them.
  function paths() {
    if (document.visibilityState === "hidden") followed.clear();
    for (const [path, pre] of followed) if (!pre.isConnected) followed.delete(path);
    const known = new Set(followed.values());
    for (const pre of document.querySelectorAll("[data-stream][data-next]")) {
      if (known.has(pre)) continue;
      pre.scrollTop = pre.scrollHeight;
      followed.set(`${pre.dataset.stream}/follow?offset=${pre.dataset.next}`, pre);
    }
    return [...followed.keys()];
  }

  // Read what a stream has now: other tabs use the connections that a browser has for streams.
  async function poll(path) {
    const pre = followed.get(path);
    if (!pre || pre.polling) return;
    pre.polling = true;
    try {
      const url = `${document.documentElement.dataset.prefix ?? ""}${pre.dataset.stream}?offset=${pre.dataset.next}`;
      const page = await (await fetch(url, { credentials: "same-origin" })).json();
      for (const entry of page.entries) show(pre, entry);
      if (page.ended) end(pre, path);
    } catch { /* the next poll may reach the server */ }
    setTimeout(() => { pre.polling = false; followed.delete(path); window.treadle.announce(); }, POLL_EVERY);
  }

  document.addEventListener("treadle:stream", ({ detail }) => {
    if (detail.poll) { poll(detail.poll); return; }
    const pre = followed.get(detail.path);
    if (!pre) return;
    if (detail.ended) end(pre, detail.path); else show(pre, detail.entry);
  });
  document.addEventListener("treadle:fresh", () => window.treadle.announce());
  window.treadle.streams = paths;
})();
