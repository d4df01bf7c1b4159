"""The page as one file: style, script and data in it, nothing outside it.

The script is the modules of web/, put one after the other in the order in which they need each other; nobody needs
Node. The data is deflated JSON in base64, which a browser unpacks by itself. A policy in the page forbids whatever is
not this very script and this very style, so what a peer writes can be shown and can do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import zlib
from pathlib import Path
from typing import Any

_WEB = Path(__file__).parent / "web"
_MAIN = "main.js"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)


def render_page(data: dict[str, Any], title: str) -> str:
    script, style = bundle(), (_WEB / "page.css").read_text(encoding="utf-8")
    ours = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'"
    policy = f"default-src 'none'; {ours}; base-uri 'none'; form-action 'none'"
    shell = (_WEB / "shell.html").read_text(encoding="utf-8")
    # One pass: nothing that is put in is looked at again.
    parts = {"TITLE": html.escape(title), "POLICY": policy, "STYLE": style, "SCRIPT": script, "DATA": compressed(data)}
    return re.sub(r"@@([A-Z]+)@@", lambda found: parts[found[1]], shell)


def compressed(data: dict[str, Any]) -> str:
    # ASCII, so that no text, however broken, is more than text.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("ascii"), 6)).decode()


def bundle() -> str:
    """All modules as one script."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        source = (_WEB / name).read_text(encoding="utf-8")
        for needed in _IMPORT.findall(source):
            add(needed)
        done[name] = re.sub(r"^export ", "", _IMPORT.sub("", source), flags=re.MULTILINE)

    add(_MAIN)
    return '"use strict";\n' + "\n".join(done.values())


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
