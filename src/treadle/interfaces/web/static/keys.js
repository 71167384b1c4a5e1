// Keyboard shortcuts: `g` and a letter opens a page, `/` focuses the search, `?` lists them. Escape, a click or the focus elsewhere closes the switcher.
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
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest("input, textarea, select, [contenteditable]")) return;
    if (event.key === "?") { dialog().showModal(); return; }
    if (event.key === "/") {
      const search = document.querySelector("[data-search]");
      if (search) { event.preventDefault(); search.focus(); }
      return;
    }
    if (event.key === "g") { after = Date.now(); return; }
    if (Date.now() - after < 1500) {
      after = 0;
      const link = [...document.querySelectorAll("[data-key]")].find((each) => each.dataset.key === event.key);
      if (link) link.click();
    }
  });
  addEventListener("click", (event) => {
    if (event.target.closest("[data-palette]")) dialog().showModal();
    const toggle = event.target.closest("[data-toggle-menu]");
    if (toggle) {
      const open = document.body.classList.toggle("menu-open");
      toggle.setAttribute("aria-expanded", String(open));
    }
  });
})();
