// perdure: what pages do by themselves. Everything works without this file: it keeps pages
// current, marks changed fields, and adds keys. It never inserts text of others as HTML, except
// for parts of this server's own pages.

const root = document.documentElement;
const linkElement = document.querySelector("pd-link");

/* ---- the connection, as people see it ---- */

let offlineSince = null;
let failures = 0;

function showLink(name) {
  if (!linkElement) return;
  linkElement.hidden = false;
  root.dataset.link = linkElement.dataset.link = name;
  if (name === "live") {
    failures = 0;
    offlineSince = null;
  } else {
    failures += 1;
    offlineSince ??= new Date();
  }
  const since = offlineSince?.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  const isOffline = failures > 2;
  if (isOffline) linkElement.dataset.link = "offline";
  linkElement.textContent = name === "live" ? "live" : isOffline ? `offline since ${since}` : "reconnecting…";
}

/* ---- live parts: a signal says that something changed, then the page asks for itself ---- */

const sources = new WeakMap(); // of live parts: the HTML that the server sent for them

function remember(part) {
  sources.set(part, part.outerHTML);
}

function isTouched(part) {
  return part.contains(document.activeElement) && document.activeElement.matches("input, textarea, select")
    || part.querySelector("[data-touched]") !== null;
}

function copyOpenDetails(from, to) {
  for (const details of from.querySelectorAll("details[id]")) {
    const twin = to.querySelector(`#${CSS.escape(details.id)}`);
    if (twin) twin.open = details.open;
  }
}

function replacePart(old, part) {
  const html = part.outerHTML;
  if (sources.get(old) === html) return;
  if (isTouched(old) && old.dataset.state === part.dataset.state) return;
  if (old.contains(document.activeElement) && document.activeElement.id) {
    queueMicrotask(focusById(document.activeElement.id));
  }
  copyOpenDetails(old, part);
  if (old.hasAttribute("data-selected")) part.setAttribute("data-selected", "");
  old.replaceWith(part);
  sources.set(part, html);
  showTimes(part);
}

function focusById(id) {
  return () => document.getElementById(id)?.focus({ preventScroll: true });
}

// A list gets its new parts at the end: nothing moves under a finger that is about to tap.
function updateList(list, fresh) {
  const parts = [...fresh.children].filter((part) => part.id);
  const ids = new Set(parts.map((part) => part.id));
  for (const old of [...list.children]) {
    if (old.id && !ids.has(old.id)) retire(old, fresh.ownerDocument);
  }
  for (const part of parts) {
    const old = document.getElementById(part.id);
    if (old) {
      replacePart(old, part);
    } else {
      sources.set(part, part.outerHTML);
      list.append(part);
      showTimes(part);
    }
  }
}

// A call that was settled elsewhere stays where it is, without its buttons, and says by whom.
function retire(old, fresh) {
  const outcome = fresh.getElementById(`done-${old.id}`);
  if (!old.matches("[data-keep]") || !outcome) {
    if (!old.matches("[data-keep].settled")) old.remove();
    return;
  }
  if (old.classList.contains("settled")) return;
  old.classList.add("settled");
  for (const form of old.querySelectorAll("form, .pick")) form.remove();
  const text = document.createElement("p");
  text.setAttribute("role", "status");
  text.textContent = outcome.querySelector("[data-outcome]")?.textContent ?? "";
  old.append(text);
}

// What somebody types into stays where it is, whatever appears or disappears above it.
function holdPlace() {
  const place = document.activeElement?.closest("main form, main [data-row]");
  const top = place?.getBoundingClientRect().top;
  return () => {
    if (!place?.isConnected) return;
    scrollBy({ top: place.getBoundingClientRect().top - top, behavior: "instant" });
  };
}

async function refresh() {
  let response;
  try {
    response = await fetch(location.href, { headers: { Accept: "text/html" } });
  } catch {
    return;
  }
  if (response.status === 401) location.reload();
  if (!response.ok && response.status !== 409 && response.status !== 404) return;
  applyPage(await response.text());
}

function applyPage(html) {
  const release = holdPlace();
  const fresh = new DOMParser().parseFromString(html, "text/html");
  const before = parseInt(document.getElementById("inbox-count")?.textContent ?? "0", 10);
  document.title = fresh.title;
  for (const old of document.querySelectorAll("[data-live]")) {
    if (!old.closest("[data-live-list]") && !fresh.getElementById(old.id)) old.remove();
  }
  for (const part of [...fresh.querySelectorAll("[data-live], [data-live-list]")]) {
    const old = part.id && document.getElementById(part.id);
    if (!old) continue;
    if (part.hasAttribute("data-live-list")) updateList(old, part);
    else if (!part.parentElement?.closest("[data-live-list]")) replacePart(old, part);
  }
  for (const note of document.querySelectorAll("[data-streamed]")) note.textContent = "";
  release();
  notifyOfMore(before);
  return fresh;
}

