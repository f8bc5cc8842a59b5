/* The dashboard: asks the API like everyone, and draws what it is allowed to see.
 *
 * What comes from outside is only ever a text node (`foreign`), never markup: the page's policy forbids the rest.
 * One request at a time, and none that waits: a page that is left open takes neither seat nor thread from users.
 */

const LOOK_MS = 2000; // for events; everything else when there was one, and each third time
const LONGEST_PAUSE_MS = 30000;
const CALL_MS = 10000;
const SHOWN_EVENTS = 50;
const PAGE = 500;
const LIVE = ["queued", "preparing", "active", "lost", "releasing"];
const LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
const COLOURS = 8;
const GIB = 2 ** 30;
const SVG = "http://www.w3.org/2000/svg";
const TOKEN = "token"; // in sessionStorage, which other ports of this machine do not share as they would a cookie

const known = { caller: null, node: null, devices: [], leases: [], events: [], cursor: 0 };
const letters = new Map(); // lease id: its letter, for as long as it is shown
const drawn = new Map(); // container and key: what an item was drawn from, and its element

/* -- text ------------------------------------------------------------------------------------------ */

// As gpulease does: controls, invisible formatting, surrogates, private use, unassigned, line separators.
const UNSAFE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;

function visible(value) {
  return String(value).replace(UNSAFE, (one) => {
    const code = one.codePointAt(0);
    const [mark, digits] = code < 0x100 ? ["x", 2] : code < 0x10000 ? ["u", 4] : ["U", 8];
    return `\\${mark}${code.toString(16).padStart(digits, "0")}`;
  });
}

/** Text from outside, which cannot turn the direction of what stands beside it. */
function foreign(value) {
  const isolated = document.createElement("bdi");
  isolated.textContent = visible(value);
  return isolated;
}

