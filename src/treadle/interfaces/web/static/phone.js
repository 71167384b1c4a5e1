// On a phone, rows are cards whose cells name their column, and filters are collapsed until they are wanted or in use.
(() => {
  function prepare() {
    for (const table of document.querySelectorAll("main .scroll > table")) {
      const titles = [...table.querySelectorAll("thead th")].map((each) => each.textContent.trim());
      for (const row of table.querySelectorAll("tbody tr"))
        [...row.children].forEach((cell, at) => cell.dataset.label = row.children.length === titles.length ? titles[at] : "");
    }
    for (const button of document.querySelectorAll("main [data-show-filters][hidden]")) {
      const form = button.nextElementSibling;
      const used = [...new FormData(form).values()].some((each) => each);
      button.hidden = false;
      button.setAttribute("aria-expanded", String(used));
      form.classList.toggle("shut", !used);
      button.addEventListener("click", () => button.setAttribute("aria-expanded", String(!form.classList.toggle("shut"))));
      for (const each of [button, form]) each.setAttribute("data-keep", "");
    }
  }
  prepare();
  document.addEventListener("treadle:fresh", prepare);
})();