// Output of a command that runs, as text; it follows the end unless somebody scrolled up.
function showOutput(text) {
  const target = document.querySelector("[data-output]");
  if (!target) return;
  const isAtEnd = target.scrollTop + target.clientHeight >= target.scrollHeight - 8;
  target.append(text);
  if (isAtEnd) target.scrollTop = target.scrollHeight;
}

class LiveSource extends HTMLElement {
  connectedCallback() {
    this.delay = 1000;
    document.addEventListener("visibilitychange", () => this.follow());
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", () => this.follow());
    this.follow();
  }

  // One connection per visible tab: browsers allow six to a server. A tab that was asked to
  // notify keeps its connection while it is hidden.
  follow() {
    const isNeeded = !document.hidden || isNotifying();
    if (isNeeded && !this.source) this.open();
    if (!isNeeded) this.close();
  }

  open() {
    const source = (this.source = new EventSource(this.getAttribute("src")));
    for (const name of this.getAttribute("on").split(" ")) {
      source.addEventListener(name, () => this.signal());
    }
    source.addEventListener("delta", (event) => showDelta(JSON.parse(event.data)));
    source.addEventListener("output", (event) => showOutput(JSON.parse(event.data).text));
    source.addEventListener("finished", () => this.followPage());
    source.onopen = () => {
      this.delay = 1000;
      document.querySelector("[data-output]")?.replaceChildren(); // the stream begins again
      showLink("live");
      this.signal();
    };
    source.onerror = () => {
      showLink("away");
      if (source.readyState !== EventSource.CLOSED || this.source !== source) return;
      this.source = null;
      setTimeout(() => this.follow(), this.delay);
      this.delay = Math.min(this.delay * 2, 15000);
    };
  }

  // The stream of a command ends with it, and would begin again: follow the page itself instead.
  followPage() {
    this.close();
    this.setAttribute("src", location.pathname + location.search);
    this.follow();
  }

  close() {
    this.source?.close();
    this.source = null;
  }

  // At most one request at a time, and pauses that grow with what a page costs.
  signal() {
    this.isDue = true;
    if (!this.timer) this.timer = setTimeout(() => this.update(), this.pause ?? 80);
  }

  async update() {
    this.isDue = false;
    const start = performance.now();
    await refresh();
    this.pause = Math.max(150, Math.min(5 * (performance.now() - start), 3000));
    this.timer = this.isDue ? setTimeout(() => this.update(), this.pause) : null;
  }
}

function showDelta(delta) {
  const place = document.querySelector("[data-streamed]");
  if (!place) return;
  if (delta.kind === "reset") place.textContent = "";
  if (delta.kind === "text") place.append(document.createTextNode(delta.text));
}

/* ---- times ---- */

const UNITS = [["d", 86400000], ["h", 3600000], ["min", 60000], ["s", 1000]];

function span(ms) {
  const first = UNITS.findIndex(([, size]) => ms >= size);
  if (first < 0) return "0 s";
  const [name, size] = UNITS[first];
  const count = Math.floor(ms / size);
  const next = UNITS[first + 1];
  if (!next || name === "min" || count >= 10) return `${count} ${name}`;
  const rest = Math.floor((ms % size) / next[1]);
  return rest ? `${count} ${name} ${rest} ${next[0]}` : `${count} ${name}`;
}

function showTimes(part = document) {
  const now = Date.now() + clockShift;
  for (const time of part.querySelectorAll("time[data-ms]")) {
    const ms = Number(time.dataset.ms);
    const date = new Date(ms);
    time.title = `${date.toLocaleString()} (${time.dateTime})`;
    if (time.dataset.kind === "clock") time.textContent = date.toLocaleTimeString([], { hour12: false });
    if (time.dataset.kind === "ago") time.textContent = now - ms < 5000 ? "just now" : `${span(now - ms)} ago`;
    if (time.dataset.kind === "left") {
      time.textContent = ms > now ? `${span(ms - now)} left` : `overdue by ${span(now - ms)}`;
    }
  }
}

