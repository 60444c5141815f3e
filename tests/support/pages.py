"""Pages as a browser reads them: their scripts, what they would request, what Chromium makes."""

import shutil
import subprocess
from html.parser import HTMLParser

ATTACKS = [
    "</script><script>document.title='owned'</script>",
    "<!--<script>document.title='owned'</script>",
    "<img src=x onerror=\"document.title='owned'\">",
    "'\"><svg onload=document.title='owned'>",
    "${document.title='owned'}",
    "\u2028document.title='owned'//",
    "]]><script>document.title='owned'</script>",
    "javascript:document.title='owned'",
    "</title><script>document.title='owned'</script>",
    "</svg></figure><iframe srcdoc='<script>parent.document.title=1</script>'>",
    "\\u003cscript\\u003edocument.title='owned'",
    "&lt;script&gt;document.title='owned'&lt;/script&gt;",
]


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__()
        self.scripts, self.tags, self.addresses, self._in_script = [], [], [], False

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "srcdoc")]
        self.addresses += [name for name, _ in attrs if name.startswith("on")]
        if tag == "script":
            self.scripts.append("")
            self._in_script = True

    def handle_endtag(self, tag):
        self._in_script = self._in_script and tag != "script"

    def handle_data(self, data):
        if self._in_script:
            self.scripts[-1] += data


def read(page):
    """The page, read."""
    reader = _Reader()
    reader.feed(page)
    return reader


def scripts(page):
    """The text of each script element: data and code."""
    return read(page).scripts


def chromium():
    """Debian's browser, or None."""
    return shutil.which("chromium")


def rendered(file, folder):
    """The document as it is after its scripts ran in Chromium."""
    command = [chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += ["--virtual-time-budget=2000", f"--user-data-dir={folder}", file.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout
