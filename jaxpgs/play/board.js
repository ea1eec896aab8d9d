// The board of jaxpgs: drawn from the messages of a visit, which clicks change.
//
// The same module is a widget's front end (anywidget calls `render`) and that of the page. A model
// has `send(message)` and `on("msg:custom", heard)`, and a widget's has a `picture`.

const NS = "http://www.w3.org/2000/svg";
const HEATS = [
  ["policy", "Policy", "the search's policy"],
  ["adapted", "Adapted", "the network's policy after the updates so far"],
  ["visits", "Visits", "simulations by first move"],
  ["q", "Q", "mean return by first move"],
  ["worth", "Value", "the network's value after each move, before the search"],
  ["none", "Off", "no heat map"],
];
const LEADING = 5; // moves with a curve

/** Makes an element, of SVG if its name begins with "svg:". */
function make(name, attributes = {}, ...children) {
  const svg = name.startsWith("svg:");
  const node = svg ? document.createElementNS(NS, name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children);
  return node;
}

const points = (list) => list.map(([x, y]) => `${x.toFixed(3)},${y.toFixed(3)}`).join(" ");
const percent = (x) => `${Math.round(100 * x)}`;

function render({ model, el }) {
  let position = null; // the last message of that type
  let thought = null; // {number, legal, mover, points} of the last search
  let source = null; // the pawn that was clicked
  let pinned = null; // what a person looks at: "line" shows the expected line on the board
  const kept = readKept();
  const send = (type, more = {}) => model.send({ type, ...more });

  const ui = build();
  ui.stage.innerHTML = model.get?.("picture") ?? ""; // until a visit answers, if one does
  el.append(ui.root);
  (el.closest(".jaxpgs-page") ?? ui.root).addEventListener("keydown", (event) => {
    const button = { ArrowLeft: ui.undo, ArrowRight: ui.redo }[event.key];
    if (button && !event.target.closest("input, select, textarea")) button.click();
  });
  model.on("msg:custom", heard);
  send("hello");
  return () => model.off?.("msg:custom", heard);

  // --- messages -------------------------------------------------------------------------------

  function heard(said) {
    if (said.type === "position") {
      // What a search thought stays in sight after the move that came of it.
      if (said.number !== position?.number && !said.keeps) thought = null;
      if (said.number !== position?.number) source = null;
      position = said;
      ui.status.dataset.text = said.status;
      ui.error.textContent = "";
      drawAll();
    } else if (said.type === "analysis") {
      if (said.first) thought = { ...said };
      else if (thought?.number === said.number && said.points.length) {
        // Some may be here already: a page that says hello is given all that there are.
        const since = said.points[0].simulations;
        thought.points = thought.points.filter((p) => p.simulations < since).concat(said.points);
      }
      drawThought();
    } else if (said.type === "status") {
      ui.status.dataset.text = said.status;
      drawStatus();
    } else if (said.type === "error") {
      ui.error.textContent = said.text;
    } else if (said.type === "lost") {
      ui.error.textContent = "The connection is lost; trying again …";
    }
  }

  // --- what stands on the page -------------------------------------------------------------------

  function build() {
    const button = (name, text, title, click) =>
      make("button", { type: "button", "data-do": name, title, onclick: click }, text);
    const heat = make("div", { class: "heats", role: "radiogroup", "aria-label": "Heat map" });
    for (const [key, text, title] of HEATS) {
      const pick = button(`heat-${key}`, text, title, () => keep("heat", key));
      pick.setAttribute("role", "radio");
      heat.append(pick);
    }
    const search = make("select", { "aria-label": "Search", onchange: options });
    const field = (label, max, step) =>
      make("input", { type: "number", min: 0, max, step, "aria-label": label, onchange: options });
    const simulations = field("Simulations", 1000000, 1);
    const seconds = field("Seconds", 3600, "any");
    const side = make("select", { "aria-label": "You play", onchange: () =>
      send("humans", { humans: JSON.parse(side.value) }) });
    const text = make("textarea", { rows: 4, spellcheck: "false", "aria-label": "Game as text" });
    const link = make("a", { target: "_blank", rel: "noopener" }, "HexWorld");
    const copy = button("copy", "Copy", "Copy the text", () => {
      text.select();
      navigator.clipboard?.writeText(text.value).catch(() => {});
    });
    const load = button("load", "Load", "Load SGF, or a link to HexWorld", () =>
      send("load", { text: text.value }));
    const save = make("details", { class: "files" },
      make("summary", {}, "Load and save"), text, make("div", { class: "row" }, load, copy, link));
    const parts = {
      heat, search, simulations, seconds, side, text, link, save,
      stage: make("div", { class: "stage" }),
      status: make("div", { class: "status", role: "status" }),
      error: make("div", { class: "error", role: "alert" }),
      chart: make("div", { class: "chart" }),
      value: make("div", { class: "value" }),
      line: make("div", { class: "line", tabindex: 0, title: "Shows it on the board",
        onmouseenter: pin, onfocus: pin, onmouseleave: unpin, onblur: unpin }),
      table: make("div", { class: "table" }),
      moves: make("div", { class: "moves" }),
      undo: button("undo", "Undo", "Take back", () => number("undo")),
      redo: button("redo", "Redo", "Play again", () => number("redo")),
      swap: button("swap", "Swap", "Take over the first stone", () =>
        send("play", { action: position.swap, number: position.number })),
      analyse: button("analyse", "Analyse", "Let the search think of this position", () =>
        send("analyse", { on: !position.analysing })),
    };
    parts.tools = make("div", { class: "row" },
      button("new", "New game", "Begin anew", () => send("new")), parts.undo, parts.redo, parts.swap,
      button("flip", "Flip", "Exchange the two colours", () => keep("flip", !kept.flip)));
    const main = make("div", { class: "main" }, parts.status, parts.stage,
      make("div", { class: "row under" }, parts.analyse, heat), parts.chart);
    const panel = make("div", { class: "side" }, parts.tools, parts.error,
      make("div", { class: "settings" },
        make("label", {}, "You play", side), make("label", {}, "Search", search),
        make("label", {}, "Simulations", simulations), make("label", {}, "Seconds", seconds)),
      parts.value, parts.line, parts.table, parts.moves, save);
    parts.root = make("div", { class: "jaxpgs" }, make("div", { class: "frame" }, main, panel));
    return parts;

    function options() {
      send("options", { search: search.value, simulations: Math.round(+simulations.value),
        seconds: +seconds.value });
    }
    function number(type) {
      send(type, { number: position.number });
    }
    function pin() {
      pinned = "line";
      drawThought();
    }
    function unpin() {
      pinned = null;
      drawThought();
    }
  }

  function readKept() {
    try {
      return { heat: "policy", flip: false, ...JSON.parse(localStorage.getItem("jaxpgs") ?? "{}") };
    } catch {
      return { heat: "policy", flip: false };
    }
  }

  function keep(key, value) {
    kept[key] = value;
    try {
      localStorage.setItem("jaxpgs", JSON.stringify(kept));
    } catch { /* a page without storage */ }
    drawAll();
  }

  function colour(player) {
    return ["Blue", "Red"][player ^ (kept.flip ? 1 : 0)];
  }

  // --- drawing --------------------------------------------------------------------------------

  function drawAll() {
    if (!position) return;
    const { humans, options, layout } = position;
    ui.root.classList.toggle("flip", Boolean(kept.flip));
    ui.root.dataset.kind = layout.kind;
    ui.root.dataset.number = position.number;
    ui.root.dataset.over = position.over;
    const sides = humans.length === 1
      ? [["[true]", "yourself"], ["[false]", "the search plays"]]
      : [["[true,false]", colour(0)], ["[false,true]", colour(1)], ["[true,true]", "both"],
        ["[false,false]", "neither"]];
    fill(ui.side, sides, JSON.stringify(humans));
    fill(ui.search, position.searches.map((name) => [name, name]), options.search);
    for (const key of ["simulations", "seconds"]) {
      // What somebody is typing must not be overwritten.
      if (document.activeElement !== ui[key]) ui[key].value = options[key];
    }
    ui.undo.disabled = position.moves.length === 0;
    ui.redo.disabled = position.future.length === 0;
    ui.swap.hidden = layout.kind !== "hex";
    ui.swap.disabled = position.swap === null || !humans[position.mover];
    ui.analyse.classList.toggle("on", position.analysing);
    ui.analyse.setAttribute("aria-pressed", position.analysing);
    for (const pick of ui.heat.children) {
      const is = pick.dataset.do === `heat-${kept.heat}`;
      pick.classList.toggle("on", is);
      pick.setAttribute("aria-checked", is);
    }
    ui.save.hidden = position.sgf === undefined;
    if (position.sgf !== undefined && document.activeElement !== ui.text) ui.text.value = position.sgf;
    ui.link.href = position.link ?? "#";
    const played = position.moves.length;
    const steps = [...position.moves, ...position.future].map((name, i) =>
      make("button", { type: "button", class: i < played ? "" : "later", title: "Goes there",
        onclick: () => send("go", { count: i + 1, number: position.number }) },
      make("i", {}, `${i + 1}`), name));
    ui.moves.replaceChildren(...steps);
    const now = steps[played - 1];
    ui.moves.scrollTop = now ? now.offsetTop - ui.moves.offsetTop - now.offsetHeight : 0;
    drawBoard();
    drawStatus();
    drawThought();
  }

  function fill(select, pairs, value) {
    select.replaceChildren(...pairs.map(([key, text]) => make("option", { value: key }, text)));
    select.value = value;
  }

  function drawStatus() {
    if (!position) return;
    const busy = ui.status.dataset.text;
    const { mover, over, winner, humans, result } = position;
    const puzzle = humans.length === 1;
    const words = puzzle ? result
      : over ? (winner === null ? "A draw" : `${colour(winner)} wins`) : `${colour(mover)} to move`;
    const disc = puzzle || (over && winner === null) ? []
      : [make("span", { class: `disc p${over ? winner : mover}` })];
    const more = busy ? [make("span", { class: "busy" }, `${busy} …`)] : [];
    ui.status.replaceChildren(...disc, make("b", {}, words), ...more);
  }

  function drawBoard() {
    const { layout, stones, legal, last, over, humans, mover } = position;
    if (layout.kind === "svg") {
      ui.stage.innerHTML = position.svg ?? "";
      return;
    }
    const [left, top, width, height] = layout.box;
    const board = make("svg:svg", { viewBox: `${left} ${top} ${width} ${height}`, class: "board" });
    for (const [player, at] of layout.edges) {
      board.append(make("svg:polyline", { class: `edge p${player}`, points: points(at) }));
    }
    const yours = !over && humans[mover];
    const open = new Map(); // what a click on a cell does
    // A pawn is clicked first and then its target; other moves need one click.
    for (const move of legal) {
      if (move.source !== null) open.set(move.source, () => { source = move.source; drawBoard(); });
    }
    for (const move of legal) {
      if (move.source === null || move.source === source) {
        for (const cell of move.cells) {
          open.set(cell, () => send("play", { action: move.action, number: position.number }));
        }
      }
    }
    const targets = new Set(legal.filter((m) => m.source !== null && m.source === source)
      .flatMap((m) => m.cells));
    layout.cells.forEach(([x, y], cell) => {
      const stone = stones[cell];
      const shape = layout.shape.map(([u, v]) => [x + u, y + v]);
      const can = yours && open.has(cell);
      const classes = ["cell", can && "open", cell === source && "chosen",
        targets.has(cell) && "target"].filter(Boolean).join(" ");
      const group = make("svg:g", { class: classes, "data-cell": cell, "data-stone": stone });
      const block = layout.kind === "samegame" && stone > 0;
      group.append(make("svg:polygon", { points: points(shape),
        class: block ? `block c${(stone - 1) % 7}` : `ground s${(x * 7 + y * 3) & 1}` }));
      if (can) {
        const act = open.get(cell);
        group.setAttribute("tabindex", 0);
        group.setAttribute("role", "button");
        group.addEventListener("click", act);
        group.addEventListener("keydown", (event) => {
          if (event.key === "Enter" || event.key === " ") { event.preventDefault(); act(); }
        });
        const named = legal.find((m) => m.cells.includes(cell) || m.source === cell);
        group.append(make("svg:title", {}, named.name));
        if (layout.kind === "hex" || layout.kind === "yavalath") {
          group.append(make("svg:circle", { class: `ghost p${mover}`, cx: x, cy: y,
            r: layout.stone }));
        }
      }
      if (stone && !block) {
        group.append(make("svg:circle", { class: `stone p${stone - 1}`, cx: x, cy: y,
          r: layout.stone }));
      }
      board.append(group);
    });
    if (last.length && layout.kind !== "samegame") {
      const [x, y] = layout.cells[last[0]];
      const r = layout.kind === "breakthrough" ? 0.12 : 0.2;
      board.append(make("svg:circle", { class: "last", "data-cell": last[0], cx: x, cy: y, r }));
    }
    for (const cell of legal.find((m) => m.action === position.next)?.cells ?? []) {
      const [x, y] = layout.cells[cell];
      board.append(make("svg:circle", { class: "next", "data-cell": cell, cx: x, cy: y, r: 0.2 }));
    }
    for (const [x, y, text] of layout.labels) {
      board.append(make("svg:text", { class: "label", x, y: y + 0.2 }, text));
    }
    board.append(make("svg:g", { class: "heat" }));
    ui.stage.replaceChildren(board);
  }

  /** How each legal move is shown: its strength from 0 to 1, whether it is bad, and the words. */
  function heats() {
    if (!thought || thought.number !== position.number || kept.heat === "none") return [];
    const now = thought.points[thought.points.length - 1];
    const values = kept.heat === "worth" ? thought.points[0].worth : now[kept.heat];
    const known = (values ?? []).filter((x) => x !== null).map(Math.abs);
    const largest = Math.max(0, ...known) || 1;
    const signed = kept.heat === "q" || kept.heat === "worth";
    return (values ?? []).map((x) => {
      if (x === null || (!signed && x / largest < 0.005)) return null;
      const plain = kept.heat === "visits" || largest > 1.5;
      const strength = Math.abs(x) / (signed ? Math.max(largest, 1) : largest);
      return { strength: signed ? strength : Math.sqrt(strength), bad: x < 0,
        text: (plain ? `${Math.round(x)}` : percent(x)).replace(/^-?0$/, "") };
    });
  }

  function drawThought() {
    if (!position) return;
    const layer = ui.stage.querySelector("g.heat");
    const { layout } = position;
    layer?.replaceChildren();
    if (layer && pinned === "line") drawLine(layer);
    else if (layer) {
      heats().forEach((heat, i) => {
        const move = position.legal[i];
        if (!heat || !move?.cells.length) return;
        const [x, y] = layout.cells[move.cells[0]];
        const player = heat.bad ? 1 - position.mover : position.mover;
        if (move.source !== null) {
          const [u, v] = layout.cells[move.source];
          layer.append(make("svg:line", { class: `arrow p${player}`, x1: u, y1: v, x2: x, y2: y,
            "stroke-width": 0.04 + 0.24 * heat.strength, "data-text": heat.text }));
          return;
        }
        if (layout.kind === "samegame") {
          layer.append(make("svg:circle", { class: "spot", cx: x, cy: y,
            r: 0.27 + 0.16 * heat.strength }));
        } else {
          const shape = layout.shape.map(([a, b]) => [x + 0.93 * a, y + 0.93 * b]);
          layer.append(make("svg:polygon", { class: `warm p${player}`, points: points(shape),
            "fill-opacity": (0.08 + 0.62 * heat.strength).toFixed(3) }));
        }
        layer.append(make("svg:text", { x, y: y + 0.17 }, heat.text));
      });
    }
    drawNumbers();
    drawChart();
  }

  /** The expected line as numbered stones. */
  function drawLine(layer) {
    if (thought?.number !== position.number || position.layout.kind === "samegame") return;
    const line = thought.points[thought.points.length - 1].line;
    line.forEach((move, i) => {
      if (!move.cells.length) return;
      const [x, y] = position.layout.cells[move.cells[0]];
      layer.append(make("svg:circle", { class: `stone line p${move.player}`, cx: x, cy: y,
        r: position.layout.stone }));
      layer.append(make("svg:text", { class: "count", x, y: y + 0.17 }, `${i + 1}`));
    });
  }

  function leaders() {
    const now = thought.points[thought.points.length - 1];
    const worth = (i) => now.policy[i] + now.visits[i] / Math.max(now.simulations, 1);
    return thought.legal.map((_, i) => i).sort((a, b) => worth(b) - worth(a));
  }

  function drawNumbers() {
    if (!thought) {
      for (const part of [ui.value, ui.line, ui.table]) part.replaceChildren();
      return;
    }
    const now = thought.points[thought.points.length - 1];
    const puzzle = position.humans.length === 1;
    const spent = `${now.simulations.toLocaleString("en")} simulations · ${now.seconds.toFixed(1)} s`;
    if (puzzle) {
      ui.value.replaceChildren(make("p", {}, `expects ${now.value.toFixed(1)} more · ${spent}`));
    } else {
      const first = thought.mover === 0 ? (now.value + 1) / 2 : (1 - now.value) / 2;
      const share = Math.min(Math.max(first, 0), 1);
      ui.value.replaceChildren(
        make("div", { class: "bar", title: "chance of winning" },
          make("div", { class: "p0", style: `width:${100 * share}%` }), make("div", { class: "p1" })),
        make("p", {}, `${colour(0)} ${percent(share)}% · ${colour(1)} ${percent(1 - share)}% · ${spent}`));
    }
    ui.line.replaceChildren(...(now.line.length ? [make("small", {}, "Expected ")] : []),
      ...now.line.map((move) => make("span", { class: `move p${move.player}` }, move.name)));
    const order = leaders().slice(0, 8);
    const cell = (text) => make("td", {}, text);
    const rows = order.map((i, rank) => make("tr", {},
      make("td", {}, make("span", { class: `key k${rank < LEADING ? rank : "x"}` }),
        thought.legal[i].name),
      cell(`${percent(now.policy[i])}%`),
      ...(now.adapted ? [cell(`${percent(now.adapted[i])}%`)] : []), cell(`${now.visits[i]}`),
      cell(now.q[i] === null ? "–" : now.q[i].toFixed(puzzle ? 1 : 2))));
    const head = ["Move", "Policy", ...(now.adapted ? ["Adapted"] : []), "Visits", "Q"]
      .map((text) => make("th", {}, text));
    ui.table.replaceChildren(make("table", {}, make("thead", {}, make("tr", {}, ...head)),
      make("tbody", {}, ...rows)));
  }

  /** How the search came to its opinion of the leading moves, from update to update. */
  function drawChart() {
    if (!thought || thought.points.length < 2) {
      ui.chart.replaceChildren();
      return;
    }
    const all = thought.points;
    const now = all[all.length - 1];
    const wanted = kept.heat === "worth" || kept.heat === "none" ? "policy" : kept.heat;
    const key = now[wanted] ? wanted : "policy";
    const order = leaders().slice(0, LEADING);
    const at = (point, i) => key === "visits"
      ? (point.simulations ? point.visits[i] / point.simulations : null) : point[key]?.[i] ?? null;
    const shown = all.flatMap((p) => order.map((i) => at(p, i))).filter((x) => x !== null);
    const low = key === "q" ? Math.min(...shown) : 0;
    const high = Math.max(...shown, low + 1e-6);
    const [width, height, left, right, top, bottom] = [640, 190, 44, 62, 24, 30];
    const most = Math.max(now.simulations, 1);
    const x = (p) => left + (width - left - right) * p.simulations / most;
    const y = (v) => top + (height - top - bottom) * (1 - (v - low) / (high - low));
    const name = { policy: "Search policy", adapted: "Adapted policy", visits: "Share of visits",
      q: "Q" }[key];
    const chart = make("svg:svg", { viewBox: `0 0 ${width} ${height}`, class: "curves",
      role: "img", "aria-label": `${name} of the leading moves, from update to update` });
    const about = thought.number === position.number ? "" : " (before its move)";
    chart.append(make("svg:text", { class: "title", x: left, y: 14 }, `${name} by simulations${about}`));
    for (const share of [0, 0.5, 1]) {
      const value = low + share * (high - low);
      const text = key === "q" ? value.toFixed(Math.abs(high - low) > 5 ? 0 : 2) : `${percent(value)}%`;
      chart.append(make("svg:line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }));
      chart.append(make("svg:text", { class: "tick end", x: left - 6, y: y(value) + 4 }, text));
      chart.append(make("svg:text", { class: "tick mid", x: left + share * (width - left - right),
        y: height - 10 }, `${Math.round(share * most)}`));
    }
    const ends = order.map((i, rank) => ({ rank, i, y: y(at(now, i) ?? low) })).sort((a, b) => a.y - b.y);
    // Names that would meet move apart, down and then up from the bottom.
    ends.forEach((end, n) => { if (n) end.y = Math.max(end.y, ends[n - 1].y + 14); });
    let floor = height - bottom + 6;
    for (const end of ends.toReversed()) {
      end.y = Math.min(end.y, floor);
      floor = end.y - 14;
    }
    for (const end of ends) {
      const curve = all.filter((p) => at(p, end.i) !== null).map((p) => [x(p), y(at(p, end.i))]);
      chart.append(make("svg:polyline", { class: `curve k${end.rank}`, points: points(curve) }));
      chart.append(make("svg:text", { class: `name k${end.rank}`, x: width - right + 8,
        y: end.y + 4 }, thought.legal[end.i].name));
    }
    ui.chart.replaceChildren(chart);
  }
}

export default { render };