function element(tag, attributes, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function shape(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

const gib = (bytes) => `${(bytes / GIB).toFixed(1).replace(/\.0$/, "")} GiB`;
const sum = (numbers) => numbers.reduce((total, one) => total + (one ?? 0), 0);
const moment = (text) => foreign((text ?? "-").replace("T", " ").replace(/\.\d+Z$/, ""));
const count = (number, thing) => `${number} ${thing}${number === 1 ? "" : "s"}`;

/* -- the agent ------------------------------------------------------------------------------------- */

class Problem extends Error {
  constructor(status, answer, retryAfter) {
    super(answer.detail ?? answer.title ?? `status ${status}`);
    this.status = status;
    this.retryMs = Number(retryAfter ?? 0) * 1000;
  }
}

async function call(method, path, body) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const token = sessionStorage.getItem(TOKEN);
  if (token) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(path, {
    method,
    headers,
    body: body === undefined ? undefined : JSON.stringify(body),
    credentials: "omit",
    redirect: "error",
    signal: AbortSignal.timeout(CALL_MS),
  });
  const said = answer.status === 204 ? {} : await answer.json();
  if (!answer.ok) throw new Problem(answer.status, said, answer.headers.get("Retry-After"));
  return said;
}

async function leasesOf(states) {
  const found = [];
  for (let after = 0; after !== null; ) {
    const page = await call("GET", `/v1/leases?state=${states.join(",")}&limit=${PAGE}&after=${after}`);
    found.push(...page.leases);
    after = page.next;
  }
  return found;
}

const quarantined = (lease) => lease.slices.some((slice) => slice.state === "quarantined");

async function lookAtEverything() {
  known.node = await call("GET", "/v1/node");
  known.devices = (await call("GET", "/v1/devices")).devices;
  const leases = await leasesOf([...LIVE, "failed"]);
  known.leases = leases.filter((lease) => lease.state !== "failed" || quarantined(lease));
}

/** The events since the last look; at the first one the newest. Whether there were any. */
async function lookAtEvents() {
  const query = known.cursor ? `after=${known.cursor}&limit=${PAGE}` : `newest=${SHOWN_EVENTS}`;
  const page = await call("GET", `/v1/events?${query}`);
  const before = known.events.filter((old) => !page.events.some((event) => replaces(event, old)));
  known.events = [...before, ...page.events].slice(-SHOWN_EVENTS);
  known.cursor = page.next;
  return page.events;
}

/** Whether the agent has put *event* in the place of the *old* one, to which it is alike: it then counts both. */
function replaces(event, old) {
  const alike = ["kind", "lease", "device", "uid", "reason"].every((name) => event[name] === old[name]);
  return (event.count ?? 1) > 1 && alike && event.first_at === (old.first_at ?? old.at);
}

/* -- drawing --------------------------------------------------------------------------------------- */

/** Give each lease a letter that it keeps; one that is free again is the next lease's. */
function nameLeases() {
  const shown = new Set(known.leases.map((lease) => lease.id));
  for (const id of [...letters.keys()]) if (!shown.has(id)) letters.delete(id);
  const taken = new Set(letters.values());
  for (const lease of known.leases) {
    if (letters.has(lease.id) || lease.state === "queued") continue;
    const letter = [...LETTERS].find((one) => !taken.has(one)) ?? "#";
    taken.add(letter);
    letters.set(lease.id, letter);
  }
}

function markOf(lease, slice) {
  if (slice.state === "quarantined") return { text: "!", kind: "quarantined" };
  const text = letters.get(lease.id) ?? "#";
  return { text, kind: `k${Math.max(0, LETTERS.indexOf(text)) % COLOURS}` };
}

const swatch = (mark) => element("span", { class: `swatch ${mark.kind}` }, mark.text);

/** The CUs of a list such as 0-3,8. */
function members(list) {
  const found = [];
  for (const [, low, high] of (list ?? "").matchAll(/(\d+)(?:-(\d+))?/g))
    for (let at = Number(low); at <= Number(high ?? low) && at < 65536; at += 1) found.push(at);
  return found;
}

/** Every slice of the device that is not free, with its lease. */
function slicesOn(device) {
  return known.leases.flatMap((lease) =>
    lease.slices
      .filter((slice) => slice.device === device.device && slice.state !== "free")
      .map((slice) => ({ lease, slice, mark: markOf(lease, slice) })),
  );
}

/** Whose each CU is. Where a lease hides which it has, the first that are free are drawn, and marked so. */
function ownersOf(device, slices) {
  const owners = new Array(device.cus).fill(null);
  for (const { slice, mark } of slices)
    for (const cu of members(slice.cus)) if (cu < device.cus) owners[cu] = owners[cu] ? { text: "+", kind: "shared" } : mark;
  for (const { slice, mark } of slices) {
    let left = slice.cus === null ? slice.cu_count : 0;
    for (let cu = 0; cu < device.cus && left > 0; cu += 1)
      if (!owners[cu]) {
        owners[cu] = { ...mark, guessed: true };
        left -= 1;
      }
  }
  return owners;
}

const CELL = 13;
const GAP = 4;

/** Where a mask bit lies: XCC first, then shader engine, then array, then level; a pair stays together. */
function place(device, cu) {
  const xccs = device.xccs ?? 1;
  const engines = device.shader_engines ?? 1;
  const arrays = device.shader_arrays ?? 1;
  const pair = Math.max(1, Math.round((device.row ?? engines * xccs) / (xccs * engines * arrays)));
  const within = Math.floor(cu / xccs);
  const unit = Math.floor(within / pair);
  return {
    xcc: cu % xccs,
    engine: unit % engines,
    column: (Math.floor(unit / engines) % arrays) * pair + (within % pair),
    level: Math.floor(unit / (engines * arrays)),
    columns: arrays * pair,
  };
}

function cuMap(device, owners, label) {
  const engines = device.shader_engines ?? 1;
  const places = owners.map((_, cu) => place(device, cu));
  const columns = places[0]?.columns ?? 1;
  const levels = 1 + Math.max(0, ...places.map((one) => one.level));
  const blockWidth = engines * (columns * CELL + GAP) + 2 * GAP;
  const blockHeight = levels * CELL + 14 + 2 * GAP;
  const xccs = device.xccs ?? 1;
  const across = Math.min(xccs, 4);
  const size = `0 0 ${Math.max(across * blockWidth, 240)} ${Math.ceil(xccs / across) * blockHeight}`;
  const map = shape("svg", { class: "map", viewBox: size, role: "img", "aria-label": label });
  for (let xcc = 0; xcc < xccs; xcc += 1) {
    const x = (xcc % across) * blockWidth + blockWidth / 2;
    map.append(shape("text", { x, y: Math.floor(xcc / across) * blockHeight + 9 }, `XCC ${xcc}`));
  }
  owners.forEach((owner, cu) => {
    const at = places[cu];
    const x = (at.xcc % across) * blockWidth + at.engine * (columns * CELL + GAP) + at.column * CELL + GAP;
    const y = Math.floor(at.xcc / across) * blockHeight + at.level * CELL + 13;
    const kind = owner ? `cell ${owner.kind}${owner.guessed ? " guessed" : ""}` : "cell";
    map.append(shape("rect", { class: kind, x, y, width: CELL - 1, height: CELL - 1 }));
    if (owner) map.append(shape("text", { class: "mark", x: x + CELL / 2 - 0.5, y: y + 9 }, owner.text));
  });
  return map;
}

function vramBar(device, slices) {
  const own = sum(slices.map(({ slice }) => slice.vram_bytes));
  const elsewhere = Math.max(0, device.grantable_bytes - device.free.vram_bytes - own);
  const said = `VRAM: ${gib(device.free.vram_bytes)} of ${gib(device.grantable_bytes)} free`;
  const parts = slices.map(({ slice, mark }) => ({ bytes: slice.vram_bytes, ...mark }));
  if (elsewhere) parts.push({ bytes: elsewhere, kind: "elsewhere", text: "" });
  const bar = shape("svg", { viewBox: "0 0 400 18", role: "img", "aria-label": said });
  bar.append(shape("rect", { class: "cell", x: 0.5, y: 0.5, width: 399, height: 17 }));
  let x = 0.5;
  for (const part of parts) {
    const width = (399 * part.bytes) / Math.max(1, device.grantable_bytes);
    bar.append(shape("rect", { class: `cell ${part.kind}`, x, y: 0.5, width, height: 17 }));
    if (width > 8) bar.append(shape("text", { class: "mark", x: x + width / 2, y: 12.5 }, part.text));
    x += width;
  }
  const other = elsewhere ? `; ${gib(elsewhere)} of its pool are taken by others` : "";
  return [bar, element("p", { class: "facts" }, `${said}${other}`)];
}

function deviceCard(device, slices) {
  const healthy = device.state === "healthy";
  const title = `device-${device.device}`;
  const card = element("article", { "aria-labelledby": title });
  const facts = [device.product, device.gfx, device.render_node, device.compute_partition].filter(Boolean);
  card.append(
    element("h3", { id: title }, foreign(device.device)),
    element("p", { class: "facts" }, ...facts.flatMap((fact, at) => (at ? [", ", foreign(fact)] : [foreign(fact)]))),
    element("p", { class: healthy ? "good" : "bad" }, foreign(device.state), ...(device.reason ? [": ", foreign(device.reason)] : [])),
  );
  const owners = ownersOf(device, slices);
  const free = `${device.free.cus} of ${device.cus} CUs free, ${device.free.queue_slots} of ${device.queue_slots} queue slots`;
  if (device.cus) card.append(cuMap(device, owners, `Map of the CUs: ${free}`), element("p", { class: "facts" }, free));
  if (owners.some((owner) => owner?.guessed))
    card.append(element("p", { class: "facts" }, "Dashed: others' leases, which tell how many CUs they have, not which."));
  card.append(...vramBar(device, slices), legend(slices), ...deviceActions(device, slices));
  return card;
}

function legend(slices) {
  const list = element("ul", { class: "legend", role: "list" });
  for (const { lease, slice, mark } of slices) {
    const link = element("a", { href: `#lease-${lease.id}` }, `lease ${lease.id}`);
    const what = `: ${count(slice.cu_count, "CU")}${slice.shared ? " (+, shared)" : ""}, ${gib(slice.vram_bytes)}`;
    list.append(element("li", {}, swatch(mark), " ", link, what));
  }
  return list;
}

function table(caption, titles, rows) {
  const made = element("table", { role: "table", "aria-label": caption });
  const head = element("tr", { role: "row" }, ...titles.map((title) => element("th", { scope: "col", role: "columnheader" }, title)));
  made.append(element("thead", { role: "rowgroup" }, head));
  const body = element("tbody", { role: "rowgroup" });
  for (const { id, cells } of rows) {
    const row = element("tr", { role: "row", ...(id ? { id, tabindex: "-1" } : {}) });
    titles.forEach((title, at) => row.append(element("td", { role: "cell", "data-label": title }, ...[cells[at]].flat())));
    body.append(row);
  }
  made.append(body);
  return made;
}

function holderOf(lease) {
  const { kind, id, uid } = lease.holder;
  if (id === null) return [foreign(kind), " (not shown)"];
  return [foreign(`${kind}:${id}`), uid === null ? "" : ` uid ${uid}`];
}

function leaseTable(leases) {
  const titles = ["Lease", "State", "Holder", "Devices", "CUs", "VRAM", "Memory held by", "Ends"];
  if (known.caller.administrator) titles.push("Actions");
  const rows = leases.map((lease) => {
    const effective = lease.slices.map((slice) => slice.effective_cus).filter((one) => one !== null);
    const first = lease.slices[0];
    const cells = [
      [...(first ? [swatch(markOf(lease, first)), " "] : []), String(lease.id)],
      [foreign(quarantined(lease) ? "quarantined" : lease.state), ...(lease.reason ? [": ", foreign(lease.reason)] : [])],
      holderOf(lease),
      lease.slices.flatMap((slice, at) => (at ? [", ", foreign(slice.device)] : [foreign(slice.device)])),
      `${sum(lease.slices.map((slice) => slice.cu_count))}${effective.length ? ` (${sum(effective)} effective)` : ""}`,
      gib(sum(lease.slices.map((slice) => slice.vram_bytes))),
      foreign(lease.guarantee?.memory ?? "-"),
      moment(lease.expires_at),
      leaseActions(lease),
    ];
    return { id: `lease-${lease.id}`, cells };
  });
  return table("Leases", titles, rows);
}


function queueTable(waiting) {
  const titles = ["Place", "Lease", "Holder", "Priority", "Since", "Not before"];
  if (known.caller.administrator) titles.push("Actions");
  const place = (lease) => lease.queue?.position ?? Infinity; // not looked at yet: at the end
  const ordered = [...waiting].sort((one, other) => place(one) - place(other) || one.id - other.id);
  const rows = ordered.map((lease) => ({
    id: `lease-${lease.id}`,
    cells: [
      String(lease.queue?.position ?? "-"),
      String(lease.id),
      holderOf(lease),
      foreign(lease.priority ?? "-"),
      moment(lease.created_at),
      lease.queue?.earliest_at ? moment(lease.queue.earliest_at) : "-",
      leaseActions(lease),
    ],
  }));
  return table("Queue", titles, rows);
}

function eventTable() {
  const titles = ["Time", "What", "Lease", "Device", "Uid", "Why"];
  const rows = [...known.events].reverse().map((event) => ({
    cells: [
      moment(event.at),
      event.count > 1 ? [foreign(event.kind), ` ×${event.count}`] : foreign(event.kind),
      event.lease === null ? "" : String(event.lease),
      event.device === null ? "" : foreign(event.device),
      event.uid === null ? "" : String(event.uid),
      event.reason === null ? "" : foreign(event.reason),
    ],
  }));
  return table("Events", titles, rows);
}

/** Put *items* into the container, making anew only those that changed: what is unchanged keeps the focus. */
function fill(container, items) {
  const focused = document.activeElement?.id;
  const nodes = items.map(({ key, from, build }) => {
    const text = JSON.stringify(from);
    const before = drawn.get(`${container.id} ${key}`);
    if (before?.text === text) return before.node;
    const node = build();
    drawn.set(`${container.id} ${key}`, { text, node });
    return node;
  });
  const now = [...container.children];
  if (now.length === nodes.length && now.every((node, at) => node === nodes[at])) return;
  container.replaceChildren(...nodes);
  if (focused && document.activeElement?.id !== focused) document.getElementById(focused)?.focus();
}

/** What is switched off on the whole node, a line each. */
function warnings(node) {
  const because = (reason) => (reason ? [": ", foreign(reason)] : []);
  const found = (node.drains ?? []).filter((one) => one.device === null).map((one) => ["The node drains", ...because(one.reason)]);
  if (node.bypass) found.push(["Bypassed until ", moment(node.bypass.until), ...because(node.bypass.reason)]);
  return found.map((line) => element("p", { class: "bad" }, ...line));
}

function show() {
  nameLeases();
  const { node, caller } = known;
  at("node").replaceChildren(foreign(node.name), ", ", foreign(node.machine), ", version ", foreign(node.version));
  at("health").className = node.ready ? "good" : "bad";
  at("health").replaceChildren(...(node.ready ? ["ready"] : ["grants nothing new: ", foreign(node.reason ?? "no reason given")]));
  const who = caller.uid === null ? "you are nobody in particular, and may look" : `you are uid ${caller.uid}`;
  at("caller").textContent = `; ${who}${caller.administrator ? ", an administrator" : ""}`;
  fill(at("warnings"), [{ key: "all", from: [node.drains, node.bypass], build: () => element("div", {}, ...warnings(node)) }]);
  fill(
    at("device-list"),
    known.devices.map((device) => {
      const slices = slicesOn(device);
      const from = [device, slices, caller];
      return { key: device.device, from, build: () => deviceCard(device, slices) };
    }),
  );
  const waiting = known.leases.filter((lease) => lease.state === "queued");
  const held = known.leases.filter((lease) => lease.state !== "queued");
  list("lease-list", held, [...letters], () => leaseTable(held), "Nobody holds a lease.");
  list("queue-list", waiting, null, () => queueTable(waiting), "Nobody waits.");
  list("event-list", known.events, null, eventTable, "No event is shown to you.");
}

function list(id, items, more, build, nothing) {
  const from = [items, more, known.caller];
  fill(at(id), [{ key: "all", from, build: () => (items.length ? build() : element("p", {}, nothing)) }]);
}

const at = (id) => document.getElementById(id);

/* -- acts of administrators ------------------------------------------------------------------------ */

function button(id, text, label, act) {
  const made = element("button", { id, type: "button", "aria-label": label }, text);
  made.addEventListener("click", act);
  return made;
}

function deviceActions(device, slices) {
  if (!known.caller.administrator) return [];
  const path = `/v1/devices/${device.device.split("/").map(encodeURIComponent).join("/")}`;
  const key = visible(device.device);
  const acts =
    device.state === "draining"
      ? [["undrain", "Undrain", "Grant from it again."]]
      : [["drain", "Drain", "Grant nothing new from it; live leases stay."]];
  if (slices.some(({ slice }) => slice.state === "quarantined"))
    acts.push(["clear", "Clear", "Try the proof of its quarantined slices again now. It frees nothing without proof."]);
  return acts.map(([verb, title, what]) =>
    button(`${verb}-${device.device}`, title, `${title} ${key}`, () => act(`${title} ${key}`, what, "POST", `${path}/${verb}`, verb === "drain")),
  );
}

function leaseActions(lease) {
  if (!known.caller.administrator) return [];
  const path = `/v1/leases/${lease.id}`;
  const release = () => act(`Release lease ${lease.id}`, "End it now. What runs in it is ended, too.", "DELETE", path);
  const clear = () => act(`Clear lease ${lease.id}`, "Try the proof of its slices again now. It frees nothing without proof.", "POST", `${path}/clear`);
  const acts = [];
  if (LIVE.includes(lease.state)) acts.push(button(`release-${lease.id}`, "Release", `Release lease ${lease.id}`, release));
  if (quarantined(lease)) acts.push(button(`clear-${lease.id}`, "Clear", `Clear lease ${lease.id}`, clear));
  return acts;
}

async function act(title, what, method, path, drains = false) {
  at("ask-title").textContent = title;
  at("ask-what").textContent = what;
  at("ask-yes").textContent = title.split(" ")[0];
  at("ask-drain").hidden = !drains;
  at("reason").value = at("until").value = "";
  if (!(await asked())) return;
  const body = method === "DELETE" ? undefined : drains ? drainBody() : {};
  try {
    await call(method, path, body);
    at("fault").textContent = "";
    at("said").textContent = `${title}: done`;
  } catch (problem) {
    at("fault").textContent = `${title}: ${visible(problem.message)}`;
  }
  wake();
}

function drainBody() {
  const [reason, until] = [at("reason").value.trim(), at("until").value];
  return { ...(reason ? { reason } : {}), ...(until ? { until_seconds: Number(until) } : {}) };
}

/** Whether the dialog that stands ready was answered by yes. */
function asked() {
  const dialog = at("ask");
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((answer) => dialog.addEventListener("close", () => answer(dialog.returnValue === "yes"), { once: true }));
}

/* -- life ------------------------------------------------------------------------------------------ */

let wake = () => {};

function pause(ms) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    wake = () => {
      clearTimeout(timer);
      resolve();
    };
  });
}

