"use strict";
/* A chat over asyncgen.v1. Texts of others enter the page as text nodes only. */

const $ = (id) => document.getElementById(id);

/** Make an element; children are elements or texts. */
function make(tag, properties = {}, ...children) {
  const found = Object.assign(document.createElement(tag), properties);
  found.append(...children);
  return found;
}

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#i-${name}`);
  svg.append(use);
  return svg;
}

/** Not crypto.randomUUID, which plain http does not have. */
function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** The socket is where the page is, or where ?url= says; relative addresses are fine. */
function socketAddress() {
  const asked = new URLSearchParams(location.search).get("url") ?? location.pathname;
  let address;
  try { address = new URL(asked, location.href); } catch { return { href: asked, host: "", protocol: "" }; }
  address.protocol = { "http:": "ws:", "https:": "wss:" }[address.protocol] ?? address.protocol;
  address.hash = "";
  return address;
}

const address = socketAddress();

/* What outlives a reload. Everything is kept by address: another server gets neither token nor chat. */
const store = {
  get(name, fallback) {
    try { return JSON.parse(sessionStorage.getItem(`asyncgen ${name} ${address}`)) ?? fallback; } catch { return fallback; }
  },
  set(name, value) {
    try { sessionStorage.setItem(`asyncgen ${name} ${address}`, JSON.stringify(value)); return true; } catch { return false; /* full or forbidden: the page works on without */ }
  },
};
