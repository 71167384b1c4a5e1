// One connection to the event stream for all tabs of a browser, which opens at most six to a server. A SharedWorker; where there is
// none, each tab runs this itself. Only visible tabs count: the others leave, or are not heard of for a while.
(() => {
  const SILENT_FOR = 40000, RETRY_AFTER = 5000, MAX_FOLLOWED = 3;
  const prefix = self.document ? self.document.documentElement.dataset.prefix ?? "" : self.location.pathname.split("/static/")[0];
  const tabs = new Map();  // what each visible tab wants, by its port: `filter` of events (null: none), and `streams` of runs
  const followed = new Map();  // connections to streams of runs, by tab and path
  let source = null, open = "", retry = null, count = 0;

  const tell = (message) => { for (const port of tabs.keys()) port.postMessage(message); };
  const fits = (filter, event) => [...new URLSearchParams(filter)].every(([name, value]) => event[name] === value);

  // Follow the events that the only filter lets through, or all.
  function connect() {
    const filters = new Set([...tabs.values()].map((tab) => tab.filter).filter((filter) => filter !== null));
    const wanted = filters.size === 1 ? [...filters][0] : "";
    if (source && (!filters.size || wanted !== open)) { source.close(); source = null; }
    if (source || !filters.size) return;
    clearTimeout(retry);
    open = wanted;
    const mine = source = new EventSource(`${prefix}/v1/events/stream${wanted && `?${wanted}`}`);
    mine.onopen = () => tell({ state: "live" });
    mine.onerror = () => {
      tell({ state: "reconnecting" });
      if (mine === source && mine.readyState === EventSource.CLOSED) { source = null; retry = setTimeout(connect, RETRY_AFTER); }
    };
    mine.onmessage = (message) => {
      const event = JSON.parse(message.data);
      for (const [port, tab] of tabs) if (tab.filter !== null && fits(tab.filter, event)) port.postMessage({ changed: true });
    };
  }

  // Follow the streams that visible tabs show, up to a number of connections; the tabs poll the others.
  function follow() {
    const wanted = new Map([...tabs].flatMap(([port, tab]) => tab.streams.map((path) => [`${tab.id} ${path}`, { port, path }])));
    for (const [key, each] of followed) if (!wanted.has(key)) { each.close(); followed.delete(key); }
    for (const [key, { port, path }] of wanted) {
      if (followed.has(key)) continue;
      if (followed.size >= MAX_FOLLOWED) { port.postMessage({ poll: path }); continue; }
      const each = new EventSource(prefix + path);
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
      if (isNew && source?.readyState === EventSource.OPEN) port.postMessage({ state: "live" });
    };
  }

  setInterval(() => { for (const [port, tab] of tabs) if (Date.now() - tab.seenAt > SILENT_FOR) leave(port); }, SILENT_FOR / 4);
  self.onconnect = (event) => join(event.ports[0]);
  self.treadleJoin = join;
})();
