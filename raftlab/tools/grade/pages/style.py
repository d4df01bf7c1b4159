"""How the pages of `lab grade` look, and the few lines of script that sort a table: page.css and sort.js, beside this.

Light and dark, paper and telephone. One accent colour; failures have a sign and a word besides theirs.
"""

from importlib.resources import files

_HERE = files("raftlab.tools.grade.pages")

CSS = _HERE.joinpath("page.css").read_text(encoding="utf-8")
# Without it the headers are plain words. A page opened with #sort=score is sorted by that column at once.
SORT_JS = _HERE.joinpath("sort.js").read_text(encoding="utf-8")
