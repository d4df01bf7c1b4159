"""Writes an autograder for Gradescope: a zip with the lab, the hidden tests, the rubric and Gradescope's two scripts.

Gradescope runs setup.sh once, as root, when it builds the image, and run_autograder for each submission. The latter
reads /autograder/submission and must always write /autograder/results/results.json.

Start at `pack()`.
"""

from __future__ import annotations

import re
import secrets
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from raftlab import layout
from raftlab.harness.lab_test import LabTest
from raftlab.layout import ROOT
from raftlab.tools.grade.values.rubric import Rubric

# A fixed time in the zip, so that equal contents give equal files.
_TIME = (1980, 1, 1, 0, 0, 0)

_SETUP = """\
#!/usr/bin/env bash
# Run once by Gradescope, when it builds the image.
set -euo pipefail
apt-get update
apt-get install -y bubblewrap libseccomp2
python=python3
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  apt-get install -y python3.11 python3.11-venv
  python=python3.11
else
  apt-get install -y python3-venv
fi
cd /autograder/source/raftlab
"$python" -m venv .venv
.venv/bin/python -m pip install --quiet -r requirements.lock
.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation --editable .
# A submission runs as another user. Only root may read these.
chmod -R go-rwx {secret}
"""

_RUN = """\
#!/usr/bin/env bash
# Run by Gradescope for each submission.
cd /autograder/source/raftlab
out=$(mktemp -d)
mkdir -p /autograder/results
# Without bubblewrap, submissions run with the system call filter, as a user who cannot read hidden tests.
if .venv/bin/lab grade /autograder/submission --single --no-sandbox --no-validation --no-pages \\
    --rubric ../rubric.toml {options}--out "$out"; then
  cp "$out"/students/*/results.json /autograder/results/results.json
else
  echo '{{"score": 0, "output": "The autograder itself failed; please tell the course staff."}}' \\
    > /autograder/results/results.json
fi
"""


def phrase(rubric: Rubric, hidden: Sequence[LabTest]) -> str:
    """The text from which the seeds are derived: the same for every submission, and unknown to students."""
    return rubric.seed_phrase(hidden) or secrets.token_hex(16)


def pack(
    target: Path,
    rubric_file: Path | None,
    rubric: Rubric,
    hidden: Sequence[LabTest],
    *,
    seeds_from: str,
    reference: Mapping[str, bytes] = MappingProxyType({}),
) -> None:
    """Write the zip. `rubric_file`: None for the default rubric.

    `seeds_from`: the phrase. The tests were validated with these seeds here, because Gradescope has no solution.
    `reference`: the peer that services run on, if it is not the submission's; no other part of a solution is packed.
    """
    text = "" if rubric_file is None else rubric_file.read_text(encoding="utf-8-sig")
    if not rubric.seed:
        # The rubric may have an empty one.
        text = re.sub(r"^\s*seed\s*=.*$", "", text, flags=re.MULTILINE)
        text = f'seed = "{seeds_from}"\n{text}'
    lab = layout.paths(layout.FOR_ALL, layout.FOR_GRADESCOPE)
    files = {f"raftlab/{path.relative_to(ROOT)}": path.read_bytes() for path in lab}
    files["rubric.toml"] = text.encode()
    for path in sorted({test.file for test in hidden}):
        files[f"hidden/{path.name}"] = path.read_bytes()
    files |= {f"reference/{name}": content for name, content in reference.items()}
    secret = [*(["hidden"] if hidden else []), *(["reference"] if reference else []), "rubric.toml"]
    options = "--hidden ../hidden " if hidden else ""
    options += "--solution ../reference/raft.py " if reference else ""
    files["setup.sh"] = _SETUP.format(secret=" ".join(f"/autograder/source/{name}" for name in secret)).encode()
    files["run_autograder"] = _RUN.format(options=options).encode()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in sorted(files.items()):
            info = zipfile.ZipInfo(name, _TIME)
            info.external_attr = (0o755 if name in ("setup.sh", "run_autograder") else 0o644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, content)
