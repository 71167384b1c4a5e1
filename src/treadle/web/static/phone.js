// On a phone, rows are cards whose cells name their column, and filters are collapsed until they are wanted or in use.
(() => {
  function prepare() {
    for (const table of document.querySelectorAll("main .scroll > table")) {
      const titles = [...table.querySelectorAll("thead th")].map((each) => each.textContent.trim());
      for (const row of table.querySelectorAll("tbody tr"))
        [...row.children].forEach((cell, at) => cell.dataset.label = row.children.length === titles.length ? titles[at] : "");
    }
    for (const form of document.querySelectorAll("main form.filters[data-filter]")) {
      if (form.previousElementSibling?.matches("[data-show-filters]")) continue;
      const button = Object.assign(document.createElement("button"), { type: "button", textContent: "Filters" });
      const used = [...new FormData(form).values()].some((each) => each);
      button.className = "only-phone";
      button.setAttribute("data-show-filters", "");
      button.setAttribute("data-stays", "");
      button.setAttribute("aria-expanded", String(used));
      form.classList.toggle("shut", !used);
      button.addEventListener("click", () => button.setAttribute("aria-expanded", String(!form.classList.toggle("shut"))));
      form.setAttribute("data-keep", "");
      form.before(button);
    }
  }
  prepare();
  document.addEventListener("treadle:fresh", prepare);
})();
