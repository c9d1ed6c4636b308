// The page: the locks of a namespace, one lock, the backend. Text from the service is only ever set as
// text. No moment comes from the service: what is left of a lease is what it was when it answered.

const $ = (id) => document.getElementById(id);

/** An element with these properties and children. */
function make(name, properties = {}, ...children) {
  const { label, ...others } = properties;
  const it = Object.assign(document.createElement(name), others);
  if (label) it.dataset.label = label;
  it.append(...children);
  return it;
}

class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Asks the service; an answer that is a problem is thrown. */
async function ask(path, body, signal) {
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.authorization = `Bearer ${token}`;
  const options = { headers, signal, cache: "no-store" };
  if (body) {
    headers["content-type"] = "application/json";
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
  }
  const answer = await fetch(path, options);
  const json = await answer.json();
  if (!answer.ok) throw new Problem(answer.status, json.detail ?? answer.statusText);
  return json;
}

// What is shown, from the fragment: it stays in the browser, so that no name is in a request's path.

function place() {
  const at = new URLSearchParams(location.hash.slice(1));
  const [namespace, names, text] = ["namespace", "names", "text"].map((key) => at.get(key) ?? "");
  const name = at.get("name");
  return { namespace, names, text, name, space: at.get("space") ?? "lock" };
}

function link(parameters) {
  const kept = Object.entries(parameters).filter(([, value]) => value);
  return `#${new URLSearchParams(kept)}`;
}

let running = new AbortController();

/** Ends what is shown, and shows what the fragment says. */
function show() {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const at = place();
  $("login").hidden = true;
  $("locks").hidden = at.name !== null;
  $("lock").hidden = at.name === null;
  document.title = at.name === null ? "Locks" : `${at.name} – Locks`;
  every(5000, signal, () => showBackend(signal));
  if (at.name === null) {
    for (const key of ["namespace", "names", "text"]) {
      const field = $("filter").elements[key];
      if (field !== document.activeElement) field.value = at[key];
    }
    every(1000, signal, () => showLocks(place(), signal));
  } else {
    const key = { namespace: at.namespace, name: at.name, space: at.space };
    openLock(key);
    every(1000, signal, async () => showLine(key, await ask("/v1/inspect", key, signal)));
    follow(key, signal);
  }
}

/** Does it now and again, while the page is seen. */
async function every(pause, signal, step) {
  while (!signal.aborted) {
    if (!document.hidden) await attempt(signal, step);
    await sleep(pause, signal);
  }
}

/** Whether it was done; what went wrong is shown. */
async function attempt(signal, step) {
  try {
    await step();
    if (!signal.aborted) say("live", true);
    return true;
  } catch (error) {
    if (signal.aborted) return false;
    if (error.status === 401) {
      askForToken();
    } else {
      say(error instanceof Problem ? error.message : "the server does not answer", false);
    }
    return false;
  }
}

function sleep(milliseconds, signal) {
  return new Promise((done) => {
    setTimeout(done, milliseconds);
    signal.addEventListener("abort", done, { once: true });
  });
}

function say(text, well) {
  if ($("state").textContent !== text) $("state").textContent = text;
  $("state").className = well ? "good" : "bad";
}

function askForToken() {
  running.abort();
  for (const id of ["locks", "lock", "backend"]) $(id).hidden = true;
  $("login").hidden = false;
  say(sessionStorage.getItem("token") ? "this token is not known" : "a token is needed", false);
  $("login").elements.token.focus();
}

// The locks of a namespace.

async function showLocks(at, signal) {
  const page = await ask("/v1/list", { namespace: at.namespace, names: at.names }, signal);
  const wanted = at.text.toLowerCase();
  const locks = page.locks.filter((lock) => words(lock).includes(wanted));
  fill($("list"), locks.map(lockRow));
  const more = page.next ? `The first ${page.locks.length} locks: give more of the name. ` : "";
  $("none").textContent = locks.length ? more : `${more}No lock is in use here.`;
}

function words(lock) {
  const people = lock.queue.map((it) => `${who(it)} ${writtenNote(it) ?? ""}`);
  return `${lock.name} ${people.join(" ")}`.toLowerCase();
}

