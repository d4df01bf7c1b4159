"""The style of the pages of `lab grade`, and the script that sorts a table: page.css and sort.js, beside this file.

For light and dark screens, paper and phones. Failures are marked by a sign and a word, not only by color.
"""

from importlib.resources import files

_HERE = files("raftlab.tools.grade.pages")

CSS = _HERE.joinpath("page.css").read_text(encoding="utf-8")
# Without it the headers are plain text. A page opened with #sort=score is sorted by that column.
SORT_JS = _HERE.joinpath("sort.js").read_text(encoding="utf-8")
