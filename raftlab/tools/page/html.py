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

WEB = Path(__file__).parent / "web"
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)


def render_page(data: dict[str, Any], title: str) -> str:
    script, style = bundle("main.js"), (WEB / "page.css").read_text(encoding="utf-8")
    text = (WEB / "shell.html").read_text(encoding="utf-8")
    return fill(text, title, script, style, policy_for(script, style), compressed(data))


def fill(text: str, title: str, script: str, style: str, policy: str, data: str = "") -> str:
    """In one pass: nothing that is put in is looked at again."""
    parts = {"TITLE": html.escape(title), "POLICY": policy, "STYLE": style, "SCRIPT": script, "DATA": data}
    return re.sub(r"@@([A-Z]+)@@", lambda found: parts[found[1]], text)


def policy_for(script: str, style: str, *, connect: str = "'none'") -> str:
    """What a browser lets the page do: run this script, with this style, and connect to nothing else."""
    ours = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'; connect-src {connect}"
    return f"default-src 'none'; {ours}; base-uri 'none'; form-action 'none'"


def compressed(data: dict[str, Any]) -> str:
    # ASCII, so that no text, however broken, is more than text.
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return base64.b64encode(zlib.compress(text.encode("ascii"), 6)).decode()


def bundle(main: str, *folders: Path) -> str:
    """A module and all that it needs as one script, from these folders and the page's."""
    done: dict[str, str] = {}

    def add(name: str) -> None:
        if name in done:
            return
        path = next(folder / name for folder in (*folders, WEB) if (folder / name).is_file())
        source = path.read_text(encoding="utf-8")
        for needed in _IMPORT.findall(source):
            add(needed)
        done[name] = re.sub(r"^export ", "", _IMPORT.sub("", source), flags=re.MULTILINE)

    add(main)
    return '"use strict";\n' + "\n".join(done.values())


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
