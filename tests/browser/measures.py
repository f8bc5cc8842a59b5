"""What a page must have for everybody, measured in the browser: text's contrast, and the way of the focus."""

from __future__ import annotations

from typing import Any

from tests.browser.chromium import Page

# Each text that is shown, the contrast of it with what is behind it, and where. WCAG 2.2, 1.4.3.
_CONTRAST = """
(() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = ([red, green, blue]) => {
    const [r, g, b] = [red, green, blue].map((one) => {
      const part = one / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const opaque = (text) => text !== "none" && (parse(text)[3] ?? 1) === 1;
  const behind = (element) => {
    for (let one = element; one; one = one.parentElement) {
      const back = getComputedStyle(one).backgroundColor;
      if (opaque(back)) return back;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim(), element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility() || element.closest("script, option, noscript")) continue;
    const style = getComputedStyle(element);
    const drawn = element.namespaceURI.endsWith("svg");
    const rectangle = drawn && element.classList.contains("mark") && element.previousElementSibling;
    const colour = drawn ? style.fill : style.color;
    const back = rectangle ? getComputedStyle(rectangle).fill : behind(element);
    const [high, low] = [light(parse(colour)), light(parse(back))].sort((one, other) => other - one);
    found.push({ text, contrast: (high + 0.05) / (low + 0.05), where: element.tagName, colour, back });
  }
  return found;
})()
"""
_FOCUSED = """
(() => {
  const one = document.activeElement, style = getComputedStyle(one), box = one.getBoundingClientRect();
  return {
    name: one.id || one.textContent || one.tagName,
    body: one === document.body,
    outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    inside: box.bottom > 0 && box.top < innerHeight && box.width > 0,
  };
})()
"""
_REACHABLE = """
[...document.querySelectorAll("a[href], button, input, select, [tabindex='0']")]
  .filter((one) => one.checkVisibility() && !one.disabled && !one.closest("dialog:not([open])"))
  .map((one) => one.id || one.textContent || one.tagName)
"""
_NAMED = frozenset(
    {"button", "link", "textbox", "combobox", "image", "img", "table", "region", "form", "dialog"}
    | {"navigation", "article"}
)


def contrasts(page: Page) -> list[dict[str, Any]]:
    """Each shown text with its contrast."""
    return page.value(_CONTRAST)


def nameless(page: Page) -> list[str]:
    """Controls, pictures and landmarks that a screen reader could not name."""
    return [
        f"{node['role']['value']} {node.get('nodeId')}"
        for node in page.tree()
        if node["role"]["value"] in _NAMED and not node.get("name", {}).get("value")
    ]


def way_of_the_focus(page: Page) -> list[dict[str, Any]]:
    """Where Tab leads, from the page's start to its end."""
    page.value("document.activeElement.blur()")
    way: list[dict[str, Any]] = []
    while len(way) < 200:
        page.press("Tab")
        at = page.value(_FOCUSED)
        if at["body"] or (way and at["name"] == way[0]["name"]):
            return way
        way.append(at)
    return way


def reachable(page: Page) -> list[str]:
    """What Tab has to lead to, in the order of the document."""
    return page.value(_REACHABLE)
