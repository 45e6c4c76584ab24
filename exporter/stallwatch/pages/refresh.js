// Keeps the page up to date without loading it again: what is open, focused, selected or scrolled to stays so.
"use strict";

(() => {
  const root = document.documentElement;
  const EVERY = 1000 * Number(root.dataset.refresh);
  const PATIENCE = 2 * EVERY;
  const unreachable = document.getElementById("unreachable");
  const news = document.getElementById("news");
  let reachedAt = new Date();
  let timer = 0;

  async function fetched() {
    const response = await fetch(location.pathname + location.search, {
      cache: "no-store",
      signal: AbortSignal.timeout(PATIENCE),
    });
    if (!response.ok) throw new Error(`answered with ${response.status}`);
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    if (!page.documentElement.dataset.build) throw new Error("something else answered");
    return page;
  }

  // Servers by name and what is wrong with the watching: a change of these is worth being spoken, a new age is not.
  function state(page) {
    const told = new Map();
    for (const card of page.querySelectorAll("[data-server]")) told.set(card.dataset.server, card.dataset.verdict);
    for (const warning of page.querySelectorAll("main [data-warning]")) told.set(warning.dataset.warning, "");
    return told;
  }

  function changes(before, after) {
    const lines = [];
    for (const [name, word] of after) {
      if (before.get(name) !== word) lines.push(word ? `${name} is now ${word}.` : name);
    }
    for (const [name, word] of before) if (!after.has(name) && word) lines.push(`${name} is gone.`);
    return lines.join(" ");
  }

  // Makes `old` equal to `fresh` by touching only what differs, so that the rest keeps its state in the browser.
  function morph(old, fresh) {
    if (old.nodeName !== fresh.nodeName || old.id !== fresh.id) {
      old.replaceWith(fresh);
    } else if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== fresh.data) old.data = fresh.data;
    } else {
      morphAttributes(old, fresh);
      morphChildren(old, fresh);
    }
  }

  function morphAttributes(old, fresh) {
    // The reader opens and closes; the server has a say only when its own mind changes.
    const keepsOpen = old.nodeName === "DETAILS" && old.dataset.open === fresh.dataset.open;
    const kept = (name) => keepsOpen && name === "open";
    for (const { name } of [...old.attributes]) if (!kept(name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) {
      if (!kept(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
    }
  }

  function morphChildren(old, fresh) {
    const byId = new Map([...old.children].filter((child) => child.id).map((child) => [child.id, child]));
    let place = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const known = child.id ? byId.get(child.id) : place && !place.id ? place : null;
      if (!known) {
        old.insertBefore(child, place);
        continue;
      }
      if (known === place) place = place.nextSibling;
      else old.insertBefore(known, place);
      morph(known, child);
    }
    while (place) {
      const next = place.nextSibling;
      place.remove();
      place = next;
    }
  }

  function show(page) {
    if (page.documentElement.dataset.build !== root.dataset.build) return location.reload(); // another version serves
    const before = state(document);
    const focused = document.activeElement;
    document.title = page.title;
    morph(document.querySelector("link[rel=icon]"), page.querySelector("link[rel=icon]"));
    morph(document.querySelector("main"), page.querySelector("main"));
    if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
    localize();
    const told = changes(before, state(document));
    if (told) news.textContent = told;
  }

  function localize() {
    for (const time of document.querySelectorAll("time")) time.title = new Date(time.dateTime).toLocaleString();
  }

  async function refresh() {
    clearTimeout(timer);
    if (document.hidden) return;
    try {
      show(await fetched());
      reachedAt = new Date();
      unreachable.hidden = true;
    } catch (error) {
      if (unreachable.hidden) {
        unreachable.textContent =
          `Cannot reach the exporter since ${reachedAt.toLocaleTimeString()} (${error.message}). ` +
          "What stands below is how things were then.";
        unreachable.hidden = false;
      }
    }
    timer = setTimeout(refresh, EVERY);
  }

  document.addEventListener("visibilitychange", refresh);
  localize();
  timer = setTimeout(refresh, EVERY);
})();
