// What the pages do by themselves: stay up to date, tell times in the reader's zone, obey keys.
// Without it every page can still be read, and every form sent.
"use strict";

(() => {
  const body = document.body;
  const root = body.dataset.root;
  let shown = null; // what was told when this page was last drawn
  let told = null; // what was told last
  let isOld = true; // the page was drawn before anything was told
  let source = null;
  let isPressed = false; // a press that may become a click
  const drawn = new WeakMap(); // the chart in each figure

  const main = () => document.getElementById("main");

  function localTimes() {
    for (const time of document.querySelectorAll("time[datetime]:not([data-local])")) {
      const moment = new Date(time.dateTime);
      if (Number.isNaN(moment.getTime())) continue;
      time.dataset.local = "yes";
      time.textContent = moment.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
    }
    const zone = document.getElementById("zone");
    if (zone) zone.textContent = Intl.DateTimeFormat().resolvedOptions().timeZone || "local time";
  }

  function colour(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  function charts() {
    for (const figure of document.querySelectorAll("figure.chart:not([data-drawn])")) {
      const numbers = (name) => (figure.dataset[name] || "").split(",").filter(Boolean).map(Number);
      const times = numbers("times");
      if (times.length < 2 || !window.uPlot) continue;
      figure.dataset.drawn = "yes";
      const axis = { stroke: colour("--dim"), grid: { stroke: colour("--line"), width: 1 }, ticks: { show: false } };
      const line = (label, name) => ({ label, stroke: colour(name), width: 1.5, points: { show: false } });
      const chart = new window.uPlot(
        {
          width: figure.clientWidth,
          height: 140,
          legend: { show: false },
          cursor: { show: false },
          axes: [axis, { ...axis, size: 44 }],
          scales: { y: { range: (_, low, high) => [0, Math.max(high, 1)] } },
          series: [{}, line("completed", "--done"), line("failed", "--bad")],
        },
        [times, numbers("completed"), numbers("failed")],
        figure,
      );
      drawn.set(figure, chart);
    }
  }

  // The window has another width, or the reader has gone from light to dark.
  function redraw() {
    for (const figure of document.querySelectorAll("figure.chart[data-drawn]")) {
      drawn.get(figure)?.destroy();
      delete figure.dataset.drawn;
    }
    charts();
  }

  function tickAll({ target }) {
    if (target.id !== "all") return;
    for (const box of document.querySelectorAll("table.jobs tbody input[type=checkbox]")) box.checked = target.checked;
  }

  function draw() {
    localTimes();
    charts();
  }

  // What is pressed has to stay until it is let go of, or there is no click.
  function press({ button, target }) {
    isPressed = button === 0 && Boolean(target.closest("a, button, summary, label, input"));
  }

  function release() {
    isPressed = false;
  }

  // Somebody who presses, types, selects or reads what is folded out is not disturbed.
  function isBusy() {
    const content = main();
    if (!content || isPressed) return true;
    const focused = document.activeElement;
    if (focused && content.contains(focused) && focused.matches("input, textarea, select, button")) return true;
    return Boolean(content.querySelector("input:checked, details[open]:not([data-was-open])"));
  }

  function isNew() {
    if (!told) return false;
    if (isOld) return true;
    const queue = body.dataset.queue;
    if (queue) return told[queue] !== shown[queue];
    return JSON.stringify(told) !== JSON.stringify(shown);
  }

  function follow() {
    if (!isNew() || isBusy() || body.classList.contains("gone")) return;
    shown = told;
    isOld = false;
    window.htmx.trigger(main(), "changed");
  }

  function tick(versions) {
    if (body.classList.contains("gone")) isOld = true;
    body.classList.remove("gone");
    document.getElementById("gone").hidden = true;
    told = versions;
    follow();
  }

  function gone() {
    body.classList.add("gone");
    document.getElementById("gone").hidden = false;
  }

  function listen() {
    if (source || document.hidden) return;
    source = new EventSource(`${root}/live`);
    source.addEventListener("tick", (event) => tick(JSON.parse(event.data)));
    source.addEventListener("gone", gone);
    source.addEventListener("error", gone);
  }

  function rest() {
    if (source) source.close();
    source = null;
  }

  function keys(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input, textarea, select")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    const links = [...document.querySelectorAll("table.rows tbody th a:first-child")];
    const place = links.indexOf(document.activeElement);
    if (event.key === "/") {
      event.preventDefault();
      document.getElementById("search")?.focus();
    } else if (event.key === "j" && links.length) {
      links[Math.min(place + 1, links.length - 1)].focus();
    } else if (event.key === "k" && links.length) {
      links[Math.max(place - 1, 0)].focus();
    }
  }

  for (const one of document.querySelectorAll("details[open]")) one.dataset.wasOpen = "yes";
  draw();
  document.addEventListener("keydown", keys);
  document.addEventListener("change", tickAll);
  window.addEventListener("resize", redraw);
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  if (body.dataset.live) {
    let place = null; // where the keyboard was when the page was drawn anew
    let unfolded = []; // what was drawn open; what a person opens before it settles is theirs
    document.addEventListener("htmx:beforeRequest", (event) => {
      if (!document.hidden) return;
      event.preventDefault(); // nobody looks; it is drawn anew when somebody does
      isOld = true;
    });
    document.addEventListener("htmx:beforeSwap", (event) => {
      const focused = document.activeElement;
      place = main()?.contains(focused) ? focused.getAttribute("href") : null;
      if (!isBusy()) return;
      event.detail.shouldSwap = false; // somebody began to type while the answer was on its way
      isOld = true;
    });
    document.addEventListener("htmx:afterSwap", () => {
      localTimes(); // before anything is painted: it settles later, and times would flicker
      unfolded = [...document.querySelectorAll("details[open]")];
      if (!place) return;
      [...main().querySelectorAll("a[href]")].find((one) => one.getAttribute("href") === place)?.focus();
      place = null;
    });
    document.addEventListener("htmx:afterSettle", () => {
      for (const one of unfolded) one.dataset.wasOpen = "yes";
      draw();
    });
    document.addEventListener("pointerdown", press);
    // Not :active, which browsers forget to end when a link is dragged away.
    for (const end of ["pointerup", "pointercancel", "dragstart", "contextmenu"]) {
      document.addEventListener(end, release);
    }
    window.addEventListener("blur", release);
    window.addEventListener("pagehide", rest);
    // Before this htmx hears nothing: what is told would count as drawn, and be lost.
    document.addEventListener("DOMContentLoaded", () => {
      document.addEventListener("visibilitychange", () => (document.hidden ? rest() : listen()));
      setInterval(follow, 1000); // who was busy at the last change is told when they no longer are
      listen();
    });
  }
})();
