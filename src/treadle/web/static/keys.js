// Keyboard shortcuts: `g` and a letter opens a page, `/` focuses the search, `?` lists them.
(() => {
  let after = 0;
  const dialog = () => document.getElementById("shortcuts");
  addEventListener("keydown", (event) => {
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
