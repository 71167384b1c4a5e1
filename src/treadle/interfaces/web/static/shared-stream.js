// Few connections to the server for all tabs of a browser, which opens at most six: one to the events of each namespace, and some to
// streams. A SharedWorker; where there is none, each tab runs this itself. Only visible tabs count: the others leave, or are not heard
// of for a while.
(() => {
  const SILENT_FOR = 40000, RETRY_AFTER = 5000, POLL_EVERY = 3000, MAX_FOLLOWED = 3, MAX_NAMESPACES = 2;
  const tabs = new Map();  // what each visible tab wants, by its port: `prefix` of its namespace, `filter` of events (null: none), `streams`
  const followed = new Map();  // connections to streams of runs, by tab and path
  const sources = new Map();  // connections to the events of namespaces, and their filters, by prefix
  let count = 0;

  const tell = (prefix, message) => { for (const [port, tab] of tabs) if (tab.prefix === prefix) port.postMessage(message); };
  const fits = (filter, event) => [...new URLSearchParams(filter)].every(([name, value]) => event[name] === value);

  // Follow the events that the only filter of a namespace lets through, or all; beyond a number of namespaces, tabs poll.
  function connect() {
    const filters = new Map();
    for (const { prefix, filter } of tabs.values()) if (filter !== null) filters.set(prefix, (filters.get(prefix) ?? new Set()).add(filter));
    const wanted = new Map([...filters].map(([prefix, each]) => [prefix, each.size === 1 ? [...each][0] : ""]));
    for (const [prefix, { source, filter }] of sources) if (wanted.get(prefix) !== filter) { source.close(); sources.delete(prefix); }
    for (const [prefix, filter] of wanted) if (!sources.has(prefix) && sources.size < MAX_NAMESPACES) open(prefix, filter);
  }

  function open(prefix, filter) {
    const source = new EventSource(`${prefix}/v1/events/stream${filter && `?${filter}`}`);
    sources.set(prefix, { source, filter });
    source.onopen = () => tell(prefix, { state: "live" });
    source.onerror = () => {
      tell(prefix, { state: "reconnecting" });
      if (sources.get(prefix)?.source !== source || source.readyState !== EventSource.CLOSED) return;
      sources.delete(prefix);
      setTimeout(connect, RETRY_AFTER);
    };
    source.onmessage = (message) => {
      const event = JSON.parse(message.data);
      for (const [port, tab] of tabs)
        if (tab.prefix === prefix && tab.filter !== null && fits(tab.filter, event)) port.postMessage({ changed: true });
    };
  }

  function poll() {
    if (sources.size < MAX_NAMESPACES) return;
    for (const [port, tab] of tabs) {
      if (tab.filter === null || sources.has(tab.prefix)) continue;
      port.postMessage({ state: "polling" });
      port.postMessage({ changed: true });
    }
  }

  // Follow the streams that visible tabs show, up to a number of connections; the tabs poll the others.
  function follow() {
    const wanted = new Map([...tabs].flatMap(([port, tab]) => tab.streams.map((path) => [`${tab.id} ${path}`, { port, url: tab.prefix + path, path }])));
    for (const [key, each] of followed) if (!wanted.has(key)) { each.close(); followed.delete(key); }
    for (const [key, { port, url, path }] of wanted) {
      if (followed.has(key)) continue;
      if (followed.size >= MAX_FOLLOWED) { port.postMessage({ poll: path }); continue; }
      const each = new EventSource(url);
      followed.set(key, each);
      each.onmessage = (message) => port.postMessage({ path, entry: JSON.parse(message.data) });
      each.addEventListener("end", () => { each.close(); port.postMessage({ path, ended: true }); });
    }
  }

  function leave(port) { tabs.delete(port); connect(); follow(); }

  function join(port) {
    const id = count++;
    port.onmessage = ({ data }) => {
      if (data === "leave") { leave(port); return; }
      const isNew = !tabs.has(port);
      tabs.set(port, { ...data, id, seenAt: Date.now() });
      connect();
      follow();
      if (isNew && sources.get(data.prefix)?.source.readyState === EventSource.OPEN) port.postMessage({ state: "live" });
    };
  }

  setInterval(poll, POLL_EVERY);
  setInterval(() => { for (const [port, tab] of tabs) if (Date.now() - tab.seenAt > SILENT_FOR) leave(port); }, SILENT_FOR / 4);
  self.onconnect = (event) => join(event.ports[0]);
  self.treadleJoin = join;
})();
