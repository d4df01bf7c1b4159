"""The page as one self-contained file with style, script and data.

The script is the modules of web/ in dependency order; Node is not needed. The data is deflated JSON in base64, which
browsers can unpack. The content security policy allows only this script and this style, so text from a peer is
harmless.
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
    """One pass, so that inserted text is not replaced again."""
    parts = {"TITLE": html.escape(title), "POLICY": policy, "STYLE": style, "SCRIPT": script, "DATA": data}
    return re.sub(r"@@([A-Z]+)@@", lambda found: parts[found[1]], text)


def policy_for(script: str, style: str, *, connect: str = "'none'") -> str:
    """The content security policy: only this script and this style, and connections only to `connect`."""
    ours = f"script-src '{_hash(script)}'; style-src '{_hash(style)}'; connect-src {connect}"
    return f"default-src 'none'; {ours}; base-uri 'none'; form-action 'none'"


def compressed(data: dict[str, Any]) -> str:
    # ASCII, so that malformed text cannot break the page.
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
