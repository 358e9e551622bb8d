"use strict";
// Draw each chart into its place. Colours are CSS variables, so nothing is drawn twice for a dark page.
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const bubble = document.createElement("div");
  bubble.id = "bubble";
  bubble.hidden = true;
  document.body.append(bubble);

  function point(handler, event, item, value) {
    bubble.hidden = !value;
    if (!value) return;
    bubble.textContent = value;
    const box = bubble.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const below = event.clientY + 18;
    bubble.style.left = `${Math.max(8, left)}px`;
    bubble.style.top = `${below + box.height > innerHeight ? event.clientY - box.height - 10 : below}px`;
  }

  async function draw(place) {
    try {
      const view = new vega.View(vega.parse(specs[place.dataset.chart]), {
        renderer: "svg",
        container: place,
        hover: false,
        logLevel: 0,
      });
      await view.tooltip(point).runAsync();
      place.querySelector("svg").setAttribute("aria-hidden", "true");
      return true;
    } catch (error) {
      place.textContent = "This chart could not be drawn; its numbers are in the table below it.";
      place.classList.add("failed");
      console.error(error);
      return false;
    }
  }

  addEventListener("scroll", () => { bubble.hidden = true; }, { passive: true });
  Promise.all([...document.querySelectorAll("[data-chart]")].map(draw)).then((drawn) => {
    performance.mark("charts-drawn");
    document.documentElement.dataset.charts = drawn.every(Boolean) ? "drawn" : "failed";
  });

  const toc = [...document.querySelectorAll("nav a")];
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of toc) {
        if (link.hash === `#${entry.target.id}`) link.setAttribute("aria-current", "true");
        else link.removeAttribute("aria-current");
      }
    }
  }, { rootMargin: "-10% 0px -75% 0px" });
  for (const section of document.querySelectorAll("main section[id]")) seen.observe(section);

  const copy = document.getElementById("copy");
  copy?.addEventListener("click", async () => {
    const text = document.getElementById("settings").textContent;
    try {
      await navigator.clipboard.writeText(text);
      copy.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(document.getElementById("settings"));
      copy.textContent = "Selected";
    }
  });
})();
