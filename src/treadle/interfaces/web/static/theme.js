// Set the theme before anything is drawn: the stored choice, else the system's preference.
(() => {
  const root = document.documentElement;
  root.classList.add("scripts");
  const chosen = localStorage.getItem("treadle-theme");
  if (chosen) root.dataset.theme = chosen;
  addEventListener("click", (event) => {
    if (!event.target.closest("[data-theme-toggle]")) return;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    localStorage.setItem("treadle-theme", root.dataset.theme);
  });
})();
