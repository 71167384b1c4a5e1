// Reload a live page when the event stream reports a change, and morph the response into place.
(() => {
  const QUIET_FOR = 400, AT_MOST_EVERY = 1000;
  const state = document.querySelector("[data-live-state]");
  let source = null, timer = null, last = 0, busy = false, again = false;

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

  function connect() {
    const live = document.body.dataset.live;
    if (source) { source.close(); source = null; }
    if (!live) { say("", ""); return; }
    const [entity, id] = live.split(" ");
    const filter = id ? `?${new URLSearchParams(entity === "run" ? { run_id: id } : { entity_id: id })}` : "";
    source = new EventSource(`${document.documentElement.dataset.prefix ?? ""}/v1/events/stream${filter}`);
    source.onopen = () => { say("live", "good"); soon(); };  // what moved between the page and its stream, nobody told
    source.onerror = () => say("reconnecting", "hold");
    source.addEventListener("transition", soon);
    source.onmessage = soon;
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
    await navigator.clipboard?.writeText(button.dataset.copy);
    button.textContent = "Copied";
  });
  document.addEventListener("change", (event) => {
    const form = event.target.closest("[data-filter]");
    if (form && event.target.type === "checkbox") form.requestSubmit();
  });
  addEventListener("pagehide", () => source && source.close());
  addEventListener("pageshow", connect);
  window.treadle = { refresh, soon };
})();