function lockRow(lock) {
  const holders = lock.queue.filter((it) => it.held_for_ms !== undefined);
  const waiting = lock.queue.length - holders.length;
  const first = holders[0] ?? lock.queue[0];
  const href = link({ namespace: lock.namespace, space: lock.space, name: lock.name });
  const held = holders.slice(0, 3).map((it) => make("div", {}, who(it)));
  if (holders.length > 3) held.push(make("div", { className: "tag" }, `and ${holders.length - 3} more`));
  if (first && writtenNote(first)) held.push(make("span", { className: "note" }, writtenNote(first)));
  return make("tr", { id: `row-${lock.space}-${lock.name}` },
    make("td", { label: "Name" },
      make("span", {}, make("a", { href }, lock.name), " ", make("span", { className: "tag" }, sharing(first)))),
    make("td", { label: "Held by" }, make("div", {}, ...held)),
    make("td", { label: "For", className: "number" }, duration(first?.held_for_ms)),
    make("td", { label: "TTL left", className: "number" }, duration(first?.expires_in_ms)),
    make("td", { label: "Waiting", className: "number" }, String(waiting)),
    make("td", { label: "Token", className: "number" }, first?.token ?? ""));
}

/** Replaces the rows that changed, so that the focus stays where it is. */
function fill(body, rows) {
  const old = new Map([...body.children].map((row) => [row.id, row]));
  const kept = rows.map((row) => {
    const before = old.get(row.id);
    if (!before) return row;
    [...row.children].forEach((cell, at) => {
      if (!before.children[at].isEqualNode(cell)) {
        const had = before.children[at].contains(document.activeElement);
        if (!had) before.children[at].replaceWith(cell);
      }
    });
    return before;
  });
  const same = kept.length === body.children.length && kept.every((row, at) => row === body.children[at]);
  if (!same) body.replaceChildren(...kept);
}

function who(standing) {
  const { host, pid, program } = standing.holder;
  return `${program}${pid ? `[${pid}]` : ""} on ${host}`;
}

function sharing(standing) {
  if (standing?.mode === "shared") return "shared";
  return standing?.mode === "permits" ? `semaphore of ${standing.limit}` : "";
}

