// Reload a live page when the event stream reports a change, and morph the response into place.
(() => {
  const QUIET_FOR = 400, AT_MOST_EVERY = 1000, SIGN_EVERY = 10000, COPIED_FOR = 2000;
  const state = document.querySelector("[data-live-state]");
  const prefix = document.documentElement.dataset.prefix ?? "";
  const shared = document.currentScript.dataset.base.replace(/\/ns\/[^/]+(?=\/static\/)/, "");  // one for all namespaces
  let port = null, timer = null, last = 0, busy = false, again = false;

  const say = (text, tone) => {
    if (!state) return;
    state.hidden = !text;
    state.textContent = text;
    state.className = `live ${tone}`;
  };

  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    last = Date.now();
    try {
      const answer = await fetch(location.href, { headers: { "X-Live": "1" }, credentials: "same-origin" });
      if (!answer.ok || answer.redirected) return;
      const page = new DOMParser().parseFromString(await answer.text(), "text/html");
      const fresh = page.getElementById("main"), here = document.getElementById("main");
      if (!fresh || !here) return;
      document.title = page.title;
      const said = document.getElementById("flash");
      if (said) fresh.prepend(said.cloneNode(true));  // a refresh has no message of its own
      if (window.Idiomorph) Idiomorph.morph(here, fresh, { ignoreActiveValue: true, callbacks: { beforeNodeMorphed: keep } });
      else here.replaceWith(fresh);
      const menu = document.getElementById("menu"), now = page.getElementById("menu");
      if (menu && now && menu.innerHTML !== now.innerHTML && !menu.contains(document.activeElement)) menu.replaceChildren(...now.childNodes);
      document.dispatchEvent(new CustomEvent("treadle:fresh"));
    } catch { /* the stream says when the server is back */ } finally {
      busy = false;
      if (again) { again = false; soon(); }
    }
  }

  // Preserve opened elements, typed text and drawn graphs.
  function keep(old, fresh) {
    if (old.nodeType !== 1) return true;
    if (old.hasAttribute("data-keep")) return false;
    if (old.tagName === "DETAILS" && old.open) fresh.setAttribute("open", "");
    return true;
  }

  function soon() {
    if (timer) return;
    const wait = Math.max(QUIET_FOR, AT_MOST_EVERY - (Date.now() - last));
    timer = setTimeout(() => { timer = null; refresh(); }, wait);
  }

  // The events that concern this page; null if none do.
  function filter() {
    const [entity, id] = document.body.dataset.live.split(" ");
    if (!entity) return null;
    return id ? String(new URLSearchParams(entity === "run" ? { run_id: id } : { entity_id: id })) : "";
  }

  // Tell the connection that all tabs share what this one wants, while it is visible.
  function announce() {
    if (!port) return;
    const wanted = { prefix, filter: filter(), streams: window.treadle.streams?.() ?? [] };
    const isUsed = document.visibilityState === "visible" && (wanted.filter !== null || wanted.streams.length);
    port.postMessage(isUsed ? wanted : "leave");
  }

  function heard({ data }) {
    if (data.state === "live") { say("live", "good"); soon(); }  // what moved between the page and its stream, nobody told
    else if (data.state) say(data.state, "hold");
    else if (data.changed) soon();
    else document.dispatchEvent(new CustomEvent("treadle:stream", { detail: data }));
  }

  function join(end) {
    port = end;
    port.onmessage = heard;
    announce();
  }

  function connect() {
    if (filter() === null) say("", "");
    if (port) { announce(); return; }
    if (window.SharedWorker) { join(new SharedWorker(shared).port); return; }
    const script = Object.assign(document.createElement("script"), { src: shared });
    script.onload = () => { const channel = new MessageChannel(); window.treadleJoin(channel.port1); join(channel.port2); };
    document.head.append(script);
  }

  // Copy a text; false if the browser does not allow it. Pages that came over plain HTTP have no clipboard, only the old command.
  async function copy(text) {
    try { await navigator.clipboard.writeText(text); return true; } catch { /* the old command may work */ }
    const field = Object.assign(document.createElement("textarea"), { value: text, readOnly: true, className: "unseen" });
    document.body.append(field);
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    return isCopied;
  }

  // Do not replace a form that the user has started to fill in.
  document.addEventListener("input", (event) => event.target.form && event.target.form.setAttribute("data-keep", ""));
  document.addEventListener("submit", (event) => {
    const { ask, askMany } = event.target.dataset || {};
    const many = askMany && event.target.querySelectorAll("input[type=checkbox]:checked").length;
    const label = event.submitter?.textContent.replace(" selected", "");
    const text = askMany ? (many ? `${label} ${askMany.replace("{}", many)}?` : "") : ask;
    if (text && !confirm(text)) event.preventDefault();
  });
  document.addEventListener("click", (event) => event.target.closest("[data-dismiss]")?.closest("#flash").remove());
  document.addEventListener("click", async (event) => {
    const button = event.target.closest("[data-copy]");
    if (!button) return;
    const label = button.dataset.label ??= button.textContent;
    button.textContent = await copy(button.dataset.copy) ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = label; }, COPIED_FOR);
  });
  document.addEventListener("change", (event) => {
    const form = event.target.closest("[data-filter]");
    if (form && event.target.type === "checkbox") form.requestSubmit();
  });
  addEventListener("pagehide", () => port?.postMessage("leave"));
  addEventListener("pageshow", connect);
  document.addEventListener("visibilitychange", announce);
  setInterval(announce, SIGN_EVERY);
  window.treadle = { refresh, soon, announce };
})();