const serverNow = Number(document.querySelector("[data-now]")?.dataset.now ?? 0);
const clockShift = serverNow ? serverNow - Date.now() : 0;

/* ---- forms ---- */

addEventListener("input", (event) => {
  event.target.dataset.touched = "";
  const form = event.target.form;
  if (form?.matches("[data-changes]")) markChanges(form);
});

function markChanges(form) {
  const names = [];
  for (const field of form.querySelectorAll(".field[data-name]")) {
    const input = field.querySelector("[name]:not([type=hidden])");
    const isChanged = input.value.replaceAll("\r\n", "\n") !== (input.dataset.was ?? "");
    field.classList.toggle("changed", isChanged);
    const was = field.querySelector(".was");
    was.hidden = !isChanged;
    was.textContent = input.dataset.was ? `was ${input.dataset.was}` : "was not set";
    if (isChanged) names.push(field.dataset.name);
  }
  form.querySelector("[name=confirmed]").value = JSON.stringify(names);
  const button = document.querySelector(`[data-approve][form=${form.id}]`);
  if (!button) return;
  const word = names.length === 1 ? "change" : "changes";
  button.querySelector("span").textContent = names.length ? `Approve with ${names.length} ${word}` : "Approve";
}

// A form of a card is sent without leaving the page: what was typed into other cards stays. The
// card changes only when the server has answered.
addEventListener("submit", async (event) => {
  const form = event.target;
  if (form.method === "dialog") return;
  if (event.submitter?.dataset.confirm && !confirm(event.submitter.dataset.confirm)) {
    event.preventDefault();
    return;
  }
  if (!form.matches("[data-inline]")) return;
  event.preventDefault();
  const body = new URLSearchParams(new FormData(form, event.submitter));
  setBusy(form, true);
  try {
    const response = await fetch(form.getAttribute("action"), { method: "POST", body, headers: { Accept: "text/html" } });
    const html = await response.text();
    if (response.ok && new URL(response.url).pathname === location.pathname) {
      for (const input of form.querySelectorAll("[data-touched]")) delete input.dataset.touched;
      document.activeElement?.blur();
      applyPage(html);
    } else if (response.ok) {
      location.assign(response.url);
    } else {
      showAnswer(form, html);
      refresh();
    }
  } catch {
    showProblem(form, "The server cannot be reached. Nothing was sent; try again.");
  } finally {
    setBusy(form, false);
  }
});

function setBusy(form, isBusy) {
  for (const button of form.querySelectorAll("button")) button.disabled = isBusy;
}

function showAnswer(form, html) {
  const fresh = new DOMParser().parseFromString(html, "text/html");
  const text = [...fresh.querySelectorAll("main h1, main .field-error, main .notice p:not(.actions, .notice-code)")];
  showProblem(form, text.map((part) => part.textContent.trim()).filter(Boolean).join(" "));
}

function showProblem(form, text) {
  let place = form.querySelector(".field-error[role=alert]");
  if (!place) {
    place = document.createElement("p");
    place.className = "field-error";
    place.setAttribute("role", "alert");
    form.append(place);
  }
  place.textContent = text;
}

/* ---- the task that was opened last ---- */

const TASK = "perdure.task";
const DECISIONS = ["approve", "edit", "respond"];

class LastTask extends HTMLElement {
  async connectedCallback() {
    const own = document.querySelector("[data-task]");
    if (own?.dataset.task) localStorage.setItem(TASK, own.dataset.task);
    await this.ask();
  }

  // Asks only while a task is remembered and no stream tells of changes.
  async ask() {
    const reference = localStorage.getItem(TASK);
    clearTimeout(this.timer);
    if (!reference) return this.show(null);
    const status = await taskStatus(reference);
    if (status === "lost") this.showLost();
    else if (status?.isPaused) this.showPaused(status);
    else this.show(null);
    if (root.dataset.link !== "live") this.timer = setTimeout(() => this.ask(), 5000);
  }

  show(parts) {
    this.hidden = !parts;
    this.replaceChildren();
    if (!parts) return;
    const wrap = document.createElement("div");
    wrap.className = "wrap";
    wrap.setAttribute("role", "status");
    wrap.append(...parts);
    this.append(wrap);
  }

  showPaused(status) {
    if (document.querySelector("[data-task]") || document.querySelector("[data-quiet-task]")) return this.show(null);
    const link = document.createElement("a");
    link.href = status.url;
    link.textContent = "Open";
    this.show([`Task paused - waiting for ${status.isForYou ? "your input" : "others"}`, link]);
  }