function duration(milliseconds) {
  if (milliseconds === undefined) return "";
  const seconds = Math.floor(milliseconds / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const hours = Math.floor(seconds / 3600);
  if (hours < 48) return `${hours} h ${Math.floor(seconds / 60) % 60} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// One lock.

function openLock(key) {
  const kind = key.space === "semaphore" ? "Semaphore" : "Lock";
  $("back").href = link({ namespace: key.namespace });
  $("lock-title").textContent = key.name;
  $("lock-place").textContent = key.namespace ? `${kind} in the namespace ${key.namespace}` : kind;
  $("line").replaceChildren();
  $("timeline").replaceChildren();
  $("last-break").textContent = "";
}

function showLine(key, lock) {
  fill($("line"), lock.queue.map((it) => standingRow(key, it)));
  const last = lock.last_break;
  $("last-break").textContent = !lock.queue.length && !last ? "Nobody holds it." : last
    ? `Last broken${last.forced ? " by force" : ""} by ${who({ holder: last.by })}${last.reason ? `: ${last.reason}` : ""}`
    : "";
}

function standingRow(key, standing) {
  const holds = standing.held_for_ms !== undefined;
  const button = make("button", { type: "button", className: "danger" }, "Break");
  button.setAttribute("aria-label", `Break token ${standing.token}`);
  button.addEventListener("click", () => openBreak(key, standing));
  const state = standing.broken ? "broken, ends soon" : holds ? "holds" : "waits";
  const permits = standing.mode === "permits" ? ` ${standing.permits} of ${standing.limit}` : "";
  const shared = standing.mode === "shared" ? " shared" : "";
  return make("tr", { id: `token-${standing.token}` },
    make("td", { label: "State", className: standing.broken ? "bad" : holds ? "good" : "warn" }, state + permits + shared),
    make("td", { label: "Who" }, make("div", {}, who(standing), ...note(standing))),
    make("td", { label: "For", className: "number" }, duration(standing.held_for_ms ?? standing.queued_for_ms)),
    make("td", { label: "TTL left", className: "number" }, duration(standing.expires_in_ms)),
    make("td", { label: "Token", className: "number" }, standing.token),
    make("td", {}, button));
}

// The note as a person wrote it: lockkit's own marks follow a control character.
function writtenNote(standing) {
  return standing.note?.split("\u001f")[0];
}

function note(standing) {
  return writtenNote(standing) ? [make("span", { className: "note" }, writtenNote(standing))] : [];
}

/** Tells every change of the line, as it comes. */
async function follow(key, signal) {
  let before = null;
  while (!signal.aborted) {
    const well = await attempt(signal, async () => {
      const lock = before === null
        ? await ask("/v1/inspect", key, signal)
        : await ask("/v1/changed", { key, known: before.queue.map(seen), wait_ms: 20000 }, signal);
      if (signal.aborted) return;
      if (before !== null) tell(before, lock);
      showLine(key, lock);
      before = lock;
    });
    if (!well) await sleep(1000, signal);
  }
}

function seen({ token, mode, permits, limit, held_for_ms, broken }) {
  return { token, mode, permits, limit, holds: held_for_ms !== undefined, broken };
}

function tell(before, now) {
  const was = new Map(before.queue.map((it) => [it.token, it]));
  const is = new Map(now.queue.map((it) => [it.token, it]));
  const broken = JSON.stringify(before.last_break) !== JSON.stringify(now.last_break) ? now.last_break : null;
  for (const [token, it] of was) {
    if (!is.has(token)) happened(it, broken && !it.broken ? "left; the lock was broken meanwhile" : "left");
  }
  for (const [token, it] of is) {
    const old = was.get(token);
    const holds = it.held_for_ms !== undefined;
    if (!old) happened(it, holds ? "came and holds" : "came and waits");
    else if (holds && old.held_for_ms === undefined) happened(it, "holds");
    if (it.broken && !old?.broken) happened(it, "was broken gracefully");
    if (old && old.mode !== it.mode) happened(it, `is ${it.mode} now`);
  }
}

function happened(standing, what) {
  const now = new Date();
  const time = make("time", { dateTime: now.toISOString() }, now.toLocaleTimeString());
  $("timeline").prepend(make("li", {}, time, `${who(standing)}, token ${standing.token}: ${what}`));
  while ($("timeline").children.length > 500) $("timeline").lastChild.remove();
}

// Breaking a claim.

let breaking = null;

function openBreak(key, standing) {
  breaking = { key, token: standing.token };
  $("break").querySelector("form").reset();
  $("break-title").textContent = `Break token ${standing.token} of ${key.name}?`;
  $("break-who").textContent = `${who(standing)}${writtenNote(standing) ? `: ${writtenNote(standing)}` : ""}`;
  $("do-break").textContent = `Break token ${standing.token}`;
  $("break-error").textContent = "";
  $("break").showModal();
}

$("keep").addEventListener("click", () => $("break").close());

$("break").querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  const { reason, force } = event.target.elements;
  const by = { host: location.hostname, pid: 0, program: "page" };
  $("do-break").disabled = true;
  try {
    const body = { ...breaking, force: force.value === "yes", reason: reason.value, by };
    const { found } = await ask("/v1/break", body);
    if (found) $("break").close();
    else $("break-error").textContent = "This claim is not there any more.";
  } catch (error) {
    $("break-error").textContent = error.message;
  }
  $("do-break").disabled = false;
});

// The backend.

let capabilities = null;

async function showBackend(signal) {
  capabilities ??= await ask("/v1/capabilities", null, signal);
  fill($("faults"), capabilities.faults.map(([fault, keeps]) => make("tr", { id: `fault-${fault}` },
    make("td", { label: "Fault" }, fault.replaceAll("_", " ")),
    make("td", { label: "Holds", className: KEEPS[keeps][1] }, KEEPS[keeps][0]))));
  const health = await ask("/v1/health", null, signal);
  $("server").textContent = health.server;
  const findings = health.findings.map((it) => make("li", {},
    make("span", { className: { problem: "bad", warning: "warn" }[it.severity] ?? "" }, `${it.severity}: ${it.what}`),
    make("span", { className: "note" }, it.advice)));
  if (!findings.length) findings.push(make("li", { className: "good" }, "Nothing is wrong with it."));
  $("findings").replaceChildren(...findings);
  $("backend").hidden = false;
}

const KEEPS = {
  all: ["exclusion and tokens", "good"],
  tokens: ["tokens grow; two may hold at once", "warn"],
  nothing: ["neither exclusion nor tokens", "bad"],
  impossible: ["cannot happen here", ""],
};

$("login").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", event.target.elements.token.value.trim());
  event.target.reset();
  capabilities = null;
  show();
});

$("filter").addEventListener("submit", (event) => event.preventDefault());
$("filter").addEventListener("input", () => {
  const { namespace, names, text } = $("filter").elements;
  history.replaceState(null, "", link({ namespace: namespace.value, names: names.value, text: text.value }));
  show();
});

addEventListener("hashchange", show);
show();
