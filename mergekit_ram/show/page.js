"use strict";
// Draws each plot from the JSON beside it, in the ink of the surroundings.
(() => {
  const CONFIG = { responsive: true, displayModeBar: false, displaylogo: false };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const figures = [...document.querySelectorAll("figure")].map((figure) => ({
    plot: figure.querySelector(".plot"),
    select: figure.querySelector("select"),
    description: JSON.parse(figure.querySelector("script").textContent),
  }));

  const colour = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // What all plots have in common.
  function template() {
    const ink = { color: colour("--ink") };
    const line = colour("--line");
    const axis = {
      automargin: true,
      gridcolor: line,
      linecolor: line,
      zerolinecolor: line,
      tickcolor: line,
    };
    const layout = {
      font: { ...ink, family: "system-ui, sans-serif", size: 12 },
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      hoverlabel: { align: "left", bgcolor: colour("--paper"), font: ink },
      legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", traceorder: "normal" },
      margin: { l: 10, r: 16, t: 16, b: 10 },
      uniformtext: { minsize: 9, mode: "hide" },
      // A finger that drags means to scroll the page.
      dragmode: false,
      xaxis: axis,
      yaxis: axis,
    };
    const data = {
      bar: [
        {
          cliponaxis: false,
          hoverinfo: "text",
          insidetextanchor: "middle",
          insidetextfont: ink,
          marker: { pattern: { fillmode: "overlay", fgopacity: 0.5, solidity: 0.12 } },
          textangle: 0,
          textposition: "inside",
        },
      ],
      heatmap: [{ hoverongaps: false, textfont: { ...ink, size: 11 } }],
      scatter: [{ hovertemplate: "%{fullData.name}: %{y:.4~g} at %{x:.4~g}<extra></extra>" }],
    };
    return { data, layout };
  }

  // A figure with choices has the traces of the first one, then as many of the second.
  function choose({ select, description }) {
    const each = description.data.length / select.options.length;
    description.data.forEach((trace, index) => {
      trace.visible = Math.floor(index / each) === select.selectedIndex;
    });
  }

  function draw(figure) {
    const { plot, select, description } = figure;
    if (select) choose(figure);
    const layout = { ...description.layout, template: template() };
    return Plotly.react(plot, [...description.data], layout, CONFIG);
  }

  for (const figure of figures) {
    if (figure.select) figure.select.addEventListener("change", () => draw(figure));
  }
  dark.addEventListener("change", () => figures.forEach(draw));
  Promise.all(figures.map(draw)).then(() => {
    document.documentElement.dataset.drawn = "all";
  });
})();
