"""The frame of the page: styles, scripts and data inlined, and a policy that lets nothing else run."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from regress.errors import UsageError

BOKEH_SCRIPTS = ("bokeh.min.js", "bokeh-api.min.js")
OWN_SCRIPTS = ("data.js", "figure.js", "chart.js", "panel.js", "views.js", "page.js")


def page(first_screen: str, block: Mapping[str, Any]) -> str:
    """The document: the first screen as text first, then data, then the scripts that draw it."""
    own = "\n".join(_own(name) for name in OWN_SCRIPTS)
    scripts = [*_bokeh(), f"(() => {{\n\"use strict\";\n{own}}})();"]
    data = _for_script(block)
    parts = {
        "policy": _policy(scripts),
        "style": _own("page.css"),
        "first_screen": first_screen,
        "data": data,
        "scripts": "".join(f"<script>{script}</script>\n" for script in scripts),
    }
    document = _own("page.html")
    # One split and join, so that text which happens to look like a placeholder stays text.
    pieces = document.split("%%")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(pieces))


def _own(name: str) -> str:
    return resources.files("regress.publish.html").joinpath("assets").joinpath(name).read_text(encoding="utf-8")


def _bokeh() -> list[str]:
    """BokehJS from the installed package's own files; the package itself is not imported."""
    spec = importlib.util.find_spec("bokeh")
    if spec is None or spec.origin is None:
        raise UsageError("Bokeh is not installed, and the charts of the report are drawn by it",
                         where="HTML report", next_step="pip install 'comm-regress[report]'")
    folder = Path(spec.origin).parent / "server" / "static" / "js"
    try:
        return [_closed((folder / name).read_text(encoding="utf-8")) for name in BOKEH_SCRIPTS]
    except OSError as error:
        raise UsageError(f"Bokeh's scripts cannot be read: {error}", where="HTML report",
                         next_step="pip install --force-reinstall 'comm-regress[report]'") from error


def _closed(script: str) -> str:
    """A script that cannot end its own element early."""
    return script.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _for_script(block: Mapping[str, Any]) -> str:
    """JSON that stays inside a script element whatever strings it holds."""
    encoded = msgspec.json.encode(block).decode("utf-8")
    for character in "<>&\u2028\u2029":
        encoded = encoded.replace(character, f"\\u{ord(character):04x}")
    return encoded


def _policy(scripts: list[str]) -> str:
    """Only these very scripts run; nothing is fetched, framed or submitted. Bokeh styles its parts inline."""
    hashes = " ".join("'sha256-" + base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() + "'"
                      for s in scripts)
    return (f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data: blob:; "
            "base-uri 'none'; form-action 'none'")
