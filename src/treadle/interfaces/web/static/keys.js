// Keyboard shortcuts: `g` and a letter opens a page, `/` or Ctrl-K finds, j and k move in a list, `?` lists them. Escape, a click or the
// focus elsewhere closes the switcher.
(() => {
  let after = 0;
  const dialog = () => document.getElementById("shortcuts");
  const switcher = document.querySelector(".places");
  const leave = (event) => { if (switcher && !switcher.contains(event.target)) switcher.open = false; };
  for (const kind of ["click", "focusin"]) addEventListener(kind, leave);
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && switcher?.open) {
      switcher.open = false;
      switcher.querySelector("summary").focus();
    }
    if (event.key === "k" && (event.ctrlKey || event.metaKey) && finder) { event.preventDefault(); find(); return; }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    if (event.key === "?") { dialog().showModal(); return; }
    if (event.key === "/" && finder) { event.preventDefault(); find(); return; }
    const move = { j: 1, k: -1 }[event.key];
    if (move && document.querySelector("[data-pick]")) {
      const all = [...document.querySelectorAll("[data-pick]")], at = all.findIndex((each) => each.hasAttribute("aria-current"));
      pick(all[Math.min(Math.max(at + move, 0), all.length - 1)]);
      return;
    }
    if (event.key === "g") { after = Date.now(); return; }
    if (Date.now() - after < 1500) {
      after = 0;
      const link = [...document.querySelectorAll("[data-key]")].find((each) => each.dataset.key === event.key);
      if (link) link.click();
    }
  });

  // Find: show the results of the page /find while one types; Enter opens the first one, arrows move among them.
  const finder = document.getElementById("find");
  const field = finder?.querySelector("input"), hits = finder?.querySelector("[data-hits]");
  let asked = 0;
  function find() { if (!finder.open) finder.showModal(); field.select(); search(); }
  async function search() {
    const turn = ++asked;
    const answer = await fetch(`${finder.querySelector("form").action}?q=${encodeURIComponent(field.value)}`, { headers: { "X-Live": "1" } }).catch(() => null);
    if (!answer?.ok || turn !== asked) return;
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (turn === asked) hits.replaceChildren(...(page.getElementById("hits")?.childNodes ?? []));
  }
  let typing = null;
  field?.addEventListener("input", () => { asked++; clearTimeout(typing); typing = setTimeout(search, 150); });
  finder?.querySelector("form").addEventListener("submit", async (event) => {
    event.preventDefault();
    clearTimeout(typing);
    await search();
    hits.querySelector("a")?.click();
  });
  finder?.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const links = [field, ...hits.querySelectorAll("li > .grow > a:first-child")];
    links[Math.min(Math.max(links.indexOf(document.activeElement) + step, 0), links.length - 1)].focus();
  });
  // A step of a run: morph the page instead of loading it, so that the list of steps stays where it is.
  function pick(link) {
    history.replaceState(null, "", link.href);
    link.scrollIntoView({ block: "nearest" });
    window.treadle.refresh();
  }
  addEventListener("click", (event) => {
    const chosen = event.target.closest("[data-pick]");
    if (chosen && !event.ctrlKey && !event.metaKey && !event.shiftKey) { event.preventDefault(); pick(chosen); }
    if (event.target.closest("[data-find]") && finder) { event.preventDefault(); find(); }
    if (event.target === finder) finder.close();
    if (event.target.closest("[data-palette]")) dialog().showModal();
    const toggle = event.target.closest("[data-toggle-menu]");
    if (toggle) {
      const open = document.body.classList.toggle("menu-open");
      toggle.setAttribute("aria-expanded", String(open));
    }
  });
})();
