"use strict";
// Draws each plot from the JSON beside it, in the colours of the surroundings.
(() => {
  const CONFIG = { responsive: true, displayModeBar: false, displaylogo: false };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const figures = [...document.querySelectorAll("figure")].map((figure) => ({
    plot: figure.querySelector(".plot"),
    together: Number(figure.querySelector(".plot").dataset.together),
    selects: [...figure.querySelectorAll("select")],
    description: JSON.parse(figure.querySelector("script").textContent),
  }));

  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function template() {
    const axis = {
      gridcolor: colour("--line"),
      linecolor: colour("--line"),
      zerolinecolor: colour("--line"),
      tickcolor: colour("--line"),
    };
    const layout = {
      font: { color: colour("--ink"), family: "system-ui, sans-serif", size: 12 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { bgcolor: colour("--paper"), font: { color: colour("--ink") } },
      xaxis: axis,
      yaxis: axis,
    };
    return { layout };
  }

  // Figures are described in the colours of the day; each has one of the night.
  const nights = JSON.parse(document.getElementById("nights").textContent);
  function coloured(value) {
    if (Array.isArray(value)) return value.map(coloured);
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, part]) => [key, coloured(part)]));
    }
    return (dark.matches && nights[value]) || value;
  }

  // The traces of a figure with choices are ordered by the first choice, then by the second.
  function choose({ selects, together, description }) {
    const chosen = selects.reduce(
      (index, select) => index * select.options.length + select.selectedIndex,
      0,
    );
    description.data.forEach((trace, index) => {
      trace.visible = Math.floor(index / together) === chosen;
    });
  }

  function draw(figure) {
    const { plot, selects, description } = figure;
    if (selects.length) choose(figure);
    const { data, layout } = coloured(description);
    return Plotly.react(plot, data, { ...layout, template: template() }, CONFIG);
  }

  for (const figure of figures) {
    for (const select of figure.selects) select.addEventListener("change", () => draw(figure));
  }
  dark.addEventListener("change", () => figures.forEach(draw));
  Promise.all(figures.map(draw)).then(() => {
    document.documentElement.dataset.drawn = "all";
  });
})();