  showLost() {
    const restart = document.createElement("button");
    restart.className = "plain";
    restart.textContent = "Restart";
    restart.addEventListener("click", () => {
      localStorage.removeItem(TASK);
      location.assign(document.querySelector(".brand").href.replace(/\/$/, "") + "/sessions#new");
    });
    this.show(["Task state lost. Would you like to restart?", restart]);
  }
}

// A reference is the id of a task with the address of its session, which alone can be asked.
async function taskStatus(reference) {
  const [taskID, address] = reference.split(" ");
  try {
    const response = await fetch(address, { headers: { Accept: "application/json" } });
    if (response.status === 404) return "lost";
    if (!response.ok) return null;
    const session = await response.json();
    if (session.findings.some((finding) => finding.code === "STORE_CORRUPT")) return "lost";
    const isForYou = session.pending.some((call) => call.can.some((act) => DECISIONS.includes(act)));
    return { url: address, isPaused: session.taskID === taskID && session.state === "waiting", isForYou };
  } catch {
    return null;
  }
}

/* ---- desktop notifications, on request ---- */

function isNotifying() {
  return "Notification" in window && Notification.permission === "granted" && document.querySelector("[data-notify]") !== null;
}

function notifyOfMore(before) {
  const count = parseInt(document.getElementById("inbox-count")?.textContent ?? "0", 10);
  if (count > before && document.hidden && isNotifying()) {
    new Notification("perdure", { body: `${count} waiting for a decision`, tag: "perdure-inbox" });
  }
}

function offerNotifications() {
  const button = document.querySelector("[data-notify]");
  if (!button || !("Notification" in window)) return;
  const show = () => {
    button.hidden = Notification.permission === "denied";
    button.querySelector("span").textContent = Notification.permission === "granted" ? "Notifications are on" : "Notify me";
    button.disabled = Notification.permission === "granted";
  };
  show();
  button.addEventListener("click", async () => {
    await Notification.requestPermission();
    show();
  });
}

/* ---- keys ---- */

function rows() {
  return [...document.querySelectorAll("[data-row]")];
}

function selected() {
  return document.querySelector("[data-row][data-selected]");
}

function select(step) {
  const all = rows();
  if (!all.length) return;
  const now = all.indexOf(selected());
  const next = all[Math.min(Math.max(now + step, 0), all.length - 1)];
  selected()?.removeAttribute("data-selected");
  next.setAttribute("data-selected", "");
  next.scrollIntoView({ block: "nearest" });
  next.querySelector("a, button, input")?.focus({ preventScroll: true });
}

function press(kind) {
  const place = selected() ?? document;
  const target = place.querySelector(`[data-key=${kind}]`) ?? document.querySelector(`main [data-key=${kind}]`);
  if (!target) return false;
  if (kind === "a" && !target.classList.contains("armed")) {
    for (const other of document.querySelectorAll(".armed")) other.classList.remove("armed");
    target.classList.add("armed");
    target.focus();
    target.addEventListener("blur", () => target.classList.remove("armed"), { once: true });
    return true;
  }
  if (target.matches("input, textarea, select")) target.focus();
  else target.click();
  return true;
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.key === "Escape" && location.hash && document.querySelector(".sheet:target")) location.hash = "decide";
  if (event.target.matches("input, textarea, select, [contenteditable]") && !event.target.matches("[type=checkbox], [type=radio]")) return;
  if (document.querySelector("dialog[open]")) return;
  const acts = {
    j: () => select(1),
    k: () => select(-1),
    a: () => press("a"),
    d: () => press("d"),
    e: () => press("e"),
    f: () => press("f"),
    "/": () => document.querySelector("[data-search]")?.focus(),
    "?": () => document.getElementById("keys").showModal(),
  };
  if (!acts[event.key]) return;
  event.preventDefault();
  acts[event.key]();
});

addEventListener("hashchange", () => {
  document.querySelector(".sheet:target textarea, .sheet:target input:not([type=hidden])")?.focus();
});

/* ---- start ---- */

for (const part of document.querySelectorAll("[data-live], [data-live-list] > [id]")) remember(part);
for (const form of document.querySelectorAll("[data-changes]")) markChanges(form);
for (const part of document.querySelectorAll("[data-script]")) part.hidden = false;
showTimes();
setInterval(showTimes, 15000);
offerNotifications();
customElements.define("pd-live", LiveSource);
customElements.define("pd-task", LastTask);