async function look(turn) {
  const first = known.caller === null;
  if (first) known.caller = await call("GET", "/v1/caller");
  const news = await lookAtEvents();
  if (first || news.length || turn % 3 === 0) await lookAtEverything();
  show();
  const told = news.filter((event) => event.lease !== null).slice(-3);
  if (!first && told.length) at("said").textContent = told.map((event) => `lease ${event.lease} ${visible(event.kind)}`).join(", ");
}

function explain(problem) {
  const locked = problem.status === 401;
  if (locked) known.caller = null;
  at("login").hidden = !locked;
  const wrong = locked && sessionStorage.getItem(TOKEN);
  if (locked) sessionStorage.removeItem(TOKEN);
  at("fault").textContent = !locked
    ? `What is shown may be old: ${visible(problem.message)}`
    : wrong
      ? "That is not the token."
      : "";
}

async function live() {
  let failures = 0;
  for (let turn = 0; ; turn += 1) {
    let wait = LOOK_MS;
    try {
      await look(turn);
      if (failures) at("fault").textContent = "";
      failures = 0;
      at("login").hidden = true;
    } catch (problem) {
      failures += 1;
      turn = -1;
      explain(problem);
      wait = problem.status === 401 ? 2 ** 31 - 1 : Math.max(problem.retryMs ?? 0, Math.min(LOOK_MS * 2 ** failures, LONGEST_PAUSE_MS));
    }
    at("forget").hidden = !sessionStorage.getItem(TOKEN);
    await pause(wait);
    while (document.hidden) await pause(LONGEST_PAUSE_MS); // nobody looks
  }
}

/** A token behind the # of the address never leaves the browser but in the header. */
function takeToken() {
  const given = /^#token=(.+)$/.exec(location.hash);
  if (!given) return;
  sessionStorage.setItem(TOKEN, decodeURIComponent(given[1]));
  history.replaceState(null, "", location.pathname);
}

at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, at("token").value.trim());
  at("token").value = "";
  wake();
});
at("forget").addEventListener("click", () => {
  sessionStorage.removeItem(TOKEN);
  location.reload();
});
document.addEventListener("visibilitychange", () => wake());
takeToken();
live();
